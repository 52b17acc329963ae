// A linear layer's weight as the kernels take it, whatever the checkpoint's format.
//
//   FactorStore factors;
//   ROTA_ASSIGN_OR_RETURN(WeightMatrix q, load_linear(checkpoint, {.module = p + ".q_proj", .format =
//       config.quant.format_of(p + ".q_proj"), .out = heads * dim, .in = hidden}, factors));
// Codes and block scales are views into the checkpoint; the float32 factors above them, few numbers
// in BF16 or float32, are copied into `factors`, which must outlive the matrix; one that is not
// finite, or negative, is kDataLoss. Codes and block scales are not looked at here: that is
// verify_linears().
//
// Tensors of MODULE, [out, in]:
//   plain   .weight BF16 [out, in]
//   FP8     .weight E4M3 [out, in], .weight_scale or .weight_scale_inv: one, [out, 1], or one for
//           each block
//   NVFP4   .weight U8 [out, in/2], .weight_scale E4M3 [out, in/16], .weight_scale_2: one
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/linear_format.h"
#include "kernels/matmul.h"
#include "platform/thread_team.h"

namespace rota {

// The elements of a BF16 or float32 tensor.
std::vector<float> to_floats(const TensorInfo& tensor);

// Keeps factors where they are, however many are added.
class FactorStore {
 public:
  // `tensor` is BF16 or float32.
  std::span<const float> add(const TensorInfo& tensor);
  Bytes bytes() const { return bytes_; }

 private:
  std::deque<std::vector<float>> values_;
  Bytes bytes_;
};

struct LinearSource {
  std::string module;
  LinearFormat format;
  int64_t out = 0;
  int64_t in = 0;
};

std::vector<TensorSpec> linear_specs(const LinearSource& source);

// Whether such a layer can be served at all, whatever its weights are.
Status check_linear(const LinearSource& source);

Result<WeightMatrix> load_linear(const Checkpoint& checkpoint, const LinearSource& source,
                                 FactorStore& factors);

// Looks at all codes of FP8 and all block scales of NVFP4: the first of which no number can be made
// is kDataLoss. Reads them all.
Status verify_linears(const Checkpoint& checkpoint, std::span<const LinearSource> sources,
                      ThreadTeam& team);

}  // namespace rota
