// For tests: a small mixture layer of any kind, written to a safetensors file and opened again.
//
// Contract of Values::kIntegers: with integer inputs of at most 2 in size, everything that the
// layer computes in float32 is an integer multiple of a power of two, exactly, in whatever order
// sums are made: gate weights are multiples of 128 (so that a sigmoid is 0, 1, or multiplied by 0),
// the others are small integers, block scales and factors are powers of two, and routing weights
// are 1/2 before a factor of 2 (the router has the same row twice). Matrices that every rank holds
// whole are sparse, so that sums that pass through several of them stay below 2^24.
//
//   SyntheticLayer layer(kLayerKinds[0], {.hidden = 160, .intermediate = 96});
//   MoeLayer::load(layer.checkpoint(), layer.names(), {.config = &layer.config(), ...});
#pragma once

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/testing/write_safetensors.h"
#include "moe/config.h"
#include "moe/testing/layer_kinds.h"
#include "moe/weights.h"
#include "quant/fp8.h"
#include "quant/mxfp4.h"
#include "quant/nvfp4.h"

namespace rota::testing {

enum class Values { kIntegers, kRandom };

struct SyntheticShape {
  int64_t hidden = 0;
  int64_t intermediate = 0;
  Values values = Values::kIntegers;
  bool operator==(const SyntheticShape&) const = default;
};

class SyntheticLayer {
 public:
  static constexpr int64_t kExperts = 6;  // expert e is routed like expert e + 3
  static constexpr int64_t kTopK = 2;
  // Neither a power of two nor a multiple of any alignment.
  static constexpr int64_t kLatent = 112;
  static constexpr int64_t kShared = 40;

  SyntheticLayer(const LayerKind& kind, const SyntheticShape& shape)
      : kind_(kind),
        shape_(shape),
        config_(make_config(kind, shape)),
        names_(make_names(kind)),
        random_(static_cast<uint32_t>(shape.hidden * 1000 + shape.intermediate)) {
    add_router();
    add_dense();
    for (int64_t e = 0; e < kExperts; ++e) add_expert(e);
    std::vector<TensorToWrite> tensors;
    for (const auto& [name, tensor] : tensors_) {
      tensors.push_back(
          {{name, tensor.dtype, tensor.shape}, std::as_bytes(std::span(tensor.data))});
    }
    const Status written = write_safetensors(folder_ / "model.safetensors", tensors);
    ROTA_CHECK(written.ok(), written.message());
    tensors_.clear();
    auto opened = Checkpoint::open(folder_.path());
    ROTA_CHECK(opened.ok(), opened.status().message());
    checkpoint_.emplace(std::move(opened).value());
  }

  const MoeConfig& config() const { return config_; }
  const MoeTensorNames& names() const { return names_; }
  const Checkpoint& checkpoint() const { return *checkpoint_; }

 private:
  struct Tensor {
    DType dtype;
    std::vector<int64_t> shape;
    std::vector<uint8_t> data;
  };
  // One expert's matrix, or a bias (in = 1). Rows for which is_gate() says so hold gate weights.
  struct Matrix {
    std::string name;
    int64_t out;
    int64_t in;
    MatrixRole role;
  };

  static MoeConfig make_config(const LayerKind& kind, const SyntheticShape& shape) {
    MoeConfig config;
    config.hidden = shape.hidden;
    config.intermediate = shape.intermediate;
    config.router = {.kind = kind.router, .experts = kExperts, .top_k = kTopK};
    config.router_bias = kind.bias;
    if (kind.router == RouterKind::kSigmoidBiasGroups) {
      // Experts e and e + 3 are never of one group: both groups of the best one are kept.
      config.router.groups = 3;
      config.router.groups_kept = 2;
      config.router.scaling_factor = 2;
      config.router_correction_bias = true;
    }
    if (kind.latent) config.latent = kLatent;
    if (kind.shared) config.shared_intermediate = kShared;
    config.activation = kind.activation;
    // Far enough out to keep integers, near enough to be met.
    if (shape.values == Values::kIntegers) config.swiglu_limit = 4096;
    config.interleaved = kind.activation == ExpertActivation::kSwigluOai;
    config.format = kind.format;
    config.linear = linear_format(kind);
    config.order = kind.order;
    config.expert_bias = kind.bias;
    return config;
  }

