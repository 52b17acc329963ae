// Where a model is: MODEL is a folder, or `org/name` in the Hugging Face cache (nothing is
// downloaded).
//
// The cache is $HF_HUB_CACHE, $HF_HOME/hub or ~/.cache/huggingface/hub, in this order; a revision
// is a branch or tag of refs/, or a commit hash. Every file of a cached snapshot must lie in the
// model's own cache folder: links that lead elsewhere, dangle or loop are errors, and so is an
// unfinished download.
//
//   ROTA_ASSIGN_OR_RETURN(ModelLocation where, locate_model("openai/gpt-oss-20b"));
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace rota {

struct ModelLocation {
  std::string dir;       // holds config.json
  std::string name;      // as given: the default of --served-model-name
  std::string revision;  // commit hash; empty for a folder
};

struct LocateOptions {
  std::string revision = "main";
  std::string cache_dir;  // of the hub; empty: from the environment
};

Result<ModelLocation> locate_model(std::string_view model, const LocateOptions& options = {});

// The hub's cache folder as the environment names it.
std::string hub_cache_dir();

}  // namespace rota
