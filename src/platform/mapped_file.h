// A regular file, mapped read-only: weights are read where they lie (design section 5).
//
// Contract: open() refuses whatever is no regular file without ever blocking on it (FIFO, device,
// folder), names the path in every error, and maps nothing that it could not read. At least
// kReadableTail bytes past the end may be touched by a wide load; their values are unspecified.
// A file that is truncated while mapped raises SIGBUS at the next touch: call
// install_mapped_file_guard() once in the process that reads weights, and such a touch ends the
// process with kMappedFileLostExitCode and a line on stderr that names the file.
//
//   ROTA_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path, FollowSymlinks::kYes));
//   std::span<const std::byte> bytes = file.bytes();
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/status.h"

namespace rota {

enum class FollowSymlinks { kNo, kYes };

// Which bytes are about to be read, for the kernel's read-ahead.
enum class Access { kNormal, kSequential, kRandom, kWillNeed };

// Opens a regular file for reading; the descriptor belongs to the caller.
// kNotFound: missing or dangling; kInvalidArgument: not a regular file; kIo: the system refused.
struct OpenedFile {
  int descriptor = -1;
  int64_t size = 0;
  uint64_t device = 0;
  uint64_t inode = 0;
};
Result<OpenedFile> open_regular_file(const std::string& path, FollowSymlinks follow);

class MappedFile {
 public:
  static constexpr size_t kReadableTail = 4096;

  static Result<MappedFile> open(const std::string& path, FollowSymlinks follow);

  MappedFile() = default;
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // A hint; ranges are clipped to the file, failures ignored.
  void advise(Access access, size_t offset = 0, size_t length = SIZE_MAX) const;

  // Reads bytes [offset, offset + length) into memory and maps them, or says that the file has
  // become shorter. Blocks while the disk works; safe from several threads at once.
  Status read_ahead(size_t offset, size_t length) const;

  // Keeps every page in memory from the moment it is read (mlock on fault): read_ahead() completes
  // it. Returns at once. kResourceExhausted names RLIMIT_MEMLOCK where that is what refused.
  Status lock_in_memory();
  void unlock();
  bool locked() const { return locked_; }

  // Whether the file has become shorter since it was opened (one stat()). A cut within the last
  // page raises no SIGBUS: the kernel shows zeros there.
  bool has_shrunk() const;

 private:
  std::string path_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t reserved_ = 0;  // bytes of address space, tail included
  bool locked_ = false;
  uint64_t device_ = 0;  // with inode_: another file may take the path meanwhile
  uint64_t inode_ = 0;

  void release();
};

inline constexpr int kMappedFileLostExitCode = 74;

// Installs the SIGBUS handler described above. Other causes of SIGBUS reach the handler that was
// there before. Idempotent.
Status install_mapped_file_guard();

// Ends the process as the guard does, for a file that has_shrunk().
[[noreturn]] void end_for_lost_file(const std::string& path);

}  // namespace rota
