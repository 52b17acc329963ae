#include "engine/step_captures.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

namespace rota {
namespace {

// No group of a decode step has more: each sequence runs one token.
int64_t largest_batch(const EngineOptions& options) {
  return std::min(options.max_num_seqs, options.max_num_batched_tokens);
}

std::vector<int64_t> default_sizes(int64_t largest) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size < largest; size *= 2) sizes.push_back(size);
  sizes.push_back(largest);
  return sizes;
}

Result<int64_t> read_size(std::string_view text, int64_t largest) {
  int64_t size = 0;
  const auto [stop, fault] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (fault != std::errc() || stop != text.data() + text.size() || size < 1 || size > largest) {
    return invalid_argument(
        "--cudagraph-capture-sizes: \"{}\" is no batch size from 1 to {} (the smaller of "
        "--max-num-seqs and --max-num-batched-tokens); expected a list like 1,2,4,8",
        text, largest);
  }
  return size;
}

}  // namespace

Result<std::vector<int64_t>> capture_sizes(const EngineOptions& options) {
  std::string_view rest = options.cudagraph_capture_sizes;
  const int64_t largest = largest_batch(options);
  if (options.enforce_eager) {
    if (rest.empty()) return std::vector<int64_t>();
    return invalid_argument(
        "--cudagraph-capture-sizes {}: with --enforce-eager nothing is captured; leave one of them "
        "out",
        rest);
  }
  if (rest.empty()) return default_sizes(largest);
  std::vector<int64_t> sizes;
  for (bool more = true; more;) {
    const size_t comma = rest.find(',');
    more = comma != std::string_view::npos;
    ROTA_ASSIGN_OR_RETURN(const int64_t size, read_size(rest.substr(0, comma), largest));
    sizes.push_back(size);
    if (more) rest.remove_prefix(comma + 1);
  }
  std::ranges::sort(sizes);
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

StepCaptures::StepCaptures(std::vector<int64_t> wanted) : wanted_(std::move(wanted)) {
  captures_.reserve(wanted_.size());
}

void StepCaptures::add(int64_t size, int64_t operations) {
  const auto at = std::ranges::lower_bound(captures_, size, {}, &StepCapture::size);
  if (at != captures_.end() && at->size == size) return;
  captures_.insert(at, {.size = size, .operations = operations});
}

const StepCapture* StepCaptures::find(const StepTokens& step) const {
  if (!step.decodes || step.tokens_of_group.empty()) return nullptr;
  const int64_t most = std::ranges::max(step.tokens_of_group);
  const auto at = std::ranges::lower_bound(captures_, most, {}, &StepCapture::size);
  return at == captures_.end() ? nullptr : &*at;
}

std::string StepCaptures::describe() const {
  std::vector<int64_t> sizes;
  sizes.reserve(captures_.size());
  for (const StepCapture& capture : captures_) sizes.push_back(capture.size);
  return fmt::format("decode steps of up to {} sequences", fmt::join(sizes, ", "));
}

Status check_replay(const StepCapture& capture, int64_t operations) {
  if (operations <= capture.operations) return {};
  return error(StatusCode::kInternal,
               "a decode step met the other ranks {} times, its capture of {} sequences {} times",
               operations, capture.size, capture.operations);
}

}  // namespace rota
