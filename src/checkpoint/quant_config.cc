#include "checkpoint/quant_config.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/json_fields.h"
#include "checkpoint/json_file.h"
#include "quant/mxfp4.h"

namespace rota {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kMaxPatterns = 1024;
constexpr size_t kMaxPatternLength = 128;

Status check_multiple(std::string_view source, std::string_view field, int64_t width) {
  if (width % kMxfp4BlockElements == 0) return {};
  return invalid_argument("{}: {} is {}, expected a multiple of {} for mxfp4", source, field, width,
                          kMxfp4BlockElements);
}

Status check_mxfp4(const ModelConfig& config, std::string_view source) {
  if (config.architecture != Architecture::kGptOss) {
    return error(StatusCode::kUnsupported,
                 "{}: quantization_config: mxfp4 is served for gpt_oss, not for {}", source,
                 to_string(config.architecture));
  }
  ROTA_RETURN_IF_ERROR(check_multiple(source, "hidden_size", config.hidden));
  ROTA_RETURN_IF_ERROR(check_multiple(source, "intermediate_size", config.intermediate));
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

}  // namespace

std::string_view to_string(QuantMethod method) {
  switch (method) {
    case QuantMethod::kNone:
      return "none";
    case QuantMethod::kMxfp4:
      return "mxfp4";
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
  if (method != "mxfp4") {
    return error(StatusCode::kUnsupported,
                 "{}: quant_method is '{}', which is not served yet; expected mxfp4", f.path(),
                 method.substr(0, 60));
  }
  quant.method = QuantMethod::kMxfp4;
  quant.modules_to_not_convert = f.texts_or_none("modules_to_not_convert");
  bool too_long = quant.modules_to_not_convert.size() > kMaxPatterns;
  for (const auto& pattern : quant.modules_to_not_convert) {
    too_long |= pattern.size() > kMaxPatternLength;
  }
  if (too_long) {
    f.fail(
        invalid_argument("{}: modules_to_not_convert: expected at most {} names of {} characters",
                         f.path(), kMaxPatterns, kMaxPatternLength));
  }
  ROTA_RETURN_IF_ERROR(f.status());
  return quant;
}

Status check_quantization(const ModelConfig& config, std::string_view source) {
  if (config.quant.method == QuantMethod::kNone) return {};
  return check_mxfp4(config, source);
}

Status check_hf_quant_config(const std::string& model_dir) {
  const std::string path = fs::path(model_dir) / "hf_quant_config.json";
  const auto document = read_json_file(path);
  if (!document.ok()) {
    return document.status().code() == StatusCode::kNotFound ? Status() : document.status();
  }
  JsonFields top(*document, path);
  const json* entry = top.find("quantization");
  if (entry == nullptr) return top.status();
  JsonFields f(*entry, fmt::format("{}: quantization", path));
  const std::string algorithm = f.text_or("quant_algo", "");
  ROTA_RETURN_IF_ERROR(f.status());
  if (algorithm.empty()) return {};
  return error(StatusCode::kUnsupported,
               "{}: quant_algo is '{}' (ModelOpt), which is not served yet", path,
               algorithm.substr(0, 60));
}

}  // namespace rota
