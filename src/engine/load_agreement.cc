#include "engine/load_agreement.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/hash.h"
#include "engine/park.h"
#include "platform/memory.h"

namespace rota {
namespace {

// The machine whose memory it is, whatever names it has.
uint64_t machine() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return hash_text(id.empty() ? host_name() : id);
}

uint64_t allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 0;
  return hash_bytes(std::as_bytes(std::span(&set, 1)));
}

std::string shortened(const std::string& value) {
  constexpr size_t kMost = 160;
  return value.size() <= kMost ? value : value.substr(0, kMost) + "...";
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

Result<std::vector<std::string>> gather_texts(Communicator& world, std::string_view mine) {
  ROTA_RETURN_IF_ERROR(wait_for_all(world, kLoadPatienceSeconds));
  ROTA_ASSIGN_OR_RETURN(const std::vector<int64_t> lengths,
                        gather_values(world, static_cast<int64_t>(mine.size())));
  std::vector<int64_t> begin(1, 0);
  for (const int64_t length : lengths) begin.push_back(begin.back() + length);
  std::string all(static_cast<size_t>(begin.back()), '\0');
  ROTA_RETURN_IF_ERROR(world.all_gather(std::as_bytes(std::span(mine)),
                                        {std::as_writable_bytes(std::span(all)).data(), begin}));
  std::vector<std::string> texts;
  texts.reserve(lengths.size());
  for (size_t rank = 0; rank < lengths.size(); ++rank) {
    texts.push_back(
        all.substr(static_cast<size_t>(begin[rank]), static_cast<size_t>(lengths[rank])));
  }
  return texts;
}

Status agree_ok(Communicator& world, const Status& mine) {
  if (world.ranks() == 1) return mine;
  // The code as a digit, then the message; of success nothing.
  const std::string said =
      mine.ok() ? "" : fmt::format("{:02}{}", static_cast<int>(mine.code()), mine.message());
  const auto texts = gather_texts(world, said);
  if (!mine.ok()) return mine;
  if (!texts.ok()) return texts.status();
  for (size_t rank = 0; rank < texts->size(); ++rank) {
    const std::string& text = (*texts)[rank];
    if (text.empty()) continue;
    return {static_cast<StatusCode>((text[0] - '0') * 10 + (text[1] - '0')),
            fmt::format("rank {}: {}", rank, text.substr(2))};
  }
  return {};
}

Status agree_same(Communicator& world, std::span<const Agreed> mine) {
  if (world.ranks() == 1) return {};
  nlohmann::json said = nlohmann::json::array({host_name()});
  for (const Agreed& it : mine) said.push_back({it.what, it.value});
  using Json = nlohmann::json;
  ROTA_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      gather_texts(world, said.dump(-1, ' ', false, Json::error_handler_t::replace)));
  const Json first = Json::parse(texts[0]);
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    const Json other = Json::parse(texts[rank]);
    for (size_t i = 1; i < std::min(first.size(), other.size()); ++i) {
      if (first[i] == other[i]) continue;
      return invalid_argument(
          "the ranks would not serve the same model: {}: rank 0 (host {}) has {}, rank {} (host "
          "{}) has {}; give all ranks the same options, files and build",
          first[i][0].get<std::string>(), first[0].get<std::string>(),
          shortened(first[i][1].get<std::string>()), rank, other[0].get<std::string>(),
          shortened(other[i][1].get<std::string>()));
    }
  }
  return {};
}

Result<HostRanks> find_host_ranks(Communicator& world) {
  struct Facts {
    uint64_t machine;
    uint64_t cpus;
    int64_t available_bytes;
  };
  HostRanks host;
  host.available_bytes = memory_info().available_bytes;
  if (world.ranks() == 1) return host;
  ROTA_RETURN_IF_ERROR(wait_for_all(world, kLoadPatienceSeconds));
  const Facts mine{
      .machine = machine(), .cpus = allowed_cpus(), .available_bytes = host.available_bytes};
  ROTA_ASSIGN_OR_RETURN(const std::vector<Facts> all, gather_values(world, mine));
  host.ranks.clear();
  for (int rank = 0; rank < world.ranks(); ++rank) {
    const Facts& it = all[static_cast<size_t>(rank)];
    if (it.machine != mine.machine) continue;
    if (rank == world.rank()) host.index = host.count();
    if (rank != world.rank() && it.cpus == mine.cpus) host.bound = false;
    host.ranks.push_back(rank);
    host.available_bytes = std::min(host.available_bytes, it.available_bytes);
  }
  return host;
}

}  // namespace rota
