#include "checkpoint/generation_config.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/json_fields.h"
#include "checkpoint/json_file.h"

namespace rota {
namespace {

constexpr IntegerRange kToken{0, INT32_MAX};
constexpr IntegerRange kCount{1, INT32_MAX};

}  // namespace

Result<GenerationConfig> parse_generation_config(const nlohmann::json& document,
                                                 std::string_view source) {
  JsonFields f(document, std::string(source));
  GenerationConfig config;
  for (const int64_t id : f.integers("eos_token_id", kToken)) {
    config.eos_token_ids.push_back(static_cast<int32_t>(id));
  }
  if (const auto id = f.maybe_integer("bos_token_id", kToken)) {
    config.bos_token_id = static_cast<int32_t>(*id);
  }
  // Some files say -1 for "none", in token ids and in top_k.
  const auto pad = f.maybe_integer("pad_token_id", {-1, INT32_MAX});
  if (pad && *pad >= 0) config.pad_token_id = static_cast<int32_t>(*pad);
  config.do_sample = f.maybe_flag("do_sample");
  config.temperature = f.maybe_number("temperature", {0, 1e6});
  config.top_p = f.maybe_number("top_p", {0, 1, true});
  config.min_p = f.maybe_number("min_p", {0, 1});
  const auto top_k = f.maybe_integer("top_k", {-1, INT32_MAX});
  if (top_k) config.top_k = *top_k < 0 ? 0 : *top_k;
  config.repetition_penalty = f.maybe_number("repetition_penalty", {0, 1e6, true});
  config.max_new_tokens = f.maybe_integer("max_new_tokens", kCount);
  ROTA_RETURN_IF_ERROR(f.status());
  return config;
}

Result<GenerationConfig> read_generation_config(const std::string& model_dir) {
  const std::string path = std::filesystem::path(model_dir) / "generation_config.json";
  const auto document = read_json_file(path);
  if (document.ok()) return parse_generation_config(*document, path);
  if (document.status().code() == StatusCode::kNotFound) return GenerationConfig{};
  return document.status();
}

}  // namespace rota
