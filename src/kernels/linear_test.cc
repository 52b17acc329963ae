#include "kernels/linear.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace rota {
namespace {

class LinearTest : public ::testing::TestWithParam<const KernelTable*> {};

// A BF16 matrix [out, in] with a bias, and its memory.
struct RandomMatrix {
  std::vector<Bf16> data;
  std::vector<Bf16> bias;
  WeightMatrix matrix;

  RandomMatrix(int64_t out, int64_t in, unsigned seed)
      : data(static_cast<size_t>(out * in)), bias(static_cast<size_t>(out)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (Bf16& value : data) value = to_bf16(normal(random));
    for (Bf16& value : bias) value = to_bf16(normal(random));
    matrix.out = Extent(out);
    matrix.in = Extent(in);
    matrix.data = reinterpret_cast<const std::byte*>(data.data());
    matrix.row_stride = size_of(DType::kBf16) * in;
    matrix.bias = bias.data();
  }
};

Matrix<float> random_rows(int64_t rows, int64_t width) {
  auto x = Matrix<float>::allocate(rows, Extent(width));
  ROTA_CHECK(x.ok(), x.status().message());
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (int64_t row = 0; row < rows; ++row) {
    for (float& value : x->view().row(row)) value = normal(random);
  }
  return std::move(x).value();
}

// out [T, columns] of `parts` side by side, computed by `threads`.
std::vector<float> run(const KernelTable& kernels, const std::vector<WeightMatrix>& parts,
                       MatrixView<const float> x, int threads) {
  ThreadTeam team({.threads = threads, .pin = false});
  const auto exec =
      Execution::make(kernels, Compute::kBf16, team, {.max_in = parts.front().in, .attention = {}});
  ROTA_CHECK(exec.ok(), exec.status().message());
  const auto linear = Linear::make(parts, *exec);
  ROTA_CHECK(linear.ok(), linear.status().message());
  const auto prepared = Buffer::allocate(
      static_cast<size_t>((linear->layout().token_stride * x.rows()).count), Fill::kUnspecified);
  ROTA_CHECK(prepared.ok(), prepared.status().message());
  std::vector<float> out(static_cast<size_t>(x.rows() * linear->columns()));
  linear->run(
      *exec, exec->prepare(x, linear->in(), linear->layout(), prepared->data()),
      MatrixView<float>(out.data(), x.rows(), Extent(linear->columns()), linear->columns()));
  return out;
}

TEST_P(LinearTest, FusedPartsAreThePartsSideBySide) {
  const RandomMatrix q(300, 72, 1), k(40, 72, 2), v(37, 72, 3);
  const Matrix<float> x = random_rows(9, 72);
  const std::vector<float> fused = run(*GetParam(), {q.matrix, k.matrix, v.matrix}, x.view(), 2);
  const int64_t columns = 300 + 40 + 37;
  int64_t first = 0;
  for (const RandomMatrix* part : {&q, &k, &v}) {
    const std::vector<float> alone = run(*GetParam(), {part->matrix}, x.view(), 1);
    const int64_t width = part->matrix.out.logical();
    for (int64_t row = 0; row < 9; ++row) {
      EXPECT_EQ(std::memcmp(&fused[static_cast<size_t>(row * columns + first)],
                            &alone[static_cast<size_t>(row * width)],
                            static_cast<size_t>(width) * sizeof(float)),
                0)
          << "row " << row << ", part at column " << first;
    }
    first += width;
  }
}

TEST_P(LinearTest, AnyNumberOfThreadsGivesTheSameBits) {
  const RandomMatrix w(301, 160, 4);
  const Matrix<float> x = random_rows(17, 160);
  const std::vector<float> one = run(*GetParam(), {w.matrix}, x.view(), 1);
  for (const int threads : {2, 3}) {
    const std::vector<float> many = run(*GetParam(), {w.matrix}, x.view(), threads);
    EXPECT_EQ(std::memcmp(one.data(), many.data(), one.size() * sizeof(float)), 0) << threads;
  }
}

// From a matrix alone, into columns of something wider: the bits of the linear, and no others
// touched.
TEST_P(LinearTest, AMatrixAloneIsTheSame) {
  const RandomMatrix w(301, 160, 5);
  const Matrix<float> x = random_rows(9, 160);
  const std::vector<float> want = run(*GetParam(), {w.matrix}, x.view(), 2);
  ThreadTeam team({.threads = 3, .pin = false});
  const auto exec =
      Execution::make(*GetParam(), Compute::kBf16, team, {.max_in = w.matrix.in, .attention = {}});
  ASSERT_TRUE(exec.ok()) << exec.status().message();
  const InputLayout layout = GetParam()->input_layout(w.matrix, Compute::kBf16);
  const auto prepared =
      Buffer::allocate(static_cast<size_t>((layout.token_stride * 9).count), Fill::kUnspecified);
  ASSERT_TRUE(prepared.ok()) << prepared.status().message();
  std::vector<float> out(9 * 400, -1.0f);
  run_linear(*exec, w.matrix, exec->prepare(x.view(), w.matrix.in, layout, prepared->data()),
             MatrixView<float>(out.data(), 9, Extent(301), 400));
  for (size_t row = 0; row < 9; ++row) {
    EXPECT_EQ(std::memcmp(&out[row * 400], &want[row * 301], 301 * sizeof(float)), 0) << row;
    EXPECT_EQ(out[row * 400 + 301], -1.0f);
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, LinearTest, ::testing::ValuesIn(available_kernels(detect_cpu())),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace rota
