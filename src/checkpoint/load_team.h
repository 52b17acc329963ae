// Work on weights in pieces, by a few threads, with a progress callback: reading ahead, copying,
// filling. Bound by the disk or by memory, so it has threads of its own and leaves those of a step
// alone.
//
//   std::vector<LoadPiece> pieces = cut_into_pieces(sizes, 16 << 20);
//   ROTA_RETURN_IF_ERROR(run_pieces(pieces, options, [&](const LoadPiece& p) { return read(p); }));
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"

namespace rota {

struct LoadPiece {
  size_t item = 0;  // index into the sizes
  int64_t offset = 0;
  int64_t length = 0;
};

std::vector<LoadPiece> cut_into_pieces(std::span<const int64_t> sizes, int64_t piece_bytes);
std::vector<LoadPiece> cut_into_pieces(std::span<const LoadPiece> ranges, int64_t piece_bytes);

// Runs fn on every piece; the first error (or a stop request) ends it. The calling thread waits and
// calls options.progress.
Status run_pieces(std::span<const LoadPiece> pieces, const LoadOptions& options,
                  const std::function<Status(const LoadPiece&)>& fn);

}  // namespace rota
