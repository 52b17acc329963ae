// Drives a Model the way an engine does, with the simplest page allocator there is: pages go to
// sequences in a scattered order, and come back as soon as a window has moved past them.
//
//   ROTA_ASSIGN_OR_RETURN(auto harness, Harness::load(dir, {.kernels = table}));
//   int a = harness->new_sequence();
//   ROTA_ASSIGN_OR_RETURN(StepResult out, harness->step({{a, ids}}));
//   out.logits(row);   // of every row of the step
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/kv_cache.h"
#include "model/model.h"

namespace rota::golden {

struct HarnessOptions {
  const KernelTable* kernels = nullptr;
  Compute compute = Compute::kFloat32;
  MoeOptions moe = {};
  RankContext ranks = {};
  int threads = 2;
  int64_t max_batch_tokens = 512;
  int64_t max_model_len = 1024;
  int64_t pages = 128;
  int64_t slots = 16;
  std::string hf_overrides = {};  // over config.json
};

// What a step computed, copied: logits of all rows, residual streams, routing.
class StepResult : public ForwardTrace {
 public:
  struct Routing {
    std::vector<int32_t> ids;  // [T, top_k]
    std::vector<float> weights;
    int64_t top_k = 0;
  };

  void hidden(int index, MatrixView<const float> value) override;
  void router(int layer, std::span<const int32_t> ids, std::span<const float> weights,
              int64_t top_k) override;
  void moe(int layer, MatrixView<const float> in, MatrixView<const float> out) override;
  void moe_parts(int layer, MatrixView<const float> routed,
                 MatrixView<const float> shared) override;
  void mamba(int layer, MatrixView<const float> in, MatrixView<const float> out) override;

  int64_t rows() const { return rows_; }
  int64_t vocab() const { return vocab_; }
  std::span<const float> logits(int64_t row) const;
  std::span<const float> all_logits() const { return logits_; }
  // [T, H]; index as in ForwardTrace.
  std::span<const float> hidden(int index) const { return hidden_.at(index); }
  const Routing& routing(int layer) const { return routing_.at(layer); }
  const std::map<int, Routing>& routing() const { return routing_; }
  // What goes into and comes out of mixers, by its name in the goldens: "moe.3.in", "moe.3.shared",
  // "mamba.0.out". [T, H]
  const std::map<std::string, std::vector<float>>& blocks() const { return blocks_; }

 private:
  friend class Harness;
  int64_t rows_ = 0;
  int64_t vocab_ = 0;
  std::vector<float> logits_;  // [T, V]
  std::map<int, std::vector<float>> hidden_;
  std::map<std::string, std::vector<float>> blocks_;
  std::map<int, Routing> routing_;
};

class Harness {
 public:
  static Result<std::unique_ptr<Harness>> load(const std::string& model_dir,
                                               const HarnessOptions& options);

  Model& model() { return *model_; }
  const ModelConfig& config() const { return config_; }
  KvCache& cache() { return *cache_; }

  int64_t pages_in_use() const { return options_.pages - std::ssize(free_pages_); }

  int new_sequence();
  void end_sequence(int sequence);

  // The next tokens of some sequences, in one step.
  struct Piece {
    int sequence = 0;
    std::span<const int32_t> ids;
  };
  // tokens_of_group [dp]: of each data-parallel rank in this step, where there are several; this
  // one may have none.
  Result<StepResult> step(std::span<const Piece> pieces,
                          std::span<const int64_t> tokens_of_group = {});
  Result<StepResult> step(int sequence, std::span<const int32_t> ids);

  // A fresh sequence, in one step or in chunks of `chunk` tokens, logits of all positions; ended
  // again.
  Result<std::vector<float>> run_alone(std::span<const int32_t> ids, int64_t chunk);

 private:
  struct Sequence {
    int64_t length = 0;
    std::vector<std::vector<int32_t>> tables;  // one a group
    int32_t slot = -1;                         // where the model has states
  };

  Status reserve(Sequence& sequence, int64_t tokens);

  HarnessOptions options_;
  ModelConfig config_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<ThreadTeam> team_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvCache> cache_;
  std::vector<int32_t> free_pages_;
  std::vector<int32_t> free_slots_;
  std::map<int, Sequence> sequences_;
  int next_sequence_ = 0;
};

int32_t argmax(std::span<const float> row);

}  // namespace rota::golden
