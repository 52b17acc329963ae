// Which data-parallel group a request goes to: the one that will be done with it first, as far as
// tokens tell.
//
// Contract: a group's load is the tokens of its live requests, prompts and answers. A request goes
// where load + tokens of its prompt that must be computed there is least; a tie goes to the group
// that was chosen longest ago. A block of 64 prompt tokens, hashed with the salt and all blocks
// before it, is taken to be in the prefix cache of the group that computed it last; that is a
// guess: the cache may have forgotten it. Pure: the same calls, the same choices.
//
//   Spread spread(groups);
//   const int group = spread.place(request.prompt, request.cache_salt);
//   spread.add(group, 1);                         // it has generated a token
//   spread.add(group, -(prompt + generated));     // it is gone
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace rota {

class Spread {
 public:
  // About 3 MB; the blocks of 512 prompts of 8192 tokens.
  static constexpr int64_t kRememberedBlocks = int64_t{1} << 16;

  explicit Spread(int groups, int64_t remembered_blocks = kRememberedBlocks);

  // Chooses; the prompt's tokens are load from now on, its blocks that group's.
  int place(std::span<const int32_t> prompt, std::string_view salt);

  void add(int group, int64_t tokens);
  int64_t load(int group) const { return groups_[static_cast<size_t>(group)].load; }

 private:
  struct Group {
    int64_t load = 0;
    int64_t last_chosen = 0;
  };
  struct Place {
    int group = 0;
    size_t slot = 0;  // of remembered_
  };

  void hash_blocks(std::span<const int32_t> prompt, std::string_view salt);
  int64_t known_tokens(int group) const;  // of the hashed prompt
  int least_cost(int64_t prompt_tokens) const;
  void remember(uint64_t block, int group);

  std::vector<Group> groups_;
  int64_t placed_ = 0;
  std::vector<uint64_t> blocks_;                  // of the prompt that is being placed
  std::unordered_map<uint64_t, Place> computed_;  // block -> who computed it last
  std::vector<uint64_t> remembered_;              // a ring: the oldest is forgotten first
  size_t next_ = 0;
  size_t capacity_;
};

}  // namespace rota
