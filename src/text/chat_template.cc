#include "text/chat_template.h"

#include <utility>

#include "platform/read_file.h"
#include "text/ffi.h"
#include "text/template_worker.h"

namespace rota {
namespace {

constexpr int64_t kMaxConfigBytes = 64 << 20;
// Fuel is an instruction, or 64 bytes of data made: enough for a template that goes through all
// messages a few times, and never more than 1 GiB.
constexpr uint64_t kBaseFuel = 2'000'000, kFuelForAByte = 4, kMaxFuel = 16'000'000;
constexpr size_t kMaxIdle = 2;  // processes kept for the next request
constexpr std::string_view kTooMuch = "needs too much time or memory";

// The members that a file gives; an empty object where there is no such file.
Result<OrderedJson> read_config(const std::filesystem::path& path) {
  Result<std::string> content = read_file(path, kMaxConfigBytes);
  if (!content.ok() && content.status().code() == StatusCode::kNotFound) {
    return OrderedJson::object();
  }
  if (!content.ok()) return content.status();
  OrderedJson json = OrderedJson::parse(*content, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return error(StatusCode::kDataLoss, "{}: expected a JSON object", path.string());
  }
  return json;
}

Status add(ChatTemplates& templates, const std::string& name, const OrderedJson& source,
           const std::filesystem::path& path) {
  if (!source.is_string()) {
    return error(StatusCode::kDataLoss, "{}: chat_template: expected a string", path.string());
  }
  ROTA_ASSIGN_OR_RETURN(templates.by_name[name],
                        Template::compile(source.get<std::string>(), path.string()));
  return {};
}

// A chat_template member: one source, or a list of {name, template}.
Status add_member(ChatTemplates& templates, const OrderedJson& config,
                  const std::filesystem::path& path) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return {};
  if (!found->is_array()) return add(templates, "default", *found, path);
  for (const OrderedJson& entry : *found) {
    const bool named = entry.is_object() && entry.contains("name") && entry["name"].is_string() &&
                       entry.contains("template");
    if (!named) {
      return error(StatusCode::kDataLoss,
                   "{}: chat_template: expected a list of {{name, template}}", path.string());
    }
    ROTA_RETURN_IF_ERROR(add(templates, entry["name"].get<std::string>(), entry["template"], path));
  }
  return {};
}

// bos_token and the like are a string, or an object that describes an added token.
OrderedJson special_tokens_of(const OrderedJson& config) {
  OrderedJson out = OrderedJson::object();
  for (const auto& [key, value] : config.items()) {
    if (!key.ends_with("_token")) continue;
    if (value.is_string()) out[key] = value;
    if (value.is_object() && value.contains("content") && value["content"].is_string()) {
      out[key] = value["content"];
    }
  }
  return out;
}

Status no_answer(std::string_view what, std::chrono::milliseconds patience) {
  return error(
      StatusCode::kUnavailable,
      "{}: the process of the chat template did not answer within {} ms and was ended; try "
      "again, a new one takes its place",
      what, patience.count());
}

}  // namespace

Template::Template(std::string source, std::string name)
    : source_(std::move(source)), name_(std::move(name)) {}

Template::~Template() = default;

Result<std::unique_ptr<Template>> Template::compile(std::string source, std::string name) {
  std::unique_ptr<Template> out(new Template(std::move(source), std::move(name)));
  ROTA_ASSIGN_OR_RETURN(std::unique_ptr<TemplateWorker> worker, out->new_worker());
  out->give_back(std::move(worker));
  return out;
}

// Null: there is none.
std::unique_ptr<TemplateWorker> Template::idle_worker() const {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) return nullptr;
  std::unique_ptr<TemplateWorker> worker = std::move(idle_.back());
  idle_.pop_back();
  return worker;
}

