// What a step computes with: one ISA's kernels, one team of threads, and scratch memory for each of
// its members. Passed to every block; nothing here is global.
//
//   exec.for_rows(tokens, [&](int64_t first, int64_t count) { norm rows [first, first + count) });
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "kernels/kernels.h"
#include "platform/memory.h"
#include "platform/thread_team.h"
#include "tensor/matrix.h"

namespace rota {

class Execution {
 public:
  struct Needs {
    Extent max_in{1};  // the widest matmul input
    Bytes attention;   // scratch of one attend() call
  };
  static Result<Execution> make(const KernelTable& kernels, Compute compute, ThreadTeam& team,
                                const Needs& needs);

  const KernelTable& kernels() const { return *kernels_; }
  Compute compute() const { return compute_; }
  ThreadTeam& team() const { return *team_; }
  int64_t scratch_bytes() const { return static_cast<int64_t>(scratch_.size()); }

  // A team member's own scratch: enough for a matmul or an attend call.
  std::span<std::byte> scratch(int member) const {
    return {scratch_.data() + member * per_member_, static_cast<size_t>(per_member_)};
  }

  // fn(item, member) over the team, or right here when there is nothing to share.
  template <typename Fn>
  void for_items(int64_t items, Fn&& fn) const {
    if (items == 1 || team_->size() == 1) {
      for (int64_t item = 0; item < items; ++item) fn(item, 0);
    } else if (items > 1) {
      team_->parallel_for(items, fn);
    }
  }

  // fn(first, count) over blocks of rows.
  template <typename Fn>
  void for_rows(int64_t rows, Fn&& fn) const {
    for_items((rows + kRowBlock - 1) / kRowBlock, [&](int64_t block, int) {
      const int64_t first = block * kRowBlock;
      fn(first, std::min(kRowBlock, rows - first));
    });
  }

  // All rows of x, made ready for a matmul of this layout, in `into`.
  PreparedInput prepare(MatrixView<const float> x, Extent in, InputLayout layout,
                        std::byte* into) const;

 private:
  // Rows of one item: a few microseconds of a norm, against less than one for handing it out.
  static constexpr int64_t kRowBlock = 8;

  Execution(const KernelTable& kernels, Compute compute, ThreadTeam& team, Buffer scratch,
            int64_t per_member)
      : kernels_(&kernels),
        compute_(compute),
        team_(&team),
        scratch_(std::move(scratch)),
        per_member_(per_member) {}

  const KernelTable* kernels_;
  Compute compute_;
  ThreadTeam* team_;
  Buffer scratch_;
  int64_t per_member_;
};

}  // namespace rota
