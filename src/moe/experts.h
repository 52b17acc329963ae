// An experts backend: the routed experts' computation. It says what it takes, how it wants widths
// rounded, and how wide its output is; then runs.
//
//   if (auto reason = backend.refuse(config, context)) log(*reason);
//   backend.run({...}, output);    // gather, gate and up, activation, down
// Contract of run(): a row of the output depends on its token and expert alone, bit for bit;
// nothing is allocated. All backends are stateless and live for ever: see select_backend.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "kernels/kernels.h"
#include "moe/config.h"
#include "moe/routing.h"
#include "moe/weights.h"
#include "moe/width_plan.h"
#include "platform/cpu.h"
#include "platform/thread_team.h"
#include "tensor/matrix.h"

namespace rota {

// What a backend is asked to run on: the CPU, the ISA in use, and the type of matmul inputs.
struct BackendContext {
  CpuFeatures cpu;
  Isa isa = Isa::kRef;
  Compute compute = Compute::kBf16;
};

struct ExpertsAlignment {
  int64_t hidden = 1;        // elements; 1: any width
  int64_t intermediate = 1;  // elements of one of gate and up, on this rank
};

struct ExpertsSizing {
  const MoeConfig* config = nullptr;
  const WidthPlan* plan = nullptr;
  const KernelTable* kernels = nullptr;
  Compute compute = Compute::kBf16;  // ExpertsBackend::compute()
  int64_t local_experts = 0;
  int64_t tokens = 0;  // of one run() at most; batched: those whose rows fill places
  int64_t places = 0;  // batched: local experts * places of each; 0: the format is not used
  int threads = 1;
};

// The batched activation format: each local expert has so many places of its own, as low-latency
// transports deliver tokens, and the first of them are filled.
struct BatchedTokens {
  int64_t places = 0;               // of one expert
  std::span<const int32_t> counts;  // [local experts] filled
};

// Standard: rows are tokens, each for the experts that it chose. Batched: rows are places, expert
// by expert, and `topk` is not looked at.
struct ExpertsRun {
  const ExpertsSizing* sizing = nullptr;
  const MoeLayer* layer = nullptr;
  MatrixView<const float> hidden;  // [T or local experts * places, experts_in.logical]
  TopK topk = {};                  // [T, k]
  std::optional<BatchedTokens> batched = {};
  ThreadTeam* team = nullptr;
  std::span<std::byte> workspace = {};  // workspace_bytes() long, cache-line aligned
};

// Rows in the workspace: valid until the next run().
struct ExpertsOutput {
  MatrixView<const float> rows;  // [chosen and here, experts_out]
  // [T * k], or [local experts * places]. kNotHere: another rank's, or an empty place.
  std::span<const int32_t> row_of_slot;
  static constexpr int32_t kNotHere = -1;
  // The row of a slot, or nothing (R8).
  std::optional<std::span<const float>> row(int64_t slot) const {
    const int32_t index = row_of_slot[static_cast<size_t>(slot)];
    if (index == kNotHere) return std::nullopt;
    return rows.row(index);
  }
};

class ExpertsBackend {
 public:
  virtual ~ExpertsBackend() = default;
  virtual std::string_view name() const = 0;

  // Why this machine can never run it, or nothing. For `rota backends`.
  virtual std::optional<std::string> refuse_machine(const BackendContext& context) const = 0;
  // Why it cannot serve this layer here, or nothing.
  virtual std::optional<std::string> refuse(const MoeConfig& config,
                                            const BackendContext& context) const = 0;

  // Never chosen by `auto`: why, or nothing.
  virtual std::optional<std::string> only_by_name() const { return std::nullopt; }

  // What it rounds the experts' inputs to, where --dtype says `wanted`.
  virtual Compute compute(Compute wanted) const { return wanted; }

  // The smallest legal alignment.
  virtual ExpertsAlignment alignment(const MoeConfig& config) const = 0;
  // How wide a row comes out when rows of width `in` go in (R4).
  virtual Extent output(const MoeConfig& config, Extent in) const = 0;
  // The kernels that it uses where `best` are the ISA's.
  virtual const KernelTable* kernels(const KernelTable* best) const = 0;

  virtual Bytes workspace_bytes(const ExpertsSizing& sizing) const = 0;
  virtual Result<ExpertsOutput> run(const ExpertsRun& run) const = 0;
};

}  // namespace rota
