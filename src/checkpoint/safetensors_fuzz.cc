// Any bytes as a safetensors file: its header must be refused, or describe exactly the bytes that
// there are. The first byte says whether the rest is a whole file, or a header whose length field
// is right.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "checkpoint/safetensors.h"

namespace {

void check(const rota::SafetensorsHeader& header, int64_t file_size) {
  int64_t covered = header.data_begin;
  for (const auto& entry : header.entries) {
    const auto bytes = rota::tensor_bytes(entry.spec.dtype, entry.spec.shape);
    ROTA_CHECK(bytes && *bytes == entry.end - entry.begin, "an entry is as long as its shape");
    ROTA_CHECK(entry.begin >= header.data_begin && entry.end <= file_size, "data in the file");
    covered += *bytes;
  }
  ROTA_CHECK(covered == file_size, "every byte belongs to one tensor");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::vector<std::byte> file;
  int64_t file_size = 0;
  const auto rest = std::as_bytes(std::span(data, size)).subspan(1);
  if (data[0] % 2 == 0) {
    file.assign(rest.begin(), rest.end());
    file_size = static_cast<int64_t>(file.size());
  } else {
    for (int shift = 0; shift < 64; shift += 8) {
      file.push_back(static_cast<std::byte>(static_cast<uint64_t>(rest.size()) >> shift));
    }
    file.insert(file.end(), rest.begin(), rest.end());
    file_size = static_cast<int64_t>(file.size()) + data[0] / 2;  // so many bytes of data
  }
  const auto header = rota::parse_safetensors_header("fuzz", file, file_size);
  if (header.ok()) check(*header, file_size);
  return 0;
}
