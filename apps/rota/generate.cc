// rota generate MODEL (--prompt TEXT | --prompt-ids 1,2,3): one completion on the terminal.
#include <charconv>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "checkpoint/locate.h"
#include "engine/text_generation.h"
#include "rota/command.h"
#include "rota/flags.h"
#include "rota/open_engine.h"
#include "rota/request_stream.h"
#include "text/tokenizer.h"

namespace rota {
namespace {

struct GenerateFlags {
  EngineFlags engine;
  SamplingFlags sampling;
  std::string hostfile;
  std::string prompt;
  std::string prompt_ids;
  std::vector<std::string> stop;
  int64_t max_tokens = 128;
  bool ignore_eos = false;
  bool json = false;
};

Result<std::vector<int32_t>> parse_ids(std::string_view text) {
  std::vector<int32_t> ids;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    int32_t id = 0;
    const auto [end, fault] = std::from_chars(part.data(), part.data() + part.size(), id);
    if (fault != std::errc() || end != part.data() + part.size() || id < 0) {
      return invalid_argument("--prompt-ids: '{}' is not a token id; expected a list such as 1,2,3",
                              part);
    }
    ids.push_back(id);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
  if (ids.empty()) return invalid_argument("--prompt-ids: is empty; expected a list such as 1,2,3");
  return ids;
}

Status generate(const GenerateFlags& flags) {
  if (flags.prompt.empty() == flags.prompt_ids.empty()) {
    return invalid_argument("give either --prompt TEXT (not empty) or --prompt-ids 1,2,3");
  }
  if (flags.max_tokens < 1)
    return invalid_argument("--max-tokens: {} is not at least 1", flags.max_tokens);
  ROTA_RETURN_IF_ERROR(flags.sampling.check());
  ROTA_ASSIGN_OR_RETURN(EngineOptions options, flags.engine.resolve());
  options.max_num_seqs = 1;
  ROTA_ASSIGN_OR_RETURN(
      const ModelLocation location,
      locate_model(options.model, {.revision = options.revision, .cache_dir = {}}));
  // Ids need no tokenizer: a checkpoint without one still generates.
  std::shared_ptr<const Tokenizer> tokenizer;
  Result<std::shared_ptr<const Tokenizer>> loaded =
      Tokenizer::load(location.dir + "/tokenizer.json");
  if (loaded.ok()) tokenizer = *loaded;
  if (!tokenizer && flags.prompt_ids.empty()) return loaded.status();

  EngineRequest request;
  request.id = "generate";
  if (flags.prompt_ids.empty()) {
    ROTA_ASSIGN_OR_RETURN(
        request.prompt,
        tokenizer->encode(flags.prompt, {.special = Special::kParse, .add_special_tokens = true}));
    if (request.prompt.empty()) return invalid_argument("--prompt: is no tokens at all");
  } else {
    ROTA_ASSIGN_OR_RETURN(request.prompt, parse_ids(flags.prompt_ids));
  }
  ROTA_ASSIGN_OR_RETURN(const std::unique_ptr<EngineClient> engine,
                        open_engine(options, flags.hostfile));
  ROTA_ASSIGN_OR_RETURN(const EngineInfo info, engine->info());
  request.sampling = flags.sampling.over(info.default_sampling);
  request.sampling.max_tokens = flags.max_tokens;
  request.sampling.ignore_eos = flags.ignore_eos;
  request.sampling.logprobs = 0;

  std::optional<TextStream> text;
  if (tokenizer) {
    ROTA_ASSIGN_OR_RETURN(
        TextStream made, TextStream::make(tokenizer, {.stop = flags.stop, .continues_text = true}));
    text = std::move(made);
  } else if (!flags.stop.empty()) {
    return invalid_argument("--stop: needs the model's tokenizer.json");
  }
  nlohmann::ordered_json ids = nlohmann::ordered_json::array();
  nlohmann::ordered_json logprobs = nlohmann::ordered_json::array();
  FinishReason reason = FinishReason::kNone;
  RequestStream stream(*engine);
  ROTA_RETURN_IF_ERROR(stream.submit(std::move(request)));
  while (const auto output = stream.next()) {
    if (output->finish_reason == FinishReason::kError) return output->status;
    reason = output->finish_reason;
    size_t count = output->tokens.size();
    if (text) {
      const TextDelta delta = text->add(*output);
      count = std::min(count, delta.tokens);
      if (delta.finish_reason != FinishReason::kNone) reason = delta.finish_reason;
      if (!flags.json) {
        std::fwrite(delta.text.data(), 1, delta.text.size(), stdout);
        std::fflush(stdout);
      }
    }
    for (size_t i = 0; i < count; ++i) {
      const OutputToken& token = output->tokens[i];
      ids.push_back(token.id);
      logprobs.push_back(
          token.logprobs && !token.logprobs->empty() ? token.logprobs->front().logprob : 0.0f);
      if (!text && !flags.json) std::printf("%s%d", ids.size() > 1 ? "," : "", token.id);
    }
    if (text && text->finished()) break;
  }
  if (flags.json) {
    nlohmann::ordered_json out = {{"token_ids", std::move(ids)},
                                  {"text", text ? text->text() : ""},
                                  {"logprobs", std::move(logprobs)},
                                  {"finish_reason", to_string(reason)}};
    std::printf("%s\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    std::printf("\n");
  }
  return {};
}

}  // namespace

CommandRun add_generate(CLI::App& app) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App& command = *app.add_subcommand("generate", "complete a prompt on the terminal");
  flags->engine.add_to(command);
  hostfile_flag(command, flags->hostfile);
  flags->sampling.add_to(command);
  flag(command, "--prompt", flags->prompt, "text to go on from");
  flag(command, "--prompt-ids", flags->prompt_ids, "token ids to go on from: 1,2,3");
  flag(command, "--max-tokens", flags->max_tokens, "tokens to generate at most");
  list_flag(command, "--stop", flags->stop, "end before this text; may be given more than once");
  toggle(command, "ignore-eos", flags->ignore_eos, "go on past the end-of-sequence token");
  toggle(command, "json", flags->json, "one JSON object: token_ids, text, logprobs, finish_reason");
  return [flags] { return generate(*flags); };
}

}  // namespace rota
