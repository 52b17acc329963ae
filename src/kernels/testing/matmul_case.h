// For matmul tests: random weight matrices of every format whose last byte lies in front of a guard
// page, the same weights in double precision, and a call of a table's matmul from x to result.
//
//   WeightCase weights({.format = WeightFormat::kMxfp4, .out = Extent(7), .in = Extent(64)}, seed);
//   std::vector<float> out = multiply(kernels, weights.view(), x, tokens, Compute::kBf16);
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>

#include "kernels/testing/harness.h"
#include "quant/fp8.h"
#include "quant/mxfp4.h"
#include "quant/nvfp4.h"

namespace rota::testing {

struct CaseShape {
  WeightFormat format = WeightFormat::kBf16;
  WeightOrder order = WeightOrder::kOutIn;
  Extent out{1};
  Extent in{1};
  bool bias = true;
  // FP8, NVFP4: outputs and inputs of a block under one factor; 0: all.
  int64_t factor_rows = 0;
  int64_t factor_columns = 0;
};

class WeightCase {
 public:
  WeightCase(CaseShape shape, uint32_t seed) : shape_(shape), random_(seed) {
    dense_.assign(size(shape.out.logical() * shape.in.logical()), 0.0f);
    bias_ = random_.bf16(shape.out.logical());
    bias_.resize(size(shape.out.padded()));
    switch (shape.format) {
      case WeightFormat::kMxfp4:
      case WeightFormat::kNvfp4:
        make_e2m1();
        break;
      case WeightFormat::kFp8:
        make_fp8();
        break;
      case WeightFormat::kBf16:
      case WeightFormat::kFloat32:
        make_plain();
        break;
    }
    if (has_factors()) make_factors();
  }

  WeightMatrix view() const {
    const bool in_out = shape_.order == WeightOrder::kInOut;
    const int64_t row = (in_out ? shape_.out : shape_.in).padded();
    return {.format = shape_.format,
            .order = shape_.order,
            .out = shape_.out,
            .in = shape_.in,
            .data = data_->data(),
            .row_stride = {row * element_bits() / 8},
            .scales = is_e2m1(shape_.format) ? scales_->data() : nullptr,
            .scale_stride = {is_e2m1(shape_.format) ? row / block() : 0},
            .factors = {.data = has_factors() ? factors_->data() : nullptr,
                        .stride = parts(shape_.in.logical(), factor_columns()),
                        .rows = factor_rows(),
                        .columns = factor_columns()},
            .bias = shape_.bias ? bias_.data() : nullptr};
  }

  double weight(int64_t n, int64_t k) const {
    return double{dense_[size(n * shape_.in.logical() + k)]};
  }
  double bias(int64_t n) const { return shape_.bias ? double{to_float(bias_[size(n)])} : 0.0; }
  uint8_t* codes() const { return reinterpret_cast<uint8_t*>(data_->data()); }
  uint8_t* scales() const { return scales_->data(); }

 private:
  static size_t size(int64_t count) { return static_cast<size_t>(count); }
  static int64_t parts(int64_t count, int64_t each) { return (count + each - 1) / each; }
  int64_t element_bits() const {
    if (is_e2m1(shape_.format)) return 4;
    if (shape_.format == WeightFormat::kFp8) return 8;
    return shape_.format == WeightFormat::kFloat32 ? 32 : 16;
  }
  int64_t element_bytes() const { return element_bits() / 8; }
  bool is_nvfp4() const { return shape_.format == WeightFormat::kNvfp4; }
  int64_t block() const { return is_nvfp4() ? kNvfp4BlockElements : kMxfp4BlockElements; }
  bool has_factors() const { return is_nvfp4() || shape_.format == WeightFormat::kFp8; }
  int64_t factor_rows() const {
    return shape_.factor_rows > 0 ? shape_.factor_rows : shape_.out.padded();
  }
  int64_t factor_columns() const {
    return shape_.factor_columns > 0 ? shape_.factor_columns : shape_.in.logical();
  }

  void make_plain() {
    const bool in_out = shape_.order == WeightOrder::kInOut;
    const int64_t outs = shape_.out.padded(), ins = shape_.in.padded();
    data_ = std::make_unique<Guarded<std::byte>>(size(outs * ins * element_bytes()));
    for (int64_t n = 0; n < shape_.out.logical(); ++n) {
      const std::vector<float> row = random_.normal(shape_.in.logical());
      for (int64_t k = 0; k < shape_.in.logical(); ++k) {
        store(in_out ? k * outs + n : n * ins + k, row[size(k)],
              dense_[size(n * shape_.in.logical() + k)]);
      }
    }
  }
  void store(int64_t place, float value, float& kept) {
    std::byte* to = data_->data() + place * element_bytes();
    if (shape_.format == WeightFormat::kFloat32) {
      std::memcpy(to, &value, 4);
      kept = value;
    } else {
      const Bf16 rounded = to_bf16(value);
      std::memcpy(to, &rounded, 2);
      kept = to_float(rounded);
    }
  }

