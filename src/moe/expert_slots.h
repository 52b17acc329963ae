// Which expert lies in which slot. A slot is a place for one expert on one rank; an ExpertMap deals
// the slots to the ranks. Where experts may be moved there can be more slots than experts: a
// popular expert then lies in several, each on another rank, and takes turns among them.
//
//   ROTA_ASSIGN_OR_RETURN(ExpertSlots slots, ExpertSlots::first(map, 128));
//   slots.expert(7)      // who lies in slot 7
//   slots.slots_of(3)    // where expert 3 lies; never nowhere
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "moe/expert_map.h"

namespace rota {

class ExpertSlots {
 public:
  // Slot e holds expert e.
  static ExpertSlots one_each(int64_t experts);
  // How a layer begins: slot e holds expert e, and what is left over holds a second copy of the
  // first few that the slot's rank has not yet. kInvalidArgument: too many or too few slots.
  static Result<ExpertSlots> first(const ExpertMap& map, int64_t experts);
  // expert_of_slot [map.experts()]. kInvalidArgument: an expert lies nowhere, or twice on one rank.
  static Result<ExpertSlots> make(const ExpertMap& map, int64_t experts,
                                  std::vector<int32_t> expert_of_slot);

  int64_t experts() const { return std::ssize(first_) - 1; }
  int64_t slots() const { return std::ssize(expert_); }
  int32_t expert(int64_t slot) const { return expert_[static_cast<size_t>(slot)]; }
  std::span<const int32_t> expert_of_slot() const { return expert_; }
  // Ascending.
  std::span<const int32_t> slots_of(int64_t expert) const;

  // Slots that hold another expert than in `other`.
  int64_t differences(const ExpertSlots& other) const;
  bool operator==(const ExpertSlots& other) const { return expert_ == other.expert_; }

 private:
  ExpertSlots(int64_t experts, std::vector<int32_t> expert_of_slot);

  std::vector<int32_t> expert_;  // [slots]
  std::vector<int32_t> first_;   // [experts + 1]: where an expert's begin in
  std::vector<int32_t> slots_;   // [slots]: expert by expert
};

}  // namespace rota
