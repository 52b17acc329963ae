#include "rota/config_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <set>
#include <utility>

#include "base/log.h"
#include "rota/flags.h"
#include "rota/known_flags.h"

namespace rota {
namespace {

constexpr std::string_view kFlag = "--config";

// Takes `--config FILE` or `--config=FILE` out of the arguments.
Result<std::optional<std::string>> take_config(std::vector<std::string>& arguments) {
  std::optional<std::string> file;
  for (auto it = arguments.begin(); it != arguments.end();) {
    if (*it == kFlag) {
      if (it + 1 == arguments.end())
        return invalid_argument("--config needs a file: --config FILE.yaml");
      file = *(it + 1);
      it = arguments.erase(it, it + 2);
    } else if (it->starts_with("--config=")) {
      file = it->substr(kFlag.size() + 1);
      it = arguments.erase(it);
    } else {
      ++it;
    }
  }
  if (!file) {
    if (const char* from_environment = std::getenv("ROTA_CONFIG")) file = from_environment;
  }
  return file;
}

std::string flag_of(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return "--" + key;
}

bool has_flag(const CLI::App& command, const std::string& flag) {
  return command.get_option_no_throw(flag) != nullptr;
}

Status append(const std::string& file, const std::string& key, const YAML::Node& value,
              std::vector<std::string>& out) {
  const std::string flag = flag_of(key);
  if (std::getenv(environment_name(flag).c_str()) != nullptr) return {};
  if (value.IsSequence()) {
    for (const YAML::Node& entry : value) {
      if (!entry.IsScalar())
        return invalid_argument("{}: {}: a list may hold only plain values", file, key);
      out.push_back(flag + "=" + entry.Scalar());
    }
    return {};
  }
  if (value.IsNull()) return {};
  if (!value.IsScalar()) {
    return invalid_argument("{}: {}: must be a plain value or a list of those", file, key);
  }
  const std::string& text = value.Scalar();
  // A boolean without quotes is a switch: --flag or --no-flag.
  if (value.Tag() != "!" && (text == "true" || text == "false")) {
    out.push_back(text == "true" ? flag : "--no-" + flag.substr(2));
  } else {
    out.push_back(flag + "=" + text);
  }
  return {};
}

}  // namespace

std::string environment_name(const std::string& flag) {
  std::string name = "ROTA_";
  for (const char c : flag.substr(2)) {
    name.push_back(c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c))));
  }
  return name;
}

Result<std::vector<std::string>> expand_config(std::vector<std::string> arguments,
                                               const CLI::App& app) {
  ROTA_ASSIGN_OR_RETURN(const std::optional<std::string> file, take_config(arguments));
  if (!file || arguments.empty()) return arguments;
  ROTA_ASSIGN_OR_RETURN(const std::string text, read_flag_file(kFlag, *file));
  YAML::Node root;
  try {
    root = YAML::Load(text);
  } catch (const YAML::Exception& fault) {
    return invalid_argument("--config {}: line {}: not valid YAML", *file, fault.mark.line + 1);
  }
  if (root.IsNull()) return arguments;
  if (!root.IsMap())
    return invalid_argument("--config {}: expected lines of the form 'flag: value'", *file);
  const auto [command, depth] = named_command(arguments, app);
  Commands commands;
  collect_commands(app, commands);
  std::vector<std::string> from_file;
  std::set<std::string> seen;
  for (const auto& entry : root) {
    if (!entry.first.IsScalar())
      return invalid_argument("--config {}: a key must be the name of a flag", *file);
    const std::string flag = flag_of(entry.first.Scalar());
    if (flag == kFlag)
      return invalid_argument("--config {}: config: a file cannot name another one", *file);
    if (!seen.insert(flag).second) {
      return invalid_argument("--config {}: {}: is given twice; a list is written [a, b]", *file,
                              entry.first.Scalar());
    }
    if (!has_flag(*command, flag)) {
      const bool known = std::any_of(commands.begin(), commands.end(),
                                     [&](const CLI::App* one) { return has_flag(*one, flag); });
      if (!known) {
        return invalid_argument("--config {}: {}: there is no such key; the nearest is {}", *file,
                                entry.first.Scalar(), nearest_flag(flag, commands));
      }
      log::debug("--config {}: {} is another command's: ignored", *file, entry.first.Scalar());
      continue;
    }
    ROTA_RETURN_IF_ERROR(append(*file, entry.first.Scalar(), entry.second, from_file));
  }
  arguments.insert(arguments.begin() + static_cast<std::ptrdiff_t>(depth), from_file.begin(),
                   from_file.end());
  return arguments;
}

}  // namespace rota
