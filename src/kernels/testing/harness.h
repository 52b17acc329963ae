// For kernel tests: every table this machine can run, memory that ends at a guard page, random
// rows, the lengths to try, comparisons.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "kernels/kernels.h"
#include "platform/cpu.h"

namespace rota::testing {

inline const KernelTable& ref_kernels() { return kernels_for(Isa::kRef, detect_cpu()); }

// Parameter of tests that run once for each table.
class KernelTest : public ::testing::TestWithParam<const KernelTable*> {
 protected:
  const KernelTable& kernels() const { return *GetParam(); }
};

inline std::string table_name(const ::testing::TestParamInfo<const KernelTable*>& info) {
  return info.param->name;
}

#define ROTA_FOR_EACH_TABLE(suite)                                                               \
  INSTANTIATE_TEST_SUITE_P(Isa, suite,                                                           \
                           ::testing::ValuesIn(::rota::available_kernels(::rota::detect_cpu())), \
                           ::rota::testing::table_name)

// Everything where ROTA_FULL is set, else a sample.
inline bool full_run() { return std::getenv("ROTA_FULL") != nullptr; }

// Lengths 1..300 (all of them in a full run, a seeded sample otherwise) and the models' widths.
inline std::vector<int64_t> lengths() {
  std::vector<int64_t> chosen;
  std::mt19937 random(20240607);
  for (int64_t n = 1; n <= 300; ++n) {
    if (full_run() || n <= 17 || random() % 8 == 0) chosen.push_back(n);
  }
  for (const int64_t width : {192, 576, 1856, 2688, 2880}) chosen.push_back(width);
  return chosen;
}

// `count` elements whose last byte lies in front of memory that must not be touched.
template <typename T>
class Guarded {
 public:
  explicit Guarded(size_t count) : count_(count) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    bytes_ = (count * sizeof(T) + page - 1) / page * page + page;
    void* mapped =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ROTA_CHECK(mapped != MAP_FAILED, "mmap");
    base_ = static_cast<std::byte*>(mapped);
    ROTA_CHECK(mprotect(base_ + bytes_ - page, page, PROT_NONE) == 0, "mprotect");
    data_ = reinterpret_cast<T*>(base_ + bytes_ - page - count * sizeof(T));
  }
  explicit Guarded(const std::vector<T>& values) : Guarded(values.size()) {
    std::copy(values.begin(), values.end(), data_);
  }
  ~Guarded() { munmap(base_, bytes_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  T* data() const { return data_; }
  std::span<T> span() const { return {data_, count_}; }
  std::vector<T> values() const { return {data_, data_ + count_}; }
  // One row of a matrix without padding.
  MatrixView<T> row() const {
    const auto width = static_cast<int64_t>(count_);
    return MatrixView<T>(data_, 1, Extent(width), width);
  }

 private:
  size_t count_;
  size_t bytes_;
  std::byte* base_;
  T* data_;
};

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  std::vector<float> normal(int64_t count, float deviation = 1.0f) {
    std::normal_distribution<float> distribution(0.0f, deviation);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = distribution(engine_);
    return values;
  }
  std::vector<Bf16> bf16(int64_t count) {
    const std::vector<float> values = normal(count);
    std::vector<Bf16> rounded(values.size());
    std::transform(values.begin(), values.end(), rounded.begin(), to_bf16);
    return rounded;
  }
  // In [low, high].
  int64_t integer(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  std::mt19937& engine() { return engine_; }

 private:
  std::mt19937 engine_;
};

inline std::vector<uint32_t> bits(std::span<const float> values) {
  std::vector<uint32_t> result;
  for (const float value : values) result.push_back(std::bit_cast<uint32_t>(value));
  return result;
}

// |got - want| <= relative * |want| + absolute for every element.
inline void expect_close(std::span<const float> got, std::span<const float> want, double relative,
                         double absolute, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    const double allowed = relative * std::abs(double{want[i]}) + absolute;
    ASSERT_LE(std::abs(double{got[i]} - double{want[i]}), allowed)
        << what << ", element " << i << " of " << got.size() << ": got " << got[i] << ", want "
        << want[i];
  }
}

}  // namespace rota::testing
