// What `rota eval` can measure. One file each; each adds its subcommand and returns what runs it.
#pragma once

#include "rota/command.h"

namespace rota {

CommandRun add_eval_ppl(CLI::App& eval);
CommandRun add_eval_gsm8k(CLI::App& eval);

}  // namespace rota
