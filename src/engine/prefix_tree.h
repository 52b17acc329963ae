// What the prefix cache knows: a tree whose nodes are full blocks of 64 tokens, each under the
// block that comes before it, with the page of each KvGroup that holds its keys and values.
//
// Contract: a node is found by comparing the tokens themselves, and its place in the tree stands
// for everything before them: two prefixes are never taken for one another, whatever their hashes.
// Each cache salt has a root of its own. A node lives while it has a page, a child or a pin.
//
//   PrefixTree tree(groups, expected_nodes);
//   int32_t node = tree.root("salt");                       // pinned
//   int32_t child = tree.find(node, tokens);                // kNone: never seen
//   tree.attach(child, group, page);
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/attention.h"

namespace rota {

class PrefixTree {
 public:
  static constexpr int32_t kNone = -1;
  using Block = std::span<const int32_t, static_cast<size_t>(kKvBlockTokens)>;

  PrefixTree(int64_t groups, int64_t pages);

  int32_t root(std::string_view salt);  // found or made; the caller holds a pin on it
  int32_t find(int32_t parent, Block tokens) const;
  int32_t find_or_add(int32_t parent, Block tokens);

  void pin(int32_t node);
  void unpin(int32_t node);  // the node may be gone afterwards

  int32_t page(int32_t node, int64_t group) const;  // kNone: not here
  void attach(int32_t node, int64_t group, int32_t page);
  void detach(int32_t page);            // the page's content is about to be overwritten
  int32_t node_of(int32_t page) const;  // of an attached page

  int64_t nodes() const { return live_nodes_; }  // roots included

 private:
  struct Node {
    int32_t parent = kNone;
    int32_t next_in_bucket = kNone;
    int32_t children = 0;
    int32_t pins = 0;
    int32_t pages = 0;
    uint64_t hash = 0;
    std::array<int32_t, static_cast<size_t>(kKvBlockTokens)> tokens;
    std::string salt;  // of a root
  };

  Node& at(int32_t node) { return nodes_[static_cast<size_t>(node)]; }
  const Node& at(int32_t node) const { return nodes_[static_cast<size_t>(node)]; }
  uint64_t hash_of(int32_t parent, Block tokens) const;
  int32_t find(int32_t parent, Block tokens, uint64_t hash) const;
  int32_t new_node();
  void drop_if_unused(int32_t node);
  void unlink(int32_t node);
  size_t bucket_of(uint64_t hash) const { return hash & (buckets_.size() - 1); }
  size_t page_slot(int32_t node, int64_t group) const {
    return static_cast<size_t>(node) * static_cast<size_t>(groups_) + static_cast<size_t>(group);
  }

  int64_t groups_;
  uint64_t hash_seed_;
  std::vector<Node> nodes_;
  std::vector<int32_t> free_nodes_;
  std::vector<int32_t> node_pages_;    // [nodes, groups]
  std::vector<int64_t> slot_of_page_;  // [pages] index into node_pages_, or -1
  std::vector<int32_t> buckets_;       // first node of each
  std::unordered_map<std::string, int32_t> roots_;
  int64_t live_nodes_ = 0;
};

}  // namespace rota
