// The outputs of a step, put together into as few messages as may be. One thread touches it.
//
//   Outbox outbox([&](const wire::Message& message) { connection.send(message); });
//   outbox.add(output);     // any number
//   outbox.flush();         // the step is done
#pragma once

#include <cstddef>
#include <functional>

#include "engine/wire.h"

namespace rota {

class Outbox {
 public:
  explicit Outbox(std::function<void(const wire::Message&)> send) : send_(std::move(send)) {}

  void add(const RequestOutput& output) {
    outputs_.outputs.push_back(output);
    for (const auto& position : output.prompt_logprobs) {
      logprobs_ += position ? position->size() : 0;
    }
    if (logprobs_ >= kLogprobsInAMessage) flush();
  }
  void flush() {
    if (!outputs_.outputs.empty()) send_(outputs_);
    outputs_.outputs.clear();
    logprobs_ = 0;
  }

 private:
  // Beyond so many entries of prompt logprobs a step's outputs are cut: frames have a largest size.
  static constexpr size_t kLogprobsInAMessage = size_t{1} << 20;

  std::function<void(const wire::Message&)> send_;
  wire::Outputs outputs_;
  size_t logprobs_ = 0;
};

}  // namespace rota
