#include "supervisor/check_launch.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/un.h>

#include "supervisor/local_launch.h"
#include "supervisor/run_folder.h"

namespace rota {
namespace {

namespace fs = std::filesystem;

// With fewer mpirun starts no rank, and does not end either.
constexpr uint64_t kLeastDescriptors = 64;
// MPI's queues and windows, before a model's rows travel through them.
constexpr uint64_t kBytesOfRank = 16 << 20;

double megabytes(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

uint64_t descriptors_allowed() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

// A file system that does not say how large it is is not judged.
Status check_file_system(const fs::path& folder, int ranks) {
  struct statvfs found{};
  if (::statvfs(folder.c_str(), &found) != 0 || found.f_blocks == 0) return {};
  return check_room(folder.parent_path(), uint64_t{found.f_bavail} * found.f_frsize, ranks);
}

}  // namespace

Status check_descriptors(uint64_t most) {
  if (most >= kLeastDescriptors) return {};
  return error(StatusCode::kResourceExhausted,
               "this process may open {} files, and mpirun needs {}; raise the limit (ulimit -n)",
               most, kLeastDescriptors);
}

Status check_room(const fs::path& parent, uint64_t free_bytes, int ranks) {
  const uint64_t needed = kBytesOfRank * static_cast<uint64_t>(ranks);
  if (free_bytes >= needed) return {};
  return error(
      StatusCode::kResourceExhausted,
      "{}: {:.1f} MB are free, and the shared memory of {} rank(s) here needs {:.0f}; make "
      "room, or set XDG_RUNTIME_DIR to a folder that has it",
      parent.string(), megabytes(free_bytes), ranks, megabytes(needed));
}

Status check_length(const fs::path& folder) {
  constexpr size_t kMost = sizeof(sockaddr_un::sun_path) - 1;
  const std::string socket = (folder / kFrontSocket).string();
  if (socket.size() <= kMost) return {};
  return invalid_argument("{}: longer than {} bytes; set XDG_RUNTIME_DIR to a shorter path", socket,
                          kMost);
}

Status check_launch(int ranks, const std::string& hostfile) {
  ROTA_RETURN_IF_ERROR(status_of(find_mpirun()));
  ROTA_RETURN_IF_ERROR(check_descriptors(descriptors_allowed()));
  ROTA_ASSIGN_OR_RETURN(const RunFolder folder, RunFolder::make());
  ROTA_RETURN_IF_ERROR(check_length(folder.path()));
  return check_file_system(folder.path(), hostfile.empty() ? ranks : 1);
}

}  // namespace rota
