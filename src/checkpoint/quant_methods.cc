#include "checkpoint/quant_methods.h"

#include <nlohmann/json.hpp>

#include "kernels/matmul.h"
#include "quant/nvfp4.h"

namespace rota {
namespace {

using nlohmann::json;

constexpr size_t kMaxPatterns = 1024;
constexpr size_t kMaxPatternLength = 128;
constexpr size_t kMaxListedLayers = 1 << 20;
constexpr LinearFormat kNvfp4Format{.code = LinearCode::kNvfp4};
constexpr LinearFormat kFp8Format{.code = LinearCode::kFp8};

void unsupported(JsonFields& f, std::string_view field, const std::string& found,
                 std::string_view expected) {
  f.fail(error(StatusCode::kUnsupported, "{}: {} is '{}', which is not served; expected {}",
               f.path(), field, shown_text(found), expected));
}

// Blocks of factors: both sides of the block, the inner one as the kernels fold sums.
void parse_block(JsonFields& f, std::string_view name, LinearFormat& format) {
  const json* sizes = f.find(name);
  std::vector<int64_t> block;
  if (sizes != nullptr && sizes->is_array()) block = f.integers(name, {1, 1 << 20});
  if (!f.status().ok()) return;
  if (block.size() != 2 || block[1] % kFoldColumns != 0) {
    f.fail(name, fmt::format("a list of two sizes, such as [128, 128], the second a multiple of {}",
                             kFoldColumns));
    return;
  }
  format.block_out = block[0];
  format.block_in = block[1];
}

// "re:.*mlp\\.gate$" as the glob "*mlp.gate"; nothing for an expression of more kinds.
std::optional<std::string> glob_of(std::string_view expression) {
  std::string glob;
  for (size_t i = 0; i < expression.size(); ++i) {
    const std::string_view rest = expression.substr(i);
    if (rest.starts_with(".*")) {
      glob += '*';
      ++i;
    } else if (rest.starts_with("\\.")) {
      glob += '.';
      ++i;
    } else if ((rest == "$" && i > 0) || (rest[0] == '^' && i == 0)) {
      continue;
    } else if (std::string_view("\\()[]{}?+|*^$").find(rest[0]) != std::string_view::npos) {
      return std::nullopt;
    } else {
      glob += rest[0];
    }
  }
  return glob;
}

// A weight's scheme in config_groups: num_bits, type and, for compressed-tensors, strategy.
struct WeightScheme {
  int64_t bits = 0;
  std::string type;
  std::string strategy;
  int64_t group_size = 0;
  LinearFormat blocks;
  std::vector<std::string> targets;
};

std::vector<WeightScheme> parse_groups(JsonFields& f) {
  std::vector<WeightScheme> schemes;
  const json* groups = f.find("config_groups");
  if (groups == nullptr) return schemes;
  if (!groups->is_object()) {
    f.fail("config_groups", "an object");
    return schemes;
  }
  for (const auto& [name, value] : groups->items()) {
    JsonFields group(value, fmt::format("{}: config_groups.{}", f.path(), shown_text(name)));
    WeightScheme scheme;
    scheme.targets = group.texts_or_none("targets");
    const json* weights = group.find("weights");
    if (group.status().ok() && weights == nullptr) group.fail("weights", "an object");
    if (group.status().ok()) {
      JsonFields w(*weights, group.path() + ".weights");
      scheme.bits = w.integer("num_bits", {1, 64});
      scheme.type = w.text("type");
      scheme.strategy = w.text_or("strategy", "tensor");
      scheme.group_size = w.maybe_integer("group_size", {1, 1 << 20}).value_or(0);
      if (w.has("block_structure")) parse_block(w, "block_structure", scheme.blocks);
      group.fail(w.status());
    }
    if (!group.status().ok()) {
      f.fail(group.status());
      return schemes;
    }
    schemes.push_back(std::move(scheme));
  }
  return schemes;
}

std::optional<LinearFormat> modelopt_format(std::string_view algorithm) {
  if (algorithm == "FP8") return kFp8Format;
  if (algorithm == "NVFP4") return kNvfp4Format;
  return std::nullopt;
}

void check_group_size(JsonFields& f) {
  const auto size = f.maybe_integer("group_size", {1, 1 << 20});
  if (size && *size != kNvfp4BlockElements) {
    f.fail("group_size", fmt::format("{}, as NVFP4 has it", kNvfp4BlockElements));
  }
}

// The scheme of ModelOpt's mixed precision, which has no strategy: told apart by its bits.
std::optional<LinearFormat> modelopt_format(const WeightScheme& scheme) {
  if (scheme.type != "float") return std::nullopt;
  if (scheme.bits == 8) return kFp8Format;
  if (scheme.bits == 4 && scheme.group_size == kNvfp4BlockElements) return kNvfp4Format;
  return std::nullopt;
}

void parse_quantized_layers(JsonFields& f, QuantConfig& quant) {
  const json* layers = f.find("quantized_layers");
  if (layers == nullptr || !layers->is_object() || layers->size() > kMaxListedLayers) {
    f.fail("quantized_layers", "an object that names the quantised layers");
    return;
  }
  for (const auto& [module, value] : layers->items()) {
    JsonFields layer(value, fmt::format("{}: quantized_layers.{}", f.path(), shown_text(module)));
    const std::string algorithm = layer.text_or("quant_algo", "");
    const auto format = modelopt_format(algorithm);
    if (!format) {
      unsupported(layer, "quant_algo", algorithm, "FP8 or NVFP4");
    } else if (format->code == LinearCode::kNvfp4) {
      check_group_size(layer);
    }
    if (!layer.status().ok()) return f.fail(layer.status());
    quant.by_module.emplace(module, *format);
  }
}

}  // namespace

std::vector<std::string> module_patterns(JsonFields& f, std::string_view name) {
  std::vector<std::string> patterns = f.texts_or_none(name);
  bool too_long = patterns.size() > kMaxPatterns;
  for (const std::string& pattern : patterns) too_long |= pattern.size() > kMaxPatternLength;
  if (too_long) {
    f.fail(invalid_argument("{}: {}: expected at most {} names of {} characters", f.path(), name,
                            kMaxPatterns, kMaxPatternLength));
  }
  return patterns;
}

void parse_fp8(JsonFields& f, QuantConfig& quant) {
  if (const std::string kind = f.text_or("fmt", "e4m3"); kind != "e4m3") {
    unsupported(f, "fmt", kind, "e4m3");
  }
  quant.linear.code = LinearCode::kFp8;
  if (f.has("weight_block_size")) {
    parse_block(f, "weight_block_size", quant.linear);
    quant.linear.named_inverse = true;
  }
  quant.modules_to_not_convert = module_patterns(f, "modules_to_not_convert");
  // Never converted, whether or not the list says so.
  quant.modules_to_not_convert.emplace_back("lm_head");
}

void parse_compressed_tensors(JsonFields& f, QuantConfig& quant) {
  const std::string format = f.text_or("format", "");
  if (format != "float-quantized" && format != "naive-quantized") {
    return unsupported(f, "format", format, "float-quantized (FP8 weights)");
  }
  const std::vector<WeightScheme> schemes = parse_groups(f);
  if (!f.status().ok()) return;
  if (schemes.size() != 1 || schemes[0].targets != std::vector<std::string>{"Linear"}) {
    return f.fail("config_groups", "one group with the target Linear");
  }
  const WeightScheme& scheme = schemes[0];
  if (scheme.bits != 8 || scheme.type != "float") {
    return unsupported(f, "config_groups' weights",
                       fmt::format("{} of {} bits", scheme.type, scheme.bits),
                       "float of 8 bits (E4M3)");
  }
  quant.linear = scheme.blocks;
  quant.linear.code = LinearCode::kFp8;
  if (scheme.strategy == "channel") quant.linear.block_out = 1;
  if (scheme.strategy == "block" && scheme.blocks.block_out == 0) {
    f.fail("config_groups", "a block_structure for the strategy block");
  }
  if (scheme.strategy != "tensor" && scheme.strategy != "channel" && scheme.strategy != "block") {
    unsupported(f, "strategy", scheme.strategy, "tensor, channel or block");
  }
  for (std::string& pattern : module_patterns(f, "ignore")) {
    if (pattern.starts_with("re:")) {
      const auto glob = glob_of(std::string_view(pattern).substr(3));
      if (!glob) return unsupported(f, "ignore", pattern, "names, or regular expressions of .*");
      pattern = *glob;
    }
    quant.modules_to_not_convert.push_back(std::move(pattern));
  }
}

void parse_modelopt(JsonFields& f, QuantConfig& quant) {
  const std::string algorithm = f.text_or("quant_algo", "");
  if (algorithm == "MIXED_PRECISION") {
    const std::vector<WeightScheme> schemes = parse_groups(f);
    for (const WeightScheme& scheme : schemes) {
      const auto format = modelopt_format(scheme);
      if (!format) {
        return unsupported(f, "config_groups' weights",
                           fmt::format("{} of {} bits", scheme.type, scheme.bits),
                           "FP8, or NVFP4 in groups of 16");
      }
      for (const std::string& target : scheme.targets) quant.by_module.emplace(target, *format);
    }
    if (quant.by_module.empty()) f.fail("config_groups", "the quantised layers as targets");
    return;
  }
  const auto format = modelopt_format(algorithm);
  if (!format) return unsupported(f, "quant_algo", algorithm, "FP8, NVFP4 or MIXED_PRECISION");
  quant.linear = *format;
  quant.modules_to_not_convert = module_patterns(f, "ignore");
}

void parse_modelopt_file(JsonFields& f, QuantConfig& quant) {
  quant.method = QuantMethod::kModelOpt;
  const std::string algorithm = f.text_or("quant_algo", "");
  if (algorithm == "MIXED_PRECISION") return parse_quantized_layers(f, quant);
  const auto format = modelopt_format(algorithm);
  if (!format) return unsupported(f, "quant_algo", algorithm, "FP8, NVFP4 or MIXED_PRECISION");
  if (format->code == LinearCode::kNvfp4) check_group_size(f);
  quant.linear = *format;
  quant.modules_to_not_convert = module_patterns(f, "exclude_modules");
}

}  // namespace rota
