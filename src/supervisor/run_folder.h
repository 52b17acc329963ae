// A folder for the files of one life of an engine: the front's socket, MPI's shared memory.
//
//   ROTA_ASSIGN_OR_RETURN(RunFolder folder, RunFolder::make());   // $XDG_RUNTIME_DIR/rota-run-X4k2Qp
//
// Contract: for this user alone (mode 700), under $XDG_RUNTIME_DIR or else /tmp, deleted with all
// that is in it when the object goes, once the ranks of this host have ended. A front that was
// killed leaves its folder; the next one that is made there deletes it.
#pragma once

#include <filesystem>
#include <utility>

#include "base/status.h"

namespace rota {

inline constexpr const char* kFrontSocket = "front";  // on which the front awaits rank 0

class RunFolder {
 public:
  static Result<RunFolder> make();
  static Result<RunFolder> make_under(const std::filesystem::path& parent);

  RunFolder(RunFolder&& other) noexcept;
  RunFolder& operator=(RunFolder&&) = delete;
  ~RunFolder();

  const std::filesystem::path& path() const { return path_; }

 private:
  RunFolder(std::filesystem::path path, int lock) : path_(std::move(path)), lock_(lock) {}
  std::filesystem::path path_;  // empty: moved from
  int lock_ = -1;               // held while its owner lives
};

}  // namespace rota
