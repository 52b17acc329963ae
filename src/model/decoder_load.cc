// How a Decoder comes to be: weights into blocks, memory of a step, sizes.
#include <algorithm>

#include "model/decoder.h"
#include "platform/cpu.h"

namespace rota {
namespace {

Result<std::optional<RopeTable>> make_rope(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  if (rope.type == RopeType::kNone) return std::optional<RopeTable>();
  RopeParameters parameters;
  parameters.head_dim = config.head_dim;
  parameters.theta = rope.theta;
  if (rope.type == RopeType::kYarn) {
    parameters.yarn = YarnParameters{.factor = rope.factor,
                                     .original_max_position = rope.original_max_position,
                                     .beta_fast = rope.beta_fast,
                                     .beta_slow = rope.beta_slow,
                                     .truncate = rope.truncate};
    parameters.attention_factor = rope.attention_factor;
  }
  ROTA_ASSIGN_OR_RETURN(RopeTable table, RopeTable::make(parameters));
  return std::optional(std::move(table));
}

Status check_options(const ModelConfig& config, const ModelOptions& options) {
  if (options.max_batch_tokens < 1 || options.max_logit_rows < 1 || options.max_model_len < 1) {
    return invalid_argument(
        "model options: {} batch tokens, {} logit rows, length {}: expected at least one of each",
        options.max_batch_tokens, options.max_logit_rows, options.max_model_len);
  }
  if (config.attention.size() != static_cast<size_t>(config.layers)) {
    return invalid_argument("config: kinds of attention for {} layers, the model has {}",
                            config.attention.size(), config.layers);
  }
  return {};
}

// From what was bound to what runs: one call operator for each kind of mixer.
class BlockLoader {
 public:
  using Mixer = std::variant<AttentionBlock, Mamba2Block, MoeLayer>;

  BlockLoader(const LoadContext& context, const KvSpec& kv, const MoePlan& moe,
              const Execution& exec)
      : context_(context),
        kv_(kv),
        moe_(moe),
        exec_(exec),
        places_(kv_places(kv, context.config.layers)) {}

  // To be called before each mixer.
  BlockLoader& for_layer(int64_t layer) {
    layer_ = layer;
    return *this;
  }

  Result<Mixer> operator()(AttentionWeights weights) {
    const KvPlace place = places_[static_cast<size_t>(layer_)];
    const AttentionBlock::Geometry geometry{
        .heads = context_.here.heads,
        .window = kv_.groups[static_cast<size_t>(place.group)].window,
        .norm_eps = static_cast<float>(context_.config.rms_eps),
        .kv = kv_.shape,
        .place = place};
    ROTA_ASSIGN_OR_RETURN(AttentionBlock block,
                          AttentionBlock::make(std::move(weights), geometry, exec_));
    return Mixer(std::move(block));
  }

  Result<Mixer> operator()(Mamba2Weights weights) {
    const Mamba2Block::Geometry geometry{.mamba = context_.here.mamba,
                                         .norm_eps = static_cast<float>(context_.config.rms_eps),
                                         .state_index = next_state_++};
    ROTA_ASSIGN_OR_RETURN(Mamba2Block block,
                          Mamba2Block::make(std::move(weights), geometry, exec_));
    return Mixer(std::move(block));
  }

  Result<Mixer> operator()(const MoeTensorNames& names) {
    ROTA_ASSIGN_OR_RETURN(MoeLayer layer, MoeLayer::load(context_.checkpoint, names,
                                                         {.config = &moe_.config,
                                                          .plan = &moe_.widths,
                                                          .map = moe_.map,
                                                          .slots = moe_.slots,
                                                          .compute = context_.options.compute,
                                                          .quant = &context_.config.quant}));
    if (context_.options.verify_weights) ROTA_RETURN_IF_ERROR(layer.verify_all(context_.team));
    return Mixer(std::move(layer));
  }

