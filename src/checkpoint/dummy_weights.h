// Random values for `--load-format dummy`: what a tensor of a model might plausibly hold.
//
// Contract: an element depends on (seed, tensor name, element index) alone, never on threads or
// pieces. All values are finite. Matrices have a standard deviation of 1/sqrt(fan in), norms lie
// about 1, biases are small, Mamba2's decays and steps are those of trained ones, E8M0 scales
// 2^-8..2^-5, FP4 codes are any bytes.
//
//   DummyFill fill(spec, seed);
//   fill.write(offset, piece);  // bytes [offset, offset + piece.size()) of the tensor
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "checkpoint/safetensors.h"

namespace rota {

class DummyFill {
 public:
  DummyFill(const TensorSpec& spec, uint64_t seed);

  // offset: a multiple of 16.
  void write(int64_t offset, std::span<std::byte> piece) const;

 private:
  enum class Kind { kNormal, kScaleExponent, kRawBytes, kFloat8, kSmallInteger };
  static Kind kind_of(const TensorSpec& spec);

  DType dtype_;
  Kind kind_;
  uint64_t key_;
  float mean_ = 0;
  float deviation_ = 1;
};

}  // namespace rota