  void make_e2m1() {
    const int64_t blocks = shape_.in.padded() / block();
    data_ = std::make_unique<Guarded<std::byte>>(size(shape_.out.padded() * blocks * block() / 2));
    scales_ = std::make_unique<Guarded<uint8_t>>(size(shape_.out.padded() * blocks));
    std::fill_n(scales_->data(), shape_.out.padded() * blocks, is_nvfp4() ? kE4m3One : kE8m0One);
    for (int64_t n = 0; n < shape_.out.logical(); ++n) {
      for (int64_t b = 0; b < blocks; ++b) make_block(n, b, n * blocks + b);
    }
  }
  // Elements beyond the logical width are code 0. Padding draws no random numbers, so that a padded
  // matrix is the unpadded one of the same seed.
  void make_block(int64_t n, int64_t b, int64_t place) {
    if (b * block() >= shape_.in.logical()) return;
    // E4M3: subnormals, both signs.
    const auto scale = static_cast<uint8_t>(is_nvfp4() ? random_.integer(0, 70) | n % 2 << 7
                                                       : random_.integer(118, 132));
    const float factor = is_nvfp4() ? e4m3_to_float(scale) : e8m0_to_float(scale);
    scales_->data()[place] = scale;
    for (int64_t i = 0; i < block(); ++i) {
      const int64_t k = b * block() + i;
      if (k >= shape_.in.logical()) return;
      const auto code = static_cast<uint8_t>(random_.integer(0, 15));
      codes()[place * block() / 2 + i / 2] |= static_cast<uint8_t>(code << (i % 2 * 4));
      dense_[size(n * shape_.in.logical() + k)] = kE2m1Values[code] * factor;
    }
  }

  void make_fp8() {
    const int64_t ins = shape_.in.padded();
    data_ = std::make_unique<Guarded<std::byte>>(size(shape_.out.padded() * ins));
    for (int64_t n = 0; n < shape_.out.logical(); ++n) {
      for (int64_t k = 0; k < shape_.in.logical(); ++k) {
        // Up to 2; subnormals, both signs.
        const auto code = static_cast<uint8_t>(random_.integer(0, 64) | random_.integer(0, 1) << 7);
        codes()[n * ins + k] = code;
        dense_[size(n * shape_.in.logical() + k)] = e4m3_to_float(code);
      }
    }
  }

  // From 1/4 to 4, with all bits of a float.
  void make_factors() {
    const int64_t columns = parts(shape_.in.logical(), factor_columns());
    const std::vector<float> drawn =
        random_.normal(parts(shape_.out.logical(), factor_rows()) * columns);
    factors_ = std::make_unique<Guarded<float>>(drawn);
    for (size_t i = 0; i < drawn.size(); ++i) {
      factors_->data()[i] = std::exp2(std::clamp(drawn[i], -2.0f, 2.0f));
    }
    for (int64_t n = 0; n < shape_.out.logical(); ++n) {
      for (int64_t k = 0; k < shape_.in.logical(); ++k) {
        dense_[size(n * shape_.in.logical() + k)] *=
            factors_->data()[n / factor_rows() * columns + k / factor_columns()];
      }
    }
  }

  static constexpr uint8_t kE8m0One = 127;
  static constexpr uint8_t kE4m3One = 56;

  CaseShape shape_;
  Random random_;
  std::unique_ptr<Guarded<std::byte>> data_;
  std::unique_ptr<Guarded<uint8_t>> scales_;
  std::unique_ptr<Guarded<float>> factors_;
  std::vector<Bf16> bias_;
  std::vector<float> dense_;  // [N, K], logical
};

// Memory on a cache line.
inline std::unique_ptr<Buffer> aligned_bytes(Bytes bytes) {
  const auto count = std::max<int64_t>(bytes.count, 1);
  auto buffer = Buffer::allocate(static_cast<size_t>(count), Fill::kUnspecified);
  return std::make_unique<Buffer>(std::move(buffer).value());
}

// A prepared input and the memory it lies in.
struct Prepared {
  std::unique_ptr<Buffer> memory;
  PreparedInput input;
};
inline Prepared prepare(const KernelTable& kernels, const WeightMatrix& weights,
                        MatrixView<const float> x, std::span<const int32_t> rows, Compute compute) {
  const InputLayout layout = kernels.input_layout(weights, compute);
  const int64_t tokens = rows.empty() ? x.rows() : static_cast<int64_t>(rows.size());
  Prepared prepared{aligned_bytes(layout.token_stride * tokens), {}};
  prepared.input =
      kernels.prepare_input(x, rows, weights.in, layout, compute, prepared.memory->data());
  return prepared;
}

struct Columns {
  int64_t first;
  int64_t end;
};
inline constexpr float kUntouched = -12345.0f;

// out [tokens, N logical]; elements outside `columns` stay kUntouched.
inline std::vector<float> multiply(const KernelTable& kernels, const WeightMatrix& weights,
                                   const Prepared& x, Columns columns) {
  const int64_t width = weights.out.logical();
  std::vector<float> out(static_cast<size_t>(x.input.tokens * width), kUntouched);
  const Bytes scratch_bytes = kernels.matmul_scratch_bytes(weights.in);
  const auto scratch = aligned_bytes(scratch_bytes);
  kernels.matmul({.weights = &weights,
                  .input = x.input,
                  .first_column = columns.first,
                  .end_column = columns.end,
                  .out = out.data(),
                  .out_stride = width,
                  .scratch = {scratch->data(), static_cast<size_t>(scratch_bytes.count)}});
  return out;
}

// All columns for x [tokens, K], packed.
inline std::vector<float> multiply(const KernelTable& kernels, const WeightMatrix& weights,
                                   const std::vector<float>& x, Compute compute) {
  const int64_t in = weights.in.logical();
  const Guarded<float> guarded(x);
  const MatrixView<const float> view(guarded.data(), static_cast<int64_t>(x.size()) / in,
                                     Extent(in), in);
  return multiply(kernels, weights, prepare(kernels, weights, view, {}, compute),
                  {0, weights.out.logical()});
}

}  // namespace rota::testing
