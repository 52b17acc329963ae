#include "moe/experts/grouped.h"

#include <algorithm>

#include "base/check.h"
#include "moe/experts/group_rows.h"
#include "quant/mxfp4.h"

namespace rota {
namespace {

// Columns of one work item: a few times a kernel's own tile, small enough that a single token's
// matmul makes many times more items than there are threads.
constexpr int64_t kTileColumns = 64;
// Rows of one work item: their inputs (2880 x 2 bytes each) stay in the second-level cache.
constexpr int64_t kBlockRows = 128;
// Rows that a thread prepares at a time; fewer are not worth waking the team for.
constexpr int64_t kPrepareRows = 16;
constexpr int64_t kPrepareAlone = 8;

int64_t parts(int64_t count, int64_t each) { return (count + each - 1) / each; }

// Everything about sizes that follows from ExpertsSizing, and where each buffer begins in the
// workspace. Small numbers, computed anew for each run.
struct Layout {
  explicit Layout(const ExpertsSizing& sizing, const KernelTable& kernels);

  Extent intermediate{1};
  InputLayout in_layout;
  InputLayout down_layout;
  int64_t half = 0;         // padded columns of one of gate and up
  int64_t half_stride = 0;  // elements of a row of h
  int64_t out_stride = 0;   // elements of a row of the output
  int64_t tile = 0;         // columns of h in one item
  int64_t down_tile = 0;
  int64_t max_slots = 0;
  int64_t max_rows = 0;
  int64_t member_scratch = 0;  // bytes
  // Byte offsets.
  int64_t index = 0;
  int64_t item_begin = 0;
  int64_t inputs_or_outputs = 0;  // prepared inputs until gate and up are done, then the output
  int64_t h = 0;
  int64_t prepared_h = 0;
  int64_t members = 0;
  int64_t member_bytes = 0;
  int64_t total = 0;
};

int64_t to_lines(int64_t bytes) { return round_up(bytes, static_cast<int64_t>(kCacheLine)); }

WeightMatrix shape_of(const MoeConfig& config, Extent out, Extent in) {
  WeightMatrix shape;
  shape.format = config.format;
  shape.order = config.order;
  shape.out = out;
  shape.in = in;
  return shape;
}

Layout::Layout(const ExpertsSizing& sizing, const KernelTable& kernels) {
  constexpr int64_t kFloat = sizeof(float);
  const MoeConfig& config = *sizing.config;
  const WidthPlan& plan = *sizing.plan;
  // An empty shard has no expert, so no row ever needs its room: the smallest will do.
  intermediate = plan.intermediate.value_or(Extent(1, kMxfp4BlockElements));
  const WeightMatrix gate_up = shape_of(config, intermediate, plan.experts_in);
  const WeightMatrix down = shape_of(config, plan.experts_out, intermediate);
  in_layout = kernels.input_layout(gate_up, sizing.compute);
  down_layout = kernels.input_layout(down, sizing.compute);
  half = intermediate.padded();
  half_stride = to_lines(half * kFloat) / kFloat;
  out_stride = to_lines(plan.experts_out.padded() * kFloat) / kFloat;
  tile = round_up(kTileColumns, kernels.column_granularity(gate_up, sizing.compute));
  down_tile = round_up(kTileColumns, kernels.column_granularity(down, sizing.compute));
  max_rows = sizing.tokens * config.router.top_k;
  max_slots = std::max(max_rows, sizing.places);
  member_scratch = to_lines(std::max(kernels.matmul_scratch_bytes(plan.experts_in).count,
                                     kernels.matmul_scratch_bytes(intermediate).count));

  const auto reserve = [this](int64_t bytes) {
    const int64_t at = total;
    total += to_lines(bytes);
    return at;
  };
  constexpr int64_t kIndex = sizeof(int32_t);
  index = reserve(group_rows_storage(max_slots, sizing.local_experts) * kIndex);
  item_begin = reserve((sizing.local_experts + 1) * static_cast<int64_t>(sizeof(int64_t)));
  inputs_or_outputs =
      reserve(max_rows * std::max(in_layout.token_stride.count, out_stride * kFloat));
  h = reserve(max_rows * half_stride * kFloat);
  prepared_h = reserve(max_rows * down_layout.token_stride.count);
  member_bytes = member_scratch + to_lines(kBlockRows * 2 * tile * kFloat);
  members = reserve(member_bytes * sizing.threads);
}

// One run: the layer's rows through gate and up, the activation, and down.
class GroupedRun {
 public:
  GroupedRun(const ExpertsRun& run, const KernelTable& kernels)
      : run_(run), config_(*run.sizing->config), kernels_(kernels), layout_(*run.sizing, kernels) {
    const MoeLayer& layer = *run.layer;
    const int64_t slots = run.batched ? run.hidden.rows() : run.topk.tokens * run.topk.k;
    ROTA_CHECK(
        static_cast<int64_t>(run.workspace.size()) >= layout_.total && slots <= layout_.max_slots,
        "the experts' workspace was sized for fewer tokens");
    const std::span<int32_t> storage(
        at<int32_t>(layout_.index),
        static_cast<size_t>(group_rows_storage(slots, layer.map().local_count())));
    rows_ = run.batched ? group_rows(*run.batched, storage)
                        : group_rows(run.topk, layer.map(), storage);
    ROTA_CHECK(rows_.rows() <= layout_.max_rows, "the workspace was sized for fewer tokens");
  }

