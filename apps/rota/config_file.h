// --config FILE.yaml: flags from a file. Keys are flags without the dashes (max-num-seqs or max_num_seqs), values
// scalars, lists or booleans:
//
//   max-num-seqs: 32
//   served-model-name: [demo, default]
//   enable-prefix-caching: false
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace rota {

// The arguments with those of the file put in front, right behind the subcommand, so that what was typed wins.
// A key whose environment variable is set is left out. Names of flags are checked by the parser, like typed ones.
Result<std::vector<std::string>> expand_config(std::vector<std::string> arguments);

// "--max-num-seqs" -> "ROTA_MAX_NUM_SEQS".
std::string environment_name(const std::string& flag);

}  // namespace rota
