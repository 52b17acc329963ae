#include "text/stop_strings.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace rota {

Result<StopStrings> StopStrings::make(const std::vector<std::string>& stops,
                                      bool include_in_output) {
  size_t total = 0;
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty()) {
      return invalid_argument("stop[{}]: is empty; expected at least one character", i);
    }
    total += stops[i].size();
    if (total > kMaxTotalBytes) {
      return invalid_argument("stop: the strings hold more than {} bytes together", kMaxTotalBytes);
    }
  }
  StopStrings out;
  out.include_ = include_in_output;
  out.build(stops);
  out.link();
  return out;
}

// The trie. Sorted strings come along their shared prefixes, so that a node's children are finished
// one after the other; edges are laid out by a second pass.
void StopStrings::build(const std::vector<std::string>& stops) {
  std::vector<size_t> order(stops.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Equal strings keep their order: the index decides.
  std::ranges::sort(order, {},
                    [&](size_t i) { return std::pair<std::string_view, size_t>(stops[i], i); });

  nodes_.assign(1, Node{});
  std::vector<uint32_t> parents(1, 0);
  std::vector<unsigned char> bytes(1, 0);
  std::vector<uint32_t> path(1, 0);  // the nodes of the string before
  std::string_view before;
  for (size_t i : order) {
    const std::string_view stop = stops[i];
    const auto differ = std::ranges::mismatch(before, stop).in2 - stop.begin();
    path.resize(static_cast<size_t>(differ) + 1);
    for (size_t k = path.size() - 1; k < stop.size(); ++k) {
      parents.push_back(path.back());
      bytes.push_back(static_cast<unsigned char>(stop[k]));
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back(Node{.depth = static_cast<uint32_t>(k + 1)});
    }
    Node& last = nodes_[path.back()];
    if (last.stop < 0) {  // of equal strings the first counts
      last.stop = static_cast<int32_t>(i);
      last.stop_bytes = last.depth;
    }
    before = stop;
  }

  for (size_t n = 1; n < nodes_.size(); ++n) ++nodes_[parents[n]].edge_count;
  uint32_t edge = 0;
  for (Node& node : nodes_) {
    node.first_edge = edge;
    edge += std::exchange(node.edge_count, 0);
  }
  edges_.resize(edge);
  for (size_t n = 1; n < nodes_.size(); ++n) {  // in the order of bytes: the strings were sorted
    Node& parent = nodes_[parents[n]];
    edges_[parent.first_edge + parent.edge_count++] = {bytes[n], static_cast<uint32_t>(n)};
  }
}

// Fail links, breadth first: the node of the longest proper suffix that is in the trie.
void StopStrings::link() {
  std::vector<uint32_t> queue(1, 0);
  for (size_t q = 0; q < queue.size(); ++q) {
    const Node node = nodes_[queue[q]];
    for (uint32_t e = node.first_edge; e < node.first_edge + node.edge_count; ++e) {
      Node& to = nodes_[edges_[e].node];
      to.fail = queue[q] == 0 ? 0 : next(node.fail, edges_[e].byte);
      if (to.stop < 0) {
        to.stop = nodes_[to.fail].stop;
        to.stop_bytes = nodes_[to.fail].stop_bytes;
      }
      queue.push_back(edges_[e].node);
    }
  }
}

uint32_t StopStrings::child(uint32_t node, unsigned char byte) const {
  const auto begin = edges_.begin() + nodes_[node].first_edge;
  const auto end = begin + nodes_[node].edge_count;
  const auto found = std::lower_bound(
      begin, end, byte, [](const Edge& edge, unsigned char b) { return edge.byte < b; });
  return found != end && found->byte == byte ? found->node : 0;
}

uint32_t StopStrings::next(uint32_t node, unsigned char byte) const {
  while (true) {
    if (const uint32_t found = child(node, byte); found != 0) return found;
    if (node == 0) return 0;
    node = nodes_[node].fail;
  }
}

StopStrings::Step StopStrings::push(std::string_view text) {
  Step step;
  if (matched_) return step;
  held_ += text;
  const size_t old = held_.size() - text.size();
  for (size_t i = 0; i < text.size(); ++i) {
    state_ = next(state_, static_cast<unsigned char>(text[i]));
    const Node& node = nodes_[state_];
    if (node.stop < 0) continue;
    const size_t end = old + i + 1;
    step.text = held_.substr(0, include_ ? end : end - node.stop_bytes);
    step.matched = matched_ = static_cast<size_t>(node.stop);
    step.consumed = i + 1;
    held_.clear();
    return step;
  }
  step.consumed = text.size();
  const size_t keep = nodes_[state_].depth;
  step.text = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return step;
}

std::string StopStrings::finish() {
  state_ = 0;
  return std::exchange(held_, {});
}

}  // namespace rota
