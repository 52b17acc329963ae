// A folder of goldens: a checkpoint, what it must compute, and how closely.
//
//   ROTA_ASSIGN_OR_RETURN(GoldenPack pack, GoldenPack::open(dir));
//   pack.tensors.floats("p7.logits");   // see tests/goldens/README.md for the names
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "tensor/testing/golden_file.h"

namespace rota::golden {

using testing::GoldenFile;

struct Prompt {
  std::string name;
  std::vector<int32_t> ids;
  std::vector<int32_t> greedy;

  // The prompt and all greedy tokens but the last: the positions that the measured noise is over.
  std::vector<int32_t> teacher_forced() const;
};

struct Bf16Bounds {
  double median_of_max_abs = 0;
  double max_abs_where_all_router_ids_agree = 0;
  double kl_mean = 0;
  double top1_agreement = 0;
  double router_flip_rate = 0;
};

struct GoldenPack {
  std::string name;
  std::string model_dir;
  GoldenFile tensors;
  std::vector<Prompt> prompts;
  double fp32_logits_max_abs = 0;
  Bf16Bounds bf16;

  static Result<GoldenPack> open(const std::string& dir);
};

// One of the goldens at real widths (wide/NAME.json, wide/NAME.safetensors).
struct WideGolden {
  std::string name;
  std::vector<std::string> synth_arguments;
  std::vector<int32_t> ids;
  GoldenFile tensors;

  static Result<WideGolden> open(const std::string& reference_dir, const std::string& name);
};

// The packs that the repository carries.
std::vector<std::string> small_packs();
std::string small_pack_dir(const std::string& name);

// The folder of the larger goldens, or nothing: ROTA_REFERENCE_DIR.
std::string reference_dir();

// ROTA_FULL=1: the whole grid in place of its seeded sample.
bool full_grid();

}  // namespace rota::golden