 private:
  const LoadContext& context_;
  const KvSpec& kv_;
  const MoePlan& moe_;
  const Execution& exec_;
  std::vector<KvPlace> places_;
  int64_t layer_ = 0;
  int64_t next_state_ = 0;
};

}  // namespace

Result<std::unique_ptr<Model>> Decoder::make(const LoadContext& context, DecoderWeights weights) {
  const ModelConfig& config = context.config;
  const ModelOptions& options = context.options;
  ROTA_RETURN_IF_ERROR(check_options(config, options));
  const CpuFeatures cpu = detect_cpu();
  const KernelTable& kernels =
      options.kernels != nullptr ? *options.kernels : kernels_for(options.isa, cpu);
  ROTA_ASSIGN_OR_RETURN(MoePlan plan,
                        plan_moe(moe_config(config), options.moe,
                                 {.cpu = cpu, .isa = kernels.isa, .compute = options.compute},
                                 options.ranks.parallel));
  ROTA_ASSIGN_OR_RETURN(Execution exec,
                        make_execution(context.here, kernels, options.compute, context.team));
  auto decoder =
      std::unique_ptr<Decoder>(new Decoder(context, kernels, std::move(plan), std::move(exec)));
  ROTA_ASSIGN_OR_RETURN(decoder->rope_, make_rope(config));
  const Status loaded = decoder->load_blocks(context, std::move(weights));
  ROTA_RETURN_IF_ERROR(options.ranks.meet ? options.ranks.meet(loaded) : loaded);
  ROTA_RETURN_IF_ERROR(decoder->allocate_workspace(context));
  decoder->count_sizes(context.checkpoint);
  decoder->scan_scales();
  return std::unique_ptr<Model>(std::move(decoder));
}

Decoder::Decoder(const LoadContext& context, const KernelTable& kernels, MoePlan plan,
                 Execution exec)
    : config_(context.config),
      options_(context.options),
      kv_spec_(make_kv_spec(context.here, context.options.compute, kernels)),
      moe_plan_(std::move(plan)),
      exec_(std::move(exec)),
      layout_(context.options.max_batch_tokens) {}

Status Decoder::load_blocks(const LoadContext& context, DecoderWeights weights) {
  factors_ = std::move(weights.factors);  // stay where they are
  embedding_ = weights.embedding;
  final_norm_ = weights.final_norm;
  ROTA_ASSIGN_OR_RETURN(lm_head_, Linear::make({weights.lm_head}, exec_));
  BlockLoader loader(context, kv_spec_, moe_plan_, exec_);
  for (BlockWeights& block : weights.blocks) {
    const auto layer = static_cast<int>(block.layer);
    if (!blocks_.empty() && blocks_.back().layer == layer) blocks_.back().ends_layer = false;
    ROTA_ASSIGN_OR_RETURN(auto mixer,
                          std::visit(loader.for_layer(block.layer), std::move(block.mixer)));
    blocks_.push_back({.layer = layer, .norm = block.norm, .mixer = std::move(mixer)});
  }
  return {};
}

Status Decoder::allocate_workspace(const LoadContext& context) {
  PreparedRows prepared{.lm_head = lm_head_->layout().token_stride, .attention = {}, .mamba = {}};
  for (const Block& block : blocks_) {
    if (const auto* a = std::get_if<AttentionBlock>(&block.mixer)) {
      prepared.attention = std::max(prepared.attention, a->prepared_per_token());
    } else if (const auto* m = std::get_if<Mamba2Block>(&block.mixer)) {
      prepared.mamba = std::max(prepared.mamba, m->prepared_per_token());
    }
  }
  ROTA_ASSIGN_OR_RETURN(workspace_, Workspace::allocate(context.here, options_, prepared));
  ROTA_ASSIGN_OR_RETURN(
      workspace_.moe,
      MoeRunner::make(moe_plan_, exec_.kernels(), exec_.team(), options_.max_batch_tokens,
                      kMoeWorkspace, {*options_.ranks.world, *options_.ranks.tensor}));
  return {};
}

void Decoder::scan_scales() {
  std::vector<const MoeLayer*> unseen;
  for (const MoeLayer* layer : moe_layers()) {
    if (layer->has_checks() && !options_.verify_weights) unseen.push_back(layer);
  }
  if (!unseen.empty()) scan_.emplace(std::move(unseen));
}

void Decoder::count_sizes(const Checkpoint& checkpoint) {
  const Bytes norm = size_of(DType::kBf16) * config_.hidden;
  const Bytes head = lm_head_->weight_bytes();
  // What every token reads: one row of the embedding, the final norm, all of lm_head.
  Bytes read = norm * 2 + head;
  Bytes mapped = norm + weight_bytes(embedding_);
  if (!config_.tie_word_embeddings) mapped = mapped + head;
  Bytes copied;
  for (const Block& block : blocks_) {
    Bytes dense = norm;
    if (const auto* attention = std::get_if<AttentionBlock>(&block.mixer)) {
      dense = dense + attention->weight_bytes();
    } else if (const auto* mamba = std::get_if<Mamba2Block>(&block.mixer)) {
      dense = dense + mamba->weight_bytes();
    } else {
      const auto& moe = std::get<MoeLayer>(block.mixer);
      dense = dense + moe.router_bytes() + moe.dense().bytes();
      read = read + moe.bytes_of_one_expert() * config_.top_k;
      mapped = mapped + moe.bytes().mapped;
      copied = copied + moe.bytes().copied;
    }
    read = read + dense;
    mapped = mapped + dense;
  }
  sizes_.bytes_per_token = read.count;
  // Tensors that the checkpoint had to copy are not read in the file.
  sizes_.mapped_bytes = std::max<int64_t>(0, mapped.count - checkpoint.copied_bytes());
  sizes_.copied_bytes = copied.count + checkpoint.copied_bytes();
  sizes_.workspace_bytes = exec_.scratch_bytes() + workspace_.bytes();
}

}  // namespace rota
