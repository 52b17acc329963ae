// Speed of the attention kernels at real head shapes, as shares of what the machine can do. Each
// case measures the read bandwidth and the peak of the multipliers itself, before and after,
// because both wander on shared machines. Columns:
//
//   GB/s, of_read     bytes of keys and values read a second; share of the read bandwidth (decode)
//   GFLOP/s, of_peak  of q.k and weights.v alone; share of the peak of float32 FMA
//
//   build/release/bin/attention_bench --benchmark_filter='avx2/gpt_oss/.*'
//
// decode/N: one token after N positions, caches of many layers read in turn so that none stays in
// a cache. prefill/N/M: M tokens after N. ROTA_BENCH_THREADS sets the threads (default: the cores).
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "platform/fma_peak.h"
#include "platform/memory.h"
#include "platform/thread_team.h"

namespace rota::bench {
namespace {

struct Case {
  const char* name;
  int64_t query_heads;
  KvShape shape;
};
constexpr Case kCases[] = {
    {"gpt_oss", 64, {.kv_heads = 8, .head_dim = 64, .format = KvFormat::kBf16}},
    {"mixtral", 32, {.kv_heads = 8, .head_dim = 128, .format = KvFormat::kBf16}},
    {"demo", 9, {.kv_heads = 3, .head_dim = 64, .format = KvFormat::kBf16}},
    {"gpt_oss_float32", 64, {.kv_heads = 8, .head_dim = 64, .format = KvFormat::kFloat32}},
};
constexpr int64_t kPrefillTokensAnItem = 32;
constexpr int64_t kCacheBytes = 256 << 20;  // of keys and values, far more than any cache

int threads() {
  const char* text = std::getenv("ROTA_BENCH_THREADS");
  return text != nullptr ? std::atoi(text) : 0;
}

Buffer allocate(int64_t bytes) {
  return std::move(Buffer::allocate(static_cast<size_t>(bytes), Fill::kZero)).value();
}

// What the machine can do now: the mean of two measurements.
struct Limits {
  double flops = 0;
  double bandwidth = 0;
  void measure(Isa isa, ThreadTeam& team) {
    bandwidth += measure_read_bandwidth(team.size(), 0.2) / 2;
    flops += measure_fma_peak(fma_kind({}, isa, false), team.size(), 0.05) / 2;
  }
};

// The caches of one sequence in as many layers as fill kCacheBytes, all with the same block table.
class Caches {
 public:
  Caches(const KernelTable& kernels, const KvShape& shape, int64_t positions)
      : shape_(shape),
        page_bytes_(kernels.kv_page_bytes(shape).count),
        blocks_((positions + kKvBlockTokens - 1) / kKvBlockTokens),
        layers_(std::max<int64_t>(1, kCacheBytes / (page_bytes_ * blocks_))),
        memory_(allocate(page_bytes_ * blocks_ * layers_)) {
    for (int64_t block = 0; block < blocks_; ++block) {
      block_table_.push_back(static_cast<int32_t>((block * 7919) % blocks_));
    }
    fill(kernels);
  }
  int64_t layers() const { return layers_; }
  KvPages pages(int64_t layer) const {
    return {.base = memory_.data() + layer * page_bytes_,
            .page_stride = {page_bytes_ * layers_},
            .block_table = block_table_};
  }

 private:
  void fill(const KernelTable& kernels) {
    const int64_t width = shape_.kv_heads * shape_.head_dim;
    std::mt19937 random(1);
    std::vector<float> rows(static_cast<size_t>(kKvBlockTokens * width));
    for (float& value : rows) value = static_cast<float>(random() % 1000) * 1e-3f - 0.5f;
    for (int64_t layer = 0; layer < layers_; ++layer) {
      for (int64_t block = 0; block < blocks_; ++block) {
        kernels.store_kv({.shape = shape_,
                          .pages = pages(layer),
                          .first_position = block * kKvBlockTokens,
                          .tokens = kKvBlockTokens,
                          .keys = rows.data(),
                          .values = rows.data(),
                          .stride = width});
      }
    }
  }

