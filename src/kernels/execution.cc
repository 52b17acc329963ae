#include "kernels/execution.h"

namespace rota {

Result<Execution> Execution::make(const KernelTable& kernels, Compute compute, ThreadTeam& team,
                                  const Needs& needs) {
  const int64_t wanted = std::max(
      {int64_t{1}, kernels.matmul_scratch_bytes(needs.max_in).count, needs.attention.count});
  const int64_t per_member = round_up(wanted, static_cast<int64_t>(kCacheLine));
  ROTA_ASSIGN_OR_RETURN(
      Buffer scratch,
      Buffer::allocate(static_cast<size_t>(per_member * team.size()), Fill::kUnspecified));
  return Execution(kernels, compute, team, std::move(scratch), per_member);
}

PreparedInput Execution::prepare(MatrixView<const float> x, Extent in, InputLayout layout,
                                 std::byte* into) const {
  for_rows(x.rows(), [&](int64_t first, int64_t count) {
    kernels_->prepare_input(x.row_range(first, count), {}, in, layout, compute_,
                            into + (layout.token_stride * first).count);
  });
  return {.data = into, .layout = layout, .compute = compute_, .tokens = x.rows()};
}

}  // namespace rota
