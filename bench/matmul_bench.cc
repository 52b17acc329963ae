// Speed of the matmul kernels at gpt-oss's shapes, as shares of what the machine can do. Each case
// measures the read bandwidth and the peak of the multipliers itself, before and after, because
// both wander on shared machines. Columns:
//
//   GB/s, of_read     bytes of weights read a second; share of the read bandwidth (one token)
//   GFLOP/s, of_peak  share of the peak of the same instruction (many tokens)
//
//   build/release/bin/matmul_bench --benchmark_filter='avx2/mxfp4/.*'
//
// ROTA_BENCH_THREADS sets the number of threads (default: the cores).
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "kernels/kernels.h"
#include "platform/fma_peak.h"
#include "platform/memory.h"
#include "platform/thread_team.h"

namespace rota::bench {
namespace {

struct Case {
  const char* name;
  WeightFormat format;
  WeightOrder order;
  int64_t out, in;
  int64_t matrices;  // read in turn, so that none is in a cache: 400 MB and more
};
constexpr Case kCases[] = {
    {"mxfp4", WeightFormat::kMxfp4, WeightOrder::kOutIn, 5760, 2880, 48},
    {"bf16", WeightFormat::kBf16, WeightOrder::kOutIn, 5760, 2880, 12},
    {"bf16_in_out", WeightFormat::kBf16, WeightOrder::kInOut, 5760, 2880, 12},
    {"bf16_small", WeightFormat::kBf16, WeightOrder::kOutIn, 384, 576, 900},
    {"float32", WeightFormat::kFloat32, WeightOrder::kOutIn, 5760, 2880, 6},
};
constexpr int64_t kColumnsAnItem = 192;  // a multiple of every column granularity

int threads() {
  const char* text = std::getenv("ROTA_BENCH_THREADS");
  return text != nullptr ? std::atoi(text) : 0;
}

// What the machine can do now.
class Limits {
 public:
  Limits(const KernelTable& kernels, ThreadTeam& team) : kernels_(kernels), team_(team) {}
  void measure() {
    const FmaKind kind = kernels_.isa == Isa::kAvx512 && kernels_.bf16_dot
                             ? FmaKind::kAvx512Bf16Dot
                             : fma_kind({}, kernels_.isa, false);
    flops_ += measure_fma_peak(kind, team_.size(), 0.05) / 2;
    bandwidth_ += measure_read_bandwidth(team_.size(), 0.2) / 2;
  }
  double flops() const { return flops_; }
  double bandwidth() const { return bandwidth_; }

 private:
  const KernelTable& kernels_;
  ThreadTeam& team_;
  double flops_ = 0;  // mean of two measurements
  double bandwidth_ = 0;
};

Buffer allocate(int64_t bytes) {
  return std::move(Buffer::allocate(static_cast<size_t>(bytes), Fill::kZero)).value();
}

// Weights near 1 in any format: the bits of a pattern, with exponents that stay finite.
class Weights {
 public:
  explicit Weights(const Case& shape) : shape_(shape), data_(allocate(bytes() * shape.matrices)) {
    std::mt19937_64 random(1);
    for (size_t i = 0; i + 8 <= data_.size(); i += 8) {
      uint64_t word = random();
      if (shape.format == WeightFormat::kBf16)
        word = (word & 0x807f807f807f807f) | 0x3f003f003f003f00;
      if (shape.format == WeightFormat::kFloat32)
        word = (word & 0x807fffff807fffff) | 0x3f0000003f000000;
      std::memcpy(data_.data() + i, &word, 8);
    }
    for (size_t i = 0; i < scales_.size(); ++i) {
      scales_.data()[i] = static_cast<std::byte>(111 + i * 7919 % 14);
    }
  }
  WeightMatrix matrix(int64_t index) const {
    return {
        .format = shape_.format,
        .order = shape_.order,
        .out = Extent(shape_.out),
        .in = Extent(shape_.in),
        .data = data_.data() + index * bytes(),
        .row_stride = {bytes() / (shape_.order == WeightOrder::kOutIn ? shape_.out : shape_.in)},
        .scales = reinterpret_cast<const uint8_t*>(scales_.data()) + index * scale_bytes(),
        .scale_stride = {shape_.in / 32},
        .factors = {}};
  }
  int64_t bytes_read() const {
    return bytes() + (shape_.format == WeightFormat::kMxfp4 ? scale_bytes() : 0);
  }

