// rota eval ppl MODEL --text FILE: perplexity of a text.
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "checkpoint/locate.h"
#include "rota/eval.h"
#include "rota/flags.h"
#include "rota/open_engine.h"
#include "rota/prompt_logprobs.h"
#include "text/tokenizer.h"

namespace rota {
namespace {

struct PplFlags {
  EngineFlags engine;
  std::string hostfile;
  std::string text;
  int64_t tokens = 2000;
  bool json = false;
};

Result<std::vector<int32_t>> read_tokens(const PplFlags& flags, const ModelLocation& location) {
  ROTA_ASSIGN_OR_RETURN(const std::string text, read_flag_file("--text", flags.text));
  ROTA_ASSIGN_OR_RETURN(const std::shared_ptr<const Tokenizer> tokenizer,
                        Tokenizer::load(location.dir + "/tokenizer.json"));
  ROTA_ASSIGN_OR_RETURN(
      std::vector<int32_t> ids,
      tokenizer->encode(text, {.special = Special::kAsText, .add_special_tokens = true}));
  if (static_cast<int64_t>(ids.size()) > flags.tokens)
    ids.resize(static_cast<size_t>(flags.tokens));
  if (ids.size() < 2) return invalid_argument("--text {}: needs at least two tokens", flags.text);
  return ids;
}

Status eval_ppl(const PplFlags& flags) {
  if (flags.tokens < 2) return invalid_argument("--tokens: {} is not at least 2", flags.tokens);
  ROTA_ASSIGN_OR_RETURN(const EngineOptions options, flags.engine.resolve());
  ROTA_ASSIGN_OR_RETURN(
      const ModelLocation location,
      locate_model(options.model, {.revision = options.revision, .cache_dir = {}}));
  ROTA_ASSIGN_OR_RETURN(std::vector<int32_t> ids, read_tokens(flags, location));
  const ScoredSequence sequence{flags.text, std::move(ids)};
  const std::span<const ScoredSequence> one(&sequence, 1);
  ROTA_ASSIGN_OR_RETURN(const std::unique_ptr<EngineClient> engine,
                        open_engine(prompt_options(options, one), flags.hostfile));
  ROTA_ASSIGN_OR_RETURN(const auto logprobs, prompt_logprobs(*engine, one));
  double sum = 0;
  for (const float logprob : logprobs.front()) sum -= static_cast<double>(logprob);
  const size_t predicted = logprobs.front().size();
  const double mean = sum / static_cast<double>(predicted);
  if (flags.json) {
    const nlohmann::ordered_json out = {{"perplexity", std::exp(mean)},
                                        {"mean_nll", mean},
                                        {"tokens", sequence.ids.size()},
                                        {"predicted", predicted}};
    std::printf("%s\n", out.dump().c_str());
  } else {
    std::printf("perplexity %.4f over %zu predicted tokens\n", std::exp(mean), predicted);
  }
  return {};
}

}  // namespace

CommandRun add_eval_ppl(CLI::App& eval) {
  auto flags = std::make_shared<PplFlags>();
  CLI::App& command = *eval.add_subcommand("ppl", "perplexity of a text, as one sequence");
  flags->engine.add_to(command);
  hostfile_flag(command, flags->hostfile);
  flag(command, "--text", flags->text, "the text")->required()->type_name("FILE");
  flag(command, "--tokens", flags->tokens, "use the first N tokens of it");
  toggle(command, "json", flags->json, "one JSON object");
  return [flags] { return eval_ppl(*flags); };
}

}  // namespace rota
