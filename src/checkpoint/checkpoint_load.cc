// Bringing the weights into memory: read-ahead, mlock, private copy.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

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

}  // namespace

Status Checkpoint::warm(const LoadOptions& options) const {
  if (state_->mapped.empty()) return {};  // nothing to read, or in memory already
  const auto all = cut_into_pieces(state_->file_sizes, kReadPieceBytes);
  const auto count = static_cast<int64_t>(all.size());
  const auto pieces = std::span(all)
                          .first(static_cast<size_t>(count * (options.part + 1) / options.parts))
                          .subspan(static_cast<size_t>(count * options.part / options.parts));
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
  int64_t wanted = 0;
  for (const int64_t size : file_sizes) wanted += size;
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
  const auto pieces = cut_into_pieces(file_sizes, kReadPieceBytes);
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
