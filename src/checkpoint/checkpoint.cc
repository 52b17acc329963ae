#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "checkpoint/checkpoint_state.h"
#include "checkpoint/shard_index.h"

namespace rota {
namespace {

uint64_t mix(uint64_t z) {  // the finaliser of splitmix64
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// FNV-1a over name, dtype, shape and size; the zero byte ends the name.
uint64_t hash_of(const TensorInfo& tensor) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto byte = [&](uint64_t value) { hash = (hash ^ (value & 0xff)) * 0x100000001b3u; };
  const auto word = [&](int64_t value) {
    for (int shift = 0; shift < 64; shift += 8) byte(static_cast<uint64_t>(value) >> shift);
  };
  for (const char c : tensor.name) byte(static_cast<unsigned char>(c));
  byte(0);
  for (const char c : to_string(tensor.dtype)) byte(static_cast<unsigned char>(c));
  byte(0);
  for (const int64_t dim : tensor.shape) word(dim);
  word(tensor.byte_size);
  return mix(hash);
}

}  // namespace

std::string_view to_string(WeightsResidence residence) {
  switch (residence) {
    case WeightsResidence::kNone:
      return "headers only";
    case WeightsResidence::kMapped:
      return "mapped";
    case WeightsResidence::kMappedLocked:
      return "mapped, locked in memory";
    case WeightsResidence::kCopied:
      return "private copy in memory";
    case WeightsResidence::kDummy:
      return "dummy";
  }
  return "unknown";
}

Status Checkpoint::State::not_found(std::string_view name, std::string_view expected) const {
  const auto in_a_file = std::find_if(unlisted.begin(), unlisted.end(),
                                      [name](const TensorInfo& one) { return one.name == name; });
  if (in_a_file != unlisted.end()) {
    return error(StatusCode::kNotFound,
                 "{}: tensor {} is there, but {} does not list it; get the index again",
                 in_a_file->file, name, kIndexFileName);
  }
  return error(
      StatusCode::kNotFound,
      "no tensor {} in {}, expected {}; config.json and the weights do not belong "
      "together, or files of the weights are missing: get them again",
      name, files.size() == 1 ? files[0] : fmt::format("the {} files of the weights", files.size()),
      expected);
}

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

const TensorInfo* Checkpoint::find(std::string_view name) const {
  const auto& tensors = state_->tensors;
  const auto at = std::lower_bound(
      tensors.begin(), tensors.end(), name,
      [](const TensorInfo& t, std::string_view wanted) { return t.name < wanted; });
  return at != tensors.end() && at->name == name ? &*at : nullptr;
}

namespace {

int64_t elements(std::span<const int64_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

Result<TensorInfo> Checkpoint::require(const TensorSpec& spec) const {
  if (!spec.is_factor) return require(spec.name, std::span(&spec.dtype, 1), spec.shape);
  constexpr std::array kDtypes = {DType::kF32, DType::kBf16};
  const TensorInfo* found = find(spec.name);
  const bool as_many = found != nullptr && elements(found->shape) == elements(spec.shape);
  return require(spec.name, kDtypes, as_many ? found->shape : spec.shape);
}

Result<TensorInfo> Checkpoint::require(std::string_view name, std::span<const DType> dtypes,
                                       std::span<const int64_t> shape) const {
  const TensorInfo* found = find(name);
  std::string expected;
  for (const DType dtype : dtypes) {
    expected += (expected.empty() ? "" : " or ") + describe(dtype, shape);
  }
  if (found == nullptr) return state_->not_found(name, expected);
  const bool dtype_fits = std::find(dtypes.begin(), dtypes.end(), found->dtype) != dtypes.end();
  if (dtype_fits &&
      std::equal(shape.begin(), shape.end(), found->shape.begin(), found->shape.end())) {
    return *found;
  }
  return error(
      StatusCode::kInvalidArgument,
      "{}: tensor {} is {}, expected {}; config.json and the weights do not belong together",
      found->file, name, describe(found->dtype, found->shape), expected);
}

std::span<const TensorInfo> Checkpoint::tensors() const { return state_->tensors; }

std::vector<std::string_view> Checkpoint::names() const {
  std::vector<std::string_view> names;
  names.reserve(state_->tensors.size());
  for (const TensorInfo& tensor : state_->tensors) names.push_back(tensor.name);
  return names;
}

std::span<const std::string> Checkpoint::files() const { return state_->files; }

const std::string* Checkpoint::shrunk_file() const {
  for (const MappedFile& file : state_->mapped) {
    if (file.has_shrunk()) return &file.path();
  }
  return nullptr;
}

int64_t Checkpoint::total_bytes() const {
  return std::accumulate(state_->tensors.begin(), state_->tensors.end(), int64_t{0},
                         [](int64_t sum, const TensorInfo& t) { return sum + t.byte_size; });
}

int64_t Checkpoint::copied_bytes() const { return state_->copied_bytes; }

WeightsResidence Checkpoint::residence() const { return state_->residence; }

uint64_t Checkpoint::manifest_hash() const {
  uint64_t sum = state_->tensors.size();
  for (const TensorInfo& tensor : state_->tensors) sum += hash_of(tensor);
  return mix(sum);
}

}  // namespace rota
