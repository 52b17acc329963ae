// Finds stop strings in a stream of text.
//
// Contract: what comes out is the text before the stop string, whatever the portions in which it
// went in: nothing of a stop string leaks, nothing is lost or repeated. The longest suffix that may
// begin a stop string is held back. The match that ends first wins, of those the one that began
// first. Example:
//   ROTA_ASSIGN_OR_RETURN(StopStrings stop, StopStrings::make({"\n\n", "User:"}));
//   StopStrings::Step step = stop.push("Hi.\n");  // step.text == "Hi."
//   step = stop.push("\nUser");                   // step.matched == 0, step.text == ""
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace rota {

class StopStrings {
 public:
  static constexpr size_t kMaxTotalBytes = size_t{1} << 20;  // of all stop strings together

  // No strings: everything passes. kInvalidArgument: an empty string, or too many bytes.
  static Result<StopStrings> make(const std::vector<std::string>& stops,
                                  bool include_in_output = false);

  struct Step {
    std::string text;               // to show now
    std::optional<size_t> matched;  // index of the stop string that was found: the text ends here
    size_t consumed = 0;            // bytes of this portion up to the end of the match
  };
  // After a match everything is swallowed.
  Step push(std::string_view text);
  // The stream ended otherwise: what was held back.
  std::string finish();
  bool matched() const { return matched_.has_value(); }

 private:
  // A node of the Aho-Corasick automaton; its children are a range of sorted edges.
  struct Node {
    uint32_t first_edge = 0, edge_count = 0;
    uint32_t fail = 0;
    uint32_t depth = 0;       // length of the prefix it stands for
    int32_t stop = -1;        // the longest stop string that ends here, through fail links too
    uint32_t stop_bytes = 0;  // its length
  };
  struct Edge {
    unsigned char byte;
    uint32_t node;
  };
  StopStrings() = default;
  void build(const std::vector<std::string>& stops);
  void link();
  uint32_t child(uint32_t node, unsigned char byte) const;  // 0: none
  uint32_t next(uint32_t node, unsigned char byte) const;

  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  bool include_ = false;
  uint32_t state_ = 0;
  std::string held_;
  std::optional<size_t> matched_;
};

}  // namespace rota
