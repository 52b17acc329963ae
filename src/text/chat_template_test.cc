#include "text/chat_template.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "text/test_support.h"

namespace rota {
namespace {

Result<std::string> render(const std::string& source,
                           const OrderedJson& variables = OrderedJson::object(),
                           Template::Limits limits = {}) {
  Result<std::unique_ptr<Template>> compiled = Template::compile(source, "test");
  if (!compiled.ok()) return compiled.status();
  return (*compiled)->render(variables, /*unix_seconds=*/1751112000, {}, limits);
}

std::string text(const std::string& source, const OrderedJson& variables = OrderedJson::object()) {
  const Result<std::string> rendered = render(source, variables);
  return rendered.ok() ? *rendered : "ERROR " + rendered.status().message();
}

TEST(ChatTemplate, BlocksAreTrimmedAsTransformersDoes) {
  EXPECT_EQ(text("{% if true %}\na\n{% endif %}\n  {% set x = 1 %}\nb\n"), "a\nb");
}

TEST(ChatTemplate, PythonMethodsAndValues) {
  const OrderedJson v =
      OrderedJson::parse(R"({"s": " a,b ", "d": {"k": 1}, "n": null, "t": true})");
  EXPECT_EQ(text("{{ s.strip().split(',')[1] }}", v), "b");
  EXPECT_EQ(text("{{ s.strip().upper() }}{{ s.startswith(' ') }}", v), "A,BTrue");
  EXPECT_EQ(text("{% for k, x in d.items() %}{{ k }}={{ x }}{% endfor %}", v), "k=1");
  EXPECT_EQ(text("{{ d.get('z', 'none') }}{{ n }}{{ t }}", v), "noneNoneTrue");
  EXPECT_EQ(text("{{ 'x' ~ 1 }}{{ [1, 2][-1:] }}"), "x1[2]");
  EXPECT_EQ(
      text("{% for x in [1,2,3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}"),
      "13");
}

TEST(ChatTemplate, ToJsonIsPythons) {
  const OrderedJson v = OrderedJson::parse(
      R"({"x": {"z": [1, 2.0, 1e20, 1e-7, true, null], "a": "é<&>\"\n", "e": {}, "l": []}})");
  EXPECT_EQ(text("{{ x | tojson }}", v),
            R"({"z": [1, 2.0, 1e+20, 1e-07, true, null], "a": "é<&>\"\n", "e": {}, "l": []})");
  EXPECT_EQ(text("{{ x | tojson(ensure_ascii=true, sort_keys=true) }}", v),
            R"({"a": "\u00e9<&>\"\n", "e": {}, "l": [], "z": [1, 2.0, 1e+20, 1e-07, true, null]})");
  EXPECT_EQ(text("{{ {'a': [1, {'b': 2}], 'c': []} | tojson(indent=2) }}"),
            "{\n  \"a\": [\n    1,\n    {\n      \"b\": 2\n    }\n  ],\n  \"c\": []\n}");
  EXPECT_EQ(text("{{ [1, 2] | tojson(separators=(',', ':')) }}"), "[1,2]");
}

