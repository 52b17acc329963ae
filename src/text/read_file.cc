#include "text/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace rota {
namespace {

struct File {
  explicit File(int descriptor) : descriptor(descriptor) {}
  ~File() {
    if (descriptor >= 0) close(descriptor);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int descriptor;
};

std::string why() { return std::error_code(errno, std::generic_category()).message(); }

}  // namespace

Result<std::string> read_file(const std::filesystem::path& path, size_t max_bytes) {
  // O_NONBLOCK: opening a FIFO must not wait for its writer.
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.descriptor < 0) {
    const StatusCode code = errno == ENOENT ? StatusCode::kNotFound : StatusCode::kIo;
    return error(code, "{}: cannot be opened: {}", path.string(), why());
  }
  struct stat info{};
  if (fstat(file.descriptor, &info) != 0) {
    return error(StatusCode::kIo, "{}: cannot be read: {}", path.string(), why());
  }
  if (!S_ISREG(info.st_mode)) {
    return error(StatusCode::kDataLoss, "{}: expected a regular file", path.string());
  }
  if (static_cast<size_t>(info.st_size) > max_bytes) {
    return error(StatusCode::kDataLoss, "{}: is {} bytes long; expected at most {}", path.string(),
                 info.st_size, max_bytes);
  }
  std::string content(static_cast<size_t>(info.st_size), '\0');
  size_t filled = 0;
  while (filled < content.size()) {
    const ssize_t got = read(file.descriptor, content.data() + filled, content.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return error(StatusCode::kIo, "{}: cannot be read: {}", path.string(), why());
    if (got == 0) break;  // it became shorter meanwhile
    filled += static_cast<size_t>(got);
  }
  content.resize(filled);
  return content;
}

}  // namespace rota
