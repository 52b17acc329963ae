// Which experts served the rows of a step that somebody wants to know of.
//
//   recorder.begin(rows);                 // then a forward with trace = &recorder
//   recorder.experts(i)                   // of rows[i]: [MoE layers * k], by falling weight
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/model.h"

namespace rota {

class ExpertRecorder final : public ForwardTrace {
 public:
  void begin(std::span<const int32_t> rows);
  void hidden(int index, MatrixView<const float> value) override;
  void router(int layer, std::span<const int32_t> ids, std::span<const float> weights,
              int64_t top_k) override;

  std::span<const int16_t> experts(size_t index) const { return experts_[index]; }

 private:
  std::vector<int32_t> rows_;
  std::vector<std::vector<int16_t>> experts_;  // of each row
};

}  // namespace rota