TEST(ChatTemplate, FunctionsOfTransformers) {
  const Result<std::string> raised = render("a{{ raise_exception('roles must alternate') }}");
  EXPECT_EQ(raised.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(raised.status().message().find("roles must alternate"), std::string::npos);
  EXPECT_EQ(text("{{ strftime_now('%Y-%m') }}"), "2025-06");
  EXPECT_EQ(text("{% for x in [1] %}{% generation %}g{{ x }}{% endgeneration %}{% endfor %}"),
            "g1");
  EXPECT_EQ(text("{%- generation -%} g {%- endgeneration -%}"), "g");
}

TEST(ChatTemplate, BadSyntaxIsAnErrorOfTheFile) {
  for (const char* source :
       {"{% if %}", "{{ a", "{% endfor %}", "{% unknown_tag %}", "{{ 1 | nofilter( }}"}) {
    const auto compiled = Template::compile(source, "m/chat_template.jinja");
    ASSERT_FALSE(compiled.ok()) << source;
    EXPECT_EQ(compiled.status().code(), StatusCode::kDataLoss);
    EXPECT_TRUE(compiled.status().message().starts_with("m/chat_template.jinja: chat template: "));
  }
  EXPECT_FALSE(Template::compile("\xFF", "x").ok());
}

// Each must be an error, in little time and memory.
void expect_refused(const std::string& source) {
  const Result<std::string> rendered = render(source, {{"messages", {1, 2, 3}}});
  ASSERT_FALSE(rendered.ok()) << source << " gave " << rendered->size() << " bytes";
  EXPECT_NE(rendered.status().code(), StatusCode::kInternal) << rendered.status().message();
  EXPECT_LT(rendered.status().message().size(), 1000u);
}

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(TemplateBomb, NestedParentheses) {
  expect_refused("{{ " + repeated("(", 6000) + "1" + repeated(")", 6000) + " }}");
  expect_refused("{{ " + repeated("[", 6000) + "1" + repeated("]", 6000) + " }}");
  expect_refused("{{ " + repeated("not ", 60000) + "1 }}");
  expect_refused(repeated("{% if 1 %}", 6000) + repeated("{% endif %}", 6000));
}

TEST(TemplateBomb, HugeRange) {
  expect_refused("{% for i in range(1000000000) %}{% endfor %}");
  expect_refused("{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}");
  expect_refused("{{ range(1000000000) | list | length }}");
}

TEST(TemplateBomb, HugeStrings) {
  expect_refused("{{ 'a' * 1000000000 }}");
  expect_refused("{{ ('a' * 1000000000) | length }}");
  expect_refused("{% set s = 'aaaaaaaa' %}" + repeated("{% set s = s ~ s %}", 40) +
                 "{{ s | length }}");
  expect_refused("{% set s = 'aaaaaaaa' %}" + repeated("{% set s = s + s %}", 40) +
                 "{{ s | length }}");
  expect_refused("{% set s = 'aaaaaaaa' %}" +
                 repeated("{% set s = s | replace('a', 'aaaa') %}", 30) + "x");
  expect_refused("{% set s = 'aaaaaaaa' %}" + repeated("{% set s = s.replace('a', 'aaaa') %}", 30) +
                 "x");
  expect_refused("{% set s = '&' %}" + repeated("{% set s = s | escape | string %}", 60) +
                 "{{ '&' * 999999999 }}");
  expect_refused("{{ 'x' | indent(999999999, true) }}");
  expect_refused("{{ '%999999999d' | format(1) }}");
  expect_refused("{{ ['a'] * 1000000000 }}");
  expect_refused("{{ ([['a' * 9999] * 9999] * 9999) | tojson }}");
}

TEST(TemplateBomb, EndlessOutput) {
  expect_refused("{% for i in range(90000) %}" + repeated("x", 1000) + "{% endfor %}");
  expect_refused("{% set x %}{% for i in range(90000) %}" + repeated("x", 10000) +
                 "{% endfor %}{% endset %}x");
}

// What fuel does not see: the worker dies of these.
TEST(TemplateBomb, SharedStructure) {
  const std::string doubled = "{% set x = ['a'] %}" + repeated("{% set x = [x, x] %}", 60);
  expect_refused(doubled + "{{ x }}");
  expect_refused(doubled + "{{ x | tojson }}");
  expect_refused(doubled + "{{ x ~ '' }}");
}

TEST(TemplateBomb, DeepStructure) {
  const std::string deep =
      "{% set ns = namespace(x=1) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor %}";
  expect_refused(deep + "{{ ns.x }}");
  expect_refused(deep + "{{ ns.x | tojson }}");
  expect_refused(deep + "{{ {ns.x: 1} }}");
}

TEST(TemplateBomb, EndlessExpressions) {
  expect_refused("{{ 1" + repeated("+1", 200000) + " }}");
  expect_refused("{{ " + repeated("-", 200000) + "1 }}");
  expect_refused("{{ x" + repeated(".y", 200000) + " }}");
}

TEST(TemplateBomb, Recursion) {
  expect_refused("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}");
  expect_refused("{% macro f() %}{% for x in [1] %}{{ f() }}{% endfor %}{% endmacro %}{{ f() }}");
  expect_refused("{% for x in [[1]] recursive %}{{ loop([x]) }}{% endfor %}");
}

TEST(TemplateBomb, SelfReference) {
  const std::string self = "{% set ns = namespace() %}{% set ns.x = ns %}";
  expect_refused(self + "{{ ns | tojson }}");
  expect_refused(self + "{{ ns }}");
  expect_refused(self + "{{ ns ~ '' }}");
}

TEST(TemplateBomb, OthersGoOn) {
  const auto compiled =
      Template::compile("{{ '{:999999999}'.format(1) if bomb else 'ok' }}", "test");
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  for (int round = 0; round < 2; ++round) {
    EXPECT_FALSE((*compiled)->render({{"bomb", true}}, 0, {}, {}).ok());
    const Result<std::string> good = (*compiled)->render({{"bomb", false}}, 0, {}, {});
    ASSERT_TRUE(good.ok()) << good.status().message();
    EXPECT_EQ(*good, "ok");
  }
}

TEST(TemplateBomb, IncludesAreNotThere) {
  expect_refused("{% include 'chat_template' %}");
  expect_refused("{% include '/etc/passwd' %}");
  expect_refused("{% extends 'chat_template' %}");
  expect_refused("{% import 'x' as y %}");
}

TEST(TemplateBomb, TimeFormat) {
  EXPECT_EQ(text("{{ strftime_now('%9999999d') | length < 99 }}").substr(0, 5) == "ERROR", false);
  expect_refused("{{ strftime_now('%Y' * 300) }}");
}

std::vector<pid_t> workers() {
  std::vector<pid_t> out;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "stat");
    std::string pid, name, state, parent;
    if (file >> pid >> name >> state >> parent && parent == std::to_string(getpid())) {
      out.push_back(std::stoi(pid));
    }
  }
  return out;
}

