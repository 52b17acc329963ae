#include "moe/scale_scan.h"

#include <utility>

#include "base/log.h"
#include "platform/thread_team.h"

namespace rota {

ScaleScan::ScaleScan(std::vector<const MoeLayer*> layers)
    : layers_(std::move(layers)), thread_([this] { run(); }) {}

ScaleScan::~ScaleScan() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

Status ScaleScan::wait() {
  if (thread_.joinable()) thread_.join();
  return first_damage_;
}

void ScaleScan::run() {
  run_this_thread_when_idle();
  for (const MoeLayer* layer : layers_) {
    for (int32_t local = 0; local < layer->map().local_count(); ++local) {
      if (stop_) return;
      const Status status = layer->verify_one(local);
      if (status.ok()) continue;
      log::warning("{}; requests that need this expert will fail", status.message());
      if (first_damage_.ok()) first_damage_ = status;
    }
  }
}

}  // namespace rota
