// --config FILE.yaml: flags from a file. Keys are flags without the dashes (max-num-seqs or max_num_seqs), values
// scalars, lists or booleans:
//
//   max-num-seqs: 32
//   served-model-name: [demo, default]
//   enable-prefix-caching: false
//
// A key may come once (max-num-seqs and max_num_seqs are one), and `config` not at all. One file
// may serve several commands: a key that is another command's is ignored (told at
// ROTA_LOG_LEVEL=debug); one that is nobody's is an error that names the nearest.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <string>
#include <vector>

#include "base/status.h"

namespace rota {

// The arguments with those of the file put in front, right behind the subcommand, so that what was
// typed wins. A key whose environment variable is set is left out. `app` knows the commands and
// their flags.
Result<std::vector<std::string>> expand_config(std::vector<std::string> arguments,
                                               const CLI::App& app);

// "--max-num-seqs" -> "ROTA_MAX_NUM_SEQS".
std::string environment_name(const std::string& flag);

}  // namespace rota
