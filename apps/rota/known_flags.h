// Which flags the commands know, for messages about those that they do not.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace rota {

using Commands = std::vector<const CLI::App*>;

// All commands, and theirs.
void collect_commands(const CLI::App& app, Commands& out);

// The command that the first arguments name ("eval ppl"), and how many they are.
std::pair<const CLI::App*, size_t> named_command(const std::vector<std::string>& arguments,
                                                 const CLI::App& app);

// Without its dashes: the one that differs in the fewest letters.
std::string nearest_flag(const std::string& flag, const Commands& commands);

// Words that begin with "--" are flags of the command that is named. kInvalidArgument names one that
// is none, and the nearest that is.
Status check_flags(const std::vector<std::string>& arguments, const CLI::App& app);

}  // namespace rota