  static MoeTensorNames make_names(const LayerKind& kind) {
    const std::string expert = kind.stacked ? "experts." : "experts.{}.";
    MoeTensorNames names;
    names.stacked = kind.stacked;
    names.gate_up = expert + "gate_up";
    names.gate = expert + "gate";
    names.up = expert + "up";
    names.down = expert + "down";
    names.router_weight = "router.weight";
    names.router_bias = "router.bias";
    names.correction_bias = "router.correction_bias";
    names.shared_up = "shared.up";
    names.shared_down = "shared.down";
    names.latent_in = "latent.in";
    names.latent_out = "latent.out";
    return names;
  }

  bool integers() const { return shape_.values == Values::kIntegers; }
  int64_t pick(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }
  bool is_gate(const Matrix& matrix, int64_t row) const {
    return matrix.role == MatrixRole::kGate && (!config_.interleaved || row % 2 == 0);
  }
  // A weight of a row that is multiplied with `in` inputs.
  float value(bool gate, int64_t in) {
    if (!integers()) {
      return std::normal_distribution<float>(0, 1.5f / std::sqrt(static_cast<float>(in)))(random_);
    }
    return gate ? 128.0f * static_cast<float>(pick(-1, 1)) : static_cast<float>(pick(-2, 2));
  }

  static void append(std::vector<uint8_t>& data, Bf16 word) {
    data.push_back(static_cast<uint8_t>(word.bits));
    data.push_back(static_cast<uint8_t>(word.bits >> 8));
  }
  static void append(std::vector<uint8_t>& data, float word) {
    const size_t at = data.size();
    data.resize(at + sizeof word);
    std::memcpy(data.data() + at, &word, sizeof word);
  }

  // The tensor that an expert's part is appended to: its own, or the stack of all.
  std::vector<uint8_t>& data_of(const std::string& pattern, int64_t expert, DType dtype,
                                std::vector<int64_t> shape) {
    if (kind_.stacked) shape.insert(shape.begin(), kExperts);
    const std::string name = fmt::format(fmt::runtime(pattern), expert);
    return tensors_.try_emplace(name, Tensor{dtype, shape, {}}).first->second.data;
  }

  // Rows e and e + 3 are the same. Scores of a sigmoid: near enough to 0 to differ.
  void add_router() {
    const bool sigmoid = kind_.router == RouterKind::kSigmoidBiasGroups;
    const float size = sigmoid && integers() ? 1.0f / 16 : 1.0f;
    std::vector<Bf16> rows(static_cast<size_t>(kExperts / 2 * shape_.hidden));
    for (Bf16& word : rows) word = to_bf16(size * value(false, shape_.hidden));
    std::vector<uint8_t> weight, bias;
    for (int twice = 0; twice < 2; ++twice) {
      for (const Bf16 word : rows) append(weight, word);
      for (const float value : {0.5f, 0.25f, 0.0f}) append(bias, to_bf16(value));
    }
    tensors_[names_.router_weight] = {DType::kBf16, {kExperts, shape_.hidden}, std::move(weight)};
    if (!kind_.bias && !sigmoid) return;
    tensors_[sigmoid ? names_.correction_bias : names_.router_bias] = {
        DType::kBf16, {kExperts}, std::move(bias)};
  }

