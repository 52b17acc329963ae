// Decode steps that were run once at the start, one for each of a list of batch sizes, so that
// later ones find all they use: buffers, threads, links between ranks, and which collectives come
// in which order. Other engines call this graph capture; here is no graph, so what is fixed is
// checked instead.
//
// Contract: a step replays the smallest capture that holds it: each sequence of each data-parallel
// group runs one token, and no group has more of them than the capture's size. It runs its own
// tokens, not as many as the capture had: nothing is filled up, so neither bits nor cost change. A
// replay makes no collective more than its capture made, else kInternal, and does not allocate. All
// ranks decide alike, from what the headers of the step say. Pure bookkeeping; nothing allocates
// after the captures.
//
//   StepCaptures captures(capture_sizes(options).value());
//   for (int64_t size : captures.wanted()) captures.add(size, operations of a real step);
//   if (const StepCapture* plan = captures.find(step)) ROTA_RETURN_IF_ERROR(check_replay(*plan, operations));
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine_options.h"

namespace rota {

// What all groups run in one step.
struct StepTokens {
  std::span<const int64_t> tokens_of_group;  // [dp]
  bool decodes = false;                      // one token a sequence, on every group
};

struct StepCapture {
  int64_t size = 0;        // sequences of a group at most
  int64_t operations = 0;  // of the communicators, in the forward pass
};

// Batch sizes in ascending order: what --cudagraph-capture-sizes lists, or 1, 2, 4, 8 ... and the
// largest batch; none with --enforce-eager. kInvalidArgument names what is no size.
Result<std::vector<int64_t>> capture_sizes(const EngineOptions& options);

class StepCaptures {
 public:
  explicit StepCaptures(std::vector<int64_t> wanted);

  std::span<const int64_t> wanted() const { return wanted_; }
  std::span<const StepCapture> captures() const { return captures_; }  // ascending

  // A step of `size` sequences on each group has run. A size that was captured is not captured
  // again.
  void add(int64_t size, int64_t operations);
  const StepCapture* find(const StepTokens& step) const;  // nothing: the step runs as it is
  std::string describe() const;  // "decode steps of up to 1, 2, 4, 8 sequences"

 private:
  std::vector<int64_t> wanted_;
  std::vector<StepCapture> captures_;
};

Status check_replay(const StepCapture& capture, int64_t operations);

}  // namespace rota