  KvShape shape_;
  int64_t page_bytes_;
  int64_t blocks_;
  int64_t layers_;
  Buffer memory_;
  std::vector<int32_t> block_table_;
};

void attend(ThreadTeam& team, const KernelTable& kernels, const AttendArgs& whole,
            const Buffer& scratch) {
  const int64_t scratch_bytes = kernels.attend_scratch_bytes(whole.shape, whole.query_heads).count;
  const int64_t parts = (whole.tokens + kPrefillTokensAnItem - 1) / kPrefillTokensAnItem;
  team.parallel_for(whole.shape.kv_heads * parts, [&](int64_t item, int member) {
    AttendArgs args = whole;
    args.kv_head = item / parts;
    args.token_begin = item % parts * kPrefillTokensAnItem;
    args.token_end = std::min(args.token_begin + kPrefillTokensAnItem, whole.tokens);
    args.scratch = {scratch.data() + member * scratch_bytes, static_cast<size_t>(scratch_bytes)};
    kernels.attend(args);
  });
}

// The caches that the last call asked for: the library runs a case several times to find how often
// to repeat it, and filling them takes longer than measuring.
const Caches& filled_caches(const KernelTable& kernels, const Case& test, int64_t positions) {
  static std::unique_ptr<Caches> caches;
  static std::string kept;
  const std::string wanted = std::string(kernels.name) + test.name + std::to_string(positions);
  if (kept != wanted) {
    caches.reset();
    caches = std::make_unique<Caches>(kernels, test.shape, positions);
    kept = wanted;
  }
  return *caches;
}

void run_case(benchmark::State& state, const KernelTable& kernels, const Case& test) {
  const int64_t before = state.range(0);
  const int64_t tokens = state.range(1);
  ThreadTeam team({.threads = threads(), .pin = true});
  const Caches& caches = filled_caches(kernels, test, before + tokens);
  const int64_t width = test.query_heads * test.shape.head_dim;
  std::vector<float> queries(static_cast<size_t>(tokens * width), 0.25f);
  std::vector<float> out(queries.size());
  const Buffer scratch =
      allocate(kernels.attend_scratch_bytes(test.shape, test.query_heads).count * team.size());
  AttendArgs args;
  args.shape = test.shape;
  args.query_heads = test.query_heads;
  args.first_position = before;
  args.tokens = tokens;
  args.queries = queries.data();
  args.query_stride = args.out_stride = width;
  args.out = out.data();
  args.scale = 0.125f;

  Limits limits;
  limits.measure(kernels.isa, team);
  int64_t layer = 0;
  for (auto _ : state) {
    args.pages = caches.pages(layer);
    layer = (layer + 1) % caches.layers();
    attend(team, kernels, args, scratch);
  }
  limits.measure(kernels.isa, team);

  using benchmark::Counter;
  const auto calls = static_cast<double>(state.iterations());
  const int64_t keys_seen = tokens * before + tokens * (tokens + 1) / 2;
  const double flops = 4.0 * static_cast<double>(keys_seen * width) * calls;
  const double bytes = static_cast<double>(kernels.kv_page_bytes(test.shape).count) /
                       kKvBlockTokens * static_cast<double>(before + tokens) * calls;
  if (tokens == 1) {
    state.counters["GB/s"] = Counter(bytes / 1e9, Counter::kIsRate);
    state.counters["of_read"] = Counter(bytes / limits.bandwidth, Counter::kIsRate);
  }
  state.counters["GFLOP/s"] = Counter(flops / 1e9, Counter::kIsRate);
  if (limits.flops > 0) {
    state.counters["of_peak"] = Counter(flops / limits.flops, Counter::kIsRate);
  }
}

void register_case(const KernelTable& kernels, const Case& test) {
  const auto run = [&kernels, &test](benchmark::State& state) { run_case(state, kernels, test); };
  const std::string prefix = std::string(kernels.name) + "/" + test.name;
  auto* decode = benchmark::RegisterBenchmark((prefix + "/decode").c_str(), run);
  for (const int64_t context : {1024, 2048, 4096, 8192}) decode->Args({context - 1, 1});
  decode->UseRealTime()->Unit(benchmark::kMicrosecond);
  auto* prefill = benchmark::RegisterBenchmark((prefix + "/prefill").c_str(), run);
  prefill->Args({0, 512})->Args({0, 4096})->Args({7680, 512});
  prefill->UseRealTime()->Unit(benchmark::kMillisecond);
}

}  // namespace
}  // namespace rota::bench

int main(int argc, char** argv) {
  for (const rota::KernelTable* kernels : rota::available_kernels(rota::detect_cpu())) {
    if (std::string_view(kernels->name).ends_with("emulated")) continue;
    for (const rota::bench::Case& test : rota::bench::kCases) {
      rota::bench::register_case(*kernels, test);
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
