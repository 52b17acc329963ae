#include "rota/config_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <optional>

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

Result<std::vector<std::string>> expand_config(std::vector<std::string> arguments) {
  ROTA_ASSIGN_OR_RETURN(const std::optional<std::string> file, take_config(arguments));
  if (!file || arguments.empty()) return arguments;
  YAML::Node root;
  try {
    root = YAML::LoadFile(*file);
  } catch (const YAML::BadFile&) {
    return error(StatusCode::kNotFound, "--config {}: the file cannot be read", *file);
  } catch (const YAML::Exception& fault) {
    return invalid_argument("--config {}: line {}: not valid YAML", *file, fault.mark.line + 1);
  }
  if (root.IsNull()) return arguments;
  if (!root.IsMap())
    return invalid_argument("--config {}: expected lines of the form 'flag: value'", *file);
  std::vector<std::string> from_file;
  for (const auto& entry : root) {
    if (!entry.first.IsScalar())
      return invalid_argument("--config {}: a key must be the name of a flag", *file);
    ROTA_RETURN_IF_ERROR(append(*file, entry.first.Scalar(), entry.second, from_file));
  }
  arguments.insert(arguments.begin() + 1, from_file.begin(), from_file.end());
  return arguments;
}

}  // namespace rota
