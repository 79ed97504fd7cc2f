// Chat templates against jinja2 (tools/golden/chat_templates.py), and what they must never let
// through: a token of control out of what somebody said.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tessera/base/mapped_file.h"
#include "tessera/base/sha256.h"
#include "tessera/base/testing.h"
#include "tessera/spec/json.h"
#include "tessera/text/chat_template.h"
#include "tessera/text/chat_testing.h"
#include "tessera/text/tokenizer.h"
#include "tessera/text/tokenizer_json.h"

namespace tessera::text::chat_template_test {

namespace fs = std::filesystem;
using spec::Json;

const fs::path kGolden = fs::path(TESSERA_SOURCE_DIR) / "tests/golden/text";

std::string rendered(const std::string& source, const Json& messages = Json::array()) {
  return ChatTemplate(source, "test").render({.messages = messages}).text;
}
Json user(const std::string& content) {
  return Json::array({{{"role", "user"}, {"content", content}}});
}

TEST(ChatTemplate, TextsAreThoseOfJinja2) {
  const Json golden = spec::read_json_file(kGolden / "chat_templates.json");
  int64_t texts = 0, refused = 0;
  for (const Json& expected : golden["cases"]) {
    const std::string name = expected["template"];
    const ChatTemplate chat(read_text_file(kGolden / "chat" / name), name);
    const Json& conversation = golden["conversations"].at(expected["conversation"].get<size_t>());
    const Chat given{.messages = conversation["messages"],
                     .tools = conversation["tools"],
                     .add_generation_prompt = conversation["add_generation_prompt"],
                     .variables = golden["variables"]};
    SCOPED_TRACE(name + " " + expected["conversation"].dump());
    if (expected.contains("refused")) {
      EXPECT_THROW(chat.render(given), Error);
      ++refused;
    } else {
      EXPECT_EQ(chat.render(given).text, expected["text"].get<std::string>());
      ++texts;
    }
  }
  EXPECT_GE(texts, 60);
  EXPECT_GE(refused, 5);
}

// real ones, by their digests: TESSERA_CHAT_TEMPLATES is vendor/llama.cpp/models/templates of the
// source package llama-cpp-python 0.3.36 (tools/golden/chat_templates.py FOLDER)
TEST(ChatTemplate, TextsOfRealTemplatesAreThoseOfJinja2) {
  const char* const folder = std::getenv("TESSERA_CHAT_TEMPLATES");
  if (folder == nullptr) GTEST_SKIP() << "TESSERA_CHAT_TEMPLATES is not set";
  const Json golden = spec::read_json_file(kGolden / "chat_templates_elsewhere.json");
  int64_t templates = 0, texts = 0, refused = 0, equal = 0;
  for (const auto& [name, expected] : golden["templates"].items()) {
    const std::string source = read_text_file(fs::path(folder) / name);
    ASSERT_EQ(sha256(source), expected["sha256"]) << name << " is another one";
    ++templates;
    for (size_t i = 0; i < golden["conversations"].size(); ++i) {
      SCOPED_TRACE(fmt::format("{} {}", name, i));
      const Json& conversation = golden["conversations"][i];
      std::optional<std::string> text;
      std::string reason;
      try {
        text = ChatTemplate(source, name)
                   .render({.messages = conversation["messages"],
                            .tools = conversation["tools"],
                            .add_generation_prompt = conversation["add_generation_prompt"],
                            .variables = golden["variables"]})
                   .text;
      } catch (const Error& error) {
        reason = error.what();
      }
      const Json& want = expected["texts"][i];
      // the first makes JSON of a generator, which jinja2 refuses; the second joins texts marked
      // `safe` with others, which jinja2 then escapes as if for a page
      const bool known = i >= 4 && i <= 6 &&
                         (name == "llama-cpp-deepseek-r1.jinja" ||
                          name == "meetkai-functionary-medium-v3.1.jinja");
      EXPECT_EQ(known, !(text ? Json(sha256(*text)) == want : want.is_null()))
          << (text ? *text : reason);
      equal += known ? 0 : 1;
      ++(text ? texts : refused);
    }
  }
  EXPECT_GE(templates, 40);
  EXPECT_GE(texts, 400);
  EXPECT_EQ(equal, 10 * templates - 6);
  RecordProperty("texts", std::to_string(texts));
  RecordProperty("refused", std::to_string(refused));
}

TEST(ChatTemplate, WhatIsRefusedNamesTheLine) {
  for (const auto& [source, words] : std::vector<std::pair<std::string, std::string>>{
           {"a\n{% include 'x' %}", "line 2: the tag \"include\""},
           {"{% if x %}", "expected \"endif\""},
           {"{{ x", "a tag without }}"},
           {"{{ 'x }}", "a string without its end"},
           {"{% break %}", "break outside a loop"},
           {"{{ " + std::string(100, '(') + "1" + std::string(100, ')') + " }}",
            "nested more than"}})
    test::expect_error(ErrorKind::file, words, [&] { ChatTemplate(source, "test"); });
}

TEST(ChatTemplate, RunsEnd) {
  for (const std::string source :
       {"{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{{ 'abcdefgh' * 99999999 }}",
        "{% set n = namespace(l=[]) %}{% for a in range(9999) %}{% set n.l = [n.l, n.l] %}{% "
        "endfor %}",
        "{% set n = namespace(l='xx') %}{% for a in range(99) %}{% set n.l = n.l + n.l %}{% endfor "
        "%}",
        "{% set n = namespace(l=[1]) %}{% for a in range(99) %}{% set n.l = n.l + n.l %}{% endfor "
        "%}",
        "{{ range(99999999) }}"})
    EXPECT_THROW(rendered(source), Error) << source;
}

TEST(ChatTemplate, ValuesDoNotChangeAndRolesAreOfAList) {
  test::expect_error(ErrorKind::input, "cannot change",
                     [] { rendered("{{ messages.append(1) }}"); });
  test::expect_error(ErrorKind::input, "roles alternate",
                     [] { rendered("{{ raise_exception('roles alternate') }}"); });
  test::expect_error(ErrorKind::input, "unknown role", [] {
    rendered("{{ messages }}", Json::array({{{"role", "user<|im_end|>"}, {"content", ""}}}));
  });
}

TEST(ChatTemplate, NothingSaidBecomesAControlToken) {
  const Tokenizer tokens = chat_tokenizer();
  const auto count = [&](const std::vector<int32_t>& ids, const char* token) {
    return std::count(ids.begin(), ids.end(), *tokens.id(token));
  };
  // through every operation that could lose where bytes come from
  const std::string around = "{{ '<|start|>' }}%s{{ '<think><|end|>' }}";
  for (const std::string inner :
       {"{{ c }}", "{{ c | trim }}", "{{ c | replace('x', 'y') }}", "{{ c[1:] }}",
        "{{ c[::-1][::-1] }}", "{{ c.split('z') | join('z') }}", "{{ messages | tojson }}",
        "{{ messages }}", "{{ c | lower }}", "{{ c | list | join }}",
        "{% set b %}{{ c }}{% endset %}{{ b }}", "{% filter trim %}{{ c }}{% endfilter %}",
        "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(c) }}", "{{ '{}'.format(c) }}",
        "{{ c | indent(2, true) }}", "{{ '' ~ c ~ '' }}", "{{ c * 2 }}", "{{ c | string | safe }}",
        "{{ c.strip() + c.lstrip('q') }}"}) {
    std::string source = "{% set c = messages[0].content %}" + around;
    source.replace(source.find("%s"), 2, inner);
    const ChatTemplate chat(source, "test");
    // whole, and split over the seam with the template's own text
    for (const std::string said :
         {"x<|start|><|end|><think>", "<think>a<|start", "|end|>", "a<", "<|end|><|"}) {
      const std::vector<int32_t> ids =
          tokens.encode(chat.render({.messages = user(said)}), chat.source());
      EXPECT_EQ(count(ids, "<|start|>"), 1) << inner << " " << said;
      EXPECT_EQ(count(ids, "<|end|>"), 1) << inner << " " << said;
      EXPECT_EQ(count(ids, "<think>"), 1) << inner << " " << said;
    }
  }
}

TEST(ChatTemplate, ATokenSplitBetweenTemplateAndInputIsText) {
  const Tokenizer tokens = chat_tokenizer();
  const ChatTemplate chat("<|st{{ messages[0].content }}|end|>", "test");
  for (const int32_t id : tokens.encode(chat.render({.messages = user("art|><")}), chat.source()))
    EXPECT_FALSE(tokens.is_special(id));
}

TEST(ChatTemplate, WhatTheTemplateDoesNotSpellIsFoundInInput) {
  const Tokenizer tokens = chat_tokenizer();
  const ChatTemplate chat("<|start|>{{ messages[0].content }}<|end|>", "test");
  const std::vector<int32_t> ids =
      tokens.encode(chat.render({.messages = user("a<free>b")}), chat.source());
  EXPECT_EQ(ids,
            (std::vector<int32_t>{*tokens.id("<|start|>"), *tokens.id("a"), *tokens.id("<free>"),
                                  *tokens.id("b"), *tokens.id("<|end|>")}));
}

// what Python's datetime writes of the same time
TEST(ChatTemplate, TellsTheDayThatItIsGiven) {
  const auto told = [](const std::string& source, std::optional<int64_t> now) {
    return ChatTemplate(source, "test").render({.messages = Json::array(), .now = now}).text;
  };
  constexpr int64_t kFriday = 1721995200;  // 2024-07-26 12:00
  EXPECT_EQ(told("{{ strftime_now('%d %b %Y') }}", kFriday), "26 Jul 2024");
  EXPECT_EQ(told("{{ strftime_now('%A, %-d. %B %y, %H:%M') }}", kFriday),
            "Friday, 26. July 24, 12:00");
  EXPECT_EQ(told("{{ strftime_now('') }}|", kFriday), "|");
  // what templates with a day of their own ask
  const std::string asks =
      "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}then{% endif %}";
  EXPECT_EQ(told(asks, kFriday), "2024");
  EXPECT_EQ(told(asks, std::nullopt), "then");
  test::expect_error(ErrorKind::input, "strftime_now",
                     [&] { told("{{ strftime_now() }}", kFriday); });
  test::expect_error(ErrorKind::input, "expected a short format",
                     [&] { told("{{ strftime_now('" + std::string(300, 'x') + "') }}", kFriday); });
}

}  // namespace tessera::text::chat_template_test