  Result<ExpertsOutput> operator()() {
    ROTA_RETURN_IF_ERROR(run_.layer->verify(rows_.active, *run_.team));
    prepare_inputs();
    gate_and_up();
    prepare_hidden();
    down();
    return ExpertsOutput{.rows = output(), .row_of_slot = rows_.row_of_slot};
  }

 private:
  // A block of one expert's rows and a tile of columns.
  struct Item {
    int32_t expert = 0;
    int64_t first_row = 0;
    int64_t rows = 0;
    int64_t tile = 0;
  };

  template <typename T>
  T* at(int64_t offset) const {
    return reinterpret_cast<T*>(run_.workspace.data() + offset);
  }
  std::span<std::byte> scratch(int member) const {
    return {run_.workspace.data() + layout_.members + member * layout_.member_bytes,
            static_cast<size_t>(layout_.member_scratch)};
  }
  float* tile_buffer(int member) const {
    return at<float>(layout_.members + member * layout_.member_bytes + layout_.member_scratch);
  }
  MatrixView<float> hidden() const {
    return {at<float>(layout_.h), rows_.rows(), layout_.intermediate, layout_.half_stride};
  }
  MatrixView<float> output() const {
    return {at<float>(layout_.inputs_or_outputs), rows_.rows(), run_.sizing->plan->experts_out,
            layout_.out_stride};
  }
  // A single token's row serves all its experts.
  bool one_token() const { return !run_.batched && run_.topk.tokens == 1; }

  void prepare_inputs() {
    const auto prepare = [this](int64_t first, int64_t count) {
      kernels_.prepare_input(
          run_.hidden,
          std::span<const int32_t>(rows_.token_of_row)
              .subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
          run_.sizing->plan->experts_in, layout_.in_layout, run_.sizing->compute,
          at<std::byte>(layout_.inputs_or_outputs) + first * layout_.in_layout.token_stride.count);
    };
    over_rows(one_token() ? std::min<int64_t>(1, rows_.rows()) : rows_.rows(), prepare);
  }

  void prepare_hidden() {
    poison_tails(hidden());
    over_rows(rows_.rows(), [this](int64_t first, int64_t count) {
      kernels_.prepare_input(
          hidden().row_range(first, count), {}, layout_.intermediate, layout_.down_layout,
          run_.sizing->compute,
          at<std::byte>(layout_.prepared_h) + first * layout_.down_layout.token_stride.count);
    });
  }

  template <typename Fn>
  void over_rows(int64_t rows, Fn&& fn) {
    if (rows <= kPrepareAlone) {
      if (rows > 0) fn(int64_t{0}, rows);
      return;
    }
    run_.team->parallel_for(parts(rows, kPrepareRows), [&](int64_t block, int) {
      const int64_t first = block * kPrepareRows;
      fn(first, std::min(kPrepareRows, rows - first));
    });
  }

  // fn(item, member) for all blocks of rows and tiles of columns. Within an expert the tile changes
  // last: blocks of rows that share a tile find its weights in the cache.
  template <typename Fn>
  void over_items(int64_t columns, int64_t tile, Fn&& fn) {
    const int64_t tiles = parts(columns, tile);
    auto* begin = at<int64_t>(layout_.item_begin);
    const auto active = static_cast<int64_t>(rows_.active.size());
    begin[0] = 0;
    for (int64_t i = 0; i < active; ++i) {
      const int32_t expert = rows_.active[static_cast<size_t>(i)];
      begin[i + 1] = begin[i] + tiles * parts(rows_.count(expert), kBlockRows);
    }
    run_.team->parallel_for(begin[active], [&](int64_t index, int member) {
      const int64_t i = std::upper_bound(begin, begin + active, index) - begin - 1;
      const int32_t expert = rows_.active[static_cast<size_t>(i)];
      const int64_t count = rows_.count(expert);
      const int64_t blocks = parts(count, kBlockRows);
      const int64_t block = (index - begin[i]) % blocks;
      fn(Item{.expert = expert,
              .first_row = rows_.first(expert) + block * kBlockRows,
              .rows = std::min(kBlockRows, count - block * kBlockRows),
              .tile = (index - begin[i]) / blocks},
         member);
    });
  }