  void add_dense() {
    if (kind_.latent) {
      add_dense(names_.latent_in, {kLatent, shape_.hidden}, kInSkipped);
      add_dense(names_.latent_out, {shape_.hidden, kLatent}, kOutSkipped);
    }
    if (kind_.shared) {
      add_dense(names_.shared_up, {kShared, shape_.hidden}, kInSkipped);
      add_dense(names_.shared_down, {shape_.hidden, kShared}, kOutSkipped);
    }
  }

  // [out, in]. Integers: +-1, and `skipped` zeros or so to each of them. What comes in is squared
  // later.
  static constexpr int64_t kInSkipped = 127;
  static constexpr int64_t kOutSkipped = 7;
  void add_dense(const std::string& module, const std::array<int64_t, 2>& shape, int64_t skipped) {
    const auto weight = [&] {
      if (!integers()) return value(false, shape[1]);
      return pick(0, skipped) != 0 ? 0.0f : static_cast<float>(2 * pick(0, 1) - 1);
    };
    std::vector<uint8_t> data;
    for (int64_t i = 0; i < shape[0] * shape[1]; ++i) append(data, to_bf16(weight()));
    tensors_[module + ".weight"] = {DType::kBf16, {shape[0], shape[1]}, std::move(data)};
  }

  void add_expert(int64_t expert) {
    const auto [hidden, half] = std::pair(config_.experts_hidden(), shape_.intermediate);
    if (config_.interleaved) {
      add(expert, {names_.gate_up, 2 * half, hidden, MatrixRole::kGate});
    } else {
      if (config_.gated()) add(expert, {names_.gate, half, hidden, MatrixRole::kGate});
      add(expert, {names_.up, half, hidden, MatrixRole::kUp});
    }
    add(expert, {names_.down, hidden, half, MatrixRole::kDown});
  }

  void add(int64_t expert, const Matrix& matrix) {
    switch (kind_.format) {
      case WeightFormat::kMxfp4:
        add_mxfp4(expert, matrix);
        break;
      case WeightFormat::kFp8:
        add_fp8(expert, matrix);
        break;
      case WeightFormat::kNvfp4:
        add_nvfp4(expert, matrix);
        break;
      case WeightFormat::kBf16:
      case WeightFormat::kFloat32:
        add_bf16(expert, matrix);
        break;
    }
    if (!kind_.bias) return;
    std::vector<uint8_t>& bias = data_of(matrix.name + (is_linear() ? ".bias" : "_bias"), expert,
                                         DType::kBf16, {matrix.out});
    for (int64_t n = 0; n < matrix.out; ++n) {
      // Of the size of what it is added to.
      const bool large = is_gate(matrix, n) || matrix.role == MatrixRole::kDown;
      append(bias, to_bf16(value(large, 4)));
    }
  }

  // One linear layer an expert.
  bool is_linear() const { return !kind_.stacked && kind_.format != WeightFormat::kMxfp4; }

