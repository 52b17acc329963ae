// What a Checkpoint holds; for the sources of Checkpoint alone.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/load_team.h"
#include "platform/mapped_file.h"
#include "platform/memory.h"

namespace rota {

struct Checkpoint::State {
  std::vector<std::string> files;    // never grows after the first TensorInfo points into it
  std::vector<int64_t> file_sizes;   // [files]
  std::vector<TensorInfo> tensors;   // sorted by name
  std::vector<TensorInfo> unlisted;  // in a file, but not in the index: no part of the checkpoint
  WeightsResidence residence = WeightsResidence::kNone;

  // Where the bytes are: one of these holds an entry for each file (dummy: one copy in all).
  std::vector<MappedFile> mapped;
  std::vector<Buffer> copies;
  std::vector<Buffer> unaligned;  // tensors that could not be read in place
  int64_t copied_bytes = 0;       // in `unaligned`

  size_t file_of(const TensorInfo& tensor) const;
  // Why there is no such tensor.
  Status not_found(std::string_view name, std::string_view expected) const;
  // Sets the bytes of every tensor, given those of each file.
  Status point_into(const std::function<std::span<const std::byte>(size_t)>& file_bytes);
  // What warm() reads.
  std::vector<LoadPiece> pieces_to_read(const LoadOptions& options) const;
  Status lock_mapped();
  Status copy_files(const LoadOptions& options);
};

}  // namespace rota
