// Checkpoint::open(): index, headers, mapping.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "base/log.h"
#include "checkpoint/checkpoint_state.h"
#include "checkpoint/shard_index.h"

namespace rota {
namespace {

namespace fs = std::filesystem;

// Headers of all files, tensors of the index alone.
class Opener {
 public:
  explicit Opener(Checkpoint::State& state) : state_(state) {}

  Status read_headers(const std::string& model_dir, const ShardIndex& index) {
    for (const std::string& shard : index.shards) {
      state_.files.push_back(fs::path(model_dir) / shard);
    }
    for (size_t file = 0; file < state_.files.size(); ++file) {
      ROTA_ASSIGN_OR_RETURN(SafetensorsHeader header, read_header(file, !index.single_file));
      state_.file_sizes.push_back(header.file_size);
      for (SafetensorsEntry& entry : header.entries) add(file, std::move(entry));
    }
    return sort();
  }

  Status check_index(const std::string& model_dir, const ShardIndex& index) {
    if (index.single_file) return {};
    const std::string source = fs::path(model_dir) / kIndexFileName;
    std::vector<TensorInfo> listed;
    auto found = state_.tensors.begin();
    for (const auto& [name, shard] : index.weight_map) {
      while (found != state_.tensors.end() && found->name < name) {
        state_.unlisted.push_back(std::move(*found++));
      }
      const bool exists = found != state_.tensors.end() && found->name == name;
      if (!exists) {
        return error(StatusCode::kDataLoss,
                     "{}: tensor {} is missing from {}, where the index puts it", source, name,
                     state_.files[shard]);
      }
      if (found->file != state_.files[shard]) {
        return error(StatusCode::kDataLoss, "{}: tensor {} is in {}, the index puts it into {}",
                     source, name, found->file, state_.files[shard]);
      }
      listed.push_back(std::move(*found));
      ++found;
    }
    std::move(found, state_.tensors.end(), std::back_inserter(state_.unlisted));
    if (const size_t extra = state_.unlisted.size(); extra > 0) {
      log::warning("{}: {} tensors of the files are not listed and left out", source, extra);
    }
    state_.tensors = std::move(listed);
    return {};
  }

  Status map_files() {
    for (size_t i = 0; i < state_.files.size(); ++i) {
      ROTA_ASSIGN_OR_RETURN(MappedFile file,
                            MappedFile::open(state_.files[i], FollowSymlinks::kYes));
      if (static_cast<int64_t>(file.bytes().size()) != state_.file_sizes[i]) {
        return error(StatusCode::kDataLoss, "{}: changed its size while it was opened",
                     state_.files[i]);
      }
      state_.mapped.push_back(std::move(file));
    }
    state_.residence = WeightsResidence::kMapped;
    return state_.point_into([&](size_t file) { return state_.mapped[file].bytes(); });
  }

 private:
  // listed: by an index.
  Result<SafetensorsHeader> read_header(size_t file, bool listed) {
    auto header = read_safetensors_header(state_.files[file], FollowSymlinks::kYes);
    if (header.ok() || header.status().code() != StatusCode::kNotFound) return header;
    return error(
        StatusCode::kNotFound,
        "{}{}; download it (`hf download ORG/NAME`), or give --load-format dummy, for which "
        "config.json is enough",
        listed ? fmt::format("{} names a file that is missing: ", kIndexFileName) : "",
        header.status().message());
  }

  void add(size_t file, SafetensorsEntry entry) {
    TensorInfo info;
    info.name = std::move(entry.spec.name);
    info.dtype = entry.spec.dtype;
    info.shape = std::move(entry.spec.shape);
    info.file = state_.files[file];
    info.byte_size = entry.end - entry.begin;
    info.file_offset = entry.begin;
    state_.tensors.push_back(std::move(info));
  }

  Status sort() {
    auto& tensors = state_.tensors;
    std::sort(tensors.begin(), tensors.end(),
              [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
    const auto twice = std::adjacent_find(
        tensors.begin(), tensors.end(),
        [](const TensorInfo& a, const TensorInfo& b) { return a.name == b.name; });
    if (twice == tensors.end()) return {};
    return error(StatusCode::kDataLoss, "tensor {} is in {} and in {}", twice->name, twice->file,
                 std::next(twice)->file);
  }

  Checkpoint::State& state_;
};

}  // namespace

size_t Checkpoint::State::file_of(const TensorInfo& tensor) const {
  const auto at = std::find_if(files.begin(), files.end(), [&](const std::string& file) {
    return file.data() == tensor.file.data();
  });
  return static_cast<size_t>(at - files.begin());
}

Status Checkpoint::State::point_into(
    const std::function<std::span<const std::byte>(size_t)>& file_bytes) {
  unaligned.clear();
  copied_bytes = 0;
  for (TensorInfo& tensor : tensors) {
    tensor.bytes = file_bytes(file_of(tensor))
                       .subspan(static_cast<size_t>(tensor.file_offset),
                                static_cast<size_t>(tensor.byte_size));
    if (tensor.byte_size == 0 || tensor.file_offset % size_of(tensor.dtype).count == 0) continue;
    // Old writers did not pad their headers. Reading such data in place is undefined behaviour.
    ROTA_ASSIGN_OR_RETURN(
        Buffer copy,
        Buffer::allocate(tensor.bytes.size() + MappedFile::kReadableTail, Fill::kUnspecified));
    std::memcpy(copy.data(), tensor.bytes.data(), tensor.bytes.size());
    tensor.bytes = {copy.data(), tensor.bytes.size()};
    copied_bytes += tensor.byte_size;
    unaligned.push_back(std::move(copy));
  }
  if (copied_bytes > 0) {
    log::warning("{} tensors ({} bytes) are not aligned in their file and were copied",
                 unaligned.size(), copied_bytes);
  }
  return {};
}

bool Checkpoint::present(const std::string& model_dir) {
  const auto index = read_shard_index(model_dir);
  return index.ok() || index.status().code() != StatusCode::kNotFound;
}

Result<Checkpoint> Checkpoint::open(const std::string& model_dir,
                                    const CheckpointOptions& options) {
  ROTA_ASSIGN_OR_RETURN(const ShardIndex index, read_shard_index(model_dir));
  auto state = std::make_unique<State>();
  Opener opener(*state);
  ROTA_RETURN_IF_ERROR(opener.read_headers(model_dir, index));
  ROTA_RETURN_IF_ERROR(opener.check_index(model_dir, index));
  if (!options.headers_only) ROTA_RETURN_IF_ERROR(opener.map_files());
  return Checkpoint(std::move(state));
}

}  // namespace rota
