// y = x W^T + b, for one matrix or for several that share their input (q, k and v): the outputs lie
// side by side. Columns are split over the team; a tile is a few rows of weights, read once.
//
//   ROTA_ASSIGN_OR_RETURN(Linear qkv, Linear::make({q, k, v}, exec));
//   PreparedInput input = exec.prepare(x, qkv.in(), qkv.layout(), prepared);
//   qkv.run(exec, input, out, [](int64_t first, int64_t count, int) {});
//   run_linear(exec, matrix, input, out);   // one matrix, in the same way, from its view alone
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "kernels/execution.h"
#include "kernels/matmul.h"
#include "kernels/weight_matrix.h"

namespace rota {

class Linear {
 public:
  // All parts have the same input width and the same input layout.
  static Result<Linear> make(std::vector<WeightMatrix> parts, const Execution& exec);

  Extent in() const { return parts_.front().in; }
  int64_t columns() const { return columns_; }
  InputLayout layout() const { return layout_; }
  Bytes weight_bytes() const;  // that one token reads: matrices and biases

  // out [T, columns()]; done(first, count, member) is called for each finished tile of columns, in
  // the thread that computed it.
  template <typename Fn>
  void run(const Execution& exec, const PreparedInput& input, MatrixView<float> out,
           Fn&& done) const {
    exec.for_items(static_cast<int64_t>(tiles_.size()), [&](int64_t item, int member) {
      const Tile& tile = tiles_[static_cast<size_t>(item)];
      run_tile(exec, tile, input, out, member);
      done(tile.out_column, tile.end - tile.first, member);
    });
  }
  void run(const Execution& exec, const PreparedInput& input, MatrixView<float> out) const {
    run(exec, input, out, [](int64_t, int64_t, int) {});
  }

 private:
  struct Tile {
    size_t part = 0;
    int64_t first = 0;  // columns [first, end) of the part
    int64_t end = 0;
    int64_t out_column = 0;  // where `first` lies in the output
  };

  void add_tiles(size_t part, int64_t columns, const Execution& exec);
  void run_tile(const Execution& exec, const Tile& tile, const PreparedInput& input,
                MatrixView<float> out, int member) const;

  std::vector<WeightMatrix> parts_;
  std::vector<Tile> tiles_;
  InputLayout layout_;
  int64_t columns_ = 0;
};

// out [T, weights.out.logical()]; takes no memory.
void run_linear(const Execution& exec, const WeightMatrix& weights, const PreparedInput& input,
                MatrixView<float> out);

}  // namespace rota