Result<std::unique_ptr<TemplateWorker>> Template::new_worker() const {
  ROTA_ASSIGN_OR_RETURN(std::unique_ptr<TemplateWorker> worker, TemplateWorker::start());
  const std::optional<TemplateReply> reply = worker->compile(source_);
  if (!reply && worker->timed_out()) return no_answer(name_, kTemplatePatience);
  if (!reply) {
    return error(StatusCode::kDataLoss, "{}: chat template: {} to read", name_, kTooMuch);
  }
  if (reply->code == kRotaTextOk) return worker;
  return ffi::failure(reply->code, name_ + ": chat template", reply->text);
}

void Template::give_back(std::unique_ptr<TemplateWorker> worker) const {
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kMaxIdle) idle_.push_back(std::move(worker));
}

Result<std::string> Template::render(const OrderedJson& variables, int64_t unix_seconds,
                                     const TextMarkers& markers, Limits limits) const {
  TemplateRequest request{
      .variables = variables.dump(-1, ' ', false, OrderedJson::error_handler_t::replace),
      .fuel = limits.fuel,
      .max_output = limits.max_output,
      .unix_seconds = unix_seconds,
      .markers = markers};
  if (limits.patience.count() > 0) request.patience = limits.patience;
  if (request.fuel == 0) {
    request.fuel =
        std::min<uint64_t>(kBaseFuel + kFuelForAByte * request.variables.size(), kMaxFuel);
  }
  std::unique_ptr<TemplateWorker> worker = idle_worker();
  std::optional<TemplateReply> reply;
  if (worker != nullptr) reply = worker->render(request);
  const auto replaceable = [&] { return !worker->timed_out() && !worker->died_of_template(); };
  if (!reply && (worker == nullptr || replaceable())) {
    // None was idle, or that one was killed meanwhile.
    ROTA_ASSIGN_OR_RETURN(worker, new_worker());
    reply = worker->render(request);
  }
  if (!reply && worker->timed_out()) return no_answer("messages", request.patience);
  if (!reply) return invalid_argument("messages: the chat template {}", kTooMuch);
  give_back(std::move(worker));
  if (reply->code != kRotaTextOk) {
    return ffi::failure(reply->code, "messages: the chat template", reply->text);
  }
  return std::move(reply->text);
}

Result<ChatTemplates> ChatTemplates::load(const std::filesystem::path& model_dir) {
  ChatTemplates out;
  const std::filesystem::path config_path = model_dir / "tokenizer_config.json";
  ROTA_ASSIGN_OR_RETURN(const OrderedJson config, read_config(config_path));
  out.special_tokens = special_tokens_of(config);

  const std::filesystem::path jinja_path = model_dir / "chat_template.jinja";
  Result<std::string> jinja = read_file(jinja_path, kMaxConfigBytes);
  if (jinja.ok()) {
    ROTA_RETURN_IF_ERROR(add(out, "default", *jinja, jinja_path));
  } else if (jinja.status().code() != StatusCode::kNotFound) {
    return jinja.status();
  } else {
    const std::filesystem::path json_path = model_dir / "chat_template.json";
    ROTA_ASSIGN_OR_RETURN(const OrderedJson json, read_config(json_path));
    ROTA_RETURN_IF_ERROR(add_member(out, json, json_path));
    if (out.by_name.empty()) ROTA_RETURN_IF_ERROR(add_member(out, config, config_path));
  }
  if (out.by_name.empty()) {
    return error(
        StatusCode::kUnsupported,
        "{}: the model has no chat format: the vocabulary has no harmony tokens, and there "
        "is no template in chat_template.jinja, chat_template.json or tokenizer_config.json",
        model_dir.string());
  }
  return out;
}

const Template& ChatTemplates::choose(bool with_tools) const {
  if (with_tools) {
    if (const auto found = by_name.find("tool_use"); found != by_name.end()) return *found->second;
  }
  const auto found = by_name.find("default");
  return found != by_name.end() ? *found->second : *by_name.begin()->second;
}

}  // namespace rota
