// rota bench MODEL: how fast a model prefills and decodes here, against the machine's own read
// bandwidth.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "engine/in_process_engine.h"
#include "engine/parallel_choice.h"
#include "platform/clock.h"
#include "platform/memory.h"
#include "rota/command.h"
#include "rota/flags.h"
#include "rota/request_stream.h"

namespace rota {
namespace {

struct BenchFlags {
  EngineFlags engine;
  int64_t prefill = 512;
  int64_t decode = 64;
  int64_t depth = 16;  // tokens in the cache before decoding
  int repeats = 3;
  bool json = false;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Token ids that differ from run to run, so that no prefix is found in the cache.
std::vector<int32_t> prompt_of(int64_t tokens, int64_t vocab, uint64_t run) {
  std::vector<int32_t> ids;
  uint64_t state = 0x9E3779B97F4A7C15u * (run + 1);
  for (int64_t i = 0; i < tokens; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    ids.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab)));
  }
  return ids;
}

struct Timing {
  double to_first = 0;  // seconds
  double rest = 0;      // from the first token to the last
};

Result<Timing> run_once(InProcessEngine& engine, int64_t prompt, int64_t tokens, uint64_t run) {
  EngineRequest request;
  request.id = fmt::format("bench-{}", run);
  request.prompt = prompt_of(prompt, engine.loaded().config.vocab, run);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = tokens;
  request.sampling.ignore_eos = true;
  RequestStream stream(engine);
  const Clock::time_point start = Clock::now();
  ROTA_RETURN_IF_ERROR(stream.submit(std::move(request)));
  Timing timing;
  while (const auto output = stream.next()) {
    if (output->finish_reason == FinishReason::kError) return output->status;
    if (timing.to_first == 0 && !output->tokens.empty()) timing.to_first = seconds_since(start);
  }
  timing.rest = seconds_since(start) - timing.to_first;
  return timing;
}

Status bench(const BenchFlags& flags) {
  if (flags.prefill < 1 || flags.decode < 1 || flags.repeats < 1 || flags.depth < 1) {
    return invalid_argument("--pp, --tg, --depth and --repeats must be at least 1");
  }
  ROTA_ASSIGN_OR_RETURN(EngineOptions options, flags.engine.resolve());
  ROTA_RETURN_IF_ERROR(check_one_rank("bench", options.parallel));
  options.max_num_seqs = 1;
  if (options.max_model_len == 0)
    options.max_model_len = std::max(flags.prefill, flags.depth + flags.decode) + 1;
  const Clock::time_point start = Clock::now();
  ROTA_ASSIGN_OR_RETURN(const std::unique_ptr<InProcessEngine> engine,
                        InProcessEngine::start(options));
  ROTA_RETURN_IF_ERROR(run_once(*engine, flags.depth, 1, 0));
  const double to_first_token = seconds_since(start);

  std::vector<double> prefills, decodes, bandwidths, shares;
  const LoadedEngine& loaded = engine->loaded();
  const auto bytes_per_token = static_cast<double>(loaded.model->bytes_per_token());
  uint64_t run = 0;
  for (int i = 0; i < flags.repeats; ++i) {
    ROTA_ASSIGN_OR_RETURN(const Timing prefill, run_once(*engine, flags.prefill, 1, ++run));
    prefills.push_back(static_cast<double>(flags.prefill) / prefill.to_first);
    // The machine's bandwidth changes from minute to minute: measured around each decode.
    const double before = measure_read_bandwidth(loaded.team->size(), 0.3);
    ROTA_ASSIGN_OR_RETURN(const Timing decode,
                          run_once(*engine, flags.depth, flags.decode + 1, ++run));
    const double after = measure_read_bandwidth(loaded.team->size(), 0.3);
    decodes.push_back(static_cast<double>(flags.decode) / decode.rest);
    bandwidths.push_back((before + after) / 2);
    shares.push_back(decodes.back() * bytes_per_token / bandwidths.back());
  }
  const double decode = median(decodes);
  nlohmann::ordered_json out = {
      {"model", loaded.location.name},
      {"isa", to_string(loaded.isa)},
      {"threads", loaded.team->size()},
      {"prefill_tokens", flags.prefill},
      {"prefill_tokens_per_second", median(prefills)},
      {"decode_tokens", flags.decode},
      {"decode_tokens_per_second", decode},
      {"bytes_per_token", loaded.model->bytes_per_token()},
      {"decode_gb_per_second", decode * bytes_per_token * 1e-9},
      {"read_bandwidth_gb_per_second", median(bandwidths) * 1e-9},
      {"share_of_read_bandwidth", median(shares)},
      {"seconds_from_start_to_first_token", to_first_token},
      {"weight_bytes", loaded.checkpoint->total_bytes()},
      {"peak_resident_bytes", peak_resident_bytes()},
  };
  if (flags.json) {
    std::printf("%s\n", out.dump(2).c_str());
    return {};
  }
  for (const auto& [name, value] : out.items()) {
    std::printf("%-36s %s\n", name.c_str(),
                value.is_number_float() ? fmt::format("{:.3f}", value.get<double>()).c_str()
                : value.is_string()     ? value.get<std::string>().c_str()
                                        : value.dump().c_str());
  }
  return {};
}

}  // namespace

CommandRun add_bench(CLI::App& app) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App& command =
      *app.add_subcommand("bench", "prefill and decode speed against the machine's read bandwidth");
  flags->engine.add_to(command);
  flag(command, "--pp", flags->prefill, "tokens of the prompt that is prefilled");
  flag(command, "--tg", flags->decode, "tokens that are decoded");
  flag(command, "--depth", flags->depth, "tokens in the cache before decoding");
  flag(command, "--repeats", flags->repeats, "runs of each; medians are printed");
  toggle(command, "json", flags->json, "one JSON object");
  return [flags] { return bench(*flags); };
}

}  // namespace rota
