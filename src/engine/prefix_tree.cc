#include "engine/prefix_tree.h"

#include <algorithm>
#include <bit>
#include <random>

#include "base/check.h"

namespace rota {
namespace {

uint64_t mix(uint64_t value) {
  value ^= value >> 32;
  value *= 0xd6e8feb86659fd93ULL;
  value ^= value >> 32;
  return value;
}

}  // namespace

PrefixTree::PrefixTree(int64_t groups, int64_t pages)
    : groups_(groups),
      hash_seed_((static_cast<uint64_t>(std::random_device{}()) << 32) | std::random_device{}()),
      slot_of_page_(static_cast<size_t>(pages), -1),
      buckets_(std::bit_ceil(static_cast<size_t>(pages) + 1), kNone) {
  // Reserved, not touched: a node costs memory only once it is used, and none is allocated in a
  // decode step.
  const size_t expected = static_cast<size_t>(pages) + 64;
  nodes_.reserve(expected);
  free_nodes_.reserve(expected);
  node_pages_.reserve(expected * static_cast<size_t>(groups));
}

int32_t PrefixTree::root(std::string_view salt) {
  const auto found = roots_.find(std::string(salt));
  if (found != roots_.end()) {
    pin(found->second);
    return found->second;
  }
  const int32_t node = new_node();
  at(node).salt = salt;
  roots_.emplace(salt, node);
  pin(node);
  return node;
}

uint64_t PrefixTree::hash_of(int32_t parent, Block tokens) const {
  uint64_t hash = mix(hash_seed_ + static_cast<uint64_t>(static_cast<uint32_t>(parent)));
  for (size_t i = 0; i < tokens.size(); i += 2) {
    const uint64_t pair = (static_cast<uint64_t>(static_cast<uint32_t>(tokens[i])) << 32) |
                          static_cast<uint32_t>(tokens[i + 1]);
    hash = mix(hash ^ pair) + 0x9e3779b97f4a7c15ULL;
  }
  return hash;
}

int32_t PrefixTree::find(int32_t parent, Block tokens, uint64_t hash) const {
  for (int32_t node = buckets_[bucket_of(hash)]; node != kNone; node = at(node).next_in_bucket) {
    const Node& it = at(node);
    if (it.hash == hash && it.parent == parent &&
        std::equal(tokens.begin(), tokens.end(), it.tokens.begin())) {
      return node;
    }
  }
  return kNone;
}

int32_t PrefixTree::find(int32_t parent, Block tokens) const {
  return find(parent, tokens, hash_of(parent, tokens));
}

int32_t PrefixTree::find_or_add(int32_t parent, Block tokens) {
  const uint64_t hash = hash_of(parent, tokens);
  if (const int32_t found = find(parent, tokens, hash); found != kNone) return found;
  const int32_t node = new_node();
  Node& it = at(node);
  it.parent = parent;
  it.hash = hash;
  std::copy(tokens.begin(), tokens.end(), it.tokens.begin());
  int32_t& bucket = buckets_[bucket_of(hash)];
  it.next_in_bucket = bucket;
  bucket = node;
  ++at(parent).children;
  return node;
}

int32_t PrefixTree::new_node() {
  ++live_nodes_;
  if (!free_nodes_.empty()) {
    const int32_t node = free_nodes_.back();
    free_nodes_.pop_back();
    return node;
  }
  nodes_.emplace_back();
  node_pages_.insert(node_pages_.end(), static_cast<size_t>(groups_), kNone);
  return static_cast<int32_t>(nodes_.size() - 1);
}

void PrefixTree::pin(int32_t node) { ++at(node).pins; }

void PrefixTree::unpin(int32_t node) {
  ROTA_CHECK(at(node).pins > 0, "a node was unpinned more often than pinned");
  --at(node).pins;
  drop_if_unused(node);
}

int32_t PrefixTree::page(int32_t node, int64_t group) const {
  return node_pages_[page_slot(node, group)];
}

void PrefixTree::attach(int32_t node, int64_t group, int32_t page) {
  const size_t slot = page_slot(node, group);
  ROTA_CHECK(node_pages_[slot] == kNone && slot_of_page_[static_cast<size_t>(page)] < 0,
             "a node has one page a group, and a page one node");
  node_pages_[slot] = page;
  slot_of_page_[static_cast<size_t>(page)] = static_cast<int64_t>(slot);
  ++at(node).pages;
}

int32_t PrefixTree::node_of(int32_t page) const {
  const int64_t slot = slot_of_page_[static_cast<size_t>(page)];
  ROTA_CHECK(slot >= 0, "only an attached page has a node");
  return static_cast<int32_t>(slot / groups_);
}

void PrefixTree::detach(int32_t page) {
  int64_t& slot = slot_of_page_[static_cast<size_t>(page)];
  const int32_t node = node_of(page);
  node_pages_[static_cast<size_t>(slot)] = kNone;
  slot = -1;
  --at(node).pages;
  drop_if_unused(node);
}

void PrefixTree::drop_if_unused(int32_t node) {
  while (node != kNone) {
    Node& it = at(node);
    if (it.pages > 0 || it.children > 0 || it.pins > 0) return;
    const int32_t parent = it.parent;
    unlink(node);
    if (parent != kNone) --at(parent).children;
    node = parent;
  }
}

void PrefixTree::unlink(int32_t node) {
  Node& it = at(node);
  if (it.parent == kNone) {
    roots_.erase(it.salt);
  } else {
    int32_t* link = &buckets_[bucket_of(it.hash)];
    while (*link != node) link = &at(*link).next_in_bucket;
    *link = it.next_in_bucket;
  }
  it = Node{};
  free_nodes_.push_back(node);
  --live_nodes_;
}

}  // namespace rota
