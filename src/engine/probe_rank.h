// One rank of `rota doctor`: what mpirun starts for it, as it does run_engine_rank() for `rota
// serve`.
//
//   return run_probe_rank(options_json, run_folder);   // `rota doctor-rank OPTIONS FOLDER`
//
// Each rank prints a line when it is there, and when it has met the others; rank 0 then its report:
//   rota-probe {"here": 3, "host": "node2", "build": "5f3a..."}
//   rota-probe {"met": 3}
//   rota-probe {"report": {...}}
// With no more than "hello" for OPTIONS it says that it is there, and ends, without MPI.
#pragma once

#include <string>

namespace rota {

inline constexpr const char* kProbeLine = "rota-probe ";

// The process's exit code.
int run_probe_rank(const std::string& options_json, const std::string& run_folder);

}  // namespace rota
