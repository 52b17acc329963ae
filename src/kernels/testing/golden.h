// For tests: named F32 and I32 tensors of a safetensors file of goldens, read whole.
//
//   GoldenFile golden("rope.safetensors");            // from tests/goldens/ops
//   const std::vector<float>& cos = golden.floats("theta1e6.cos");
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/check.h"

namespace rota::testing {

class GoldenFile {
 public:
  explicit GoldenFile(const std::string& name) {
    const std::string path = std::string(ROTA_SOURCE_DIR) + "/tests/goldens/ops/" + name;
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    ROTA_CHECK(bytes.size() > 8, path + ": cannot be read");
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes.data(), 8);
    const auto header = nlohmann::json::parse(bytes.substr(8, header_bytes));
    for (const auto& [tensor, info] : header.items()) {
      if (tensor == "__metadata__") continue;
      const auto offsets = info.at("data_offsets").get<std::vector<size_t>>();
      data_[tensor] = bytes.substr(8 + header_bytes + offsets[0], offsets[1] - offsets[0]);
    }
  }

  std::vector<float> floats(const std::string& tensor) const { return read<float>(tensor); }
  std::vector<int32_t> ints(const std::string& tensor) const { return read<int32_t>(tensor); }

 private:
  template <typename T>
  std::vector<T> read(const std::string& tensor) const {
    const auto found = data_.find(tensor);
    ROTA_CHECK(found != data_.end(), "no golden tensor " + tensor);
    std::vector<T> values(found->second.size() / sizeof(T));
    std::memcpy(values.data(), found->second.data(), values.size() * sizeof(T));
    return values;
  }

  std::map<std::string, std::string> data_;
};

}  // namespace rota::testing
