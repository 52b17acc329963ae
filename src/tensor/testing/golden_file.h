// For tests only: reads the small golden files (safetensors) that the repository carries, without
// the checkpoint room, so that the lowest rooms can use it. Trusts its input.
//
//   GoldenFile golden(golden_path("ops/routing.safetensors"));
//   std::span<const float> x = golden.floats("topk_softmax.x");   // F32; shape() gives [T, H]
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"

namespace rota::testing {

#ifdef ROTA_SOURCE_DIR
inline std::string golden_path(const std::string& name) {
  return std::string(ROTA_SOURCE_DIR) + "/tests/goldens/" + name;
}
#endif

class GoldenFile {
 public:
  explicit GoldenFile(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    ROTA_CHECK(file.good(), "no golden file " + path);
    std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof(header));
    const auto json = nlohmann::json::parse(bytes.begin() + 8, bytes.begin() + 8 + int64_t(header));
    for (const auto& [name, entry] : json.items()) {
      if (name == "__metadata__") continue;
      Tensor tensor;
      tensor.dtype = entry["dtype"];
      tensor.shape = entry["shape"].get<std::vector<int64_t>>();
      const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
      tensor.words.resize((end - begin + 7) / 8);  // aligned for every element type
      std::memcpy(tensor.words.data(), bytes.data() + 8 + header + begin, end - begin);
      tensor.bytes = end - begin;
      tensors_[name] = std::move(tensor);
    }
  }

  bool has(const std::string& name) const { return tensors_.count(name) != 0; }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    out.reserve(tensors_.size());
    for (const auto& [name, tensor] : tensors_) out.push_back(name);
    return out;
  }
  const std::vector<int64_t>& shape(const std::string& name) const { return find(name).shape; }
  const std::string& dtype(const std::string& name) const { return find(name).dtype; }

  template <typename T>
  std::span<const T> data(const std::string& name) const {
    const Tensor& tensor = find(name);
    return {reinterpret_cast<const T*>(tensor.words.data()), tensor.bytes / sizeof(T)};
  }
  std::span<const float> floats(const std::string& name) const {
    ROTA_CHECK(find(name).dtype == "F32", "golden tensor " + name + " is not F32");
    return data<float>(name);
  }
  std::span<const int32_t> ints(const std::string& name) const {
    ROTA_CHECK(find(name).dtype == "I32", "golden tensor " + name + " is not I32");
    return data<int32_t>(name);
  }

 private:
  struct Tensor {
    std::string dtype;
    std::vector<int64_t> shape;
    std::vector<uint64_t> words;
    size_t bytes = 0;
  };
  const Tensor& find(const std::string& name) const {
    const auto at = tensors_.find(name);
    ROTA_CHECK(at != tensors_.end(), "no golden tensor " + name);
    return at->second;
  }
  std::map<std::string, Tensor> tensors_;
};

}  // namespace rota::testing
