#include "platform/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "platform/mapped_file_guard.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace rota {
namespace {

size_t page_size() {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

size_t round_up_to_page(size_t bytes) { return (bytes + page_size() - 1) & ~(page_size() - 1); }

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISLNK(mode)) return "a symbolic link";
  return "a device";
}

Status status_of_errno(const std::string& path, const char* action, int number) {
  const auto code = number == ENOENT || number == ENOTDIR ? StatusCode::kNotFound
                    : number == ELOOP                     ? StatusCode::kInvalidArgument
                    : number == EMFILE || number == ENFILE || number == ENOMEM
                        ? StatusCode::kResourceExhausted
                        : StatusCode::kIo;
  return error(code, "{}: cannot {}: {}", path, action, std::strerror(number));
}

// Why stat() of a path found nothing: the path itself, or what a link there points to.
Status missing(const std::string& path, int number) {
  struct stat link{};
  if (number == ENOENT && lstat(path.c_str(), &link) == 0 && S_ISLNK(link.st_mode)) {
    return error(StatusCode::kNotFound, "{}: is a symbolic link to a file that does not exist",
                 path);
  }
  return status_of_errno(path, "open", number);
}

Status check_regular(const std::string& path, const struct stat& found) {
  if (S_ISREG(found.st_mode)) return {};
  return invalid_argument("{}: is {}, expected a regular file", path, kind_of(found.st_mode));
}

}  // namespace

Result<OpenedFile> open_regular_file(const std::string& path, FollowSymlinks follow) {
  if (path.find('\0') != std::string::npos) {
    return invalid_argument("a file name with a NUL byte in it: {}", path);
  }
  // Looked at before it is opened: opening a device can have an effect of its own.
  const bool through = follow == FollowSymlinks::kYes;
  struct stat found{};
  if ((through ? stat(path.c_str(), &found) : lstat(path.c_str(), &found)) != 0) {
    return missing(path, errno);
  }
  ROTA_RETURN_IF_ERROR(check_regular(path, found));

  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (through ? 0 : O_NOFOLLOW);
  const int descriptor = open(path.c_str(), flags);
  if (descriptor < 0) return status_of_errno(path, "open", errno);
  Status checked = fstat(descriptor, &found) == 0 ? check_regular(path, found)
                                                  : status_of_errno(path, "inspect", errno);
  if (!checked.ok()) {
    close(descriptor);
    return checked;
  }
  return OpenedFile{descriptor, static_cast<int64_t>(found.st_size),
                    static_cast<uint64_t>(found.st_dev), static_cast<uint64_t>(found.st_ino)};
}

Result<MappedFile> MappedFile::open(const std::string& path, FollowSymlinks follow) {
  ROTA_ASSIGN_OR_RETURN(const OpenedFile opened, open_regular_file(path, follow));
  MappedFile file;
  file.path_ = path;
  file.size_ = static_cast<size_t>(opened.size);
  file.device_ = opened.device;
  file.inode_ = opened.inode;
  if (file.size_ == 0) {
    close(opened.descriptor);
    return file;
  }
  // Address space for file and tail first, then the file over its beginning: what follows the
  // file's last page is zero memory that a wide load may touch.
  const size_t mapped = round_up_to_page(file.size_);
  const size_t reserved = mapped + round_up_to_page(kReadableTail);
  void* base =
      mmap(nullptr, reserved, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  void* placed = base;
  if (base != MAP_FAILED) {
    placed = mmap(base, file.size_, PROT_READ, MAP_SHARED | MAP_FIXED, opened.descriptor, 0);
  }
  const int number = errno;
  close(opened.descriptor);
  if (placed == MAP_FAILED) {
    if (base != MAP_FAILED) munmap(base, reserved);
    return status_of_errno(path, "map", number);
  }
  file.data_ = static_cast<std::byte*>(base);
  file.reserved_ = reserved;
  internal::guard_add(file.data_, mapped, path);
  return file;
}

MappedFile::~MappedFile() { release(); }

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this == &other) return *this;
  release();
  path_ = std::move(other.path_);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  reserved_ = std::exchange(other.reserved_, 0);
  locked_ = std::exchange(other.locked_, false);
  device_ = other.device_;
  inode_ = other.inode_;
  return *this;
}

void MappedFile::release() {
  if (data_ == nullptr) return;
  internal::guard_remove(data_);
  munmap(data_, reserved_);
  data_ = nullptr;
}

void MappedFile::advise(Access access, size_t offset, size_t length) const {
  if (offset >= size_) return;
  const size_t begin = offset & ~(page_size() - 1);
  const size_t end = offset + std::min(length, size_ - offset);
  int advice = MADV_NORMAL;
  switch (access) {
    case Access::kNormal:
      break;
    case Access::kSequential:
      advice = MADV_SEQUENTIAL;
      break;
    case Access::kRandom:
      advice = MADV_RANDOM;
      break;
    case Access::kWillNeed:
      advice = MADV_WILLNEED;
      break;
  }
  madvise(data_ + begin, end - begin, advice);
}

Status MappedFile::read_ahead(size_t offset, size_t length) const {
  if (offset >= size_) return {};
  const size_t begin = offset & ~(page_size() - 1);
  const size_t end = offset + std::min(length, size_ - offset);
  while (madvise(data_ + begin, end - begin, MADV_POPULATE_READ) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno == EFAULT || errno == EIO) {
      return error(
          StatusCode::kDataLoss,
          "{}: became shorter or unreadable while mapped (in bytes {} to {} of {}); restore "
          "the file and start again",
          path_, begin, end, size_);
    }
    // Linux before 5.14 has no such advice: touch every page, as the reader will.
    advise(Access::kWillNeed, begin, end - begin);
    for (size_t at = begin; at < end; at += page_size()) {
      static_cast<void>(*static_cast<const volatile std::byte*>(data_ + at));
    }
    break;
  }
  return {};
}

Status MappedFile::lock_in_memory() {
  if (size_ == 0 || locked_) return {};
  if (mlock2(data_, size_, MLOCK_ONFAULT) == 0) {
    locked_ = true;
    return {};
  }
  const int number = errno;
  munlock(data_, size_);
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  if (number == ENOMEM || number == EPERM) {
    return error(StatusCode::kResourceExhausted,
                 "{}: cannot lock {} bytes in memory: RLIMIT_MEMLOCK is {} bytes (ulimit -l)",
                 path_, size_, limit.rlim_cur);
  }
  return error(StatusCode::kIo, "{}: cannot lock {} bytes in memory: {}", path_, size_,
               std::strerror(number));
}

bool MappedFile::has_shrunk() const {
  struct stat now{};
  if (stat(path_.c_str(), &now) != 0) return false;  // removed or moved: the mapping keeps it
  const bool same =
      static_cast<uint64_t>(now.st_dev) == device_ && static_cast<uint64_t>(now.st_ino) == inode_;
  return same && static_cast<size_t>(now.st_size) < size_;
}

void MappedFile::unlock() {
  if (locked_) munlock(data_, size_);
  locked_ = false;
}

}  // namespace rota