void signal_workers(int signal) {
  for (const pid_t pid : workers()) kill(pid, signal);
}

TEST(TemplateWorker, KilledFromOutsideIsReplaced) {
  const auto compiled = Template::compile("{{ x }}", "test");
  ASSERT_TRUE(compiled.ok());
  EXPECT_EQ(*(*compiled)->render({{"x", 1}}, 0, {}, {}), "1");
  signal_workers(SIGKILL);
  EXPECT_EQ(*(*compiled)->render({{"x", 2}}, 0, {}, {}), "2");
}

// Small requests wait for an answer; large ones do not even fit into the socket.
TEST(TemplateWorker, StoppedIsEndedAndReplaced) {
  for (const size_t size : {size_t{1}, size_t{4} << 20}) {
    const auto compiled = Template::compile("{{ x | length }}", "test");
    ASSERT_TRUE(compiled.ok());
    const OrderedJson variables = {{"x", std::string(size, 'a')}};
    EXPECT_EQ(*(*compiled)->render(variables, 0, {}, {}), std::to_string(size));
    const std::vector<pid_t> stopped = workers();
    ASSERT_EQ(stopped.size(), 1u);
    signal_workers(SIGSTOP);
    const Result<std::string> wedged =
        (*compiled)->render(variables, 0, {}, {.patience = std::chrono::milliseconds(50)});
    EXPECT_EQ(wedged.status().code(), StatusCode::kUnavailable) << wedged.status().message();
    EXPECT_NE(wedged.status().message().find("did not answer"), std::string::npos);
    EXPECT_EQ(workers(), std::vector<pid_t>{});
    EXPECT_EQ(*(*compiled)->render(variables, 0, {}, {}), std::to_string(size));
  }
}

TEST(TemplateWorker, ManyThreadsRenderAtOnce) {
  const auto compiled = Template::compile("{{ x * 2 }}", "test");
  ASSERT_TRUE(compiled.ok());
  std::vector<int> wrong(8, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const Result<std::string> got = (*compiled)->render({{"x", i}}, 0, {}, {});
        wrong[t] += !got.ok() || *got != std::to_string(2 * i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(8, 0));
}

TEST(ChatTemplates, PrecedenceOfTheFiles) {
  const test::TempDir dir;
  const auto shown = [&] {
    const Result<ChatTemplates> loaded = ChatTemplates::load(dir.path());
    if (!loaded.ok()) return std::string(to_string(loaded.status().code()));
    return loaded->choose(false).source() + "|" + loaded->choose(true).source();
  };
  EXPECT_EQ(shown(), to_string(StatusCode::kUnsupported));
  dir.write("tokenizer_config.json", R"({"chat_template": "config"})");
  EXPECT_EQ(shown(), "config|config");
  dir.write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]})");
  EXPECT_EQ(shown(), "d|t");
  dir.write("chat_template.json", R"({"chat_template": "json"})");
  EXPECT_EQ(shown(), "json|json");
  dir.write("chat_template.jinja", "jinja");
  EXPECT_EQ(shown(), "jinja|jinja");
}

TEST(ChatTemplates, DamagedFiles) {
  for (const char* config : {"{", "[]", R"({"chat_template": 1})", R"({"chat_template": [1]})",
                             R"({"chat_template": [{"name": 1, "template": "x"}]})",
                             R"({"chat_template": "{% if %}"})"}) {
    const test::TempDir dir;
    dir.write("tokenizer_config.json", config);
    const Result<ChatTemplates> loaded = ChatTemplates::load(dir.path());
    ASSERT_FALSE(loaded.ok()) << config;
    EXPECT_EQ(loaded.status().code(), StatusCode::kDataLoss) << config;
    EXPECT_NE(loaded.status().message().find("tokenizer_config.json"), std::string::npos);
  }
}

}  // namespace
}  // namespace rota
