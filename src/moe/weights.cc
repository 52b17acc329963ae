#include "moe/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "checkpoint/scan_scales.h"
#include "moe/padded_copy.h"
#include "quant/mxfp4.h"
#include "quant/nvfp4.h"

namespace rota {
namespace {

using Role = MatrixRole;
constexpr std::array<Role, 3> kRoles = {Role::kGate, Role::kUp, Role::kDown};

// The widths of one expert's matrix on this rank, and whether its bias is added here.
struct MatrixWidths {
  Extent out{1};
  Extent in{1};
  bool bias = false;
};

bool has_matrix(Role role, const MoeConfig& config) {
  return role == Role::kDown || (role == Role::kGate ? config.gated() : !config.interleaved);
}

// Rows of the matrix that feed one intermediate element.
int64_t rows_an_element(const MoeConfig& config) { return config.interleaved ? 2 : 1; }

// Nothing where the layer has no such matrix, or the shard is empty.
std::optional<MatrixWidths> widths_of(Role role, const MoeConfig& config, const WidthPlan& plan) {
  if (!has_matrix(role, config) || !plan.intermediate) return std::nullopt;
  const Extent half = *plan.intermediate;
  if (role == Role::kDown) {
    // Every shard's product is a part of the sum that the bias enters once (R6).
    const bool first_shard = plan.intermediate_begin == 0;
    return MatrixWidths{plan.experts_out, half, config.expert_bias && first_shard};
  }
  const int64_t rows = rows_an_element(config);
  return MatrixWidths{Extent(rows * half.logical(), rows * half.padded()), plan.experts_in,
                      config.expert_bias};
}

const std::string& name_of(Role role, const MoeConfig& config, const MoeTensorNames& names) {
  switch (role) {
    case Role::kGate:
      return config.interleaved ? names.gate_up : names.gate;
    case Role::kUp:
      return names.up;
    case Role::kDown:
      return names.down;
  }
  return names.down;
}

// The tensors of one role in gpt-oss's layouts: of all experts, one behind the other, or of one.
struct StackedTensors {
  TensorInfo data;
  std::optional<TensorInfo> scales;
  std::optional<TensorInfo> bias;
};

// What the checkpoint holds, in whole logical widths.
struct RoleShape {
  std::string name;
  std::vector<int64_t> leading;  // the experts, where they are stacked
  int64_t out = 0;
  int64_t in = 0;
};

RoleShape whole_shape(Role role, const MoeConfig& config, const MoeTensorNames& names) {
  const int64_t hidden = config.experts_hidden();
  RoleShape shape{.name = name_of(role, config, names), .leading = {}};
  if (names.stacked) shape.leading = {config.router.experts};
  shape.out = role == Role::kDown ? hidden : rows_an_element(config) * config.intermediate;
  shape.in = role == Role::kDown ? config.intermediate : hidden;
  return shape;
}

Result<TensorInfo> require(const Checkpoint& checkpoint, const std::string& name, DType dtype,
                           std::vector<int64_t> shape) {
  const std::array<DType, 1> dtypes = {dtype};
  return checkpoint.require(name, dtypes, shape);
}

std::vector<int64_t> joined(std::vector<int64_t> leading, std::initializer_list<int64_t> rest) {
  leading.insert(leading.end(), rest);
  return leading;
}

Result<StackedTensors> require_stacked(const Checkpoint& checkpoint, const MoeConfig& config,
                                       const RoleShape& shape) {
  StackedTensors out;
  if (config.format == WeightFormat::kMxfp4) {
    const int64_t blocks = shape.in / kMxfp4BlockElements;
    ROTA_ASSIGN_OR_RETURN(
        out.data, require(checkpoint, shape.name + "_blocks", DType::kU8,
                          joined(shape.leading, {shape.out, blocks, kMxfp4BlockBytes.count})));
    ROTA_ASSIGN_OR_RETURN(out.scales, require(checkpoint, shape.name + "_scales", DType::kU8,
                                              joined(shape.leading, {shape.out, blocks})));
  } else {
    const bool out_in = config.order == WeightOrder::kOutIn;
    const int64_t rows = out_in ? shape.out : shape.in;
    const int64_t columns = out_in ? shape.in : shape.out;
    ROTA_ASSIGN_OR_RETURN(out.data, require(checkpoint, shape.name, DType::kBf16,
                                            joined(shape.leading, {rows, columns})));
  }
  if (config.expert_bias) {
    ROTA_ASSIGN_OR_RETURN(out.bias, require(checkpoint, shape.name + "_bias", DType::kBf16,
                                            joined(shape.leading, {shape.out})));
  }
  return out;
}

// Part `index` of `count` equal parts of a tensor's bytes.
const std::byte* part(const TensorInfo& tensor, int64_t index, int64_t count) {
  return tensor.bytes.data() + tensor.byte_size / count * index;
}

// An expert's matrix where it lies in the file.
WeightMatrix stacked_view(const StackedTensors& tensors, const MoeConfig& config,
                          const RoleShape& shape, int64_t expert) {
  const int64_t count = shape.leading.empty() ? 1 : shape.leading.front();
  const int64_t index = shape.leading.empty() ? 0 : expert;
  WeightMatrix view;
  view.format = config.format;
  view.order = config.order;
  view.out = Extent(shape.out);
  view.in = Extent(shape.in);
  view.data = part(tensors.data, index, count);
  if (tensors.scales) {
    const int64_t blocks = shape.in / kMxfp4BlockElements;
    view.row_stride = kMxfp4BlockBytes * blocks;
    view.scales = reinterpret_cast<const uint8_t*>(part(*tensors.scales, index, count));
    view.scale_stride = {blocks};
  } else {
    const int64_t row = config.order == WeightOrder::kOutIn ? shape.in : shape.out;
    view.row_stride = size_of(DType::kBf16) * row;
  }
  if (tensors.bias) {
    view.bias = reinterpret_cast<const Bf16*>(part(*tensors.bias, index, count));
  }
  return view;
}

// Which tensor of an expert's own holds bytes that may be no numbers, how many elements each of
// them covers, and which bytes are numbers.
struct CheckedTensor {
  std::string_view suffix;
  int64_t elements = 1;
  ByteLimit limit;
};

std::optional<CheckedTensor> checked_tensor(WeightFormat format, uint8_t largest_mxfp4_scale) {
  switch (format) {
    case WeightFormat::kMxfp4:
      return CheckedTensor{"_scales", kMxfp4BlockElements, {.largest = largest_mxfp4_scale}};
    case WeightFormat::kNvfp4:
      return CheckedTensor{".weight_scale", kNvfp4BlockElements, kE4m3Limit};
    case WeightFormat::kFp8:
      return CheckedTensor{".weight", 1, kE4m3Limit};
    case WeightFormat::kBf16:
    case WeightFormat::kFloat32:
      break;
  }
  return std::nullopt;
}

// This rank's part of it.
ByteRegion shard_region(const TensorInfo& tensor, Role role, const MoeConfig& config,
                        const WidthPlan& plan, int64_t elements) {
  const int64_t count = plan.intermediate->logical();
  ByteRegion region{.rows = tensor.shape[0], .columns = tensor.shape[1]};
  if (role == Role::kDown) {
    region.first_column = plan.intermediate_begin / elements;
    region.columns = round_up(count, elements) / elements;
  } else {
    region.first_row = rows_an_element(config) * plan.intermediate_begin;
    region.rows = rows_an_element(config) * count;
  }
  return region;
}

// This rank's part of a whole matrix, where it lies. Offsets come from logical sizes (R5).
WeightMatrix shard_of(const WeightMatrix& whole, Role role, const MoeConfig& config,
                      const WidthPlan& plan) {
  const int64_t begin = plan.intermediate_begin;
  const int64_t count = plan.intermediate->logical();
  if (role != Role::kDown) {
    const int64_t rows = rows_an_element(config);
    return column_slice(whole, rows * begin, rows * count);
  }
  WeightMatrix shard = input_slice(whole, begin, count);
  if (begin > 0) shard.bias = nullptr;
  return shard;
}

// The matrix of an expert that has tensors of its own.
Result<WeightMatrix> load_one(const Checkpoint& checkpoint, const MoeConfig& config,
                              RoleShape shape, int64_t expert, FactorStore& factors) {
  shape.name = fmt::format(fmt::runtime(shape.name), expert);
  if (config.format == WeightFormat::kMxfp4) {
    ROTA_ASSIGN_OR_RETURN(const StackedTensors own, require_stacked(checkpoint, config, shape));
    return stacked_view(own, config, shape, expert);
  }
  ROTA_ASSIGN_OR_RETURN(
      WeightMatrix view,
      load_linear(checkpoint,
                  {.module = shape.name, .format = config.linear, .out = shape.out, .in = shape.in},
                  factors));
  if (config.expert_bias) {
    ROTA_ASSIGN_OR_RETURN(const TensorInfo bias,
                          require(checkpoint, shape.name + ".bias", DType::kBf16, {shape.out}));
    view.bias = reinterpret_cast<const Bf16*>(bias.bytes.data());
  }
  return view;
}

bool is_copied(const MatrixWidths& widths) {
  return widths.out.is_padded() || widths.in.is_padded();
}

Bytes bytes_of(const MatrixWidths& widths, const MoeConfig& config) {
  return matrix_bytes(config.format, widths.out, widths.in, widths.bias);
}

WeightMatrix& matrix_of(Role role, ExpertMatrices& expert) {
  if (role == Role::kGate) return expert.gate;
  return role == Role::kUp ? expert.up : expert.down;
}

}  // namespace

ExpertBytes expert_bytes(const MoeConfig& config, const WidthPlan& plan, int64_t experts) {
  ExpertBytes total;
  for (const Role role : kRoles) {
    const auto widths = widths_of(role, config, plan);
    if (!widths) continue;
    Bytes& sum = is_copied(*widths) ? total.copied : total.mapped;
    sum = sum + bytes_of(*widths, config) * experts;
  }
  return total;
}

// What is known of each local expert's bytes, and how often experts were used.
struct MoeLayer::Checks {
  struct Own {
    const TensorInfo* tensor = nullptr;
    ByteRegion region;
    ByteLimit limit;
  };
  uint8_t largest_scale = 0;
  std::vector<TensorInfo> scales;     // of stacked experts, [E, N, K/32] each
  std::vector<std::vector<Own>> own;  // [local experts]: else, each expert's
  // [local experts]. The bytes that are judged never change: a flag is all that threads share.
  std::vector<std::atomic<bool>> good;
  std::vector<int32_t> pending;      // room for a list of local experts
  std::vector<int64_t> served;       // [E]
  std::vector<int64_t> served_here;  // [local experts], since each came
  std::vector<int64_t> served_gone;  // [E]: here, before they left
  std::vector<int32_t> turn;         // [E]: which of its copies is next
};

// Where experts are read from.
struct MoeLayer::Origin {
  const Checkpoint* checkpoint = nullptr;
  MoeTensorNames names;
  const MoeConfig* config = nullptr;
  const WidthPlan* plan = nullptr;
  std::array<std::optional<StackedTensors>, kRoles.size()> stacked;  // by role

