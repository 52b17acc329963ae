// The weights of a model: one safetensors file or an index of many shards, mapped, never converted
// (design section 5). Tensors are views into the files and live as long as the Checkpoint.
//
// Contract: open() has checked every header, and the index against the headers; shards are plain
// files beside the index. A tensor whose data is not aligned for its dtype is copied (and counted);
// all others are read where they lie. Safe to read from any number of threads.
//
//   ROTA_ASSIGN_OR_RETURN(Checkpoint weights, Checkpoint::open(model_dir));
//   ROTA_ASSIGN_OR_RETURN(TensorInfo norm, weights.require({"model.norm.weight", DType::kBf16,
//   {2880}}));
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/safetensors.h"

namespace rota {

struct CheckpointOptions {
  bool headers_only = false;  // for `rota plan`: names, shapes and sizes; no bytes, nothing mapped
};

// Called by the loading thread itself, a few times a second and once at the end.
using LoadProgress = std::function<void(int64_t bytes_done, int64_t bytes_total)>;

// Bytes [begin, end) of a tensor.
struct TensorPart {
  int64_t begin = 0;
  int64_t end = 0;
};

// What this process reads of a tensor of so many bytes, ascending, where others read another part
// of it; nothing: all processes read all of it.
using OwnParts =
    std::function<std::optional<std::vector<TensorPart>>(const TensorSpec& tensor, int64_t bytes)>;

struct LoadOptions {
  LoadProgress progress = {};
  int threads = 4;
  // Processes of one host share its page cache: of what all of them read, warm() reads part `part`
  // of
  // `parts`.
  int part = 0;
  int parts = 1;
  OwnParts own =
      {};  // the parts of others are left alone, and take no memory; empty: there are none
  bool prefer_copy = false;   // lock_in_memory(): a private copy even where mlock is allowed
  std::stop_token stop = {};  // ends early with kCancelled
};

// Where the weights are: in the page cache, locked there, or in memory of our own.
enum class WeightsResidence { kNone, kMapped, kMappedLocked, kCopied, kDummy };
std::string_view to_string(WeightsResidence residence);

class Checkpoint {
 public:
  // True if the folder names weights at all (even unreadable ones): a folder with config.json alone
  // is enough for `rota plan` and dummy weights.
  static bool present(const std::string& model_dir);

  static Result<Checkpoint> open(const std::string& model_dir,
                                 const CheckpointOptions& options = {});

  // Random weights of the given shapes, finite and of sane size, a function of (seed, name,
  // element) alone. What options.own leaves to others is not filled and takes no memory.
  // kResourceExhausted if those of options.parts processes do not fit into memory.
  static Result<Checkpoint> dummy(std::span<const TensorSpec> specs, uint64_t seed = 0,
                                  const LoadOptions& options = {});

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  // nullptr if there is no such tensor. The pointer lives as long as the checkpoint.
  const TensorInfo* find(std::string_view name) const;

  // The tensor, or an error that names what was found and what was expected.
  Result<TensorInfo> require(const TensorSpec& spec) const;
  Result<TensorInfo> require(std::string_view name, std::span<const DType> dtypes,
                             std::span<const int64_t> shape) const;

  std::span<const TensorInfo> tensors() const;  // sorted by name
  std::vector<std::string_view> names() const;  // sorted
  std::span<const std::string> files() const;   // paths
  int64_t total_bytes() const;                  // of all tensors
  int64_t copied_bytes() const;                 // of tensors whose data was not aligned
  WeightsResidence residence() const;

  // Hash of names, dtypes, shapes and sizes, in no order: ranks that see different files differ.
  uint64_t manifest_hash() const;

  // Reads all pages ahead in parallel. Not needed for correctness; may run beside readers.
  Status warm(const LoadOptions& options = {}) const;

  // The first mapped file that has become shorter since it was opened; nullptr: none.
  const std::string* shrunk_file() const;

  // --weights locked: keeps the weights in memory whatever the page cache does: by mlock, or, where
  // RLIMIT_MEMLOCK refuses, in a private copy. residence() says which. Before this call nobody may
  // hold a TensorInfo.
  Status lock_in_memory(const LoadOptions& options = {});

  struct State;  // of the sources of this class alone

 private:
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace rota
