#include "model/ranks.h"

namespace rota {
namespace {

Status check_group(const char* what, const Communicator& found, int ranks, int rank) {
  if (found.ranks() == ranks && found.rank() == rank) return {};
  return invalid_argument("{} communicator: rank {} of {}, expected rank {} of {}", what,
                          found.rank(), found.ranks(), rank, ranks);
}

}  // namespace

Status check_ranks(const RankContext& ranks) {
  const ParallelShape& shape = ranks.shape();
  if (shape.dp < 1 || shape.tp < 1) {
    return invalid_argument("data parallel {} x tensor parallel {}: expected at least one of each",
                            shape.dp, shape.tp);
  }
  ROTA_RETURN_IF_ERROR(check_group("world", *ranks.world, shape.ranks(), shape.rank));
  return check_group("tensor-parallel", *ranks.tensor, shape.tp, ranks.tensor_rank());
}

}  // namespace rota
