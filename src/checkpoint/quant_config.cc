#include "checkpoint/quant_config.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/expected_tensors.h"
#include "checkpoint/expert_modules.h"
#include "checkpoint/json_fields.h"
#include "checkpoint/json_file.h"
#include "checkpoint/quant_methods.h"
#include "quant/mxfp4.h"
#include "quant/nvfp4.h"

namespace rota {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

Status check_blocks(std::string_view source, std::string_view what, std::string_view field,
                    int64_t width, int64_t block) {
  if (width % block == 0) return {};
  return invalid_argument("{}: {} is {}, expected a multiple of {} for {}", source, field, width,
                          block, what);
}

Status check_mxfp4(const ModelConfig& config, std::string_view source) {
  if (config.architecture != Architecture::kGptOss) {
    return error(StatusCode::kUnsupported,
                 "{}: quantization_config: mxfp4 is served for gpt_oss, not for {}", source,
                 to_string(config.architecture));
  }
  constexpr int64_t kBlock = kMxfp4BlockElements;
  ROTA_RETURN_IF_ERROR(check_blocks(source, "mxfp4", "hidden_size", config.hidden, kBlock));
  ROTA_RETURN_IF_ERROR(
      check_blocks(source, "mxfp4", "intermediate_size", config.intermediate, kBlock));
  for (const std::string& pattern : config.quant.modules_to_not_convert) {
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      const std::string experts = fmt::format("model.layers.{}.mlp.experts", layer);
      if (!module_matches(pattern, experts)) continue;
      return error(StatusCode::kUnsupported,
                   "{}: quantization_config: modules_to_not_convert has {}, which covers {}; "
                   "experts of two formats in one model are not served",
                   source, pattern, experts);
    }
  }
  return {};
}

// The one format of all routed experts, which the file names one by one or by patterns.
Result<LinearFormat> format_of_experts(const ModelConfig& config, std::string_view source) {
  std::optional<LinearFormat> format;
  std::string first;
  const auto check = [&](const std::string& module) -> Status {
    if (module.empty()) return {};
    const LinearFormat found = config.quant.format_of(module);
    if (!format) {
      format = found;
      first = module;
    }
    if (found == *format) return {};
    return error(StatusCode::kUnsupported,
                 "{}: {} and {} are in different formats; routed experts of two formats in one "
                 "model are not served",
                 source, first, module);
  };
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    if (!config.has_moe(layer)) continue;
    for (int64_t expert = 0; expert < config.experts; ++expert) {
      const ExpertModules modules =
          expert_modules(config.architecture, layer, std::to_string(expert));
      ROTA_RETURN_IF_ERROR(check(modules.gate));
      ROTA_RETURN_IF_ERROR(check(modules.up));
      ROTA_RETURN_IF_ERROR(check(modules.down));
    }
  }
  return format.value_or(LinearFormat{});
}

}  // namespace

LinearFormat QuantConfig::format_of(std::string_view module) const {
  if (!by_module.empty()) {
    const auto found = by_module.find(module);
    return found == by_module.end() ? LinearFormat{} : found->second;
  }
  for (const std::string& pattern : modules_to_not_convert) {
    if (module_matches(pattern, module)) return {};
  }
  return linear;
}

std::string_view to_string(QuantMethod method) {
  switch (method) {
    case QuantMethod::kNone:
      return "none";
    case QuantMethod::kMxfp4:
      return "mxfp4";
    case QuantMethod::kFp8:
      return "fp8";
    case QuantMethod::kCompressedTensors:
      return "compressed-tensors";
    case QuantMethod::kModelOpt:
      return "modelopt";
  }
  return "unknown";
}

bool module_matches(std::string_view pattern, std::string_view module) {
  // The usual two-pointer glob; star and resume remember the last '*' to go back to.
  size_t p = 0;
  size_t m = 0;
  size_t star = std::string_view::npos;
  size_t resume = 0;
  while (true) {
    const bool pattern_done = p == pattern.size();
    if (pattern_done && (m == module.size() || module[m] == '.')) return true;
    if (!pattern_done && pattern[p] == '*') {
      star = p++;
      resume = m;
    } else if (!pattern_done && m < module.size() && pattern[p] == module[m]) {
      ++p;
      ++m;
    } else if (star != std::string_view::npos && resume < module.size()) {
      p = star + 1;
      m = ++resume;
    } else {
      return false;
    }
  }
}

