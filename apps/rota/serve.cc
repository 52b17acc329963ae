// rota serve MODEL: the front process. The engine runs in its own, so that this one answers
// whatever happens there.
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "base/log.h"
#include "checkpoint/generation_config.h"
#include "checkpoint/locate.h"
#include "engine/load_engine.h"
#include "platform/clock.h"
#include "rota/command.h"
#include "rota/flags.h"
#include "rota/open_engine.h"
#include "server/app.h"
#include "server/http/http_server.h"
#include "supervisor/engine_process.h"
#include "supervisor/hostfile.h"

namespace rota {
namespace {

namespace asio = boost::asio;

struct ServeFlags {
  EngineFlags engine;
  HttpOptions http;
  std::vector<std::string> names;
  std::string api_key;
  std::string api_key_file;
  std::vector<std::string> allowed_hosts;
  std::vector<std::string> allowed_origins;
  double drain_seconds = 30;
  RestartLimits restarts;
  double heartbeat_timeout = EngineProcessOptions().heartbeat_timeout;
  double health_timeout = ServerOptions().health_timeout;
  std::string hostfile;
};

// A secret from a file or the environment stays out of the process list.
Result<std::string> read_key(const ServeFlags& flags) {
  if (flags.api_key_file.empty()) return flags.api_key;
  std::ifstream file(flags.api_key_file);
  std::string key;
  if (!file || !std::getline(file, key) || key.empty()) {
    return error(StatusCode::kNotFound,
                 "--api-key-file {}: expected a readable file with the key in its first line",
                 flags.api_key_file);
  }
  return key;
}

Result<AccessRules> read_access(const ServeFlags& flags) {
  AccessRules rules;
  ROTA_ASSIGN_OR_RETURN(rules.api_key, read_key(flags));
  ROTA_ASSIGN_OR_RETURN(rules.allowed_hosts, read_list("--allowed-hosts", flags.allowed_hosts));
  rules.allowed_hosts.push_back(flags.http.host);
  ROTA_ASSIGN_OR_RETURN(rules.allowed_origins,
                        read_list("--allowed-origins", flags.allowed_origins));
  return rules;
}

std::string address_of(const HttpOptions& http, uint16_t port) {
  const bool any = http.host == "0.0.0.0" || http.host == "::";
  const std::string host = any                                        ? "127.0.0.1"
                           : http.host.find(':') != std::string::npos ? "[" + http.host + "]"
                                                                      : http.host;
  return fmt::format("http://{}:{}", host, port);
}

// Says when the model answers, with something to try. One that never can ends the program: who
// started it sees that, and not a server that refuses.
awaitable<void> announce(asio::io_context& io, const SocketEngineClient& engine,
                         std::string address, std::string model, bool has_key, int& exit_code) {
  asio::steady_timer timer(io);
  for (;;) {
    const EngineState state = engine.state();
    if (state == EngineState::kReady) break;
    if (state == EngineState::kFailed) {
      log::error("the model cannot be served: {}", engine.info().status().message());
      exit_code = 1;
      io.stop();
      co_return;
    }
    timer.expires_after(std::chrono::milliseconds(50));
    co_await timer.async_wait(asio::use_awaitable);
  }
  std::fprintf(
      stderr,
      "\nrota is ready.  Page: %s/\n  try: curl %s/v1/chat/completions -H 'content-type: "
      "application/json' "
      "%s-d '{\"model\": \"%s\", \"messages\": [{\"role\": \"user\", \"content\": \"What is "
      "the capital of "
      "France?\"}]}'\n\n",
      address.c_str(), address.c_str(), has_key ? "-H \"authorization: Bearer $KEY\" " : "",
      model.c_str());
}

// The first of the signals: no new requests, those that run may finish; the second ends at once.
awaitable<void> drain_on_signal(asio::io_context& io, asio::signal_set& signals, ServerApp& app,
                                HttpServer& server, SocketEngineClient& engine, double seconds) {
  co_await signals.async_wait(asio::use_awaitable);
  log::info("shutting down: {} requests may finish within {:.0f} s", app.running_requests(),
            seconds);
  app.start_draining();
  bool again = false;
  signals.async_wait([&again](boost::system::error_code failed, int) { again = !failed; });
  asio::steady_timer timer(io);
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  while (!again && app.running_requests() > 0 && Clock::now() < deadline) {
    timer.expires_after(std::chrono::milliseconds(20));
    co_await timer.async_wait(asio::use_awaitable);
  }
  server.stop_accepting();
  // Those that are left get an error, and a moment to be told of it.
  if (app.running_requests() > 0) engine.drain(0);
  for (int i = 0; i < 25 && app.running_requests() > 0; ++i) {
    timer.expires_after(std::chrono::milliseconds(20));
    co_await timer.async_wait(asio::use_awaitable);
  }
  io.stop();
}

// As many descriptors as the system allows, and no more connections than leave some for the rest.
int64_t connections_allowed() {
  constexpr int64_t kReserve = 48;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kReserve;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  getrlimit(RLIMIT_NOFILE, &limit);
  const auto descriptors = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, 1 << 20));
  return std::max<int64_t>(descriptors - kReserve, 8);
}

Status check_hosts(const ServeFlags& flags, const ParallelOptions& parallel) {
  if (flags.hostfile.empty()) return {};
  const int ranks = parallel.tensor_parallel_size * parallel.data_parallel_size;
  if (ranks == 1) {
    return invalid_argument(
        "--hostfile {}: there is one rank, and it runs here; give -tp or -dp for more",
        flags.hostfile);
  }
  ROTA_ASSIGN_OR_RETURN(const std::vector<HostSlots> hosts, read_hostfile(flags.hostfile));
  return check_slots(flags.hostfile, hosts, ranks);
}

