// rota chat MODEL: a conversation on the terminal.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "checkpoint/locate.h"
#include "rota/command.h"
#include "rota/flags.h"
#include "rota/open_engine.h"
#include "rota/request_stream.h"
#include "server/app.h"

namespace rota {
namespace {

struct ChatFlags {
  EngineFlags engine;
  SamplingFlags sampling;
  std::string hostfile;
  std::string system;
  std::string once;
  CLI::Option* once_option = nullptr;
  std::string reasoning_effort;
  int64_t max_tokens = 0;
};

volatile std::sig_atomic_t interrupted = 0;

// Writes the answer as it comes: reasoning dimmed where a person reads it on a terminal.
class Printer {
 public:
  Printer() : terminal_(isatty(STDOUT_FILENO) != 0) {}

  void print(const ChatDelta& delta) {
    const bool content = delta.kind == ChatDelta::Kind::kContent;
    if (!content && !terminal_) return;  // a pipe gets the answer alone
    if (!content && !dim_) std::fputs("\x1b[2m", stdout);
    if (content && dim_) std::fputs("\x1b[0m\n", stdout);
    dim_ = !content;
    std::fwrite(delta.text.data(), 1, delta.text.size(), stdout);
    std::fflush(stdout);
  }
  void end() {
    std::fputs(dim_ ? "\x1b[0m\n" : "\n", stdout);
    std::fflush(stdout);
    dim_ = false;
  }

 private:
  bool terminal_;
  bool dim_ = false;
};

class Conversation {
 public:
  Conversation(const ChatFlags& flags, EngineClient& engine, int64_t max_model_len,
               const ModelText& text, SamplingParams sampling)
      : flags_(flags),
        engine_(engine),
        max_model_len_(max_model_len),
        text_(text),
        sampling_(std::move(sampling)) {
    if (!flags.system.empty()) messages_.push_back({{"role", "system"}, {"content", flags.system}});
  }

  // One turn: asks, prints the answer, remembers both.
  Status ask(const std::string& question) {
    messages_.push_back({{"role", "user"}, {"content", question}});
    Result<std::string> answer = this->answer();
    if (!answer.ok()) {
      messages_.erase(messages_.size() - 1);
      return answer.status();
    }
    messages_.push_back({{"role", "assistant"}, {"content", *answer}});
    return {};
  }
  void forget() {
    while (!messages_.empty() && messages_.back()["role"] != "system")
      messages_.erase(messages_.size() - 1);
  }

 private:
  Result<std::string> answer() {
    ChatRequest chat;
    chat.messages = messages_;
    chat.reasoning_effort = flags_.reasoning_effort;
    ROTA_ASSIGN_OR_RETURN(const ChatPrompt prompt, text_.chat->render(chat));
    EngineRequest request;
    request.id = fmt::format("chat-{}", ++turn_);
    request.prompt = prompt.ids;
    request.sampling = sampling_;
    const int64_t room = max_model_len_ - static_cast<int64_t>(prompt.ids.size());
    request.sampling.max_tokens =
        flags_.max_tokens > 0 ? flags_.max_tokens : std::max<int64_t>(1, room);
    request.sampling.stop_token_ids = text_.chat->stop_token_ids();

    const std::unique_ptr<ChatParser> parser = text_.chat->parser(prompt);
    Printer printer;
    std::string content;
    const auto show = [&](const std::vector<ChatDelta>& deltas) {
      for (const ChatDelta& delta : deltas) {
        if (delta.kind == ChatDelta::Kind::kContent) content += delta.text;
        printer.print(delta);
      }
    };
    RequestStream stream(engine_);
    ROTA_RETURN_IF_ERROR(stream.submit(std::move(request)));
    interrupted = 0;
    FinishReason reason = FinishReason::kAbort;
    while (const auto output = stream.next()) {
      if (output->finish_reason == FinishReason::kError) return output->status;
      for (const OutputToken& token : output->tokens) show(parser->push(token.id));
      reason = output->finish_reason;
      if (interrupted != 0) break;
    }
    show(parser->finish(to_string(reason)).deltas);
    printer.end();
    return content;
  }

