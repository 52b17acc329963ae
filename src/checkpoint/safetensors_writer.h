// Writes a safetensors file: scores, dumps, and the checkpoints of tests.
//
// Contract: the layout of the format's own writer (header padded to 8 bytes, tensors by falling
// element size, then by name, no gaps), so that every reader takes it. The file appears under its
// name only when it is whole; a full disk is an error and leaves nothing behind.
//
//   ROTA_RETURN_IF_ERROR(write_safetensors(path, {{{"p.logits", DType::kF32, {7, 1024}}, bytes}}));
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/safetensors.h"

namespace rota {

struct TensorToWrite {
  TensorSpec spec;
  std::span<const std::byte> bytes;  // as many as the spec says
};

Status write_safetensors(const std::string& path, std::vector<TensorToWrite> tensors);

}  // namespace rota
