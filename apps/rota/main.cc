// rota: serves mixture-of-experts language models on CPUs. See `rota --help`.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/log.h"
#include "engine/engine_rank.h"
#include "engine/engine_server.h"
#include "engine/probe_rank.h"
#include "rota/command.h"
#include "rota/config_file.h"
#include "rota/flags.h"
#include "rota/known_flags.h"

namespace rota {
namespace {

// The engine's own process, started by `rota serve`: rota engine-worker --fd N. No command for
// people.
int engine_worker(int argc, char** argv) {
  int fd = -1;
  if (argc == 4 && std::string_view(argv[2]) == "--fd") {
    const std::string_view text = argv[3];
    std::from_chars(text.data(), text.data() + text.size(), fd);
  }
  if (fd < 0) {
    std::fprintf(stderr, "rota engine-worker: is started by `rota serve`, not by hand\n");
    return 2;
  }
  return run_engine_worker(fd);
}

// One of several ranks, started by mpirun for `rota serve`: rota engine-rank --front PATH.
int engine_rank(int argc, char** argv) {
  if (argc != 4 || std::string_view(argv[2]) != "--front") {
    std::fprintf(stderr, "rota engine-rank: is started by `rota serve`, not by hand\n");
    return 2;
  }
  return run_engine_rank(argv[3]);
}

// One of the ranks that `rota doctor` starts: rota doctor-rank OPTIONS FOLDER.
int doctor_rank(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "rota doctor-rank: is started by `rota doctor`, not by hand\n");
    return 2;
  }
  return run_probe_rank(argv[2], argv[3]);
}

constexpr int kWrongUse = 2;  // exit code

int fail(const Status& status, int code = 1) {
  std::fprintf(stderr, "rota: %s\n", status.message().c_str());
  return code;
}

int run(int argc, char** argv) {
  CLI::App app{
      "rota serves mixture-of-experts language models on CPUs, from their original checkpoints.",
      "rota"};
  app.set_version_flag("--version", ROTA_VERSION);
  app.require_subcommand(1);
  app.fallthrough(false);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.footer(
      "Every flag can also be set as an environment variable (--max-num-seqs: ROTA_MAX_NUM_SEQS) "
      "and in a YAML file "
      "(--config FILE). The command line wins over the environment, the environment over the "
      "file.");

  const std::vector<std::pair<const char*, CommandRun>> commands = {
      {"serve", add_serve(app)},       {"chat", add_chat(app)},   {"generate", add_generate(app)},
      {"score", add_score(app)},       {"eval", add_eval(app)},   {"plan", add_plan(app)},
      {"backends", add_backends(app)}, {"bench", add_bench(app)}, {"doctor", add_doctor(app)}};

  const auto is_command = [&](const auto& one) { return std::string_view(one.first) == argv[1]; };
  if (argc > 1 && argv[1][0] != '-' && std::none_of(commands.begin(), commands.end(), is_command)) {
    std::fprintf(stderr, "rota: there is no command '%s'; see rota --help\n", argv[1]);
    return kWrongUse;
  }
  const Status environment = log::check_environment();
  if (!environment.ok()) return fail(environment);
  std::vector<std::string> given(argv + 1, argv + argc);
  expand_short_flags(given);
  Result<std::vector<std::string>> arguments = expand_config(std::move(given), app);
  if (!arguments.ok()) return fail(arguments.status());
  const Status known = check_flags(*arguments, app);
  if (!known.ok()) return fail(known, kWrongUse);
  std::vector<std::string> reversed(arguments->rbegin(),
                                    arguments->rend());  // CLI11 takes them from the end
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& problem) {
    return app.exit(problem) == 0 ? 0 : kWrongUse;
  }
  for (const auto& [name, command] : commands) {
    if (!app.got_subcommand(name)) continue;
    const Status status = command();
    return status.ok() ? 0 : fail(status);
  }
  return kWrongUse;
}

std::string describe(const std::exception& thrown) {
  const auto* refused = dynamic_cast<const std::system_error*>(&thrown);
  if (refused == nullptr || refused->code() != std::errc::resource_unavailable_try_again) {
    return thrown.what();
  }
  return fmt::format(
      "a thread could not be started: {}; raise the limits of threads (ulimit -u) and memory "
      "(ulimit -v), or give fewer --threads",
      thrown.what());
}

// What nobody caught is said in a line. Nothing is unwound: in a rank MPI's end would wait for the
// others, whom this one's end is to end.
[[noreturn]] void end_of_exception() {
  const std::exception_ptr thrown = std::current_exception();
  if (thrown == nullptr) std::abort();
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& it) {
    std::fprintf(stderr, "rota: %s\n", describe(it).c_str());
  } catch (...) {
    std::fprintf(stderr, "rota: an exception of no known kind\n");
  }
  std::fflush(nullptr);
  std::_Exit(1);
}

// A command's engine is ended, and its files deleted, by unwinding.
int run_or_tell(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& it) {
    return fail(Status(StatusCode::kInternal, describe(it)));
  }
}

}  // namespace
}  // namespace rota

int main(int argc, char** argv) {
  std::set_terminate(rota::end_of_exception);
  // Whoever closed a standard stream would else have a socket or a model file in its place.
  for (int fd = open("/dev/null", O_RDWR); fd >= 0 && fd <= STDERR_FILENO;)
    fd = open("/dev/null", O_RDWR);
  if (argc > 1 && std::string_view(argv[1]) == "engine-worker")
    return rota::engine_worker(argc, argv);
  if (argc > 1 && std::string_view(argv[1]) == "engine-rank") return rota::engine_rank(argc, argv);
  if (argc > 1 && std::string_view(argv[1]) == "doctor-rank") return rota::doctor_rank(argc, argv);
  return rota::run_or_tell(argc, argv);
}
