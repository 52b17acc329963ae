// rota eval gsm8k MODEL --data FILE.jsonl: how many problems of grade-school mathematics a model
// solves.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "checkpoint/locate.h"
#include "checkpoint/progress.h"
#include "engine/hash.h"
#include "engine/random.h"
#include "rota/completions.h"
#include "rota/eval.h"
#include "rota/flags.h"
#include "rota/gsm8k.h"
#include "rota/gsm8k_results.h"
#include "rota/open_engine.h"
#include "text/tokenizer.h"

namespace rota {
namespace {

struct Gsm8kFlags {
  EngineFlags engine;
  std::string hostfile;
  std::string data;
  int64_t shots = 8;
  std::string shots_file;
  int64_t num_problems = 0;
  int64_t shuffle_seed = 0;
  CLI::Option* shuffle_option = nullptr;
  int64_t concurrency = 0;
  int64_t max_tokens = 256;
  std::string out;
  bool json = false;

  bool shuffles() const { return shuffle_option->count() > 0; }
};

// Solved examples for the prompt, and the problems behind them.
struct Task {
  std::vector<Gsm8kProblem> examples;
  std::vector<Gsm8kProblem> problems;
};

Status check(const Gsm8kFlags& flags) {
  const auto at_least = [](std::string_view name, int64_t value, int64_t least) -> Status {
    if (value >= least) return {};
    return invalid_argument("{}: {} is not at least {}", name, value, least);
  };
  ROTA_RETURN_IF_ERROR(at_least("--shots", flags.shots, 0));
  ROTA_RETURN_IF_ERROR(at_least("--num-problems", flags.num_problems, 0));
  ROTA_RETURN_IF_ERROR(at_least("--concurrency", flags.concurrency, 0));
  return at_least("--max-tokens", flags.max_tokens, 1);
}

Result<std::vector<Gsm8kProblem>> read_problems(std::string_view name, const std::string& path) {
  ROTA_ASSIGN_OR_RETURN(const std::string text, read_flag_file(name, path));
  return parse_gsm8k(fmt::format("{} {}", name, path), text);
}

Result<Task> read_task(const Gsm8kFlags& flags) {
  Task task;
  ROTA_ASSIGN_OR_RETURN(task.problems, read_problems("--data", flags.data));
  const bool own = flags.shots_file.empty();
  if (!own) {
    ROTA_ASSIGN_OR_RETURN(task.examples, read_problems("--shots-file", flags.shots_file));
  }
  std::vector<Gsm8kProblem>& source = own ? task.problems : task.examples;
  if (static_cast<int64_t>(source.size()) < flags.shots) {
    return invalid_argument("--shots {}: {} has {} problems", flags.shots,
                            own ? flags.data : flags.shots_file, source.size());
  }
  const auto end = source.begin() + flags.shots;
  if (own) {
    task.examples.assign(source.begin(), end);
    source.erase(source.begin(), end);
  } else {
    source.erase(end, source.end());
  }
  if (task.problems.empty()) {
    return invalid_argument("--data {}: has no problem{}", flags.data,
                            own ? " behind the examples of --shots" : "");
  }
  return task;
}

// What answers depend on: a file of results goes on only under the same.
nlohmann::ordered_json settings_of(const Gsm8kFlags& flags, const EngineOptions& options,
                                   const ModelLocation& location, const Task& task) {
  uint64_t hash = kHashStart;
  for (const Gsm8kProblem& it : task.problems) {
    hash = hash_text(gsm8k_prompt(task.examples, it), hash);
    hash = hash_text(it.number, hash);
  }
  return {{"model", location.name},
          {"revision", options.revision},
          {"dtype", to_string(options.dtype)},
          {"shots", flags.shots},
          {"max_tokens", flags.max_tokens},
          {"prompts_hash", fmt::format("{:016x}", hash)}};
}

// Problems that are to be asked, in order.
std::vector<int64_t> order_of(const Gsm8kFlags& flags, const Task& task) {
  const auto all = static_cast<int64_t>(task.problems.size());
  const int64_t count = flags.num_problems == 0 ? all : std::min(flags.num_problems, all);
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  if (!flags.shuffles()) return order;
  for (size_t i = order.size(); i > 1; --i) {
    const double drawn = uniform(static_cast<uint64_t>(flags.shuffle_seed), i);
    std::swap(order[i - 1], order[static_cast<size_t>(drawn * static_cast<double>(i))]);
  }
  return order;
}

struct Score {
  int64_t problems = 0;
  int64_t correct = 0;
  int64_t without_number = 0;

