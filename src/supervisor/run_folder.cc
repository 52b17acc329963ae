#include "supervisor/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "base/log.h"
#include "engine/engine_rank.h"
#include "platform/clock.h"

namespace rota {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "rota-run-";
constexpr const char* kFrontAliveFile = "front-alive";
constexpr double kSecondsForRanksToEnd = 5;

// A file that processes hold locks of: -1 if it cannot be opened.
int open_lock(const fs::path& path, int flags) {
  return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags, 0600);
}

bool is_free(const fs::path& path) {
  const int fd = open_lock(path, 0);
  if (fd < 0) return false;
  const bool taken = ::flock(fd, LOCK_EX | LOCK_NB) == 0;
  ::close(fd);
  return taken;
}

// Without the file no rank could tell that it lives: it comes before the first.
bool ranks_have_ended(const fs::path& folder) {
  const fs::path file = folder / kRanksAliveFile;
  return is_free(file) || (::access(file.c_str(), F_OK) != 0 && errno == ENOENT);
}

void wait_for_ranks(const fs::path& folder) {
  const auto start = Clock::now();
  while (!ranks_have_ended(folder) && seconds_since(start) < kSecondsForRanksToEnd) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// A process that has just ended may have made a file meanwhile.
bool remove_folder(const fs::path& folder) {
  std::error_code fault;
  for (int attempt = 0; attempt < 10; ++attempt) {
    fs::remove_all(folder, fault);
    if (!fs::exists(folder)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

bool is_ours(const fs::path& path) {
  struct stat found{};
  return ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
         found.st_uid == ::geteuid();
}

// What fronts that were killed have left.
void remove_abandoned(const fs::path& parent) {
  std::error_code fault;
  for (const fs::directory_entry& it : fs::directory_iterator(parent, fault)) {
    const bool named = it.path().filename().string().starts_with(kPrefix);
    if (named && is_ours(it.path()) && is_free(it.path() / kFrontAliveFile) &&
        ranks_have_ended(it.path())) {
      remove_folder(it.path());
    }
  }
}

}  // namespace

Result<RunFolder> RunFolder::make() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  const bool usable = runtime != nullptr && *runtime != '\0' && ::access(runtime, W_OK | X_OK) == 0;
  return make_under(usable ? runtime : "/tmp");
}

Result<RunFolder> RunFolder::make_under(const fs::path& parent) {
  remove_abandoned(parent);
  std::string path = (parent / kPrefix).string() + "XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) {
    return error(
        StatusCode::kIo,
        "a folder for the engine's run in {}: {}; set XDG_RUNTIME_DIR to one that takes it",
        parent.string(), std::strerror(errno));
  }
  const int ranks = open_lock(fs::path(path) / kRanksAliveFile, O_CREAT);
  if (ranks >= 0) ::close(ranks);
  // It gets its name when it is locked: a folder without it is being made, and left alone.
  const fs::path unlocked = fs::path(path) / "new";
  const int front = open_lock(unlocked, O_CREAT);
  RunFolder folder(path, front);
  if (ranks < 0 || front < 0 || ::flock(front, LOCK_EX) != 0 ||
      ::rename(unlocked.c_str(), (fs::path(path) / kFrontAliveFile).c_str()) != 0) {
    return error(StatusCode::kIo, "files in {}: {}", path, std::strerror(errno));
  }
  return folder;
}

RunFolder::RunFolder(RunFolder&& other) noexcept
    : path_(std::exchange(other.path_, fs::path())), lock_(std::exchange(other.lock_, -1)) {}

RunFolder::~RunFolder() {
  if (path_.empty()) return;
  wait_for_ranks(path_);
  if (!remove_folder(path_)) log::warning("{} could not be deleted", path_.string());
  if (lock_ >= 0) ::close(lock_);
}

}  // namespace rota
