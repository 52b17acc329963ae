// The ranks that serve a model together, and what they do together. The only way from a Partial to a
// Reduced (R6).
//
// Contract: all ranks call the same operations in the same order, with the same shapes. reduce()
// adds in rank order in float32, so that the sum has the same bits on every rank and in every run.
//
//   Communicator& alone = loopback();
//   ROTA_ASSIGN_OR_RETURN(Reduced<float> sum, alone.reduce(Partial<float>(rows)));
#pragma once

#include "base/status.h"
#include "comm/partial.h"

namespace rota {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int ranks() const = 0;
  virtual int rank() const = 0;

  // In place, logical columns alone: this rank's share becomes the sum over all ranks.
  Result<Reduced<float>> reduce(Partial<float>&& partial);

 private:
  virtual Status sum_over_ranks(MatrixView<float> rows) = 0;
};

// One rank: what it has is the sum. Stateless, lives for ever.
Communicator& loopback();

}  // namespace rota
