#include "checkpoint/dummy_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>

#include "base/checked.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_state.h"
#include "checkpoint/load_team.h"

namespace rota {
namespace {

constexpr int64_t kFillPieceBytes = 4 << 20;
constexpr int64_t kTensorAlignment = 64;
constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;  // step of splitmix64

uint64_t mix(uint64_t z) {  // its finaliser
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

uint64_t key_of(std::string_view name, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return mix(hash + seed * kGolden);
}

// Quantiles of the standard normal distribution: a random index makes a normal number. 4096 of them
// reach 3.7 deviations and fit into the first-level cache.
constexpr int kQuantileBits = 12;
using Quantiles = std::array<float, 1 << kQuantileBits>;

Quantiles make_quantiles() {
  Quantiles table{};
  const double count = static_cast<double>(table.size());
  double z = -4;
  for (size_t i = 0; i < table.size(); ++i) {
    const double wanted = (static_cast<double>(i) + 0.5) / count;
    // Newton's method on the distribution function, from the neighbour's solution.
    for (int step = 0; step < 50; ++step) {
      const double have = 0.5 * std::erfc(-z / std::numbers::sqrt2);
      const double density = std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi);
      const double move = std::clamp((wanted - have) / density, -0.5, 0.5);
      z += move;
      if (std::abs(move) < 1e-12) break;
    }
    table[i] = static_cast<float>(z);
  }
  return table;
}

const Quantiles& quantiles() {
  static const Quantiles table = make_quantiles();
  return table;
}

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

// Mamba2's numbers of each head: the state decays at exp(A_log) times the step, the step is
// softplus(dt_bias + ...), D passes the input on.
struct NamedValues {
  std::string_view ending;
  float mean = 0;
  float deviation = 0;
};
constexpr std::array<NamedValues, 3> kMambaVectors = {
    {{".A_log", 1.4f, 0.5f}, {".dt_bias", -2.0f, 0.5f}, {".D", 1.0f, 0.2f}}};

// Number of inputs that one output sums over: the last dimension, but [E, in, out] stacks of
// experts.
double fan_in(const TensorSpec& spec) {
  const auto& shape = spec.shape;
  if (shape.size() < 2) return 1;
  const bool stacked = shape.size() == 3 && spec.name.ends_with("_proj");
  return static_cast<double>(std::max<int64_t>(1, stacked ? shape[1] : shape.back()));
}

// The sixteen-bit lanes of word(first), word(first + 1), ... as `per_word` values each.
template <typename T, typename Make>
void fill_lanes(uint64_t key, int64_t first_element, std::span<std::byte> out, const Make& make) {
  const size_t count = out.size() / sizeof(T);
  for (size_t i = 0; i < count; i += 4) {
    const uint64_t word = mix(key + (static_cast<uint64_t>(first_element) + i) / 4 * kGolden);
    std::array<T, 4> values;
    for (size_t lane = 0; lane < 4; ++lane) values[lane] = make((word >> (16 * lane)) & 0xffff);
    std::memcpy(out.data() + i * sizeof(T), values.data(),
                std::min<size_t>(4, count - i) * sizeof(T));
  }
}

template <typename T>
std::array<T, 1 << kQuantileBits> scaled_quantiles(float mean, float deviation,
                                                   T (*convert)(float)) {
  std::array<T, 1 << kQuantileBits> table;
  for (size_t i = 0; i < table.size(); ++i) table[i] = convert(mean + deviation * quantiles()[i]);
  return table;
}

template <typename T>
void fill_normal(uint64_t key, int64_t offset, std::span<std::byte> out, float mean,
                 float deviation, T (*convert)(float)) {
  const auto table = scaled_quantiles<T>(mean, deviation, convert);
  fill_lanes<T>(key, offset / static_cast<int64_t>(sizeof(T)), out,
                [&](uint64_t lane) { return table[lane >> (16 - kQuantileBits)]; });
}

// What is to be filled: all of a tensor, or this process's parts, in whole lines.
std::vector<LoadPiece> ranges_to_fill(std::span<const TensorSpec> specs,
                                      std::span<const int64_t> sizes, const OwnParts& own) {
  std::vector<LoadPiece> ranges;
  for (size_t item = 0; item < specs.size(); ++item) {
    const auto parts = own ? own(specs[item], sizes[item]) : std::nullopt;
    if (!parts) ranges.push_back({item, 0, sizes[item]});
    for (const TensorPart& part : parts.value_or(std::vector<TensorPart>{})) {
      const int64_t begin = part.begin / kTensorAlignment * kTensorAlignment;
      ranges.push_back({item, begin, part.end - begin});
    }
  }
  return ranges;
}

// Of `processes` of this host, each with as much to fill.
Status check_memory(std::span<const LoadPiece> ranges, int processes) {
  int64_t needed = 0;
  for (const LoadPiece& range : ranges) needed += range.length;
  needed *= processes;
  const int64_t available = memory_info().available_bytes;
  if (needed <= available) return {};
  return error(StatusCode::kResourceExhausted,
               "dummy weights need {} bytes of memory, {} are available; --hf-overrides makes the "
               "model smaller, with fewer layers for example (num_hidden_layers; gpt_oss: "
               "layer_types too; nemotron_h: hybrid_override_pattern too)",
               needed, available);
}

}  // namespace

DummyFill::Kind DummyFill::kind_of(const TensorSpec& spec) {
  switch (spec.dtype) {
    case DType::kBf16:
    case DType::kF32:
    case DType::kF64:
      return Kind::kNormal;
    case DType::kU8:
      return ends_with_any(spec.name, {"_scales", "_scale"}) ? Kind::kScaleExponent
                                                             : Kind::kRawBytes;
    case DType::kF8E8M0:
      return Kind::kScaleExponent;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return Kind::kFloat8;
    default:
      return Kind::kSmallInteger;
  }
}

DummyFill::DummyFill(const TensorSpec& spec, uint64_t seed)
    : dtype_(spec.dtype), kind_(kind_of(spec)), key_(key_of(spec.name, seed)) {
  const bool vector = spec.shape.size() <= 1;
  const bool norm = vector && spec.name.find("norm") != std::string::npos;
  if (spec.is_factor) {  // about 2^-6, above codes of about one
    mean_ = 1.0f / 64;
    deviation_ = mean_ / 10;
  } else if (norm) {
    mean_ = 1;
    deviation_ = 0.1f;
  } else if (const auto special = std::find_if(
                 kMambaVectors.begin(), kMambaVectors.end(),
                 [&](const NamedValues& values) { return spec.name.ends_with(values.ending); });
             special != kMambaVectors.end()) {
    mean_ = special->mean;
    deviation_ = special->deviation;
  } else if (vector || spec.name.ends_with("bias")) {
    deviation_ = 0.1f;
  } else if (spec.name.find("embed") != std::string::npos) {
    deviation_ = 1;
  } else {
    deviation_ = static_cast<float>(1 / std::sqrt(fan_in(spec)));
  }
}

void DummyFill::write(int64_t offset, std::span<std::byte> piece) const {
  ROTA_DCHECK(offset % 16 == 0, "pieces begin at whole words");
  switch (kind_) {
    case Kind::kNormal:
      if (dtype_ == DType::kBf16) {
        fill_normal<Bf16>(key_, offset, piece, mean_, deviation_, to_bf16);
      } else if (dtype_ == DType::kF32) {
        fill_normal<float>(key_, offset, piece, mean_, deviation_, [](float x) { return x; });
      } else {
        fill_normal<double>(key_, offset, piece, mean_, deviation_,
                            [](float x) { return static_cast<double>(x); });
      }
      return;
    case Kind::kScaleExponent:  // 2^-8 .. 2^-5
      fill_lanes<uint8_t>(key_, offset, piece,
                          [](uint64_t lane) { return static_cast<uint8_t>(119 + (lane & 3)); });
      return;
    case Kind::kFloat8:  // any sign, exponents in the lower middle of the range: never NaN
      fill_lanes<uint8_t>(key_, offset, piece, [](uint64_t lane) {
        return static_cast<uint8_t>((lane & 0x80) | (lane & 0x1f) | 0x20);
      });
      return;
    case Kind::kSmallInteger:
      fill_lanes<uint8_t>(key_, offset, piece, [](uint64_t) { return uint8_t{0}; });
      return;
    case Kind::kRawBytes:
      for (size_t i = 0; i < piece.size(); i += 8) {
        const uint64_t word = mix(key_ + (static_cast<uint64_t>(offset) + i) / 8 * kGolden);
        std::memcpy(piece.data() + i, &word, std::min<size_t>(8, piece.size() - i));
      }
      return;
  }
}

Result<Checkpoint> Checkpoint::dummy(std::span<const TensorSpec> specs, uint64_t seed,
                                     const LoadOptions& options) {
  auto state = std::make_unique<State>();
  state->files = {"dummy"};
  state->residence = WeightsResidence::kDummy;
  int64_t total = 0;
  std::vector<int64_t> sizes;
  std::vector<int64_t> places;
  for (const TensorSpec& spec : specs) {
    const auto bytes = tensor_bytes(spec.dtype, spec.shape);
    const auto padded = bytes ? checked_add(*bytes, kTensorAlignment - 1) : std::nullopt;
    const auto end =
        padded ? checked_add(total, *padded / kTensorAlignment * kTensorAlignment) : std::nullopt;
    if (!end) {
      return invalid_argument("dummy weights: the size of {} {} overflows", spec.name,
                              describe(spec.dtype, spec.shape));
    }
    places.push_back(total);
    sizes.push_back(*bytes);
    total = *end;
  }
  const std::vector<LoadPiece> ranges = ranges_to_fill(specs, sizes, options.own);
  ROTA_RETURN_IF_ERROR(check_memory(ranges, options.parts));
  ROTA_ASSIGN_OR_RETURN(
      Buffer memory,
      Buffer::allocate(static_cast<size_t>(total) + MappedFile::kReadableTail, Fill::kUnspecified));
  std::vector<DummyFill> fills;
  for (const TensorSpec& spec : specs) fills.emplace_back(spec, seed);
  const auto pieces = cut_into_pieces(ranges, kFillPieceBytes);
  ROTA_RETURN_IF_ERROR(run_pieces(pieces, options, [&](const LoadPiece& piece) {
    fills[piece.item].write(piece.offset, {memory.data() + places[piece.item] + piece.offset,
                                           static_cast<size_t>(piece.length)});
    return Status();
  }));
  for (size_t i = 0; i < specs.size(); ++i) {
    TensorInfo info;
    info.name = specs[i].name;
    info.dtype = specs[i].dtype;
    info.shape = specs[i].shape;
    info.file = state->files[0];
    info.byte_size = sizes[i];
    info.file_offset = places[i];
    info.bytes = {memory.data() + places[i], static_cast<size_t>(sizes[i])};
    state->tensors.push_back(std::move(info));
  }
  std::sort(state->tensors.begin(), state->tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  state->copies.push_back(std::move(memory));
  return Checkpoint(std::move(state));
}

}  // namespace rota
