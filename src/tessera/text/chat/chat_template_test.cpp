// Chat templates against jinja2 (tools/golden/chat_templates.py), and what they must never let
// through: a token of control out of what somebody said.
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>

#include "tessera/base/mapped_file.h"
#include "tessera/base/sha256.h"
#include "tessera/base/testing.h"
#include "tessera/spec/json.h"
#include "tessera/text/chat/chat_template.h"
#include "tessera/text/chat/chat_testing.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/text/tokenizer_files/tokenizer_json.h"

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

// Each of them touches about a gigabyte and more. A second is what it is meant to take; the bound
// of the test leaves room for slow machines.
TEST(ChatTemplate, WorkIsBoundedByTheBytesThatItTouches) {
  const std::string grown =
      "{% set ns = namespace(x='ab') %}{% for i in range(19) %}{% set ns.x = ns.x + ns.x %}"
      "{% endfor %}{% set d = {ns.x: 1} %}{% for i in range(90000) %}";
  for (const std::string work :
       {"{% set y = {ns.x: 1}[ns.x] %}",
        "{% set y = d[ns.x] %}",
        "{% set y = d.items() %}",
        "{% set y = d.get(ns.x) %}",
        "{% set y = dict(d) %}",
        "{% set y = d == d %}",
        "{% set y = ns.x | tojson %}",
        "{% set y = d | tojson %}",
        "{% set y = ns.x | upper | length %}",
        "{% set y = ns.x[::-1] %}",
        "{% set y = ns.x[1:] %}",
        "{% set y = ns.x[5] %}",
        "{% set y = ns.x | int %}",
        "{% set y = ns.x | float %}",
        "{% set y = ns.x | length %}",
        "{% set y = ns.x is upper %}",
        "{% set y = ns.x ~ 'a' %}",
        "{% set y = 'b' in ns.x | trim %}",
        "{% set y = (ns.x[:500000] ~ 'c') in ns.x %}",
        "{% set y = ns.x.replace('a', 'b') %}",
        "{% set y = ns.x.split('q') %}",
        "{% set y = ns.x.rfind('qa') %}",
        "{% set y = ns.x.startswith(ns.x) %}",
        "{% set y = ns.x == ns.x ~ '' %}",
        "{% set y = [ns.x, ns.x] | sort %}",
        "{% set y = [ns.x, ns.x] | unique %}",
        "{% set y = [ns.x] | map('lower') %}",
        "{% set y = ns.x | urlencode %}",
        "{% set y = ns.x | e %}",
        "{% set y = '%s' % ns.x %}",
        "{% set y = ns.x.format() %}",
        "{% set y = ns.x.strip('ab' * 1000) %}",
        "{% set y = [ns.x] | string %}",
        "{% set y = [1] | map(attribute=ns.x) %}",
        "{% set y = [d] | groupby(ns.x) %}",
        "{% set y %}{% generation %}{{ ns.x }}{% endgeneration %}{% endset %}"}) {
    const std::clock_t begin = std::clock();
    test::expect_error(ErrorKind::input, "more than a million steps",
                       [&] { rendered(grown + work + "{% endfor %}"); });
    EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 8.0) << work;
  }
}

// whoever waits for the text may leave while a slow template runs
TEST(ChatTemplate, ARunCanBeEndedFromOutside) {
  const ChatTemplate slow(
      "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}"
      "{% endfor %}",
      "test");
  struct Left {};
  int polls = 0;
  const auto run = [&](int most) {
    polls = 0;
    slow.render({.messages = user("x"), .poll = [&polls, most] {
                   if (++polls > most) throw Left{};
                 }});
  };
  EXPECT_THROW(run(0), Left);  // before any step
  EXPECT_EQ(polls, 1);
  EXPECT_THROW(run(5), Left);
  EXPECT_EQ(polls, 6);
  // all of a run is polled: a million steps, a thousand at a time; a range of 100,000 is one step of
  // some thousands
  test::expect_error(ErrorKind::input, "more than a million steps", [&] { run(1 << 20); });
  EXPECT_GE(polls, 900);
  EXPECT_LE(polls, 1001);
}

TEST(ChatTemplate, ALongConversationIsNoReasonToStop) {
  const std::string source =
      "{% for m in messages %}{{ '<|start|>' ~ m.role ~ '\n' }}"
      "{% if m.content is string and '</think>' in m.content %}{{ m.content.split('</think>')[-1] "
      "}}{% else %}{{ m.content | trim }}{% endif %}{{ m.content[:4] | tojson }}{% endfor %}";
  EXPECT_EQ(rendered(source, user(std::string(1 << 20, 'x'))).size(),
            std::string("<|start|>user\n").size() + (1 << 20) + std::string("\"xxxx\"").size());
}

TEST(ChatTemplate, WhatARunStopsAtNamesTheLine) {
  for (const auto& [source, words] : std::vector<std::pair<std::string, std::string>>{
           {"a\n{{ 1 // 0 }}", "[chat template] line 2: a division by 0"},
           {"a\nb\n{% if x.y %}{% endif %}", "line 3: \"x\" is undefined"},
           {"{% macro m() %}\n\n{{ 1 }}{% endmacro %}\n{{ m() + 1 }}", "line 4: "},
           {"\n{{ 'a' | round }}", "line 2: round of a text"},
           {"\n{{ [1] | batch(0) }}", "line 2: batch: linecount is 0"},
           {"{{ '%s' % (1, 2) }}", "line 1: %: more values"},
           {"{{ '%d' % 'a' }}", "%d of a text; expected a number"},
           {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "macro m takes 1 arguments"}})
    test::expect_error(ErrorKind::input, words, [&] { rendered(source); });
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
  for (const std::string inner : {"{{ c }}",
                                  "{{ c | trim }}",
                                  "{{ c | replace('x', 'y') }}",
                                  "{{ c[1:] }}",
                                  "{{ c[::-1][::-1] }}",
                                  "{{ c.split('z') | join('z') }}",
                                  "{{ messages | tojson }}",
                                  "{{ messages }}",
                                  "{{ c | lower }}",
                                  "{{ c | list | join }}",
                                  "{% set b %}{{ c }}{% endset %}{{ b }}",
                                  "{% filter trim %}{{ c }}{% endfilter %}",
                                  "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(c) }}",
                                  "{{ '{}'.format(c) }}",
                                  "{{ c | indent(2, true) }}",
                                  "{{ '' ~ c ~ '' }}",
                                  "{{ c * 2 }}",
                                  "{{ c | string | safe }}",
                                  "{{ c.strip() + c.lstrip('q') }}",
                                  "{{ '%s' % c }}",
                                  "{{ c | center(9) }}",
                                  "{{ '%5.40s' | format(c) }}",
                                  "{{ c | batch(2) | map('join') | join }}",
                                  "{{ c.rsplit('z', 1) | join('z') }}"}) {
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
