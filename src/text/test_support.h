// What the tests of this room share: golden files and the two tokenizers.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "text/tokenizer.h"

namespace rota::test {

inline std::filesystem::path goldens() { return ROTA_TEST_GOLDENS; }

inline nlohmann::ordered_json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return nlohmann::ordered_json::parse(file);
}

inline std::shared_ptr<const Tokenizer> load(const std::filesystem::path& path) {
  Result<std::shared_ptr<const Tokenizer>> loaded = Tokenizer::load(path);
  EXPECT_TRUE(loaded.ok()) << loaded.status().message();
  return loaded.ok() ? *loaded : nullptr;
}

// Byte-level BPE with the harmony tokens; 200,019 tokens. Loaded once in a process.
inline std::shared_ptr<const Tokenizer> o200k() {
  static const std::shared_ptr<const Tokenizer> tokenizer = load(ROTA_TEST_O200K);
  return tokenizer;
}

// SentencePiece style: ▁ for spaces, byte fallback, BOS by the post-processor; 2048 tokens.
inline std::shared_ptr<const Tokenizer> spbpe() {
  static const std::shared_ptr<const Tokenizer> tokenizer =
      load(goldens() / "tokenizers/spbpe/tokenizer.json");
  return tokenizer;
}

// A folder that is removed at the end.
class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "rota_text_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace rota::test
