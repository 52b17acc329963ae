// What a row looks like between ranks: exactly the bits that the experts consume, padded as the
// transport wants it. Columns from logical to padded are zero.
//
//   BF16     where the experts round their inputs to it: rounded by the sender as they would, so that
//            rounding again changes nothing
//   float32  else, and on the way home
//   WireRow row(plan.dispatch, compute);
//   row.pack(hidden.row(t), to);      // row.bytes() of them, at any even address (float32: of 4)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernels.h"
#include "moe/routing.h"
#include "tensor/extent.h"

namespace rota {

class WireRow {
 public:
  WireRow(Extent width, Compute compute) : width_(width), bf16_(compute == Compute::kBf16) {}
  static WireRow home(Extent width) { return {width, Compute::kFloat32}; }

  int64_t bytes() const {
    return width_.padded() * static_cast<int64_t>(bf16_ ? sizeof(Bf16) : sizeof(float));
  }
  void pack(std::span<const float> row, std::byte* to) const;  // logical columns
  void unpack(const KernelTable& kernels, const std::byte* from, std::span<float> row) const;
  // Where it lies: float32 rows alone.
  std::span<const float> view(const std::byte* from) const;

 private:
  Extent width_;
  bool bf16_;
};

// A token on its way to experts: its row, k ids and, where its shares are summed elsewhere, k
// weights.
class WireToken {
 public:
  WireToken(const WireRow& row, int64_t k, bool with_weights)
      : row_(row), k_(k), with_weights_(with_weights) {}

  int64_t bytes() const {
    return row_.bytes() +
           k_ * static_cast<int64_t>(sizeof(int32_t) + (with_weights_ ? sizeof(float) : 0));
  }
  struct Parts {
    std::span<const float> row;      // logical columns
    std::span<const int32_t> ids;    // [k]
    std::span<const float> weights;  // [k] or not looked at
  };
  void pack(const Parts& token, std::byte* to) const;
  void set_id(std::byte* packed, int64_t slot, int32_t id) const;
  struct Room {
    std::span<float> row;
    std::span<int32_t> ids;
    std::span<float> weights;
  };
  void unpack(const KernelTable& kernels, const std::byte* from, const Room& to) const;

 private:
  WireRow row_;
  int64_t k_;
  bool with_weights_;
};

}  // namespace rota
