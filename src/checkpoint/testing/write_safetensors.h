// For tests: temporary folders, and safetensors files that are as wrong as a test wants them.
//
//   TempFolder folder;
//   write_raw_safetensors(folder / "a.safetensors", R"({"x": {...}})", "data");   // nothing is
//   checked write_test_tensors(folder / "b.safetensors", {{"w", DType::kBf16, {2, 3}}});  // valid,
//   filled 0, 1, 2, ...
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors_writer.h"

namespace rota::testing {

// A folder that exists as long as the object.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "rota_test_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) {
      ADD_FAILURE() << "cannot make a temporary folder: " << pattern;
    }
    path_ = std::filesystem::canonical(pattern);
  }
  ~TempFolder() {
    std::error_code ec;
    std::filesystem::remove_all(path_, ec);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::string& path, std::string_view content) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream out(path, std::ios::binary);
  out << content;
  ASSERT_TRUE(out.good()) << path;
}

// Eight bytes of length, the header as given, the data as given.
inline std::string raw_safetensors(std::string_view header, std::string_view data) {
  std::string file;
  for (int shift = 0; shift < 64; shift += 8) {
    file.push_back(static_cast<char>(static_cast<uint64_t>(header.size()) >> shift));
  }
  return file.append(header).append(data);
}

inline void write_raw_safetensors(const std::string& path, std::string_view header,
                                  std::string_view data) {
  write_file(path, raw_safetensors(header, data));
}

// A valid file; byte i of each tensor is i modulo 251.
inline void write_test_tensors(const std::string& path, const std::vector<TensorSpec>& specs) {
  std::vector<std::vector<std::byte>> data;
  std::vector<TensorToWrite> tensors;
  for (const TensorSpec& spec : specs) {
    auto& bytes =
        data.emplace_back(static_cast<size_t>(tensor_bytes(spec.dtype, spec.shape).value_or(0)));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 251);
    tensors.push_back({spec, bytes});
  }
  const Status status = write_safetensors(path, tensors);
  ASSERT_TRUE(status.ok()) << status.message();
}

}  // namespace rota::testing
