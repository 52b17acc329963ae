// Bringing the weights into memory: read-ahead, mlock, private copy.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "checkpoint/checkpoint_state.h"
#include "checkpoint/load_team.h"

namespace rota {
namespace {

constexpr int64_t kReadPieceBytes = 16 << 20;

// Fills `out` from byte `at` of the file.
Status read_piece(const std::string& path, std::span<std::byte> out, int64_t at) {
  ROTA_ASSIGN_OR_RETURN(const OpenedFile opened, open_regular_file(path, FollowSymlinks::kYes));
  Status status;
  while (status.ok() && !out.empty()) {
    const ssize_t got = pread(opened.descriptor, out.data(), out.size(), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      status = error(StatusCode::kIo, "{}: cannot read: {}", path, std::strerror(errno));
    } else if (got == 0) {
      status = error(StatusCode::kDataLoss, "{}: became shorter while it was read", path);
    } else {
      out = out.subspan(static_cast<size_t>(got));
      at += got;
    }
  }
  close(opened.descriptor);
  return status;
}

// Ranges of files, ascending; neighbours become one.
class FileRanges {
 public:
  void add(size_t file, int64_t begin, int64_t end) {
    if (!ranges_.empty() && ranges_.back().item == file &&
        ranges_.back().offset + ranges_.back().length == begin) {
      ranges_.back().length += end - begin;
    } else {
      ranges_.push_back({file, begin, end - begin});
    }
  }
  std::vector<LoadPiece> pieces() const { return cut_into_pieces(ranges_, kReadPieceBytes); }

 private:
  std::vector<LoadPiece> ranges_;
};

std::vector<LoadPiece> share_of(std::span<const LoadPiece> all, const LoadOptions& options) {
  const auto count = static_cast<int64_t>(all.size());
  const auto first = all.begin() + count * options.part / options.parts;
  return {first, all.begin() + count * (options.part + 1) / options.parts};
}

}  // namespace

std::vector<LoadPiece> Checkpoint::State::pieces_to_read(const LoadOptions& options) const {
  if (!options.own) return share_of(cut_into_pieces(file_sizes, kReadPieceBytes), options);
  std::vector<const TensorInfo*> in_order;
  in_order.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) in_order.push_back(&tensor);
  std::sort(in_order.begin(), in_order.end(), [&](const TensorInfo* a, const TensorInfo* b) {
    return std::pair(file_of(*a), a->file_offset) < std::pair(file_of(*b), b->file_offset);
  });
  FileRanges common, own;
  for (const TensorInfo* tensor : in_order) {
    const int64_t begin = tensor->file_offset;
    const auto parts = options.own({tensor->name, tensor->dtype, tensor->shape}, tensor->byte_size);
    if (!parts) common.add(file_of(*tensor), begin, begin + tensor->byte_size);
    for (const TensorPart& part : parts.value_or(std::vector<TensorPart>{})) {
      own.add(file_of(*tensor), begin + part.begin, begin + part.end);
    }
  }
  std::vector<LoadPiece> pieces = share_of(common.pieces(), options);
  const std::vector<LoadPiece> mine = own.pieces();
  pieces.insert(pieces.end(), mine.begin(), mine.end());
  return pieces;
}

Status Checkpoint::warm(const LoadOptions& options) const {
  if (state_->mapped.empty()) return {};  // nothing to read, or in memory already
  const std::vector<LoadPiece> pieces = state_->pieces_to_read(options);
  return run_pieces(pieces, options, [&](const LoadPiece& piece) {
    return state_->mapped[piece.item].read_ahead(static_cast<size_t>(piece.offset),
                                                 static_cast<size_t>(piece.length));
  });
}

Status Checkpoint::lock_in_memory(const LoadOptions& options) {
  if (state_->residence != WeightsResidence::kMapped) return {};
  if (!options.prefer_copy) {
    Status locked = state_->lock_mapped();
    if (locked.ok()) return warm(options);
    if (locked.code() != StatusCode::kResourceExhausted) return locked;
    log::info("{}; the weights are copied instead", locked.message());
  }
  return state_->copy_files(options);
}

Status Checkpoint::State::lock_mapped() {
  for (MappedFile& file : mapped) {
    const Status status = file.lock_in_memory();
    if (status.ok()) continue;
    for (MappedFile& locked : mapped) locked.unlock();
    return status;
  }
  residence = WeightsResidence::kMappedLocked;
  return {};
}

Status Checkpoint::State::copy_files(const LoadOptions& options) {
  // A copy is this process's alone: all that it reads, and as much again for each neighbour on the
  // host.
  LoadOptions alone = options;
  alone.part = 0;
  alone.parts = 1;
  const std::vector<LoadPiece> pieces = pieces_to_read(alone);
  int64_t wanted = 0;
  for (const LoadPiece& piece : pieces) wanted += piece.length * options.parts;
  if (const int64_t available = memory_info().available_bytes; wanted > available) {
    return error(StatusCode::kResourceExhausted,
                 "a private copy of the weights needs {} bytes of memory, {} are available; raise "
                 "RLIMIT_MEMLOCK (ulimit -l) to lock them in place, or serve them mapped",
                 wanted, available);
  }
  std::vector<Buffer> buffers;
  for (const int64_t size : file_sizes) {
    ROTA_ASSIGN_OR_RETURN(Buffer buffer,
                          Buffer::allocate(static_cast<size_t>(size) + MappedFile::kReadableTail,
                                           Fill::kUnspecified));
    buffers.push_back(std::move(buffer));
  }
  ROTA_RETURN_IF_ERROR(run_pieces(pieces, options, [&](const LoadPiece& piece) {
    const std::span out(buffers[piece.item].data() + piece.offset,
                        static_cast<size_t>(piece.length));
    return read_piece(files[piece.item], out, piece.offset);
  }));
  copies = std::move(buffers);
  ROTA_RETURN_IF_ERROR(point_into([&](size_t file) {
    return std::span<const std::byte>(copies[file].data(), static_cast<size_t>(file_sizes[file]));
  }));
  mapped.clear();
  residence = WeightsResidence::kCopied;
  return {};
}

}  // namespace rota
