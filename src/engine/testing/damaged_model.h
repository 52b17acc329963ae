// A small model with one damaged expert, for tests.
#pragma once

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/testing/small_engine.h"

namespace rota::testing {

struct ExpertPlace {
  size_t layer = 0;
  size_t expert = 0;
};

// A copy of a model in which the block scales of one expert are the byte of which no number can be
// made.
class DamagedModel {
 public:
  DamagedModel(const std::string& model, ExpertPlace place, int64_t experts) {
    namespace fs = std::filesystem;
    std::string pattern = (fs::temp_directory_path() / "rota_damaged_XXXXXX").string();
    dir_ = mkdtemp(pattern.data());
    for (const char* file : {"config.json", "generation_config.json", "model.safetensors"}) {
      const fs::path from = fs::path(testing::model_dir(model)) / file;
      if (fs::exists(from)) fs::copy_file(from, fs::path(dir_) / file);
    }
    tensor_ = fmt::format("model.layers.{}.mlp.experts.down_proj_scales", place.layer);
    std::fstream file(dir_ + "/model.safetensors", std::ios::binary | std::ios::in | std::ios::out);
    uint64_t length = 0;
    file.read(reinterpret_cast<char*>(&length), sizeof length);
    std::string header(length, '\0');
    file.read(header.data(), static_cast<std::streamsize>(length));
    const nlohmann::json at = nlohmann::json::parse(header)[tensor_]["data_offsets"];
    const int64_t bytes = (at[1].get<int64_t>() - at[0].get<int64_t>()) / experts;
    const auto begin = static_cast<int64_t>(sizeof length + length) + at[0].get<int64_t>() +
                       bytes * static_cast<int64_t>(place.expert);
    file.seekp(begin);
    file << std::string(static_cast<size_t>(bytes), '\xff');
  }
  ~DamagedModel() { std::filesystem::remove_all(dir_); }
  DamagedModel(const DamagedModel&) = delete;
  DamagedModel& operator=(const DamagedModel&) = delete;

  const std::string& tensor() const { return tensor_; }
  const std::string& dir() const { return dir_; }

 private:
  std::string dir_;
  std::string tensor_;
};

}  // namespace rota::testing