  PreparedInput input(const InputLayout& layout, int64_t offset, int64_t first,
                      int64_t rows) const {
    return {.data = at<std::byte>(offset) + first * layout.token_stride.count,
            .layout = layout,
            .compute = run_.sizing->compute,
            .tokens = rows};
  }

  void gate_and_up() {
    over_items(layout_.half, layout_.tile, [this](const Item& item, int member) {
      const int64_t first = item.tile * layout_.tile;
      const int64_t columns = std::min(layout_.tile, layout_.half - first);
      const PreparedInput x = input(layout_.in_layout, layout_.inputs_or_outputs,
                                    one_token() ? 0 : item.first_row, item.rows);
      const MatrixView<float> h =
          hidden().row_range(item.first_row, item.rows).column_range(first, Extent(columns));
      activate(run_.layer->expert(item.expert), first, x, h, member);
    });
  }

  // The columns of h that begin at `first`, from gate and up, or from up alone.
  void activate(const ExpertMatrices& expert, int64_t first, const PreparedInput& x,
                MatrixView<float> h, int member) const {
    const int64_t columns = h.width().logical();
    float* const buffer = tile_buffer(member);
    switch (config_.activation) {
      case ExpertActivation::kSwigluOai:
        kernels_.swiglu_oai(
            {.gate_up = multiply(expert.gate, 2 * first, 2 * columns, x, buffer, member),
             .alpha = config_.swiglu_alpha,
             .limit = config_.swiglu_limit,
             .out = h});
        break;
      case ExpertActivation::kSiluMul: {
        const auto gate = multiply(expert.gate, first, columns, x, buffer, member);
        const auto up =
            multiply(expert.up, first, columns, x, buffer + kBlockRows * layout_.tile, member);
        kernels_.silu_mul({.gate = gate, .up = up, .out = h});
        break;
      }
      case ExpertActivation::kRelu2:
        kernels_.relu2(multiply(expert.up, first, columns, x, buffer, member), h);
        break;
    }
  }

  // Columns [first, first + count) of one matrix for the rows of x, into a buffer of its own.
  MatrixView<float> multiply(const WeightMatrix& weights, int64_t first, int64_t count,
                             const PreparedInput& x, float* buffer, int member) const {
    const WeightMatrix columns = column_slice(weights, first, count);
    kernels_.matmul({.weights = &columns,
                     .input = x,
                     .first_column = 0,
                     .end_column = count,
                     .out = buffer,
                     .out_stride = count,
                     .scratch = scratch(member)});
    return {buffer, x.tokens, Extent(count), count};
  }

  void down() {
    const Extent width = run_.sizing->plan->experts_out;
    over_items(width.padded(), layout_.down_tile, [this, width](const Item& item, int member) {
      const int64_t first = item.tile * layout_.down_tile;
      kernels_.matmul(
          {.weights = &run_.layer->expert(item.expert).down,
           .input = input(layout_.down_layout, layout_.prepared_h, item.first_row, item.rows),
           .first_column = first,
           .end_column = std::min(first + layout_.down_tile, width.padded()),
           .out = output().row_range(item.first_row, item.rows).data(),
           .out_stride = layout_.out_stride,
           .scratch = scratch(member)});
    });
    poison_tails(output());
  }

  const ExpertsRun& run_;
  const MoeConfig& config_;
  const KernelTable& kernels_;
  const Layout layout_;
  GroupedRows rows_;
};

}  // namespace

Extent GroupedExperts::output(const MoeConfig&, Extent in) const { return in; }

Bytes GroupedExperts::workspace_bytes(const ExpertsSizing& sizing) const {
  return {Layout(sizing, *kernels(sizing.kernels)).total};
}

Result<ExpertsOutput> GroupedExperts::run(const ExpertsRun& run) const {
  return GroupedRun(run, *kernels(run.sizing->kernels))();
}

}  // namespace rota
