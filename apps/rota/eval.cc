// rota eval ppl MODEL --text FILE: perplexity of a text.
#include <cmath>
#include <cstdio>
#include <memory>

#include "engine/parallel_choice.h"
#include "rota/command.h"
#include "rota/flags.h"
#include "rota/scoring.h"
#include "text/tokenizer.h"

namespace rota {
namespace {

struct EvalFlags {
  EngineFlags engine;
  std::string text;
  int64_t tokens = 2000;
  bool json = false;
};

// Sum of -log p(token | all before it), in double.
class NegativeLogLikelihood final : public ScoreSink {
 public:
  explicit NegativeLogLikelihood(const std::vector<int32_t>& ids) : ids_(ids) {}

  ForwardTrace* begin_step(std::span<const ScoredRows>) override { return nullptr; }

  Status logits(std::span<const ScoredRows> rows, MatrixView<const float> logits) override {
    for (const ScoredRows& part : rows) {
      for (int64_t i = 0; i < part.tokens; ++i) {
        const auto next = static_cast<size_t>(part.first_position + i + 1);
        if (next < ids_.size())
          add(logits.row(part.first_row + i), static_cast<size_t>(ids_[next]));
      }
    }
    return {};
  }
  double mean() const { return sum_ / static_cast<double>(count_); }
  int64_t count() const { return count_; }

 private:
  void add(std::span<const float> row, size_t token) {
    double most = -INFINITY;
    for (const float value : row) most = std::max(most, static_cast<double>(value));
    double total = 0;
    for (const float value : row) total += std::exp(static_cast<double>(value) - most);
    sum_ += most + std::log(total) - static_cast<double>(row[token]);
    ++count_;
  }

  const std::vector<int32_t>& ids_;
  double sum_ = 0;
  int64_t count_ = 0;
};

Status eval_ppl(const EvalFlags& flags) {
  if (flags.tokens < 2) return invalid_argument("--tokens: {} is not at least 2", flags.tokens);
  ROTA_ASSIGN_OR_RETURN(const EngineOptions options, flags.engine.resolve());
  ROTA_RETURN_IF_ERROR(check_one_rank("eval", options.parallel));
  ROTA_ASSIGN_OR_RETURN(const std::string text, read_flag_file("--text", flags.text));
  ROTA_ASSIGN_OR_RETURN(
      const ModelLocation location,
      locate_model(options.model, {.revision = options.revision, .cache_dir = {}}));
  ROTA_ASSIGN_OR_RETURN(const std::shared_ptr<const Tokenizer> tokenizer,
                        Tokenizer::load(location.dir + "/tokenizer.json"));
  ROTA_ASSIGN_OR_RETURN(
      std::vector<int32_t> ids,
      tokenizer->encode(text, {.special = Special::kAsText, .add_special_tokens = true}));
  if (static_cast<int64_t>(ids.size()) > flags.tokens)
    ids.resize(static_cast<size_t>(flags.tokens));
  if (ids.size() < 2) return invalid_argument("--text {}: needs at least two tokens", flags.text);
  const ScoredSequence sequence{flags.text, ids};
  const std::span<const ScoredSequence> one(&sequence, 1);
  ROTA_ASSIGN_OR_RETURN(LoadedEngine engine, load_engine(scoring_options(options, one)));
  NegativeLogLikelihood likelihood(ids);
  ROTA_RETURN_IF_ERROR(score_sequences(engine, one, likelihood));
  const double perplexity = std::exp(likelihood.mean());
  if (flags.json) {
    std::printf(
        "{\"perplexity\": %.6f, \"mean_nll\": %.6f, \"tokens\": %zu, \"predicted\": %lld}\n",
        perplexity, likelihood.mean(), ids.size(), static_cast<long long>(likelihood.count()));
  } else {
    std::printf("perplexity %.4f over %lld predicted tokens\n", perplexity,
                static_cast<long long>(likelihood.count()));
  }
  return {};
}

}  // namespace

CommandRun add_eval(CLI::App& app) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App& eval = *app.add_subcommand("eval", "measure a model's quality");
  eval.require_subcommand(1);
  CLI::App& command = *eval.add_subcommand("ppl", "perplexity of a text, as one sequence");
  flags->engine.add_to(command);
  flag(command, "--text", flags->text, "the text")->required()->type_name("FILE");
  flag(command, "--tokens", flags->tokens, "use the first N tokens of it");
  toggle(command, "json", flags->json, "one JSON object");
  return [flags] { return eval_ppl(*flags); };
}

}  // namespace rota
