#include "checkpoint/rope_config.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace rota {
namespace {

using nlohmann::json;

constexpr NumberRange kTheta{1, 1e12, true};
constexpr NumberRange kFactor{1, 1e6};
constexpr NumberRange kRotations{0, 1e6, true};
constexpr NumberRange kAttention{0, 1e3, true};
constexpr NumberRange kScale{0, 1e3};
constexpr IntegerRange kPositions{1, (int64_t{1} << 31) - 1};

double default_theta(Architecture architecture) {
  switch (architecture) {
    case Architecture::kGptOss:
      return 150000;
    case Architecture::kMixtral:
      return 1e6;
    case Architecture::kQwen3Moe:
    case Architecture::kNemotronH:
      return 10000;
  }
  return 10000;
}

// YaRN's temperature (arXiv 2309.00071, eq. 22) for a scale.
double yarn_temperature(double factor, double scale) {
  return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
}

double attention_factor(JsonFields& f, double factor) {
  if (const auto given = f.maybe_number("attention_factor", kAttention)) return *given;
  const double scale = f.number_or("mscale", kScale, 0);
  const double scale_all = f.number_or("mscale_all_dim", kScale, 0);
  if (scale > 0 && scale_all > 0) {
    return yarn_temperature(factor, scale) / yarn_temperature(factor, scale_all);
  }
  return yarn_temperature(factor, 1);
}

// f: the rope entry; top: config.json, which may hold the original length in older files.
void parse_yarn(JsonFields& f, JsonFields& top, const ModelConfig& config, RopeConfig& rope) {
  rope.type = RopeType::kYarn;
  const auto older = top.maybe_integer("initial_context_length", kPositions);
  rope.original_max_position =
      f.integer_or("original_max_position_embeddings", kPositions, older.value_or(0));
  if (rope.original_max_position == 0) {
    f.fail("original_max_position_embeddings", "an integer");
    return;
  }
  const double stretch =
      static_cast<double>(config.max_position) / static_cast<double>(rope.original_max_position);
  rope.factor = f.number_or("factor", kFactor, std::max(1.0, stretch));
  rope.beta_fast = f.number_or("beta_fast", kRotations, 32);
  rope.beta_slow = f.number_or("beta_slow", kRotations, 1);
  rope.truncate = f.flag_or("truncate", true);
  rope.attention_factor = attention_factor(f, rope.factor);
  if (f.status().ok() && rope.beta_fast < rope.beta_slow) {
    f.fail("beta_fast", fmt::format("at least beta_slow ({})", rope.beta_slow));
  }
}

// The entry that describes scaling: its name, or empty for plain rope.
std::string_view scaling_entry(JsonFields& f) {
  const bool newer = f.has("rope_parameters");
  const bool older = f.has("rope_scaling");
  if (newer && older) {
    f.fail(invalid_argument("{}: has rope_parameters and rope_scaling, expected one of them",
                            f.path()));
  }
  return newer ? "rope_parameters" : older ? "rope_scaling" : "";
}

}  // namespace

RopeConfig parse_rope(JsonFields& f, const ModelConfig& config) {
  RopeConfig rope;
  rope.theta = f.number_or("rope_theta", kTheta, default_theta(config.architecture));
  if (const double part = f.number_or("partial_rotary_factor", {0, 1}, 1); part != 1) {
    f.fail(error(StatusCode::kUnsupported, "{}: partial_rotary_factor is {}, expected 1", f.path(),
                 part));
  }
  const std::string_view name = scaling_entry(f);
  if (name.empty()) {
    if (config.architecture == Architecture::kGptOss && !f.mentions("rope_scaling") &&
        !f.mentions("rope_parameters")) {
      f.fail("rope_scaling", "an object, or null for plain rope");
    }
    return rope;
  }
  JsonFields entry(*f.find(name), fmt::format("{}: {}", f.path(), name));
  rope.theta = entry.number_or("rope_theta", kTheta, rope.theta);
  const std::string type = entry.text_or(entry.has("rope_type") ? "rope_type" : "type", "default");
  if (type == "yarn") {
    parse_yarn(entry, f, config, rope);
  } else if (type != "default") {
    entry.fail(error(StatusCode::kUnsupported, "{}: rope_type is '{}', expected default or yarn",
                     entry.path(), shown_text(type)));
  }
  f.fail(entry.status());
  return rope;
}

}  // namespace rota
