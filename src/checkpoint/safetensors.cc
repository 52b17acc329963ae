#include "checkpoint/safetensors.h"

#include <simdjson.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/checked.h"

namespace rota {
namespace {

constexpr int64_t kLengthBytes = 8;
constexpr size_t kMaxHeaderDepth = 8;  // the format needs 3
constexpr size_t kShownName = 200;     // a message stays readable whatever a file calls its tensors

namespace dom = simdjson::dom;

Status damaged(std::string_view file, std::string_view what) {
  return error(StatusCode::kDataLoss, "{}: {}; the file is damaged or incomplete, get it again",
               file, what);
}
Status damaged(std::string_view file, std::string_view tensor, std::string_view what) {
  return error(StatusCode::kDataLoss,
               "{}: tensor {}: {}; the file is damaged or incomplete, get it again", file,
               tensor.substr(0, kShownName), what);
}

// Length of the JSON text, from the file's first eight bytes (little endian).
Result<int64_t> header_length(std::string_view file, std::span<const std::byte> prefix,
                              int64_t file_size) {
  if (file_size < kLengthBytes || prefix.size() < static_cast<size_t>(kLengthBytes)) {
    return damaged(file,
                   fmt::format("is {} bytes long, a safetensors file begins with 8 bytes that "
                               "say how long its header is",
                               file_size));
  }
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= std::to_integer<uint64_t>(prefix[i]) << (8 * i);
  if (length < 2 || length > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return damaged(file, fmt::format("header length {}, expected 2 to {}", length,
                                     kMaxSafetensorsHeaderBytes));
  }
  if (static_cast<int64_t>(length) > file_size - kLengthBytes) {
    return damaged(file, fmt::format("header length {} in a file of {} bytes", length, file_size));
  }
  return static_cast<int64_t>(length);
}

class HeaderParser {
 public:
  HeaderParser(std::string_view file, int64_t data_begin, int64_t file_size)
      : file_(file), data_begin_(data_begin), data_size_(file_size - data_begin) {}

  Result<SafetensorsHeader> parse(std::string_view json) {
    dom::parser parser;
    dom::object root;
    if (auto e = parser.allocate(std::max<size_t>(json.size(), 64), kMaxHeaderDepth)) {
      return damaged(file_, fmt::format("header cannot be parsed: {}", simdjson::error_message(e)));
    }
    if (auto e = parser.parse(json.data(), json.size()).get_object().get(root)) {
      return damaged(file_,
                     fmt::format("header is not a JSON object: {}", simdjson::error_message(e)));
    }
    SafetensorsHeader header;
    header.data_begin = data_begin_;
    header.file_size = data_begin_ + data_size_;
    for (const auto field : root) {
      if (field.key == "__metadata__") {
        ROTA_RETURN_IF_ERROR(check_metadata(field.value));
      } else {
        ROTA_ASSIGN_OR_RETURN(SafetensorsEntry entry, parse_entry(field.key, field.value));
        header.entries.push_back(std::move(entry));
      }
    }
    ROTA_RETURN_IF_ERROR(check_coverage(header.entries));
    ROTA_RETURN_IF_ERROR(sort_by_name(header.entries));
    return header;
  }

 private:
  Status check_metadata(dom::element value) {
    if (metadata_seen_) return damaged(file_, "__metadata__ occurs twice");
    metadata_seen_ = true;
    if (!value.is_object()) return damaged(file_, "__metadata__ is not an object");
    return {};
  }

