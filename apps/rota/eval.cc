// rota eval ppl | gsm8k: measures a model's quality.
#include "rota/eval.h"

#include <utility>
#include <vector>

namespace rota {

CommandRun add_eval(CLI::App& app) {
  CLI::App& eval = *app.add_subcommand("eval", "measure a model's quality");
  eval.require_subcommand(1);
  const std::vector<std::pair<const char*, CommandRun>> kinds = {{"ppl", add_eval_ppl(eval)},
                                                                 {"gsm8k", add_eval_gsm8k(eval)}};
  return [&eval, kinds]() -> Status {
    for (const auto& [name, run] : kinds) {
      if (eval.got_subcommand(name)) return run();
    }
    return {};
  };
}

}  // namespace rota
