// --hostfile: MPI's list of hosts, read so that its faults are told before mpirun meets them.
//
//   ROTA_ASSIGN_OR_RETURN(std::vector<HostSlots> hosts, read_hostfile("hosts"));
//   ROTA_RETURN_IF_ERROR(check_slots("hosts", hosts, 4));
//
// A line is HOST, then slots=N (default 1) and other words, which are MPI's; # begins a comment. A
// host on several lines has the sum of their slots.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace rota {

struct HostSlots {
  std::string host;
  int slots = 1;
  bool operator==(const HostSlots&) const = default;
};

// In order of first mention, each host once. kNotFound, or kInvalidArgument with the line.
Result<std::vector<HostSlots>> read_hostfile(const std::string& path);
Result<std::vector<HostSlots>> parse_hostfile(const std::string& path, std::string_view text);

// Whether they take so many ranks.
Status check_slots(const std::string& path, std::span<const HostSlots> hosts, int ranks);

}  // namespace rota
