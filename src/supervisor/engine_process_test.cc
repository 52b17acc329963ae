// The engine's process, for real: this test program is the worker too (see main below).
#include "supervisor/engine_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/engine_server.h"
#include "engine/wire.h"
#include "supervisor/child_process.h"
#include "supervisor/testing/engine_process_run.h"

namespace rota {
namespace {

using testing::Answer;
using testing::eventually;
using testing::greedy;
using ::testing::HasSubstr;
using testing::kPatience;
using testing::model_dir;
using testing::process_options;
using testing::start_ready;

TEST(EngineProcess, AnswersWithTheGoldenTokens) {
  std::ifstream file(model_dir("gptoss-mxfp4-h160") + "/golden.json");
  const nlohmann::json prompts = nlohmann::json::parse(file)["prompts"];
  const auto engine = start_ready();
  EXPECT_EQ(engine->state(), EngineState::kReady);
  const EngineInfo info = engine->info().value();
  EXPECT_EQ(info.model_type, "gpt_oss");
  EXPECT_EQ(info.vocab_size, 1024);
  EXPECT_EQ(info.max_model_len, 4096);
  std::map<std::string, Answer> answers;
  for (const auto& [name, prompt] : prompts.items()) {
    const Status status = engine->submit(greedy(name, prompt["ids"], 32), answers[name].collect());
    ASSERT_TRUE(status.ok()) << status.message();
  }
  for (const auto& [name, prompt] : prompts.items()) {
    ASSERT_TRUE(answers[name].wait_for_end());
    EXPECT_EQ(answers[name].tokens(), prompt["greedy"].get<std::vector<int32_t>>());
    EXPECT_EQ(answers[name].id(), name);
  }
  EXPECT_TRUE(eventually([&] { return engine->stats().generation_tokens == 32 * 6; }));
}

TEST(EngineProcess, KilledWhileIdleItComesBack) {
  const auto engine = start_ready();
  const pid_t first = engine->pid();
  ::kill(first, SIGSEGV);
  ASSERT_TRUE(eventually([&] { return engine->restarts() == 1; }));
  ASSERT_TRUE(engine->wait_until_ready(kPatience).ok());
  Answer answer;
  ASSERT_TRUE(engine->submit(greedy("a", {1, 2, 3}, 4), answer.collect()).ok());
  EXPECT_TRUE(answer.wait_for_end());
  EXPECT_EQ(answer.finish_reason(), FinishReason::kLength);
}

// Clients that ask and leave while the process takes nothing: what it has not taken yet is dropped.
TEST(EngineProcess, AskingAndLeavingWhileTheProcessStandsStillCostsNoMemory) {
  EngineProcessOptions options = process_options();
  options.heartbeat_timeout = kPatience;
  const auto engine = start_ready(options);
  Answer before;
  ASSERT_TRUE(engine->submit(greedy("a", {1, 2, 3}, 8), before.collect()).ok());
  ASSERT_TRUE(before.wait_for_end());
  ::kill(engine->pid(), SIGSTOP);
  const std::vector<int32_t> prompt(4000, 5);
  constexpr int kClients = 2000;
  Answer nobody;
  for (int i = 0; i < kClients; ++i) {
    const std::string id = "gone-" + std::to_string(i);
    ASSERT_TRUE(engine->submit(greedy(id, prompt, 10), nobody.collect()).ok());
    engine->cancel(id);
  }
  // At most the message that is half in the socket, and cancellations of those that are in it.
  EXPECT_LT(engine->unsent_bytes(), int64_t{4} * 4000 * 2);
  ::kill(engine->pid(), SIGCONT);
  Answer after;
  ASSERT_TRUE(engine->submit(greedy("a", {1, 2, 3}, 8), after.collect()).ok());
  ASSERT_TRUE(after.wait_for_end());
  EXPECT_EQ(after.tokens(), before.tokens());
  EXPECT_TRUE(nobody.tokens().empty());
  EXPECT_TRUE(eventually([&] { return engine->stats().kv_usage == 0; }));
  EXPECT_EQ(engine->restarts(), 0);
}

TEST(EngineProcess, RefusedAtTheFrontWithoutAskingTheEngine) {
  const auto engine = start_ready();
  Answer answer;
  EXPECT_THAT(engine->submit(greedy("a", {1, 2}, 5000), answer.collect()).message(),
              HasSubstr("maximum context length is 4096"));
  ASSERT_TRUE(engine->submit(greedy("a", {1, 2}, 1000), answer.collect()).ok());
  EXPECT_THAT(engine->submit(greedy("a", {1, 2}, 10), answer.collect()).message(),
              HasSubstr("in use"));
  engine->cancel("a");
  Answer again;  // the name is free at once, and late tokens of the first one do not reach it
  ASSERT_TRUE(engine->submit(greedy("a", {1, 2}, 5), again.collect()).ok());
  ASSERT_TRUE(again.wait_for_end());
  EXPECT_EQ(again.tokens().size(), 5u);
}

TEST(EngineProcess, QueueFullIsTold) {
  EngineProcessOptions options = process_options();
  options.engine.max_num_seqs = 1;
  options.engine.max_waiting = 2;
  const auto engine = start_ready(options);
  std::vector<std::unique_ptr<Answer>> answers;
  Status status;
  int accepted = 0;
  for (int i = 0; i < 4; ++i) {
    answers.push_back(std::make_unique<Answer>());
    status = engine->submit(greedy(std::to_string(i), {1, 2}, 2000), answers.back()->collect());
    accepted += status.ok() ? 1 : 0;
  }
  EXPECT_EQ(accepted, 3);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  for (int i = 0; i < 3; ++i) engine->cancel(std::to_string(i));
  EXPECT_TRUE(eventually([&] {
    const EngineStats stats = engine->stats();
    return stats.running == 0 && stats.waiting == 0 && stats.kv_usage == 0;
  }));
}

TEST(EngineProcess, CancelledRequestsFreeTheirPages) {
  const auto engine = start_ready();
  Answer answer;
  ASSERT_TRUE(engine->submit(greedy("a", {1, 2, 3}, 4000), answer.collect()).ok());
  ASSERT_TRUE(answer.wait_for_tokens(2));
  EXPECT_TRUE(eventually([&] { return engine->stats().kv_usage > 0; }));
  engine->cancel("a");
  EXPECT_TRUE(eventually([&] { return engine->stats().kv_usage == 0; }));
  EXPECT_EQ(answer.finish_reason(), FinishReason::kNone);
}

TEST(EngineProcess, AModelThatCannotBeLoadedSaysWhyAndStaysDown) {
  EngineProcessOptions options = process_options();
  options.engine.max_model_len = 1 << 20;
  const auto engine = SocketEngineClient::start(options).value();
  const Status status = engine->wait_until_ready(kPatience);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("--max-model-len"));
  EXPECT_EQ(engine->state(), EngineState::kFailed);
  Answer answer;
  EXPECT_EQ(engine->submit(greedy("a", {1}, 1), answer.collect()).code(), StatusCode::kUnavailable);
}

TEST(EngineProcess, ACrashLoopEndsWithTheReason) {
  EngineProcessOptions options = process_options();
  options.executable = "/bin/false";
  options.arguments = {};
  options.restarts.first_backoff = 0.01;
  options.restarts.max_failures = 2;
  const auto engine = SocketEngineClient::start(options).value();
  EXPECT_FALSE(engine->wait_until_ready(kPatience).ok());
  EXPECT_EQ(engine->state(), EngineState::kFailed);
  EXPECT_EQ(engine->restarts(), 2);
  EXPECT_THAT(engine->info().status().message(), HasSubstr("exited with code 1"));
}

TEST(EngineProcess, DrainRefusesNewAndFinishesOld) {
  const auto engine = start_ready();
  Answer answer;
  ASSERT_TRUE(engine->submit(greedy("a", {1, 2, 3}, 100), answer.collect()).ok());
  EXPECT_TRUE(engine->drain(kPatience));
  EXPECT_EQ(answer.finish_reason(), FinishReason::kLength);
  EXPECT_EQ(engine->state(), EngineState::kDraining);
  Answer late;
  EXPECT_EQ(engine->submit(greedy("b", {1}, 1), late.collect()).code(), StatusCode::kUnavailable);
}

TEST(EngineProcess, DrainPastItsDeadlineTellsTheRest) {
  const auto engine = start_ready();
  Answer answer;
  ASSERT_TRUE(engine->submit(greedy("a", {1, 2, 3}, 4000), answer.collect()).ok());
  EXPECT_FALSE(engine->drain(0.01));
  EXPECT_EQ(answer.finish_reason(), FinishReason::kError);
  EXPECT_EQ(answer.status().code(), StatusCode::kUnavailable);
}

TEST(EngineProcess, NoOrphanWhenTheFrontGoes) {
  pid_t pid = -1;
  {
    const auto engine = start_ready();
    pid = engine->pid();
  }
  EXPECT_EQ(::kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST(EngineProcess, NoOrphanWhenTheFrontIsKilled) {
  int pipe_fds[2];
  ASSERT_EQ(::pipe(pipe_fds), 0);
  const pid_t front = ::fork();
  if (front == 0) {  // a front of its own: starts an engine, tells its pid, waits to be killed
    const auto engine = SocketEngineClient::start(process_options()).value();
    const bool ready = engine->wait_until_ready(kPatience).ok();
    const pid_t pid = ready ? engine->pid() : -1;
    static_cast<void>(!::write(pipe_fds[1], &pid, sizeof pid));
    for (;;) ::pause();
  }
  pid_t engine_pid = -1;
  ASSERT_EQ(::read(pipe_fds[0], &engine_pid, sizeof engine_pid),
            static_cast<ssize_t>(sizeof engine_pid));
  ASSERT_GT(engine_pid, 0);
  ASSERT_EQ(::kill(engine_pid, 0), 0);
  ::kill(front, SIGKILL);
  ::waitpid(front, nullptr, 0);
  // A zombie of somebody else's is dead as well: its command line is empty.
  EXPECT_TRUE(eventually([&] {
    std::ifstream command("/proc/" + std::to_string(engine_pid) + "/cmdline");
    return !command || command.peek() == std::ifstream::traits_type::eof();
  }));
  ::close(pipe_fds[0]);
  ::close(pipe_fds[1]);
}

TEST(ChildProcess, InheritsNothingButItsSocketAndStandardError) {
  const int secret = ::dup(STDERR_FILENO);  // without close-on-exec, as an accepted socket may be
  auto child = ChildProcess::start({"/bin/sh", "-c", "ls /proc/self/fd | wc -l >&3", "sh"}).value();
  std::string text;
  ASSERT_TRUE(eventually([&] {
    char byte = 0;
    while (::recv(child.socket(), &byte, 1, 0) == 1) text += byte;
    return text.find('\n') != std::string::npos;
  }));
  EXPECT_EQ(std::stoi(text), 5);  // 0, 1, 2, the socket, and ls's own folder
  ::close(secret);
}

TEST(ChildProcess, ExitsAreDescribed) {
  EXPECT_THAT(describe_exit(SIGKILL), HasSubstr("signal 9"));
  EXPECT_THAT(describe_exit(74 << 8), HasSubstr("weights file became shorter"));
  EXPECT_EQ(describe_exit(3 << 8), "exited with code 3");
  EXPECT_THAT(describe_exit((128 + SIGBUS) << 8), HasSubstr("killed by signal 7 (Bus error)"));
  EXPECT_EQ(describe_exit(255 << 8), "exited with code 255");  // no signal has the number 127
}

// A worker whose front talks nonsense ends with an error; it does not crash.
TEST(EngineWorker, GarbageEndsItWithAnError) {
  const std::vector<std::string> garbage = {std::string("\xff\xff\xff\xff", 4),
                                            std::string("\0\0\0\0", 4),
                                            std::string("\x02\0\0\0\x91\x91", 6),
                                            std::string("\x01\0\0\0\xc1", 5),
                                            wire::encode(wire::Cancel{"before the start"}),
                                            wire::encode(wire::Start{"not JSON"})};
  for (const std::string& bytes : garbage) {
    auto child = ChildProcess::start({"/proc/self/exe", "engine-worker"}).value();
    ASSERT_EQ(::send(child.socket(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    ASSERT_TRUE(eventually([&] {
      char bytes_back[4096];
      return ::recv(child.socket(), bytes_back, sizeof bytes_back, 0) == 0;
    }));
    EXPECT_THAT(child.end(kPatience), HasSubstr("exited with code 66"));
  }
}

TEST(EngineWorker, EndsWhenTheFrontSaysNothing) {
  auto child = ChildProcess::start({"/proc/self/exe", "engine-worker"}).value();
  EXPECT_THAT(child.end(kPatience), HasSubstr("exited with code"));
}

}  // namespace
}  // namespace rota

int main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[1]) == "engine-worker") {
    return rota::run_engine_worker(std::atoi(argv[3]));
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
