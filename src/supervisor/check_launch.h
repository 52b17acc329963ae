// What stands in the way of several ranks on this host, and is sure before one of them starts.
//
//   ROTA_RETURN_IF_ERROR(check_launch(4, flags.hostfile));
//
// Contract: mpirun is in PATH, this process may open enough descriptors, a run folder can be made
// (run_folder.h; it is gone again when the function returns), its name leaves room for a socket's,
// its file system for MPI's shared memory. Other hosts are not asked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/status.h"

namespace rota {

// hostfile: where ranks run on other hosts, too; empty: all of them run here.
Status check_launch(int ranks, const std::string& hostfile);

// Its parts. most: how many descriptors a process may open.
Status check_descriptors(uint64_t most);
// parent: of run folders; free_bytes: of its file system.
Status check_room(const std::filesystem::path& parent, uint64_t free_bytes, int ranks);
// folder: a run folder. A socket's address is shorter than a path may be.
Status check_length(const std::filesystem::path& folder);

}  // namespace rota