  const ChatFlags& flags_;
  EngineClient& engine_;
  int64_t max_model_len_;
  const ModelText& text_;
  SamplingParams sampling_;
  OrderedJson messages_ = OrderedJson::array();
  int64_t turn_ = 0;
};

// Ctrl-C ends an answer, not the conversation, with ranks too (open_engine.h).
void let_ctrl_c_interrupt() {
  std::signal(SIGINT, [](int) { interrupted = 1; });
  sigset_t interrupt;
  ::sigemptyset(&interrupt);
  ::sigaddset(&interrupt, SIGINT);
  ::pthread_sigmask(SIG_UNBLOCK, &interrupt, nullptr);
}

Status talk(Conversation& conversation) {
  let_ctrl_c_interrupt();
  const bool terminal = isatty(STDIN_FILENO) != 0;
  if (terminal)
    std::fputs("Type a message; /new forgets the conversation, /quit or Ctrl-D ends.\n", stderr);
  std::string line;
  for (;;) {
    if (terminal) std::fputs("\n> ", stderr);
    if (!std::getline(std::cin, line) || line == "/quit" || line == "/exit") return {};
    if (line.empty()) continue;
    if (line == "/new") {
      conversation.forget();
      continue;
    }
    const Status asked = conversation.ask(line);
    if (!asked.ok()) std::fprintf(stderr, "rota: %s\n", asked.message().c_str());
  }
}

bool is_blank(const std::string& text) {
  return text.find_first_not_of(" \t\r\n") == std::string::npos;
}

Status check(const ChatFlags& flags) {
  ROTA_RETURN_IF_ERROR(flags.sampling.check());
  const std::string& effort = flags.reasoning_effort;
  if (!effort.empty() && effort != "low" && effort != "medium" && effort != "high") {
    return invalid_argument("--reasoning-effort: \"{}\" is none of low, medium, high", effort);
  }
  if (flags.max_tokens < 0) {
    return invalid_argument("--max-tokens: {} is negative; 0: what the context leaves",
                            flags.max_tokens);
  }
  if (flags.once_option->count() > 0 && is_blank(flags.once)) {
    return invalid_argument("--once: the message is empty; leave --once out for a conversation");
  }
  return {};
}

Status chat(const ChatFlags& flags) {
  ROTA_RETURN_IF_ERROR(check(flags));
  ROTA_ASSIGN_OR_RETURN(EngineOptions options, flags.engine.resolve());
  options.max_num_seqs = 1;
  ROTA_ASSIGN_OR_RETURN(
      const ModelLocation location,
      locate_model(options.model, {.revision = options.revision, .cache_dir = {}}));
  ROTA_ASSIGN_OR_RETURN(const ModelText text, load_model_text(location.dir));
  if (!text.chat) return text.chat_problem;
  ROTA_ASSIGN_OR_RETURN(const std::unique_ptr<EngineClient> engine,
                        open_engine(options, flags.hostfile));
  ROTA_ASSIGN_OR_RETURN(const EngineInfo info, engine->info());
  Conversation conversation(flags, *engine, info.max_model_len, text,
                            flags.sampling.over(info.default_sampling));
  return flags.once.empty() ? talk(conversation) : conversation.ask(flags.once);
}

}  // namespace

CommandRun add_chat(CLI::App& app) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App& command = *app.add_subcommand("chat", "talk with a model on the terminal");
  flags->engine.add_to(command);
  hostfile_flag(command, flags->hostfile);
  flags->sampling.add_to(command);
  flags->once_option = flag(command, "--once", flags->once, "answer this one message and exit")
                           ->type_name("MESSAGE");
  flag(command, "--system", flags->system, "system message")->type_name("TEXT");
  flag(command, "--reasoning-effort", flags->reasoning_effort,
       "low, medium or high, where the model knows it");
  flag(command, "--max-tokens", flags->max_tokens,
       "tokens of an answer; 0: what the context leaves");
  return [flags] { return chat(*flags); };
}

}  // namespace rota