  double accuracy() const {
    return problems == 0 ? 0 : static_cast<double>(correct) / static_cast<double>(problems);
  }
  // Of the mean, from the spread within the sample.
  double standard_error() const {
    if (problems < 2) return 0;
    return std::sqrt(accuracy() * (1 - accuracy()) / static_cast<double>(problems - 1));
  }
  void add(const Gsm8kAnswer& answer) {
    ++problems;
    if (answer.correct()) ++correct;
    if (!answer.number) ++without_number;
  }
};

// One evaluation: asks what the results do not have yet.
class Run {
 public:
  Run(const Gsm8kFlags& flags, const Task& task, Gsm8kResults& results)
      : flags_(flags), task_(task), results_(results), order_(order_of(flags, task)) {
    for (const int64_t problem : order_) {
      const auto found = results.answers().find(problem);
      if (found == results.answers().end()) {
        open_.push_back(problem);
      } else {
        score_.add(found->second);
      }
    }
  }

  bool finished() const { return open_.empty(); }
  const Score& score() const { return score_; }

  Status ask(EngineClient& engine, const std::shared_ptr<const Tokenizer>& tokenizer) {
    ROTA_ASSIGN_OR_RETURN(std::vector<TokenIds> prompts, encode(*tokenizer));
    ROTA_ASSIGN_OR_RETURN(const EngineInfo info, engine.info());
    CompletionOptions options;
    options.sampling.temperature = 0;
    options.sampling.max_tokens = flags_.max_tokens;
    options.stop = {std::string(kGsm8kStop)};
    options.at_once = flags_.concurrency == 0
                          ? info.max_num_seqs
                          : std::min(flags_.concurrency, info.max_num_seqs + info.max_waiting);
    show();
    return complete_all(engine, tokenizer, options, std::move(prompts),
                        [this](const Completion& it) { return take(it); });
  }

  // In the order of the data, whatever the order in which they were asked.
  nlohmann::ordered_json answers() const {
    std::vector<int64_t> sorted = order_;
    std::sort(sorted.begin(), sorted.end());
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const int64_t problem : sorted) all.push_back(to_json(results_.answers().at(problem)));
    return all;
  }

 private:
  Result<std::vector<TokenIds>> encode(const Tokenizer& tokenizer) const {
    std::vector<TokenIds> prompts;
    for (const int64_t problem : open_) {
      ROTA_ASSIGN_OR_RETURN(
          std::vector<int32_t> ids,
          tokenizer.encode(
              gsm8k_prompt(task_.examples, task_.problems[static_cast<size_t>(problem)]),
              {.special = Special::kAsText, .add_special_tokens = true}));
      prompts.emplace_back(std::move(ids));
    }
    return prompts;
  }

  Status take(const Completion& completion) {
    const int64_t problem = open_[completion.prompt];
    Gsm8kAnswer answer{.problem = problem,
                       .expected = task_.problems[static_cast<size_t>(problem)].number,
                       .number = final_number(completion.text),
                       .text = completion.text,
                       .finish_reason = std::string(to_string(completion.finish_reason)),
                       .tokens = completion.tokens};
    score_.add(answer);
    ROTA_RETURN_IF_ERROR(results_.add(std::move(answer)));
    show();
    return {};
  }

  void show() {
    const auto all = static_cast<int64_t>(order_.size());
    console_.show(score_.problems, all,
                  fmt::format("gsm8k  {} of {} problems  accuracy {:.3f}  {:.0f} s",
                              score_.problems, all, score_.accuracy(), console_.seconds()));
  }

