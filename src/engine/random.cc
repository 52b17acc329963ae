#include "engine/random.h"

namespace rota {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t a = uint64_t{0xd2511f53} * counter[0];
    const uint64_t b = uint64_t{0xcd9e8d57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9e3779b9;
    key[1] += 0xbb67ae85;
  }
  return counter;
}

double uniform(uint64_t seed, uint64_t position) {
  const auto words =
      philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = (static_cast<uint64_t>(words[0]) << 32) | words[1];
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

uint64_t drawn_seed(int64_t engine_seed, uint64_t arrival) {
  const auto key = static_cast<uint64_t>(engine_seed);
  const auto words =
      philox4x32({static_cast<uint32_t>(arrival), static_cast<uint32_t>(arrival >> 32), 0, 1},
                 {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
  return (static_cast<uint64_t>(words[0]) << 32) | words[1];
}

}  // namespace rota
