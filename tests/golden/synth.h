// Weights that are too large to store: made by the reference folder's own generator, and removed
// again. The generator is a Python program that needs numpy: ROTA_PYTHON names an interpreter that
// has it (default: python3).
//
//   ROTA_ASSIGN_OR_RETURN(SynthCheckpoint weights, SynthCheckpoint::make(reference, name, args));
//   Harness::load(weights.dir(), ...);
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace rota::golden {

class SynthCheckpoint {
 public:
  static Result<SynthCheckpoint> make(const std::string& reference_dir, const std::string& name,
                                      const std::vector<std::string>& arguments);
  ~SynthCheckpoint();
  SynthCheckpoint(SynthCheckpoint&& other) noexcept : dir_(std::exchange(other.dir_, "")) {}
  SynthCheckpoint& operator=(SynthCheckpoint&&) = delete;

  const std::string& dir() const { return dir_; }

 private:
  explicit SynthCheckpoint(std::string dir) : dir_(std::move(dir)) {}
  std::string dir_;
};

// The generator arguments of a pack (packs.json).
Result<std::vector<std::string>> pack_arguments(const std::string& reference_dir,
                                                const std::string& name);

}  // namespace rota::golden
