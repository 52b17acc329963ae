// Where this process may run: the CPUs of its affinity mask, no more than its control group grants.
// Found once, on the first call, before any thread is pinned.
//
//   const size_t cores = usable_cpus().one_per_core.size();
#pragma once

#include <vector>

namespace rota {

struct UsableCpus {
  std::vector<int> logical;       // operating system numbers, at least one
  std::vector<int> one_per_core;  // the first usable logical CPU of each physical core
};

const UsableCpus& usable_cpus();

// False where the operating system refuses. A thread that is started by a pinned one is pinned too,
// until it says otherwise.
bool pin_this_thread(int cpu);

}  // namespace rota
