#include "golden/synth.h"

#include <spawn.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

extern char** environ;

namespace rota::golden {
namespace {

// The exit status of a program found in PATH; its output goes where ours does.
Result<int> run_program(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int failed =
      posix_spawnp(&child, arguments[0], nullptr, nullptr, arguments.data(), environ);
  if (failed != 0) {
    return error(StatusCode::kIo, "{}: cannot be started: {}", command[0], std::strerror(failed));
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return error(StatusCode::kIo, "waiting: {}", std::strerror(errno));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

}  // namespace

Result<SynthCheckpoint> SynthCheckpoint::make(const std::string& reference_dir,
                                              const std::string& name,
                                              const std::vector<std::string>& arguments) {
  const char* python = std::getenv("ROTA_PYTHON");
  SynthCheckpoint made(std::string(ROTA_SCRATCH_DIR) + "/" + name);
  std::filesystem::create_directories(made.dir());
  std::vector<std::string> command{python == nullptr ? "python3" : python,
                                   reference_dir + "/synth.py", "--out", made.dir()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  ROTA_ASSIGN_OR_RETURN(const int status, run_program(command));
  if (status != 0) {
    return error(StatusCode::kIo,
                 "{} {} ended with {}: it needs numpy; name an interpreter that has it in "
                 "ROTA_PYTHON",
                 command[0], command[1], status);
  }
  return made;
}

SynthCheckpoint::~SynthCheckpoint() {
  std::error_code ignored;
  if (!dir_.empty()) std::filesystem::remove_all(dir_, ignored);
}

Result<std::vector<std::string>> pack_arguments(const std::string& reference_dir,
                                                const std::string& name) {
  std::ifstream file(reference_dir + "/packs.json");
  const nlohmann::json packs = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (packs.is_discarded() || !packs.contains(name)) {
    return error(StatusCode::kNotFound, "{}/packs.json: no pack {}", reference_dir, name);
  }
  return packs.at(name).get<std::vector<std::string>>();
}

}  // namespace rota::golden