  std::optional<StackedTensors>& stacked_of(Role role) {
    return stacked[static_cast<size_t>(role)];
  }
};

MoeLayer::MoeLayer() : checks_(std::make_unique<Checks>()), origin_(std::make_unique<Origin>()) {}
MoeLayer::MoeLayer(MoeLayer&&) noexcept = default;
MoeLayer& MoeLayer::operator=(MoeLayer&&) noexcept = default;
MoeLayer::~MoeLayer() = default;

Result<WeightMatrix> MoeLayer::load_matrix(Role role, int64_t expert, Held& held) const {
  const MoeConfig& config = *origin_->config;
  const RoleShape shape = whole_shape(role, config, origin_->names);
  const std::optional<StackedTensors>& stacked = origin_->stacked_of(role);
  ROTA_ASSIGN_OR_RETURN(WeightMatrix view,
                        stacked
                            ? Result<WeightMatrix>(stacked_view(*stacked, config, shape, expert))
                            : load_one(*origin_->checkpoint, config, shape, expert, held.factors));
  view = shard_of(view, role, config, *origin_->plan);
  const MatrixWidths widths = *widths_of(role, config, *origin_->plan);
  if (!is_copied(widths)) return view;
  return pad_matrix(view, widths.out, widths.in, held.copies);
}

// Reads a local expert. The copies of who lay there before make room first.
Status MoeLayer::hold(int64_t local) {
  Held& held = held_[static_cast<size_t>(local)];
  held = {};
  checks_->good[static_cast<size_t>(local)] = false;
  checks_->own[static_cast<size_t>(local)].clear();
  for (const Role role : kRoles) {
    if (!widths_of(role, *origin_->config, *origin_->plan)) continue;
    ROTA_ASSIGN_OR_RETURN(matrix_of(role, held.matrices),
                          load_matrix(role, global_of(local), held));
    if (!origin_->stacked_of(role)) add_check(role, local);
  }
  return {};
}

void MoeLayer::add_check(Role role, int64_t local) {
  const MoeConfig& config = *origin_->config;
  const auto checked = checked_tensor(config.format, checks_->largest_scale);
  if (!checked) return;
  const std::string module =
      fmt::format(fmt::runtime(name_of(role, config, origin_->names)), global_of(local));
  const TensorInfo* tensor =
      origin_->checkpoint->find(fmt::format("{}{}", module, checked->suffix));
  ROTA_CHECK(tensor != nullptr, "a tensor that was just loaded");
  checks_->own[static_cast<size_t>(local)].push_back(
      {.tensor = tensor,
       .region = shard_region(*tensor, role, config, *origin_->plan, checked->elements),
       .limit = checked->limit});
}

Result<MoeLayer> MoeLayer::load(const Checkpoint& checkpoint, const MoeTensorNames& names,
                                const MoeLayerSource& source) {
  const MoeConfig& config = *source.config;
  if (checkpoint.residence() == WeightsResidence::kNone) {
    return error(StatusCode::kInternal, "{}: only headers were read", names.router_weight);
  }
  MoeLayer layer;
  Origin& origin = *layer.origin_;
  origin.checkpoint = &checkpoint;
  origin.names = names;
  origin.config = &config;
  origin.plan = source.plan;
  layer.map_ = source.plan->intermediate ? source.map : ExpertMap::none(config.router.experts);
  layer.slots_ = source.slots;
  ROTA_CHECK(!layer.slots_ || layer.slots_->slots() == layer.map_.experts(),
             "the map deals the slots");
  Checks& checks = *layer.checks_;
  const auto locals = static_cast<size_t>(layer.map_.local_count());
  const auto experts = static_cast<size_t>(config.router.experts);
  layer.held_ = std::vector<Held>(locals);
  checks.largest_scale =
      source.compute == Compute::kBf16 ? kMxfp4MaxBf16Scale : uint8_t{kE8m0Nan - 1};
  checks.own.resize(locals);
  checks.good = std::vector<std::atomic<bool>>(locals);
  checks.pending.reserve(locals);
  checks.served.assign(experts, 0);
  checks.served_here.assign(locals, 0);
  checks.served_gone.assign(experts, 0);
  checks.turn.assign(experts, 0);
  ROTA_ASSIGN_OR_RETURN(layer.router_, RouterWeights::load(checkpoint, names, config));
  ROTA_ASSIGN_OR_RETURN(layer.dense_,
                        DenseMatrices::load({.checkpoint = &checkpoint,
                                             .names = &names,
                                             .config = &config,
                                             .quant = source.quant,
                                             .shared_inside = source.plan->shared_inside},
                                            layer.factors_));
  for (const Role role : kRoles) {
    if (!names.stacked || !widths_of(role, config, *source.plan)) continue;
    ROTA_ASSIGN_OR_RETURN(origin.stacked_of(role),
                          require_stacked(checkpoint, config, whole_shape(role, config, names)));
    const std::optional<TensorInfo>& scales = origin.stacked_of(role)->scales;
    if (scales) checks.scales.push_back(*scales);
  }
  for (int64_t local = 0; local < layer.map_.local_count(); ++local) {
    ROTA_RETURN_IF_ERROR(layer.hold(local));
  }
  layer.bytes_ = expert_bytes(config, *source.plan, layer.map_.local_count());
  return layer;
}

Status MoeLayer::place(const ExpertSlots& slots, ThreadTeam& team) {
  ROTA_CHECK(slots_ && slots.slots() == slots_->slots() && slots.experts() == slots_->experts(),
             "other experts in the same slots");
  std::vector<int32_t> came;
  for (int64_t local = 0; local < map_.local_count(); ++local) {
    const int64_t slot = map_.global(local);
    if (slots.expert(slot) == slots_->expert(slot)) continue;
    came.push_back(static_cast<int32_t>(local));
    int64_t& served = checks_->served_here[static_cast<size_t>(local)];
    checks_->served_gone[static_cast<size_t>(global_of(local))] += std::exchange(served, 0);
  }
  slots_ = slots;
  for (const int32_t local : came) ROTA_RETURN_IF_ERROR(hold(local));
  return verify(came, team);
}

TopK MoeLayer::choose_slots(const TopK& topk, int rank, std::span<int32_t> ids) const {
  if (!slots_) return topk;
  for (int64_t i = 0; i < topk.tokens * topk.k; ++i) {
    const int32_t expert = topk.ids[i];
    const std::span<const int32_t> copies = slots_->slots_of(expert);
    int32_t& turn = checks_->turn[static_cast<size_t>(expert)];
    const auto next = static_cast<size_t>(turn + rank) % copies.size();
    turn = (turn + 1) % static_cast<int32_t>(copies.size());
    ids[static_cast<size_t>(i)] = copies[next];
  }
  return {ids.data(), topk.weights, topk.tokens, topk.k};
}

Bytes MoeLayer::bytes_of_one_expert() const {
  const auto count = static_cast<int64_t>(held_.size());
  return {count == 0 ? 0 : (bytes_.mapped.count + bytes_.copied.count) / count};
}

Status MoeLayer::verify_one(int32_t local) const {
  std::atomic<bool>& good = checks_->good[static_cast<size_t>(local)];
  if (good) return {};
  for (const TensorInfo& scales : checks_->scales) {
    if (const auto bad = scan_mxfp4_scales(scales, checks_->largest_scale, global_of(local))) {
      return bad->status(scales);
    }
  }
  for (const Checks::Own& own : checks_->own[static_cast<size_t>(local)]) {
    if (const auto bad = scan_bytes(*own.tensor, own.region, own.limit)) {
      return bad->status(*own.tensor);
    }
  }
  good = true;
  return {};
}

bool MoeLayer::has_checks() const {
  return !checks_->scales.empty() || (!checks_->own.empty() && !checks_->own.front().empty());
}

Status MoeLayer::verify(std::span<const int32_t> locals, ThreadTeam& team) const {
  Checks& checks = *checks_;
  if (!has_checks()) return {};
  const auto is_good = [&](int32_t local) -> bool {
    return checks.good[static_cast<size_t>(local)];
  };
  checks.pending.clear();
  for (const int32_t local : locals) {
    if (!is_good(local)) checks.pending.push_back(local);
  }
  if (checks.pending.empty()) return {};
  team.parallel_for(static_cast<int64_t>(checks.pending.size()), [&](int64_t item, int) {
    static_cast<void>(verify_one(checks.pending[static_cast<size_t>(item)]));
  });
  for (const int32_t local : checks.pending) {
    if (!is_good(local)) return verify_one(local);  // again, for its message
  }
  return {};
}

Status MoeLayer::verify_all(ThreadTeam& team) const {
  std::vector<int32_t> all(held_.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
  return verify(all, team);
}

std::span<int64_t> MoeLayer::served() const { return checks_->served; }
std::span<int64_t> MoeLayer::served_here() const { return checks_->served_here; }

std::vector<int64_t> MoeLayer::all_served_here() const {
  std::vector<int64_t> all = checks_->served_gone;
  for (int64_t local = 0; local < map_.local_count(); ++local) {
    all[static_cast<size_t>(global_of(local))] += checks_->served_here[static_cast<size_t>(local)];
  }
  return all;
}

void MoeLayer::reset_served() {
  for (std::vector<int64_t>* counts :
       {&checks_->served, &checks_->served_here, &checks_->served_gone}) {
    std::ranges::fill(*counts, 0);
  }
}

}  // namespace rota
