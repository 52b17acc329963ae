#include "moe/prepare_finalize/wire.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace rota {
namespace {

template <typename T>
void copy_bytes(std::span<const T> from, std::byte* to) {
  std::memcpy(to, from.data(), from.size_bytes());
}
template <typename T>
void copy_bytes(const std::byte* from, std::span<T> to) {
  std::memcpy(to.data(), from, to.size_bytes());
}

}  // namespace

void WireRow::pack(std::span<const float> row, std::byte* to) const {
  ROTA_DCHECK(std::ssize(row) == width_.logical(), "a row as wide as planned");
  int64_t used = static_cast<int64_t>(row.size_bytes());
  if (bf16_) {
    auto* words = reinterpret_cast<Bf16*>(to);
    std::transform(row.begin(), row.end(), words, [](float x) { return to_bf16(x); });
    used = used / 2;
  } else {
    copy_bytes(row, to);
  }
  std::memset(to + used, 0, static_cast<size_t>(bytes() - used));
}

void WireRow::unpack(const KernelTable& kernels, const std::byte* from,
                     std::span<float> row) const {
  ROTA_DCHECK(std::ssize(row) == width_.logical(), "a row as wide as planned");
  if (bf16_) {
    kernels.bf16_to_float({reinterpret_cast<const Bf16*>(from), row.size()}, row);
  } else {
    copy_bytes(from, row);
  }
}

std::span<const float> WireRow::view(const std::byte* from) const {
  ROTA_DCHECK(!bf16_, "float32 rows can be read where they lie");
  return {reinterpret_cast<const float*>(from), static_cast<size_t>(width_.logical())};
}

void WireToken::pack(const Parts& token, std::byte* to) const {
  row_.pack(token.row, to);
  to += row_.bytes();
  copy_bytes(token.ids, to);
  if (with_weights_) copy_bytes(token.weights, to + token.ids.size_bytes());
}

void WireToken::set_id(std::byte* packed, int64_t slot, int32_t id) const {
  std::memcpy(packed + row_.bytes() + slot * static_cast<int64_t>(sizeof id), &id, sizeof id);
}

void WireToken::unpack(const KernelTable& kernels, const std::byte* from, const Room& to) const {
  row_.unpack(kernels, from, to.row);
  from += row_.bytes();
  copy_bytes(from, to.ids);
  if (with_weights_) copy_bytes(from + to.ids.size_bytes(), to.weights);
}

}  // namespace rota