  void add_bf16(int64_t expert, const Matrix& matrix) {
    const bool out_in = kind_.order == WeightOrder::kOutIn;
    const int64_t rows = out_in ? matrix.out : matrix.in;
    const int64_t columns = out_in ? matrix.in : matrix.out;
    std::vector<uint8_t>& data = data_of(matrix.name + (is_linear() ? ".weight" : ""), expert,
                                         DType::kBf16, {rows, columns});
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        append(data, to_bf16(value(is_gate(matrix, out_in ? r : c), matrix.in)));
      }
    }
  }

  // Block scales differ by factors of two, so that one that is read at the wrong place shows.
  void add_mxfp4(int64_t expert, const Matrix& matrix) {
    // +-0, +-1, +-2: integers under scales of 1 and more.
    constexpr std::array<uint8_t, 6> kSmall = {0, 2, 4, 8, 10, 12};
    constexpr int64_t kOne = 127;
    const int64_t blocks = matrix.in / kMxfp4BlockElements;
    std::vector<uint8_t>& codes = data_of(matrix.name + "_blocks", expert, DType::kU8,
                                          {matrix.out, blocks, kMxfp4BlockBytes.count});
    std::vector<uint8_t>& scales =
        data_of(matrix.name + "_scales", expert, DType::kU8, {matrix.out, blocks});
    const auto code = [&] {
      return integers() ? kSmall[static_cast<size_t>(pick(0, 5))]
                        : static_cast<uint8_t>(pick(0, 15));
    };
    for (int64_t n = 0; n < matrix.out; ++n) {
      const int64_t base = !integers() ? -5 : is_gate(matrix, n) ? 7 : 0;
      for (int64_t b = 0; b < blocks; ++b) {
        scales.push_back(static_cast<uint8_t>(kOne + base + pick(0, 1)));
        for (int64_t i = 0; i < kMxfp4BlockBytes.count; ++i) {
          codes.push_back(static_cast<uint8_t>(code() | code() << 4));
        }
      }
    }
  }

  // Factors differ by factors of two, like block scales.
  float factor() {
    const auto power = static_cast<float>(pick(0, 1) + 1);
    return integers() ? power : 0.37f * power;
  }

  void add_fp8(int64_t expert, const Matrix& matrix) {
    std::vector<uint8_t>& codes =
        data_of(matrix.name + ".weight", expert, DType::kF8E4M3, {matrix.out, matrix.in});
    for (int64_t n = 0; n < matrix.out; ++n) {
      for (int64_t k = 0; k < matrix.in; ++k) {
        codes.push_back(float_to_e4m3(value(is_gate(matrix, n), matrix.in)));
      }
    }
    const auto count = [](int64_t size, int64_t block) {
      return block == 0 ? 1 : (size + block - 1) / block;
    };
    const std::vector<int64_t> grid = {count(matrix.out, kind_.block_out),
                                       count(matrix.in, kind_.block_in)};
    const char* const name = config_.linear.named_inverse ? ".weight_scale_inv" : ".weight_scale";
    std::vector<uint8_t>& factors = data_of(matrix.name + name, expert, DType::kF32, grid);
    for (int64_t i = 0; i < grid[0] * grid[1]; ++i) append(factors, factor());
  }

  void add_nvfp4(int64_t expert, const Matrix& matrix) {
    // +-1 under scales of 1, 2 and 4, and three times as many +-0.
    constexpr std::array<uint8_t, 8> kSmall = {0, 8, 0, 8, 0, 8, 2, 10};
    const int64_t blocks = matrix.in / kNvfp4BlockElements;
    std::vector<uint8_t>& codes =
        data_of(matrix.name + ".weight", expert, DType::kU8, {matrix.out, matrix.in / 2});
    std::vector<uint8_t>& scales =
        data_of(matrix.name + ".weight_scale", expert, DType::kF8E4M3, {matrix.out, blocks});
    const auto code = [&] {
      return integers() ? kSmall[static_cast<size_t>(pick(0, 7))]
                        : static_cast<uint8_t>(pick(0, 15));
    };
    for (int64_t b = 0; b < matrix.out * blocks; ++b) {
      scales.push_back(float_to_e4m3(static_cast<float>(int64_t{1} << pick(0, 2))));
      for (int64_t i = 0; i < kNvfp4BlockBytes.count; ++i) {
        codes.push_back(static_cast<uint8_t>(code() | code() << 4));
      }
    }
    const float gate = is_gate(matrix, 0) ? 128.0f : 1.0f;
    const float size = 0.1f / std::sqrt(static_cast<float>(matrix.in));
    append(data_of(matrix.name + ".weight_scale_2", expert, DType::kF32, {}),
           (integers() ? gate : size) * factor());
  }

  LayerKind kind_;
  SyntheticShape shape_;
  MoeConfig config_;
  MoeTensorNames names_;
  std::mt19937 random_;
  std::map<std::string, Tensor> tensors_;
  TempFolder folder_;
  std::optional<Checkpoint> checkpoint_;
};

}  // namespace rota::testing
