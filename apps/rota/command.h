// A subcommand of `rota`: it adds its flags to the parser and gets called when it was named. One
// file each.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <functional>
#include <string>

#include "base/status.h"

namespace rota {

// What a command does after its flags were read. The error is printed and becomes exit code 1.
using CommandRun = std::function<Status()>;

// Each adds its subcommand to `app` and returns what runs it.
CommandRun add_serve(CLI::App& app);
CommandRun add_chat(CLI::App& app);
CommandRun add_generate(CLI::App& app);
CommandRun add_score(CLI::App& app);
CommandRun add_plan(CLI::App& app);
CommandRun add_backends(CLI::App& app);
CommandRun add_bench(CLI::App& app);
CommandRun add_eval(CLI::App& app);
CommandRun add_doctor(CLI::App& app);

}  // namespace rota
