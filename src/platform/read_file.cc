#include "platform/read_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "platform/mapped_file.h"

namespace rota {

Result<std::string> read_file(const std::string& path, int64_t max_bytes) {
  ROTA_ASSIGN_OR_RETURN(const OpenedFile opened, open_regular_file(path, FollowSymlinks::kYes));
  std::string text;
  Status status;
  if (opened.size > max_bytes) {
    status =
        invalid_argument("{}: is {} bytes long, expected at most {}", path, opened.size, max_bytes);
  } else {
    text.resize(static_cast<size_t>(opened.size));
  }
  size_t done = 0;
  while (status.ok() && done < text.size()) {
    const ssize_t got =
        pread(opened.descriptor, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) status = error(StatusCode::kIo, "{}: cannot read: {}", path, std::strerror(errno));
    if (got == 0) text.resize(done);  // became shorter meanwhile
    done += got > 0 ? static_cast<size_t>(got) : 0;
  }
  close(opened.descriptor);
  if (!status.ok()) return status;
  return text;
}

}  // namespace rota
