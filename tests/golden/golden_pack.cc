#include "golden/golden_pack.h"

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

namespace rota::golden {
namespace {

Result<nlohmann::json> read_json(const std::string& path) {
  std::ifstream file(path);
  if (!file) return error(StatusCode::kNotFound, "{}: cannot be opened", path);
  nlohmann::json document = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) return error(StatusCode::kDataLoss, "{}: not JSON", path);
  return document;
}

std::vector<Prompt> read_prompts(const nlohmann::json& document) {
  std::vector<Prompt> prompts;
  for (const auto& [name, prompt] : document.at("prompts").items()) {
    prompts.push_back({.name = name,
                       .ids = prompt.at("ids").get<std::vector<int32_t>>(),
                       .greedy = prompt.at("greedy").get<std::vector<int32_t>>()});
  }
  return prompts;
}

Bf16Bounds read_bounds(const nlohmann::json& bounds) {
  return {.median_of_max_abs = bounds.at("median_of_max_abs"),
          .max_abs_where_all_router_ids_agree = bounds.at("max_abs_where_all_router_ids_agree"),
          .kl_mean = bounds.at("kl_mean"),
          .top1_agreement = bounds.at("top1_agreement"),
          .router_flip_rate = bounds.at("router_flip_rate")};
}

}  // namespace

std::vector<int32_t> Prompt::teacher_forced() const {
  std::vector<int32_t> all = ids;
  all.insert(all.end(), greedy.begin(), greedy.end() - 1);
  return all;
}

Result<GoldenPack> GoldenPack::open(const std::string& dir) {
  ROTA_ASSIGN_OR_RETURN(nlohmann::json document, read_json(dir + "/golden.json"));
  const nlohmann::json& tolerance = document.at("suggested_tolerance");
  return GoldenPack{.name = dir.substr(dir.find_last_of('/') + 1),
                    .model_dir = dir,
                    .tensors = GoldenFile(dir + "/golden.safetensors"),
                    .prompts = read_prompts(document),
                    .fp32_logits_max_abs = tolerance.at("fp32 compute").at("logits_max_abs"),
                    .bf16 = read_bounds(tolerance.at("bf16 compute"))};
}

Result<WideGolden> WideGolden::open(const std::string& reference_dir, const std::string& name) {
  const std::string path = reference_dir + "/wide/" + name;
  ROTA_ASSIGN_OR_RETURN(nlohmann::json document, read_json(path + ".json"));
  return WideGolden{.name = name,
                    .synth_arguments = document.at("synth").get<std::vector<std::string>>(),
                    .ids = document.at("ids").get<std::vector<int32_t>>(),
                    .tensors = GoldenFile(path + ".safetensors")};
}

std::vector<std::string> small_packs() {
  return {"gptoss-mxfp4-h160",   "gptoss-mxfp4-h288",         "gptoss-bf16-h160",
          "mixtral-bf16-h72",    "mixtral-fp8-h80",           "qwen3-bf16-h160",
          "qwen3-fp8-h288",      "nemotron-bf16-h336",        "nemotron-fp8-h144",
          "nemotron-nvfp4-h112", "nemotron-latent-bf16-h112", "nemotron-latent-mixed-h112"};
}

std::string small_pack_dir(const std::string& name) {
  return testing::golden_path("models/" + name);
}

std::string reference_dir() {
  const char* dir = std::getenv("ROTA_REFERENCE_DIR");
  return dir == nullptr ? "" : dir;
}

bool full_grid() {
  const char* full = std::getenv("ROTA_FULL");
  return full != nullptr && std::string_view(full) != "" && std::string_view(full) != "0";
}

}  // namespace rota::golden
