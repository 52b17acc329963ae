#include "engine/step_header.h"

#include <algorithm>

#include "base/check.h"

namespace rota {
namespace {

constexpr size_t kWords = 7;  // of a header as it travels

void write(const StepHeader& header, std::span<int64_t> words) {
  words[0] = header.step;
  words[1] = static_cast<int64_t>(header.kind);
  words[2] = header.tokens;
  words[3] = static_cast<int64_t>(header.decodes);
  words[4] = header.message_bytes;
  words[5] = static_cast<int64_t>(header.loaded);
  words[6] = static_cast<int64_t>(header.placement);
}

StepHeader read(std::span<const int64_t> words) {
  return {.step = words[0],
          .kind = static_cast<StepKind>(words[1]),
          .tokens = words[2],
          .decodes = words[3] != 0,
          .message_bytes = words[4],
          .loaded = static_cast<uint64_t>(words[5]),
          .placement = static_cast<uint64_t>(words[6])};
}

Status mismatch(std::string_view what, int a, const StepHeader& of_a, int b,
                const StepHeader& of_b) {
  return error(StatusCode::kInternal,
               "step header: ranks {} and {} {}: rank {} says {}, rank {} says {}", a, b, what, a,
               describe(of_a), b, describe(of_b));
}

}  // namespace

std::string_view to_string(StepKind kind) {
  switch (kind) {
    case StepKind::kPark:
      return "park";
    case StepKind::kDummy:
      return "dummy";
    case StepKind::kWork:
      return "work";
    case StepKind::kStop:
      return "stop";
  }
  return "no kind of step";
}

std::string describe(const StepHeader& header) {
  return fmt::format(
      "step {}, {}, {} tokens{}, {} bytes of messages, loaded {:016x}, experts placed {:016x}",
      header.step, to_string(header.kind), header.tokens, header.decodes ? "" : " of prompts too",
      header.message_bytes, header.loaded, header.placement);
}

// Rank 0's piece is longer: it goes on with a length for each rank.
StepHeaders::StepHeaders(Communicator& control, int tp) : control_(&control), tp_(tp) {
  const auto ranks = static_cast<size_t>(control.ranks());
  mine_.resize(kWords + (control.rank() == 0 ? ranks : 0));
  words_.resize(kWords * ranks + ranks);
  begin_.push_back(0);
  for (size_t rank = 0; rank < ranks; ++rank) {
    const size_t words = kWords + (rank == 0 ? ranks : 0);
    begin_.push_back(begin_.back() + static_cast<int64_t>(words * sizeof(int64_t)));
  }
  headers_.resize(ranks);
  tokens_.resize(ranks / static_cast<size_t>(tp));
  bytes_from_.resize(ranks);
}

Status StepHeaders::exchange(const StepHeader& mine, std::span<const int64_t> bytes_to) {
  const auto ranks = static_cast<size_t>(control_->ranks());
  ROTA_CHECK(bytes_to.size() == (control_->rank() == 0 ? ranks : 0),
             "rank 0 says what it has for each");
  write(mine, mine_);
  std::ranges::copy(bytes_to, mine_.begin() + kWords);
  const std::span<int64_t> all(words_);
  ROTA_RETURN_IF_ERROR(control_->all_gather(std::as_bytes(std::span(mine_)),
                                            {std::as_writable_bytes(all).data(), begin_}));
  for (size_t rank = 0; rank < ranks; ++rank) {
    headers_[rank] = read(all.subspan(static_cast<size_t>(begin_[rank]) / sizeof(int64_t), kWords));
    tokens_[rank / static_cast<size_t>(tp_)] = headers_[rank].tokens;
  }
  const std::span<const int64_t> from_first = all.subspan(kWords, ranks);
  first_has_messages_ = std::ranges::any_of(from_first, [](int64_t bytes) { return bytes > 0; });
  std::ranges::fill(bytes_from_, 0);
  if (control_->rank() == 0) {
    for (size_t rank = 0; rank < ranks; ++rank) bytes_from_[rank] = headers_[rank].message_bytes;
  }
  bytes_from_[0] = from_first[static_cast<size_t>(control_->rank())];
  return check();
}

Status StepHeaders::check() const {
  const StepHeader& first = headers_[0];
  for (int rank = 0; rank < control_->ranks(); ++rank) {
    const StepHeader& it = of(rank);
    if (it.loaded != first.loaded) {
      return mismatch("have not loaded the same", 0, first, rank, it);
    }
    if (it.step != first.step) return mismatch("are not at the same step", 0, first, rank, it);
    if (it.placement != first.placement) {
      return mismatch("do not have experts in the same places", 0, first, rank, it);
    }
    const int mate = rank / tp_ * tp_;
    const bool agree = it.tokens == of(mate).tokens && it.decodes == of(mate).decodes;
    if (!agree) return mismatch("of one group run different tokens", mate, of(mate), rank, it);
  }
  return {};
}

bool StepHeaders::decodes() const { return std::ranges::all_of(headers_, &StepHeader::decodes); }

bool StepHeaders::any(StepKind kind) const {
  return std::ranges::any_of(headers_, [&](const StepHeader& it) { return it.kind == kind; });
}

bool StepHeaders::all(StepKind kind) const {
  return std::ranges::all_of(headers_, [&](const StepHeader& it) { return it.kind == kind; });
}

bool StepHeaders::has_messages() const {
  return first_has_messages_ ||
         std::ranges::any_of(headers_, [](const StepHeader& it) { return it.message_bytes > 0; });
}

}  // namespace rota
