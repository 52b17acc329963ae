// The header of a safetensors file: which tensors lie where in it.
//
// Contract: everything that the format promises is checked before a byte of data is believed:
// length of the header (2 bytes .. 100 MB, inside the file), JSON of bounded depth, known dtypes,
// shapes whose product does not overflow, offsets that cover the data exactly once (no overlap, no
// hole, nothing reversed, past the end or left over), names that occur once. A dimension of zero is
// legal in a file (the tensor then owns no bytes) and matches no shape that a model asks for. Every
// error names file and tensor.
//
//   Result<SafetensorsHeader> header = read_safetensors_header(path, FollowSymlinks::kYes);
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "platform/mapped_file.h"
#include "tensor/dtype.h"

namespace rota {

inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr size_t kMaxTensorRank = 16;

// What a model asks for: a name, how its elements are stored, how many there are in each dimension.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kBf16;
  std::vector<int64_t> shape;
  // Factors of a quantised matrix: float32 or BF16, and as many elements in any shape ([] or [1],
  // [N] or [N, 1]).
  bool is_factor = false;

  bool operator==(const TensorSpec&) const = default;
};

// "BF16 [32, 2880]", for messages.
std::string describe(DType dtype, std::span<const int64_t> shape);

// Product of the shape times the size of an element; nothing if that is negative or overflows.
std::optional<int64_t> tensor_bytes(DType dtype, std::span<const int64_t> shape);

// A tensor of an open checkpoint. `file` and `bytes` live as long as the checkpoint.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kBf16;
  std::vector<int64_t> shape;
  std::string_view file;  // path of the safetensors file; "dummy" for random weights
  int64_t byte_size = 0;
  int64_t file_offset = 0;           // of the first byte, from the start of the file
  std::span<const std::byte> bytes;  // empty if only headers were read

  // The elements as T, which must have the dtype's size; data is aligned for T.
  template <typename T>
  std::span<const T> as() const {
    ROTA_CHECK(size_of(dtype).count == static_cast<int64_t>(sizeof(T)), "element size");
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
};

// One entry of a header. Offsets count from the start of the file.
struct SafetensorsEntry {
  TensorSpec spec;
  int64_t begin = 0;
  int64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // sorted by name
  int64_t data_begin = 0;
  int64_t file_size = 0;
};

// prefix: the file's first bytes, at least the length field and the header (more is ignored).
Result<SafetensorsHeader> parse_safetensors_header(std::string_view file,
                                                   std::span<const std::byte> prefix,
                                                   int64_t file_size);

// Reads the header only: two reads, nothing allocated before its length is believed.
Result<SafetensorsHeader> read_safetensors_header(const std::string& path, FollowSymlinks follow);

}  // namespace rota
