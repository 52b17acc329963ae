#include "engine/text_generation.h"

#include <utility>

#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace rota {

struct TextStream::State {
  State(std::shared_ptr<const Tokenizer> tokenizer, const TextStreamOptions& given,
        StopStrings stop_strings)
      : options(given),
        detokenizer(std::move(tokenizer), {.skip_special = given.skip_special_tokens,
                                           .continues_text = given.continues_text}),
        stop(std::move(stop_strings)) {}

  TextStreamOptions options;
  Detokenizer detokenizer;
  StopStrings stop;
  std::string text;
  std::vector<int32_t> token_ids;
  bool finished = false;

  // Shows what the stop strings let through. True if one was found.
  bool show(const StopStrings::Step& step, TextDelta& delta) {
    delta.text += step.text;
    if (!step.matched) return false;
    delta.stop_string = options.stop[*step.matched];
    return true;
  }

  bool push_token(int32_t id, TextDelta& delta) {
    token_ids.push_back(id);
    ++delta.tokens;
    return show(stop.push(detokenizer.push(id)), delta);
  }

  // The engine has ended the request: what was held back belongs to the text now.
  bool flush(TextDelta& delta) {
    if (show(stop.push(detokenizer.finish()), delta)) return true;
    delta.text += stop.finish();
    return false;
  }
};

Result<TextStream> TextStream::make(std::shared_ptr<const Tokenizer> tokenizer,
                                    const TextStreamOptions& options) {
  ROTA_ASSIGN_OR_RETURN(StopStrings stop,
                        StopStrings::make(options.stop, options.include_stop_in_text));
  return TextStream(std::make_unique<State>(std::move(tokenizer), options, std::move(stop)));
}

TextStream::TextStream(std::unique_ptr<State> state) : state_(std::move(state)) {}
TextStream::~TextStream() = default;
TextStream::TextStream(TextStream&&) noexcept = default;
TextStream& TextStream::operator=(TextStream&&) noexcept = default;

TextDelta TextStream::add(const RequestOutput& output) {
  State& state = *state_;
  TextDelta delta;
  if (state.finished) return delta;
  const bool last = output.finish_reason != FinishReason::kNone;
  bool stopped = false;
  for (size_t i = 0; i < output.tokens.size() && !stopped; ++i) {
    const int32_t id = output.tokens[i].id;
    const bool ended_it = output.stop_token && i + 1 == output.tokens.size();
    if (ended_it && !state.options.include_stop_in_text) {
      state.token_ids.push_back(id);
      ++delta.tokens;
    } else {
      stopped = state.push_token(id, delta);
    }
  }
  if (last && !stopped) stopped = state.flush(delta);
  if (stopped) {
    delta.finish_reason = FinishReason::kStop;
    delta.cancel_request = !last;
  } else if (last) {
    delta.finish_reason = output.finish_reason;
    delta.stop_token = output.stop_token;
  }
  state.finished = stopped || last;
  state.text += delta.text;
  return delta;
}

bool TextStream::finished() const { return state_->finished; }
const std::string& TextStream::text() const { return state_->text; }
int64_t TextStream::completion_tokens() const {
  return static_cast<int64_t>(state_->token_ids.size());
}
const std::vector<int32_t>& TextStream::token_ids() const { return state_->token_ids; }

}  // namespace rota