// The engine gives a sign twice a second, and parked ranks meet once: less would be a false alarm.
Status check_timeout(std::string_view flag, double seconds) {
  constexpr double kLeast = 2;
  if (seconds >= kLeast) return {};
  return invalid_argument("{}: {} is not {} seconds or more", flag, seconds, kLeast);
}

Status serve(const ServeFlags& flags) {
  std::signal(SIGPIPE, SIG_IGN);
  HttpOptions http = flags.http;
  http.max_connections = std::min(http.max_connections, connections_allowed());
  ROTA_ASSIGN_OR_RETURN(EngineOptions options, flags.engine.resolve());
  ROTA_RETURN_IF_ERROR(check_hosts(flags, options.parallel));
  ROTA_RETURN_IF_ERROR(check_timeout("--heartbeat-timeout", flags.heartbeat_timeout));
  ROTA_RETURN_IF_ERROR(check_timeout("--health-timeout", flags.health_timeout));
  ROTA_ASSIGN_OR_RETURN(
      const ModelLocation location,
      locate_model(options.model, {.revision = options.revision, .cache_dir = {}}));
  ROTA_RETURN_IF_ERROR(check_engine(options, location.dir, flags.hostfile));
  ROTA_ASSIGN_OR_RETURN(const GenerationConfig generation, read_generation_config(location.dir));
  ROTA_ASSIGN_OR_RETURN(ModelText text, load_model_text(location.dir));

  ServerOptions server_options;
  server_options.model_names =
      flags.names.empty() ? std::vector<std::string>{location.name} : flags.names;
  server_options.health_timeout = flags.health_timeout;
  ROTA_ASSIGN_OR_RETURN(server_options.access, read_access(flags));
  if (options.generation_config == GenerationConfigChoice::kAuto) {
    server_options.sampling_defaults = default_sampling(generation);
  }

  asio::io_context io(1);
  const std::string model = server_options.model_names.front();
  const bool has_key = !server_options.access.api_key.empty();
  // The port is taken before a model is loaded for it. Nobody is answered before io.run().
  std::unique_ptr<ServerApp> app;
  HttpServer server(io, http, [&app](HttpRequest request, HttpExchange& exchange) {
    return app->handle(std::move(request), exchange);
  });
  ROTA_RETURN_IF_ERROR(server.listen());
  server_options.access.loopback_only = server.is_loopback();
  const std::string address = address_of(http, server.port());
  log::info("listening on {}", address);
  // Caught until the engine is gone: else a second one would leave the files of its ranks.
  asio::signal_set signals(io, SIGTERM, SIGINT);
  ROTA_ASSIGN_OR_RETURN(std::unique_ptr<SocketEngineClient> engine,
                        SocketEngineClient::start({.engine = options,
                                                   .hostfile = flags.hostfile,
                                                   .heartbeat_timeout = flags.heartbeat_timeout,
                                                   .restarts = flags.restarts}));
  app = std::make_unique<ServerApp>(io, *engine, std::move(text), std::move(server_options));
  int exit_code = 0;
  asio::co_spawn(io, announce(io, *engine, address, model, has_key, exit_code), asio::detached);
  asio::co_spawn(io, drain_on_signal(io, signals, *app, server, *engine, flags.drain_seconds),
                 asio::detached);
  io.run();
  // Coroutines of open connections still hold the app: the engine ends, then the process, without
  // unwinding them.
  engine.reset();
  std::fflush(nullptr);
  std::_Exit(exit_code);
}

}  // namespace

CommandRun add_serve(CLI::App& app) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App& command =
      *app.add_subcommand("serve", "serve a model over HTTP: OpenAI's API and a page");
  flags->engine.add_to(command);
  const std::string group = "Server";
  flag(command, "--host", flags->http.host, "address to listen on")->group(group);
  flag(command, "--port", flags->http.port, "port to listen on; 0: any free one")->group(group);
  list_flag(command, "--served-model-name", flags->names,
            "names that clients may use; the first is shown")
      ->group(group);
  // No default shown and none kept in help texts: it is a secret.
  command.add_option("--api-key", flags->api_key, "clients must send this key")
      ->envname("ROTA_API_KEY")
      ->group(group);
  flag(command, "--api-key-file", flags->api_key_file, "the same, from the first line of a file")
      ->group(group);
  list_flag(command, "--allowed-hosts", flags->allowed_hosts,
            "names of this server, beside loopback ones, while it listens on loopback only; *: any")
      ->group(group);
  list_flag(command, "--allowed-origins", flags->allowed_origins,
            "origins of web pages that may use the server, as a JSON or comma list; *: any")
      ->group(group);
  flag(command, "--drain-seconds", flags->drain_seconds,
       "after SIGTERM, how long running requests may take")
      ->group(group);
  flag(command, "--max-failures", flags->restarts.max_failures,
       "an engine that fails more often within --max-failure-minutes is not started again")
      ->group(group);
  flag(command, "--max-failure-minutes", flags->restarts.max_failure_minutes,
       "minutes of service in which failures of the engine are counted")
      ->group(group);
  flag(command, "--heartbeat-timeout", flags->heartbeat_timeout,
       "an engine whose process, or rank 0, gave no sign for so many seconds is started again")
      ->group(group);
  flag(
      command, "--health-timeout", flags->health_timeout,
      "/health is 503 when the engine, all its ranks, has ended no step for so many seconds and is "
      "not idle either")
      ->group(group);
  hostfile_flag(command, flags->hostfile);
  return [flags] { return serve(*flags); };
}

}  // namespace rota