Result<QuantConfig> parse_quantization_config(const json& document, std::string_view source) {
  QuantConfig quant;
  JsonFields top(document, std::string(source));
  const json* entry = top.find("quantization_config");
  if (entry == nullptr) return quant;
  JsonFields f(*entry, fmt::format("{}: quantization_config", source));
  ROTA_RETURN_IF_ERROR(f.status());
  const std::string method = f.text("quant_method");
  ROTA_RETURN_IF_ERROR(f.status());
  if (method == "mxfp4") {
    // Its blocks are stacked experts; linear layers stay plain.
    quant.method = QuantMethod::kMxfp4;
    quant.modules_to_not_convert = module_patterns(f, "modules_to_not_convert");
  } else if (method == "fp8") {
    quant.method = QuantMethod::kFp8;
    parse_fp8(f, quant);
  } else if (method == "compressed-tensors") {
    quant.method = QuantMethod::kCompressedTensors;
    parse_compressed_tensors(f, quant);
  } else if (method == "modelopt") {
    quant.method = QuantMethod::kModelOpt;
    parse_modelopt(f, quant);
  } else {
    f.fail(error(StatusCode::kUnsupported,
                 "{}: quant_method is '{}', which is not served; expected mxfp4, fp8, "
                 "compressed-tensors (FP8) or modelopt (FP8, NVFP4)",
                 f.path(), shown_text(method)));
  }
  ROTA_RETURN_IF_ERROR(f.status());
  return quant;
}

Status resolve_quantization(ModelConfig& config, std::string_view source) {
  config.expert_format = {};
  if (config.quant.method == QuantMethod::kNone) return {};
  if (config.quant.method == QuantMethod::kMxfp4) {
    config.expert_format.code = LinearCode::kMxfp4;
    return check_mxfp4(config, source);
  }
  if (config.architecture == Architecture::kGptOss) {
    return error(StatusCode::kUnsupported,
                 "{}: gpt_oss with quantisation {}, expected mxfp4 or none", source,
                 to_string(config.quant.method));
  }
  ROTA_ASSIGN_OR_RETURN(config.expert_format, format_of_experts(config, source));
  if (config.expert_format.code == LinearCode::kNvfp4) {
    constexpr int64_t kBlock = kNvfp4BlockElements;
    ROTA_RETURN_IF_ERROR(
        check_blocks(source, "NVFP4", "the experts' width", config.experts_hidden(), kBlock));
    ROTA_RETURN_IF_ERROR(check_blocks(source, "NVFP4", "the experts' intermediate size",
                                      config.intermediate, kBlock));
  }
  for (const LinearSource& linear : dense_linears(config)) {
    const Status fits = check_linear(linear);
    if (!fits.ok()) return fits.with_context(source);
  }
  return {};
}

Result<std::optional<QuantConfig>> read_hf_quant_config(const std::string& model_dir) {
  std::optional<QuantConfig> none;
  const std::string path = fs::path(model_dir) / "hf_quant_config.json";
  const auto document = read_json_file(path);
  if (!document.ok()) {
    if (document.status().code() == StatusCode::kNotFound) return none;
    return document.status();
  }
  JsonFields top(*document, path);
  const json* entry = top.find("quantization");
  ROTA_RETURN_IF_ERROR(top.status());
  if (entry == nullptr) return none;
  JsonFields f(*entry, fmt::format("{}: quantization", path));
  if (f.status().ok() && !f.has("quant_algo")) return none;
  QuantConfig quant;
  parse_modelopt_file(f, quant);
  ROTA_RETURN_IF_ERROR(f.status());
  return std::optional(std::move(quant));
}

}  // namespace rota