  Result<SafetensorsEntry> parse_entry(std::string_view name, dom::element value) {
    dom::object object;
    if (value.get_object().get(object)) return damaged(file_, name, "its entry is not an object");
    std::optional<dom::element> dtype, shape, offsets;
    for (const auto field : object) {
      std::optional<dom::element>* slot = field.key == "dtype"          ? &dtype
                                          : field.key == "shape"        ? &shape
                                          : field.key == "data_offsets" ? &offsets
                                                                        : nullptr;
      if (slot == nullptr) continue;
      if (slot->has_value()) return damaged(file_, name, fmt::format("{} occurs twice", field.key));
      *slot = field.value;
    }
    if (!dtype || !shape || !offsets) {
      return damaged(file_, name, "its entry needs dtype, shape and data_offsets");
    }
    SafetensorsEntry entry;
    entry.spec.name = std::string(name);
    ROTA_RETURN_IF_ERROR(parse_dtype_of(*dtype, entry.spec));
    ROTA_RETURN_IF_ERROR(parse_shape(*shape, entry.spec));
    ROTA_RETURN_IF_ERROR(parse_offsets(*offsets, entry));
    return entry;
  }

  Status parse_dtype_of(dom::element value, TensorSpec& spec) {
    std::string_view text;
    if (value.get_string().get(text)) return damaged(file_, spec.name, "dtype is not a string");
    const auto dtype = parse_dtype(text);
    if (!dtype) {
      return error(StatusCode::kUnsupported, "{}: tensor {}: unknown dtype {}", file_,
                   spec.name.substr(0, kShownName), text.substr(0, 32));
    }
    spec.dtype = *dtype;
    return {};
  }

  Status parse_shape(dom::element value, TensorSpec& spec) {
    dom::array dims;
    if (value.get_array().get(dims)) return damaged(file_, spec.name, "shape is not a list");
    for (const auto element : dims) {
      int64_t dim = 0;
      if (element.get_int64().get(dim) || dim < 0) {
        return damaged(file_, spec.name,
                       "a dimension of its shape is no integer from 0 to 2^63 - 1");
      }
      if (spec.shape.size() == kMaxTensorRank) {
        return damaged(file_, spec.name,
                       fmt::format("its shape has more than {} dimensions", kMaxTensorRank));
      }
      spec.shape.push_back(dim);
    }
    return {};
  }

  Status parse_offsets(dom::element value, SafetensorsEntry& entry) {
    const std::string& name = entry.spec.name;
    dom::array pair;
    if (value.get_array().get(pair) || pair.size() != 2) {
      return damaged(file_, name, "data_offsets is not a list of two");
    }
    int64_t begin = 0;
    int64_t end = 0;
    if (pair.at(0).get_int64().get(begin) || pair.at(1).get_int64().get(end) || begin < 0 ||
        end < 0) {
      return damaged(file_, name, "a data offset is no integer from 0 to 2^63 - 1");
    }
    if (begin > end) {
      return damaged(file_, name, fmt::format("data_offsets [{}, {}] are reversed", begin, end));
    }
    if (end > data_size_) {
      return damaged(file_, name,
                     fmt::format("its data ends at {}, past the {} bytes of data that the file has",
                                 end, data_size_));
    }
    const auto expected = tensor_bytes(entry.spec.dtype, entry.spec.shape);
    const std::string what = describe(entry.spec.dtype, entry.spec.shape);
    if (!expected) return damaged(file_, name, fmt::format("the size of {} overflows", what));
    if (*expected != end - begin) {
      return damaged(file_, name,
                     fmt::format("{} needs {} bytes, data_offsets [{}, {}] give {}", what,
                                 *expected, begin, end, end - begin));
    }
    entry.begin = data_begin_ + begin;
    entry.end = data_begin_ + end;
    return {};
  }

  // Sorted by position, each tensor must begin where the one before it ends.
  Status check_coverage(std::vector<SafetensorsEntry>& entries) {
    std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
    });
    int64_t covered = data_begin_;
    const SafetensorsEntry* before = nullptr;
    for (const SafetensorsEntry& entry : entries) {
      if (entry.begin < covered) {
        return damaged(file_, entry.spec.name,
                       fmt::format("its data overlaps that of {}",
                                   before != nullptr ? before->spec.name.substr(0, kShownName)
                                                     : "the header"));
      }
      if (entry.begin > covered) {
        return damaged(
            file_, entry.spec.name,
            fmt::format("{} bytes before its data belong to no tensor", entry.begin - covered));
      }
      covered = entry.end;
      before = &entry;
    }
    const int64_t left = data_begin_ + data_size_ - covered;
    if (left == 0) return {};
    return damaged(file_, fmt::format("{} trailing bytes belong to no tensor", left));
  }

