// rota score MODEL --ids-file F.json: of given token ids, the logprob of each (--json), or logits
// and more as a file (--out F.safetensors) whose tensors are named as the reference goldens are.
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/safetensors_writer.h"
#include "engine/parallel_choice.h"
#include "rota/command.h"
#include "rota/flags.h"
#include "rota/open_engine.h"
#include "rota/prompt_logprobs.h"
#include "rota/scoring.h"

namespace rota {
namespace {

struct ScoreFlags {
  EngineFlags engine;
  std::string ids_file;
  std::string out;
  std::vector<std::string> dump;
  bool alone = false;
  bool json = false;
  std::string hostfile;
};

Result<std::vector<ScoredSequence>> read_ids(const std::string& path) {
  ROTA_ASSIGN_OR_RETURN(const std::string text, read_flag_file("--ids-file", path));
  const nlohmann::ordered_json root = nlohmann::ordered_json::parse(text, nullptr, false);
  const auto refuse = [&] {
    return invalid_argument(
        "--ids-file {}: expected an object of names and lists of token ids: {{\"p\": [1, 2, 3]}}",
        path);
  };
  if (!root.is_object() || root.empty()) return refuse();
  std::vector<ScoredSequence> out;
  for (const auto& [name, ids] : root.items()) {
    if (!ids.is_array()) return refuse();
    ScoredSequence& one = out.emplace_back(ScoredSequence{name, {}});
    for (const auto& id : ids) {
      if (!id.is_number_integer() || id < 0 || id > INT32_MAX) return refuse();
      one.ids.push_back(id.get<int32_t>());
    }
  }
  return out;
}

// A tensor that grows row range by row range.
struct Gathered {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;

  static Gathered make(DType dtype, std::vector<int64_t> shape) {
    int64_t count = size_of(dtype).count;
    for (const int64_t side : shape) count *= side;
    return {dtype, std::move(shape), std::vector<std::byte>(static_cast<size_t>(count))};
  }
  void put(int64_t first_element, const void* data, size_t size) {
    std::memcpy(bytes.data() + first_element * size_of(dtype).count, data, size);
  }
};

// Collects what each step shows into tensors by name.
class Collector final : public ScoreSink, public ForwardTrace {
 public:
  Collector(std::span<const ScoredSequence> sequences, const ModelConfig& config, bool hidden,
            bool router)
      : sequences_(sequences), config_(config), want_hidden_(hidden), want_router_(router) {}

  ForwardTrace* begin_step(std::span<const ScoredRows> rows) override {
    rows_ = rows;
    return want_hidden_ || want_router_ ? this : nullptr;
  }

  Status logits(std::span<const ScoredRows> rows, MatrixView<const float> logits) override {
    for (const ScoredRows& part : rows) {
      Gathered& all = tensor(part, ".logits", DType::kF32, {length(part), config_.vocab});
      for (int64_t i = 0; i < part.tokens; ++i) {
        const auto row = logits.row(part.first_row + i);
        all.put((part.first_position + i) * config_.vocab, row.data(), row.size_bytes());
      }
    }
    return {};
  }

  void hidden(int index, MatrixView<const float> value) override {
    if (!want_hidden_) return;
    for (const ScoredRows& part : rows_) {
      const int64_t width = config_.hidden;
      Gathered& all =
          tensor(part, ".hidden", DType::kF32, {config_.layers + 2, length(part), width});
      for (int64_t i = 0; i < part.tokens; ++i) {
        const auto row = value.row(part.first_row + i);
        all.put((index * length(part) + part.first_position + i) * width, row.data(),
                row.size_bytes());
      }
    }
  }

  void router(int layer, std::span<const int32_t> ids, std::span<const float> weights,
              int64_t top_k) override {
    if (!want_router_) return;
    for (const ScoredRows& part : rows_) {
      const std::string prefix = ".router." + std::to_string(layer);
      const auto from = static_cast<size_t>(part.first_row * top_k);
      const auto count = static_cast<size_t>(part.tokens * top_k);
      tensor(part, prefix + ".ids", DType::kI32, {length(part), top_k})
          .put(part.first_position * top_k, ids.subspan(from, count).data(),
               count * sizeof(int32_t));
      tensor(part, prefix + ".weights", DType::kF32, {length(part), top_k})
          .put(part.first_position * top_k, weights.subspan(from, count).data(),
               count * sizeof(float));
    }
  }

  const std::map<std::string, Gathered>& tensors() const { return tensors_; }
  void merge(Collector& other) { tensors_.merge(other.tensors_); }

