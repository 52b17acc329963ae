#include "checkpoint/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

namespace rota {
namespace {

constexpr size_t kAlignment = 8;

Result<std::string> header_of(std::span<const TensorToWrite> tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  int64_t at = 0;
  for (const TensorToWrite& tensor : tensors) {
    const TensorSpec& spec = tensor.spec;
    const auto size = tensor_bytes(spec.dtype, spec.shape);
    if (!size || *size != static_cast<int64_t>(tensor.bytes.size())) {
      return error(StatusCode::kInternal, "tensor {} is {}, but {} bytes were given", spec.name,
                   describe(spec.dtype, spec.shape), tensor.bytes.size());
    }
    if (header.contains(spec.name)) {
      return error(StatusCode::kInternal, "tensor {} is given twice", spec.name);
    }
    header[spec.name] = {{"dtype", to_string(spec.dtype)},
                         {"shape", spec.shape},
                         {"data_offsets", {at, at + *size}}};
    at += *size;
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  return text;
}

// Closed and, unless it was kept, deleted at the end.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path)
      : path_(std::move(path)),
        descriptor_(open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {}
  ~TemporaryFile() {
    if (descriptor_ < 0) return;
    close(descriptor_);
    unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  Status write(std::span<const std::byte> bytes) {
    if (descriptor_ < 0) return failed("create");
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return failed("write");
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
    return {};
  }

  Status keep_as(const std::string& path) {
    const int descriptor = std::exchange(descriptor_, -1);
    if (close(descriptor) != 0 || rename(path_.c_str(), path.c_str()) != 0) {
      Status status = failed("write");
      unlink(path_.c_str());
      return status;
    }
    return {};
  }

 private:
  Status failed(const char* action) const {
    const auto code =
        errno == ENOSPC || errno == EDQUOT ? StatusCode::kResourceExhausted : StatusCode::kIo;
    return error(code, "{}: cannot {}: {}", path_, action, std::strerror(errno));
  }

  std::string path_;
  int descriptor_;
};

}  // namespace

Status write_safetensors(const std::string& path, std::vector<TensorToWrite> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorToWrite& a, const TensorToWrite& b) {
    const Bytes size_a = size_of(a.spec.dtype);
    const Bytes size_b = size_of(b.spec.dtype);
    return size_a != size_b ? size_a > size_b : a.spec.name < b.spec.name;
  });
  ROTA_ASSIGN_OR_RETURN(const std::string header, header_of(tensors));
  std::array<std::byte, 8> length{};
  for (size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<std::byte>(header.size() >> (8 * i));
  }
  TemporaryFile file(fmt::format("{}.{}.partial", path, getpid()));
  ROTA_RETURN_IF_ERROR(file.write(length));
  ROTA_RETURN_IF_ERROR(file.write(std::as_bytes(std::span(header))));
  for (const TensorToWrite& tensor : tensors) ROTA_RETURN_IF_ERROR(file.write(tensor.bytes));
  return file.keep_as(path);
}

}  // namespace rota
