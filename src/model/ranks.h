// The ranks that serve a model together, and which of them this one is.
//
// Rank r is data-parallel rank r / TP, tensor-parallel rank r mod TP: the ranks of one
// tensor-parallel group are neighbours. They see the same batches and end each step with the same
// bits; data-parallel ranks have batches of their own, and meet in the mixture layers.
//
//   ROTA_ASSIGN_OR_RETURN(auto tensor, world.split(world.rank() / tp));
//   options.ranks = {.world = &world, .tensor = tensor.get(), .parallel = parallel};
#pragma once

#include <functional>

#include "base/status.h"
#include "comm/communicator.h"
#include "moe/plan.h"

namespace rota {

// Communicators outlive the model, and are used by the thread that steps it.
struct RankContext {
  Communicator* world = &loopback();
  Communicator* tensor = &loopback();  // this rank's tensor-parallel group
  MoeParallel parallel = {};           // the rank of its shape: that in `world`
  // load_model() calls it once, with how it went so far: this rank has its weights, and is about to
  // meet the others. Ranks load at their own pace, and may fail: it waits for all, and fails on
  // all. May be empty.
  std::function<Status(const Status&)> meet = {};

  const ParallelShape& shape() const { return parallel.shape; }
  int tensor_rank() const { return shape().rank % shape().tp; }
  int data_rank() const { return shape().rank / shape().tp; }
};

// kInvalidArgument where the communicators are not those of the shape.
Status check_ranks(const RankContext& ranks);

}  // namespace rota