 private:
  int64_t length(const ScoredRows& part) const {
    return static_cast<int64_t>(sequences_[part.sequence].ids.size());
  }
  Gathered& tensor(const ScoredRows& part, const std::string& suffix, DType dtype,
                   std::vector<int64_t> shape) {
    const std::string name = sequences_[part.sequence].name + suffix;
    auto found = tensors_.find(name);
    if (found == tensors_.end())
      found = tensors_.emplace(name, Gathered::make(dtype, std::move(shape))).first;
    return found->second;
  }

  std::span<const ScoredSequence> sequences_;
  const ModelConfig& config_;
  bool want_hidden_;
  bool want_router_;
  std::span<const ScoredRows> rows_;
  std::map<std::string, Gathered> tensors_;
};

// {"NAME": {"token_ids": [...], "logprobs": [null, ...]}, ...}: floats are printed so that they
// read back the same.
Status score_as_json(const ScoreFlags& flags, std::span<const ScoredSequence> sequences,
                     const EngineOptions& options) {
  ROTA_ASSIGN_OR_RETURN(
      const std::unique_ptr<EngineClient> engine,
      open_engine(prompt_options(options, sequences, flags.alone), flags.hostfile));
  ROTA_ASSIGN_OR_RETURN(const auto logprobs, prompt_logprobs(*engine, sequences, flags.alone));
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (size_t i = 0; i < sequences.size(); ++i) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array({nullptr});
    for (const float value : logprobs[i]) list.push_back(static_cast<double>(value));
    out[sequences[i].name] = {{"token_ids", sequences[i].ids}, {"logprobs", std::move(list)}};
  }
  std::printf("%s\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  return {};
}

Status check(const ScoreFlags& flags, const EngineOptions& options) {
  if (flags.json == !flags.out.empty()) {
    return invalid_argument(
        "give either --out FILE (logits) or --json (the logprob of each token, on standard "
        "output)");
  }
  if (flags.json) {
    if (flags.dump.empty()) return {};
    return invalid_argument("--dump {}: goes into the file of --out, not with --json",
                            flags.dump.front());
  }
  return check_one_rank("score --out", options.parallel);
}

Status score(const ScoreFlags& flags) {
  const std::set<std::string> dump(flags.dump.begin(), flags.dump.end());
  for (const std::string& what : dump) {
    if (what != "hidden" && what != "router") {
      return invalid_argument("--dump: '{}' is neither hidden nor router", what);
    }
  }
  ROTA_ASSIGN_OR_RETURN(const std::vector<ScoredSequence> sequences, read_ids(flags.ids_file));
  ROTA_ASSIGN_OR_RETURN(const EngineOptions options, flags.engine.resolve());
  ROTA_RETURN_IF_ERROR(check(flags, options));
  if (flags.json) return score_as_json(flags, sequences, options);
  ROTA_ASSIGN_OR_RETURN(LoadedEngine engine, load_engine(scoring_options(options, sequences)));
  Collector collector(sequences, engine.config, dump.contains("hidden"), dump.contains("router"));
  if (flags.alone) {
    for (size_t i = 0; i < sequences.size(); ++i) {
      const std::span<const ScoredSequence> one(&sequences[i], 1);
      Collector alone(one, engine.config, dump.contains("hidden"), dump.contains("router"));
      ROTA_RETURN_IF_ERROR(score_sequences(engine, one, alone));
      collector.merge(alone);
    }
  } else {
    ROTA_RETURN_IF_ERROR(score_sequences(engine, sequences, collector));
  }
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, tensor] : collector.tensors()) {
    tensors.push_back({{name, tensor.dtype, tensor.shape}, tensor.bytes});
  }
  return write_safetensors(flags.out, std::move(tensors));
}

}  // namespace

CommandRun add_score(CLI::App& app) {
  auto flags = std::make_shared<ScoreFlags>();
  CLI::App& command = *app.add_subcommand("score", "logprobs or logits of given token ids");
  flags->engine.add_to(command);
  hostfile_flag(command, flags->hostfile);
  flag(command, "--ids-file", flags->ids_file, "JSON: {\"NAME\": [token ids], ...}")->required();
  flag(command, "--out", flags->out, "safetensors file to write: NAME.logits [T, V]; of one rank");
  list_flag(command, "--dump", flags->dump,
            "also NAME.hidden and NAME.router.N.{ids,weights}: hidden,router")
      ->delimiter(',');
  toggle(command, "json", flags->json,
         "one JSON object: NAME.token_ids and NAME.logprobs, of each token after those before it");
  toggle(command, "alone", flags->alone, "one sequence after another instead of one batch");
  return [flags] { return score(*flags); };
}

}  // namespace rota