 private:
  int64_t scale_bytes() const { return shape_.out * (shape_.in / 32); }
  int64_t bytes() const {
    const int64_t elements = shape_.out * shape_.in;
    if (shape_.format == WeightFormat::kMxfp4) return elements / 2;
    return elements * (shape_.format == WeightFormat::kFloat32 ? 4 : 2);
  }
  const Case& shape_;
  Buffer data_;
  Buffer scales_ = allocate(scale_bytes() * shape_.matrices);
};

void multiply(ThreadTeam& team, const KernelTable& kernels, const WeightMatrix& weights,
              const PreparedInput& input, float* out, const Buffer& scratch) {
  const int64_t columns = weights.out.logical();
  const int64_t scratch_bytes = kernels.matmul_scratch_bytes(weights.in).count;
  team.parallel_for((columns + kColumnsAnItem - 1) / kColumnsAnItem, [&](int64_t item, int member) {
    kernels.matmul(
        {.weights = &weights,
         .input = input,
         .first_column = item * kColumnsAnItem,
         .end_column = std::min((item + 1) * kColumnsAnItem, columns),
         .out = out,
         .out_stride = columns,
         .scratch = {scratch.data() + member * scratch_bytes, static_cast<size_t>(scratch_bytes)}});
  });
}

void run_case(benchmark::State& state, const KernelTable& kernels, const Case& shape) {
  const int64_t tokens = state.range(0);
  ThreadTeam team({.threads = threads(), .pin = true});
  const Weights weights(shape);
  const WeightMatrix first = weights.matrix(0);
  const InputLayout layout = kernels.input_layout(first, Compute::kBf16);
  const auto x = std::move(Matrix<float>::allocate(tokens, Extent(shape.in))).value();
  for (int64_t t = 0; t < tokens; ++t) {
    for (float& value : x.view().row(t)) value = 0.5f;
  }
  const Buffer prepared = allocate(layout.token_stride.count * tokens);
  const Buffer out = allocate(tokens * shape.out * 4);
  const Buffer scratch = allocate(kernels.matmul_scratch_bytes(first.in).count * team.size());
  const PreparedInput input =
      kernels.prepare_input(x.view(), {}, first.in, layout, Compute::kBf16, prepared.data());
  Limits limits(kernels, team);
  limits.measure();
  int64_t index = 0;
  for (auto _ : state) {
    const WeightMatrix matrix = weights.matrix(index);
    index = (index + 1) % shape.matrices;
    multiply(team, kernels, matrix, input, reinterpret_cast<float*>(out.data()), scratch);
  }
  limits.measure();
  using benchmark::Counter;
  const auto calls = static_cast<double>(state.iterations());
  const double flops = 2.0 * static_cast<double>(shape.out * shape.in * tokens) * calls;
  const double bytes = static_cast<double>(weights.bytes_read()) * calls;
  state.counters["GB/s"] = Counter(bytes / 1e9, Counter::kIsRate);
  state.counters["of_read"] = Counter(bytes / limits.bandwidth(), Counter::kIsRate);
  state.counters["GFLOP/s"] = Counter(flops / 1e9, Counter::kIsRate);
  if (limits.flops() > 0) {
    state.counters["of_peak"] = Counter(flops / limits.flops(), Counter::kIsRate);
  }
}

void register_cases() {
  for (const KernelTable* kernels : available_kernels(detect_cpu())) {
    if (std::string_view(kernels->name).ends_with("emulated")) continue;
    for (const Case& shape : kCases) {
      const std::string name = std::string(kernels->name) + "/" + shape.name;
      auto* bench = benchmark::RegisterBenchmark(
          name.c_str(),
          [kernels, &shape](benchmark::State& state) { run_case(state, *kernels, shape); });
      for (const int64_t tokens : {1, 2, 3, 4, 8, 16, 32, 64, 128, 512}) bench->Arg(tokens);
      bench->UseRealTime()->Unit(benchmark::kMicrosecond);
    }
  }
}

}  // namespace
}  // namespace rota::bench

int main(int argc, char** argv) {
  rota::bench::register_cases();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
