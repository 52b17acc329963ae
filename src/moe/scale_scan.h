// Looks at the block scales and FP8 codes of every expert while the model already serves, on a
// thread that runs only where nothing else wants the core: damage is in the log before a request
// meets it. (An expert's first use does not wait for this: MoeLayer::verify().)
//
//   ScaleScan scan(layers);            // the layers outlive it; destruction ends it early
//   Status first_damage = scan.wait();
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "base/status.h"
#include "moe/weights.h"

namespace rota {

class ScaleScan {
 public:
  explicit ScaleScan(std::vector<const MoeLayer*> layers);
  ~ScaleScan();
  ScaleScan(const ScaleScan&) = delete;
  ScaleScan& operator=(const ScaleScan&) = delete;

  // Until all are looked at: OK, or kDataLoss for the first damaged expert.
  Status wait();

 private:
  void run();

  const std::vector<const MoeLayer*> layers_;
  Status first_damage_;  // written by the thread, read after it was joined
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace rota
