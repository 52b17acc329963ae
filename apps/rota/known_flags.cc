#include "rota/known_flags.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string_view>

namespace rota {
namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j + 1] + 1, row[j] + 1});
    }
  }
  return row.back();
}

}  // namespace

void collect_commands(const CLI::App& app, Commands& out) {
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    out.push_back(command);
    collect_commands(*command, out);
  }
}

std::pair<const CLI::App*, size_t> named_command(const std::vector<std::string>& arguments,
                                                 const CLI::App& app) {
  const CLI::App* command = &app;
  for (size_t depth = 0; depth < arguments.size(); ++depth) {
    const auto subcommands = command->get_subcommands(
        [&](const CLI::App* sub) { return sub->get_name() == arguments[depth]; });
    if (subcommands.empty()) return {command, depth};
    command = subcommands.front();
  }
  return {command, arguments.size()};
}

std::string nearest_flag(const std::string& flag, const Commands& commands) {
  std::string nearest;
  size_t least = SIZE_MAX;
  for (const CLI::App* command : commands) {
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        const size_t distance = edit_distance(flag.substr(2), name);
        if (distance < least) {
          least = distance;
          nearest = name;
        }
      }
    }
  }
  return nearest;
}

Status check_flags(const std::vector<std::string>& arguments, const CLI::App& app) {
  const CLI::App* command = named_command(arguments, app).first;
  if (command == &app) return {};
  for (const std::string& it : arguments) {
    if (it == "--") break;
    if (!it.starts_with("--")) continue;
    const std::string flag = it.substr(0, it.find('='));
    if (command->get_option_no_throw(flag) != nullptr) continue;
    return invalid_argument("{}: `rota {}` has no such flag; the nearest is --{}", flag,
                            command->get_name(), nearest_flag(flag, {command}));
  }
  return {};
}

}  // namespace rota