  Status sort_by_name(std::vector<SafetensorsEntry>& entries) {
    std::sort(entries.begin(), entries.end(),
              [](const auto& a, const auto& b) { return a.spec.name < b.spec.name; });
    const auto twice =
        std::adjacent_find(entries.begin(), entries.end(),
                           [](const auto& a, const auto& b) { return a.spec.name == b.spec.name; });
    if (twice == entries.end()) return {};
    return damaged(file_, twice->spec.name, "occurs twice");
  }

  std::string_view file_;
  int64_t data_begin_;
  int64_t data_size_;
  bool metadata_seen_ = false;
};

Status read_exactly(const std::string& path, int descriptor, std::span<std::byte> out,
                    int64_t offset) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = pread(descriptor, out.data() + done, out.size() - done,
                              static_cast<off_t>(offset) + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return error(StatusCode::kIo, "{}: cannot read: {}", path, std::strerror(errno));
    }
    if (got == 0) return damaged(path, "became shorter while it was read");
    done += static_cast<size_t>(got);
  }
  return {};
}

Result<SafetensorsHeader> read_header_of(const std::string& path, const OpenedFile& opened) {
  std::vector<std::byte> prefix(static_cast<size_t>(std::min<int64_t>(opened.size, kLengthBytes)));
  ROTA_RETURN_IF_ERROR(read_exactly(path, opened.descriptor, prefix, 0));
  ROTA_ASSIGN_OR_RETURN(const int64_t length, header_length(path, prefix, opened.size));
  prefix.resize(static_cast<size_t>(kLengthBytes + length));
  ROTA_RETURN_IF_ERROR(
      read_exactly(path, opened.descriptor, std::span(prefix).subspan(kLengthBytes), kLengthBytes));
  return parse_safetensors_header(path, prefix, opened.size);
}

}  // namespace

std::string describe(DType dtype, std::span<const int64_t> shape) {
  return fmt::format("{} [{}]", to_string(dtype), fmt::join(shape, ", "));
}

std::optional<int64_t> tensor_bytes(DType dtype, std::span<const int64_t> shape) {
  int64_t bytes = size_of(dtype).count;
  for (const int64_t dim : shape) {
    if (dim < 0) return std::nullopt;
    const auto product = checked_mul(bytes, dim);
    if (!product) return std::nullopt;
    bytes = *product;
  }
  return bytes;
}

Result<SafetensorsHeader> parse_safetensors_header(std::string_view file,
                                                   std::span<const std::byte> prefix,
                                                   int64_t file_size) {
  ROTA_ASSIGN_OR_RETURN(const int64_t length, header_length(file, prefix, file_size));
  const int64_t data_begin = kLengthBytes + length;
  if (prefix.size() < static_cast<size_t>(data_begin)) {
    return damaged(file, fmt::format("header of {} bytes, only {} read", length, prefix.size()));
  }
  const std::string_view json(reinterpret_cast<const char*>(prefix.data()) + kLengthBytes,
                              static_cast<size_t>(length));
  return HeaderParser(file, data_begin, file_size).parse(json);
}

Result<SafetensorsHeader> read_safetensors_header(const std::string& path, FollowSymlinks follow) {
  ROTA_ASSIGN_OR_RETURN(const OpenedFile opened, open_regular_file(path, follow));
  auto header = read_header_of(path, opened);
  close(opened.descriptor);
  return header;
}

}  // namespace rota
