#include "comm/communicator.h"

namespace rota {
namespace {

class Loopback final : public Communicator {
 public:
  int ranks() const override { return 1; }
  int rank() const override { return 0; }

 private:
  Status sum_over_ranks(MatrixView<float>) override { return {}; }
};

}  // namespace

Communicator& loopback() {
  static Loopback one;
  return one;
}

}  // namespace rota
