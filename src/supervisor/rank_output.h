// What the ranks of an mpirun say on standard output: their signs of life (engine/rank_pulse.h)
// while they start and load, and anything else, which is passed on to our standard error.
//
//   ROTA_ASSIGN_OR_RETURN(RankOutput output, RankOutput::make(ranks));
//   ... start mpirun with output.to() as its standard output ...; output.close_to();
//   poll(output.from()) ...; output.read();
//   if (std::string problem = output.silence(rank_timeout); !problem.empty()) ...
#pragma once

#include <string>

#include "base/status.h"
#include "engine/rank_pulse.h"

namespace rota {

class RankOutput {
 public:
  static Result<RankOutput> make(int ranks);
  RankOutput(RankOutput&& other) noexcept;
  RankOutput& operator=(RankOutput&&) = delete;
  ~RankOutput();

  int to() const { return to_; }
  void close_to();                    // when who writes there has it
  int from() const { return from_; }  // -1: ended

  void read();  // what there is; does not wait

  // Which rank has given no sign for too long while it started or loaded; empty: none.
  std::string silence(double rank_timeout) const;

 private:
  RankOutput(int from, int to, int ranks) : from_(from), to_(to), pulses_(ranks) {}
  void take_lines();

  int from_;
  int to_;
  std::string rest_;  // of a line that has not ended
  RankPulses pulses_;
};

}  // namespace rota
