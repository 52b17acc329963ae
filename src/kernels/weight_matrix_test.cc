// Parts of a matrix compute what they compute in the whole one.
#include "kernels/weight_matrix.h"

#include <gtest/gtest.h>

#include "kernels/testing/matmul_case.h"

namespace rota {
namespace {

using testing::CaseShape;
using testing::WeightCase;

constexpr int64_t kTokens = 3;
constexpr int64_t kOut = 200;
constexpr int64_t kIn = 384;

struct Format {
  const char* name;
  CaseShape shape;
};

std::vector<Format> formats() {
  const auto shape = [](WeightFormat format, int64_t factor_rows, int64_t factor_columns) {
    return CaseShape{.format = format,
                     .out = Extent(kOut),
                     .in = Extent(kIn),
                     .factor_rows = factor_rows,
                     .factor_columns = factor_columns};
  };
  return {{"Bf16", shape(WeightFormat::kBf16, 0, 0)},
          {"Mxfp4", shape(WeightFormat::kMxfp4, 0, 0)},
          {"Nvfp4", shape(WeightFormat::kNvfp4, 0, 0)},
          {"Fp8OneFactor", shape(WeightFormat::kFp8, 0, 0)},
          {"Fp8FactorOfARow", shape(WeightFormat::kFp8, 1, 0)},
          {"Fp8Blocks", shape(WeightFormat::kFp8, 128, 128)}};
}

std::ostream& operator<<(std::ostream& out, const Format& format) { return out << format.name; }

double relative_rms(std::span<const float> found, std::span<const float> expected) {
  double error = 0, size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(double{found[i]} - double{expected[i]}, 2);
    size += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(error / size);
}

class WeightParts : public ::testing::TestWithParam<Format> {
 protected:
  const WeightCase weights_{GetParam().shape, 7};
  const std::vector<float> x_ = testing::Random(8).normal(kTokens * kIn);

  // Columns [first, first + count) of x.
  std::vector<float> inputs(int64_t first, int64_t count) const {
    std::vector<float> out;
    for (int64_t t = 0; t < kTokens; ++t) {
      const auto begin = x_.begin() + t * kIn + first;
      out.insert(out.end(), begin, begin + count);
    }
    return out;
  }

  // What slices of `count` inputs add up to, the bias with the first.
  std::vector<float> sum_of_slices(const KernelTable& kernels, int64_t count) const {
    std::vector<float> sum(static_cast<size_t>(kTokens * kOut), 0.0f);
    for (int64_t first = 0; first < kIn; first += count) {
      WeightMatrix slice = input_slice(weights_.view(), first, count);
      if (first > 0) slice.bias = nullptr;
      const auto share = testing::multiply(kernels, slice, inputs(first, count), Compute::kFloat32);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += share[i];
    }
    return sum;
  }
};
INSTANTIATE_TEST_SUITE_P(Formats, WeightParts, ::testing::ValuesIn(formats()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(WeightParts, ColumnsOfASliceAreTheColumnsOfTheWhole) {
  for (const KernelTable* kernels : available_kernels(detect_cpu())) {
    const auto whole = testing::multiply(*kernels, weights_.view(), x_, Compute::kFloat32);
    // Within a row of blocks, over its border, and up to the last output.
    for (const auto& [first, end] : {std::pair{0, 70}, {70, 130}, {130, 200}}) {
      const auto part = testing::multiply(
          *kernels, column_slice(weights_.view(), first, end - first), x_, Compute::kFloat32);
      for (int64_t t = 0; t < kTokens; ++t) {
        const auto begin = whole.begin() + t * kOut;
        const auto own = part.begin() + t * (end - first);
        ASSERT_EQ(testing::bits({begin + first, begin + end}),
                  testing::bits({own, own + (end - first)}))
            << kernels->name << " from " << first;
      }
    }
  }
}

TEST_P(WeightParts, ProductsOfInputSlicesAddUpToTheWhole) {
  for (const KernelTable* kernels : available_kernels(detect_cpu())) {
    const auto whole = testing::multiply(*kernels, weights_.view(), x_, Compute::kFloat32);
    // Whole blocks; parts of a block of factors.
    for (const int64_t count : {128, 192, 64, 32}) {
      if (GetParam().shape.factor_columns % count != 0) continue;
      EXPECT_LT(relative_rms(sum_of_slices(*kernels, count), whole), 1e-6)
          << kernels->name << " slices of " << count;
    }
  }
}

TEST_P(WeightParts, ASliceReadsNoMoreThanItsOwnBytes) {
  WeightMatrix whole = weights_.view();
  EXPECT_EQ(weight_bytes(column_slice(whole, 0, 70)) + weight_bytes(column_slice(whole, 70, 130)),
            weight_bytes(whole));
  whole.bias = nullptr;
  EXPECT_EQ(weight_bytes(input_slice(whole, 0, 128)) + weight_bytes(input_slice(whole, 128, 256)),
            weight_bytes(whole));
}

}  // namespace
}  // namespace rota
