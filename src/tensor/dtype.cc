#include "tensor/dtype.h"

#include <array>

#include "base/check.h"

namespace rota {
namespace {

struct DTypeFacts {
  DType dtype;
  int64_t bytes;
  std::string_view name;
};

constexpr std::array<DTypeFacts, 16> kFacts = {{
    {DType::kBool, 1, "BOOL"},
    {DType::kU8, 1, "U8"},
    {DType::kI8, 1, "I8"},
    {DType::kF8E4M3, 1, "F8_E4M3"},
    {DType::kF8E5M2, 1, "F8_E5M2"},
    {DType::kF8E8M0, 1, "F8_E8M0"},
    {DType::kI16, 2, "I16"},
    {DType::kU16, 2, "U16"},
    {DType::kF16, 2, "F16"},
    {DType::kBf16, 2, "BF16"},
    {DType::kI32, 4, "I32"},
    {DType::kU32, 4, "U32"},
    {DType::kF32, 4, "F32"},
    {DType::kI64, 8, "I64"},
    {DType::kU64, 8, "U64"},
    {DType::kF64, 8, "F64"},
}};

const DTypeFacts& facts(DType dtype) {
  for (const DTypeFacts& row : kFacts) {
    if (row.dtype == dtype) return row;
  }
  ROTA_CHECK(false, "a DType outside its enumeration");
  return kFacts[0];
}

}  // namespace

Bytes size_of(DType dtype) { return {facts(dtype).bytes}; }

std::string_view to_string(DType dtype) { return facts(dtype).name; }

std::optional<DType> parse_dtype(std::string_view safetensors_name) {
  for (const DTypeFacts& row : kFacts) {
    if (row.name == safetensors_name) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace rota
