// Flags that several commands share, each with its environment variable.
#pragma once

#include <CLI/App.hpp>
#include <charconv>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/status.h"
#include "engine/engine_options.h"
#include "engine/request.h"
#include "rota/config_file.h"

namespace rota {

// Why `text` is no T, or nothing: CLI11's own words are "Could not convert".
template <typename T>
std::string refuse_number(const std::string& text) {
  T value{};
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault == std::errc() && end == text.data() + text.size()) return {};
  if constexpr (std::is_floating_point_v<T>) {
    return fmt::format("\"{}\" is not a number; expected one such as 0.5", text);
  } else {
    return fmt::format("\"{}\" is not a whole number from {} to {}", text,
                       std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
  }
}

// Values of a flag for numbers are looked at before they are converted.
template <typename T>
CLI::Option* check_type(CLI::Option* option) {
  if constexpr (std::is_arithmetic_v<T>) {
    option->check(CLI::Validator([](std::string& text) { return refuse_number<T>(text); }, ""));
  }
  return option;
}

// Adds a flag with its environment variable: flag(app, "--seed", value, "help").
template <typename T>
CLI::Option* flag(CLI::App& app, const std::string& name, T& value, const std::string& help) {
  return check_type<T>(app.add_option(name, value, help))
      ->envname(environment_name(name))
      ->capture_default_str();
}

// The same for a flag that may be given more than once, each time with one value.
CLI::Option* list_flag(CLI::App& app, const std::string& name, std::vector<std::string>& values,
                       const std::string& help);

// --NAME and --no-NAME.
CLI::Option* toggle(CLI::App& app, const std::string& name, bool& value, const std::string& help);

// The whole of the file that a flag names; the message names both.
Result<std::string> read_flag_file(std::string_view flag, const std::string& path);

// --hostfile, of the commands that start ranks.
CLI::Option* hostfile_flag(CLI::App& app, std::string& path);

// The parser knows no short names of two letters: -tp, -dp and -ep become the flags that they stand
// for, with or without "=VALUE".
void expand_short_flags(std::vector<std::string>& arguments);

// MODEL and everything that EngineOptions holds. The choices are words until resolve() has read
// them.
struct EngineFlags {
  EngineOptions options;
  std::string dtype = "auto";
  std::string weights = "mapped";
  std::string load_format = "auto";
  std::string generation_config = "auto";

  void add_to(CLI::App& app);
  // Reads the words and checks every range.
  Result<EngineOptions> resolve() const;
};

// Sampling flags of the commands that generate; what was not given stays the model's own.
struct SamplingFlags {
  SamplingParams values;

  void add_to(CLI::App& app);
  // `defaults` with what was given on the command line over it.
  SamplingParams over(SamplingParams defaults) const;
  // Ranges, before a model is loaded; the message names the flag.
  Status check() const;

 private:
  std::vector<std::pair<CLI::Option*, void (*)(SamplingParams&, const SamplingParams&)>> given_;
};

}  // namespace rota
