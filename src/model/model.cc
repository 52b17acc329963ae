#include "model/model.h"

#include "checkpoint/expected_tensors.h"
#include "model/decoder.h"
#include "model/gpt_oss.h"
#include "model/mixtral.h"

namespace rota {
namespace {

// A family: how its tensors are bound. A new one is added to the list.
struct Family {
  Architecture architecture;
  Result<DecoderWeights> (*bind)(const ModelConfig& config, const Checkpoint& checkpoint);
};

constexpr Family kFamilies[] = {
    {Architecture::kGptOss, bind_gpt_oss},
    {Architecture::kMixtral, bind_mixtral},
};

}  // namespace

Result<std::unique_ptr<Model>> load_model(const ModelConfig& config, const Checkpoint& checkpoint,
                                          const ModelOptions& options, ThreadTeam& team) {
  for (const Family& family : kFamilies) {
    if (family.architecture != config.architecture) continue;
    ROTA_RETURN_IF_ERROR(check_tensors(config, checkpoint));
    ROTA_ASSIGN_OR_RETURN(DecoderWeights weights, family.bind(config, checkpoint));
    return Decoder::make(
        {.config = config, .checkpoint = checkpoint, .options = options, .team = team},
        std::move(weights));
  }
  return error(StatusCode::kUnsupported, "model_type {}: no model of this family is built in",
               to_string(config.architecture));
}

}  // namespace rota
