#include "engine/expert_recorder.h"

namespace rota {

void ExpertRecorder::begin(std::span<const int32_t> rows) {
  rows_.assign(rows.begin(), rows.end());
  experts_.resize(rows.size());
  for (auto& experts : experts_) experts.clear();
}

void ExpertRecorder::hidden(int /*index*/, MatrixView<const float> /*value*/) {}

void ExpertRecorder::router(int /*layer*/, std::span<const int32_t> ids,
                            std::span<const float> /*weights*/, int64_t top_k) {
  for (size_t i = 0; i < rows_.size(); ++i) {
    const auto first = static_cast<size_t>(rows_[i]) * static_cast<size_t>(top_k);
    for (const int32_t expert : ids.subspan(first, static_cast<size_t>(top_k))) {
      experts_[i].push_back(static_cast<int16_t>(expert));
    }
  }
}

}  // namespace rota