  const Gsm8kFlags& flags_;
  const Task& task_;
  Gsm8kResults& results_;
  std::vector<int64_t> order_;
  std::vector<int64_t> open_;  // those of order_ that have no answer yet
  Score score_;
  ConsoleLine console_;
};

void print(const Gsm8kFlags& flags, nlohmann::ordered_json settings, const Run& run) {
  const Score& score = run.score();
  if (!flags.json) {
    std::printf("gsm8k: %lld of %lld problems right, accuracy %.4f +- %.4f\n",
                static_cast<long long>(score.correct), static_cast<long long>(score.problems),
                score.accuracy(), score.standard_error());
    return;
  }
  const ParallelOptions& parallel = flags.engine.options.parallel;
  settings["data"] = flags.data;
  settings["shots_file"] = flags.shots_file.empty() ? flags.data : flags.shots_file;
  settings["shuffle_seed"] =
      flags.shuffles() ? nlohmann::ordered_json(flags.shuffle_seed) : nlohmann::ordered_json();
  settings["tensor_parallel_size"] = parallel.tensor_parallel_size;
  settings["data_parallel_size"] = parallel.data_parallel_size;
  settings["enable_expert_parallel"] = parallel.enable_expert_parallel;
  const nlohmann::ordered_json out = {{"task", "gsm8k"},
                                      {"accuracy", score.accuracy()},
                                      {"stderr", score.standard_error()},
                                      {"problems", score.problems},
                                      {"correct", score.correct},
                                      {"without_number", score.without_number},
                                      {"settings", std::move(settings)},
                                      {"answers", run.answers()}};
  std::printf("%s\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

Status eval_gsm8k(const Gsm8kFlags& flags) {
  ROTA_RETURN_IF_ERROR(check(flags));
  ROTA_ASSIGN_OR_RETURN(const EngineOptions options, flags.engine.resolve());
  ROTA_ASSIGN_OR_RETURN(const Task task, read_task(flags));
  ROTA_ASSIGN_OR_RETURN(
      const ModelLocation location,
      locate_model(options.model, {.revision = options.revision, .cache_dir = {}}));
  const nlohmann::ordered_json settings = settings_of(flags, options, location, task);
  Gsm8kResults in_memory;
  Result<Gsm8kResults> in_file =
      flags.out.empty() ? std::move(in_memory) : Gsm8kResults::open(flags.out, settings);
  if (!in_file.ok()) return in_file.status().with_context("--out");
  Run run(flags, task, *in_file);
  if (!run.finished()) {
    ROTA_ASSIGN_OR_RETURN(const std::shared_ptr<const Tokenizer> tokenizer,
                          Tokenizer::load(location.dir + "/tokenizer.json"));
    ROTA_ASSIGN_OR_RETURN(const std::unique_ptr<EngineClient> engine,
                          open_engine(options, flags.hostfile));
    ROTA_RETURN_IF_ERROR(run.ask(*engine, tokenizer));
  }
  print(flags, settings, run);
  return {};
}

}  // namespace

CommandRun add_eval_gsm8k(CLI::App& eval) {
  auto flags = std::make_shared<Gsm8kFlags>();
  CLI::App& command =
      *eval.add_subcommand("gsm8k", "problems of grade-school mathematics, by their final number");
  flags->engine.add_to(command);
  hostfile_flag(command, flags->hostfile);
  flag(command, "--data", flags->data,
       "problems, one JSON object a line: {\"question\": ..., \"answer\": \"...\\n#### 42\"}")
      ->required()
      ->type_name("FILE");
  flag(command, "--shots", flags->shots, "solved examples in front of each problem");
  flag(
      command, "--shots-file", flags->shots_file,
      "take them from the head of this file; default: the first problems of --data, which are then "
      "not asked")
      ->type_name("FILE");
  flag(command, "--num-problems", flags->num_problems, "ask only the first N problems; 0: all");
  flags->shuffle_option = flag(command, "--shuffle-seed", flags->shuffle_seed,
                               "ask in an order that is drawn with this seed; default: in order");
  flag(command, "--concurrency", flags->concurrency,
       "problems that are asked at once; 0: as many as the engine runs at once");
  flag(command, "--max-tokens", flags->max_tokens, "tokens of an answer at most");
  flag(command, "--out", flags->out,
       "file of the answers; if it has some already, only the others are asked")
      ->type_name("FILE");
  toggle(command, "json", flags->json, "one JSON object: accuracy, stderr, settings, answers");
  return [flags] { return eval_gsm8k(*flags); };
}

}  // namespace rota
