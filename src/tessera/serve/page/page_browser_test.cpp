// The page in a real browser, over loopback, against a server of tiny models in this process.
// Skipped where there is no chromedriver: scripts/setup.sh browser.
#include <cmath>
#include <map>
#include <set>

#include "tessera/infer/encoders/judge_testing.h"
#include "tessera/model/plan.h"
#include "tessera/serve/page/web_driver.h"
#include "tessera/text/tokenizer_files/vocab_file.h"

namespace tessera::serve::page_browser_test {
namespace {

constexpr const char* kTab = "\uE004";
constexpr const char* kDown = "\uE015";
constexpr const char* kRight = "\uE014";
constexpr const char* kHome = "\uE011";
constexpr const char* kEscape = "\uE00C";
constexpr const char* kEnter = "\uE007";

class Page : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { driver_ = std::make_unique<DriverProgram>(); }
  static void TearDownTestSuite() { driver_.reset(); }

  void SetUp() override {
    if (driver_->port() == 0)
      GTEST_SKIP() << "there is no chromedriver; scripts/setup.sh browser installs one";
    browser_ = std::make_unique<Browser>(driver_->port());
  }
  void TearDown() override {
    if (!browser_) return;
    // nothing went wrong that only a console shows
    for (const Json& line : browser_->log("browser"))
      if (std::find(expected_.begin(), expected_.end(), line["level"]) == expected_.end())
        ADD_FAILURE() << line.dump();
    browser_.reset();
  }

  /// Serves, and opens the page at a tab.
  void open(const ServiceOptions& options, const std::string& tab = "") {
    server_ = std::make_unique<Running>(options);
    go(tab);
  }
  void go(const std::string& tab = "") {
    browser_->open("about:blank");
    browser_->open(address() + "/" + (tab.empty() ? "" : "#" + tab));
  }
  void open_tabs(const ServiceOptions& options, const std::string& tab = "") {
    open(options, tab);
    wait_for_tabs();
  }
  void wait_for_tabs() { browser_->until("return document.querySelector('[role=tab]')"); }
  std::string address() const { return "http://127.0.0.1:" + std::to_string(server_->port()); }
  /// The conversation as the page keeps it.
  Json conversation() {
    return spec::parse_json(
        browser_->run("return sessionStorage.getItem('tessera.chat') ?? '[]'").get<std::string>(),
        "conversation");
  }
  void set_up_chat(const Json& values) {
    browser_->run(
        "localStorage.setItem('tessera.settings/v1/chat/completions', "
        "JSON.stringify(arguments[0]))",
        {values});
    browser_->run("location.reload()");
    wait_for_tabs();
  }
  void wait_for_answer() {
    browser_->until(
        "return document.getElementById('send').textContent === 'Send' &&"
        " document.querySelector('.turn.assistant .figures')");
  }

  static std::unique_ptr<DriverProgram> driver_;
  std::unique_ptr<Running> server_;
  std::unique_ptr<Browser> browser_;
  std::vector<std::string> expected_;  // levels of the browser's log that a test provokes
};
std::unique_ptr<DriverProgram> Page::driver_;

TEST_F(Page, AChatIsWhatItsSeedSaysAlone) {
  open_tabs(options_of({"attention"}));
  set_up_chat({{"seed", "11"}, {"max_completion_tokens", "30"}, {"temperature", "0.9"}});
  browser_->type("#message", "hello");
  browser_->press(kEnter);
  wait_for_answer();
  const Json talk = conversation();
  ASSERT_EQ(talk.size(), 2u);
  EXPECT_EQ(talk[0]["content"], "hello");
  const Json alone =
      server_->client()
          .post(
              "/v1/chat/completions",
              {{"messages", user("hello")}, {"seed", 11}, {"max_tokens", 30}, {"temperature", 0.9}})
          .json();
  EXPECT_EQ(talk[1]["content"], alone["choices"][0]["message"]["content"]);
  EXPECT_EQ(talk[1]["seed"], 11);
  EXPECT_EQ(talk[1]["figures"]["tokens"], alone["usage"]["completion_tokens"]);
  // what was said is read aloud, whole
  const std::string aloud = browser_->text("#read-aloud");
  EXPECT_FALSE(aloud.empty());
  EXPECT_EQ(browser_->run("return document.getElementById('read-aloud').getAttribute('role')"),
            "log");
}

TEST_F(Page, EditAndRetryMakeTheConversationAnother) {
  open_tabs(options_of({"attention"}));
  set_up_chat({{"max_completion_tokens", "8"}});
  browser_->type("#message", "hello" + std::string(kEnter));
  wait_for_answer();
  const Json first = conversation();
  browser_->run(
      "[...document.querySelectorAll('.turn.assistant .actions button')]"
      ".find(b => b.textContent === 'Regenerate').click()");
  browser_->until(
      "return document.querySelector('.turn.assistant .hint')?.textContent === '2 of 2'");
  EXPECT_EQ(conversation()[1]["variants"][0]["content"], first[1]["content"]);
  browser_->run("document.querySelector('[aria-label=\"Previous answer\"]').click()");
  EXPECT_EQ(conversation()[1]["content"], first[1]["content"]);
  browser_->run(
      "[...document.querySelectorAll('.turn.user .actions button')]"
      ".find(b => b.textContent === 'Edit').click()");
  browser_->type(".turn.user textarea", " again");
  browser_->run("document.querySelector('.turn.user .main').click()");
  wait_for_answer();
  browser_->until("return document.querySelectorAll('.turn').length === 2");
  EXPECT_EQ(conversation()[0]["content"], "hello again");
}

TEST_F(Page, StopFreesTheRow) {
  open_tabs(options_of({"attention"}));
  // a drawn seed may give a text of nothing but marks, which Markdown does not show
  set_up_chat({{"seed", "11"},
               {"temperature", "0.9"},
               {"ignore_eos", true},
               {"max_completion_tokens", "100000"}});
  browser_->type("#message", "hello" + std::string(kEnter));
  browser_->until(
      "return document.querySelector('.turn.assistant .said')?.textContent.length > 20");
  EXPECT_EQ(browser_->text("#send"), "Stop");
  browser_->press(kEscape);
  wait_for_answer();
  EXPECT_EQ(conversation()[1]["finish"], "stopped");
  EXPECT_TRUE(server_->comes([&] { return server_->metrics().value("requests_running") == 0; }));
  EXPECT_NE(server_->metrics().text().find("finish=\"cancelled\"} 1"), std::string::npos);
}

TEST_F(Page, TokensShowTheProbabilitiesThatTheServerTells) {
  open_tabs(options_of({"attention"}), "completion");
  const Json told = server_->client()
                        .post("/v1/completions", {{"prompt", "hello"},
                                                  {"temperature", 0},
                                                  {"max_tokens", 5},
                                                  {"ignore_eos", true},
                                                  {"logprobs", 10}})
                        .json()["choices"][0]["logprobs"];
  browser_->run(
      "localStorage.setItem('tessera.settings/v1/completions', JSON.stringify("
      "{temperature: '0', max_completion_tokens: '5', ignore_eos: true}));"
      "sessionStorage.setItem('tessera.prompt', '\"hello\"'); location.reload()");
  wait_for_tabs();
  browser_->click("#complete");
  browser_->until(
      "return document.querySelectorAll('#panel-completion .tokens [role=button]').length === 5 &&"
      " document.getElementById('complete').textContent !== 'Stop'");
  browser_->run("document.querySelectorAll('#panel-completion .tokens [role=button]')[2].click()");
  const Json shown = browser_->run(
      "return [...document.querySelectorAll('#panel-completion .bars .value')]"
      ".map(v => parseFloat(v.textContent.replace('<', '')))");
  const Json rest = browser_->run(
      "return parseFloat([...document.querySelectorAll('#panel-completion .card .hint')]"
      ".map(h => h.textContent.match(/All others together: ([0-9.]+)/)?.[1]).find(x => x) ?? '0')");
  std::vector<double> expected;
  for (const auto& [token, log_p] : told["top_logprobs"][2].items())
    expected.push_back(100 * std::exp(log_p.get<double>()));
  std::sort(expected.rbegin(), expected.rend());
  ASSERT_EQ(shown.size(), expected.size());
  double sum = rest;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(shown[i].get<double>(), expected[i], 0.06) << i;
    sum += shown[i].get<double>();
  }
  EXPECT_NEAR(sum, 100, 0.5);
  // another token makes a branch, which goes on from it
  browser_->run("document.querySelectorAll('#panel-completion .bars button')[1].click()");
  browser_->until(
      "return document.querySelectorAll('.branches button').length === 2 &&"
      " document.getElementById('complete').textContent !== 'Stop'");
  EXPECT_EQ(browser_->run("return document.querySelectorAll('.branches button')[1]"
                          ".getAttribute('aria-pressed')"),
            "true");
}

TEST_F(Page, TheInspectorShowsThePlan) {
  open_tabs(options_of({"hybrid"}), "inspector");
  browser_->until("return document.querySelector('#figures')");
  const infer::LoadedModel model = tiny_loaded("hybrid");
  const int64_t parameters = model::make_plan(model.model.spec(), 1).parameters;
  const Json sums = browser_->run(
      "return [...document.querySelectorAll('#inspection section')].filter(s =>"
      " s.querySelector('h3')?.textContent.startsWith('Parameters by')).map(s =>"
      " [...s.querySelectorAll('tr td:nth-child(2)')].reduce((n, c) =>"
      " n + Number(c.textContent.replace(/\\D/g, '')), 0))");
  EXPECT_EQ(sums, Json::array({parameters, parameters}));
  // a part is chosen by the keyboard alone
  browser_->run("document.querySelectorAll('.node')[1].focus()");
  browser_->press(kEnter);
  EXPECT_GT(browser_->run("return document.querySelectorAll('#part tbody tr').length"), 3);
  EXPECT_EQ(browser_->run("return document.activeElement.getAttribute('aria-pressed')"), "true");
}

TEST_F(Page, AMapHasARowForEveryToken) {
  open_tabs(options_of({"attention"}), "mixing");
  browser_->until("return document.querySelector('#mixing-layer option')");
  browser_->run("const t = document.getElementById('mixing-text'); t.value = 'hello_there'");
  const auto tokens =
      server_->client().post("/tokenize", {{"content", "hello_there"}}).json()["count"].get<int>();
  browser_->click("#mixing-run");
  browser_->until("return document.querySelector('#map')");
  EXPECT_EQ(browser_->run("return document.querySelectorAll('#map rect').length"), tokens * tokens);
}

// layers by the server's answer, heads by choice; the table says what the map draws
TEST_F(Page, EachHeadHasAMapOfItsOwn) {
  open_tabs(options_of({"attention"}), "mixing");
  browser_->until("return document.querySelectorAll('#mixing-layer option').length > 1");
  EXPECT_EQ(browser_->run("return document.querySelectorAll('#mixing-head option').length"), 1);
  browser_->run("document.getElementById('mixing-text').value = 'hello_there'");
  browser_->run("document.getElementById('mixing-layer').selectedIndex = 1");
  browser_->click("#mixing-run");
  browser_->until("return document.querySelector('#map')");
  const Json asked =
      server_->client()
          .post("/token-mixing",
                {{"content", "hello_there"}, {"branch", "layers.1.mixer"}, {"weights", true}})
          .json();
  const auto heads = static_cast<int>(asked["weights"].size());
  ASSERT_GT(heads, 1);
  EXPECT_EQ(browser_->run("return document.querySelectorAll('#mixing-head option').length"),
            heads + 1);
  const std::string change = browser_->run("return document.getElementById('map').innerHTML");
  for (int head = 0; head < heads; ++head) {
    // by the keyboard, as a select is used
    browser_->type("#mixing-head", kDown);
    browser_->until(
        fmt::format("return document.querySelector('#map').getAttribute('aria-label')"
                    ".includes('head {};')",
                    head + 1));
    EXPECT_NE(browser_->run("return document.getElementById('map').innerHTML"), change);
    const Json& map = asked["weights"][static_cast<size_t>(head)];
    const Json said = browser_->run(
        "return [...document.querySelectorAll('#map-table tbody tr td:last-child')]"
        ".map(td => td.textContent)");
    ASSERT_EQ(said.size(), map.size());
    for (size_t i = 0; i < map.size(); ++i) {
      double most = 0;
      for (const Json& value : map[i]) most = std::max(most, value.get<double>());
      EXPECT_EQ(said[i], fmt::format("{:.3f}", most)) << head << " " << i;
    }
  }
  EXPECT_EQ(browser_->run("return [...document.querySelectorAll('#map rect title')].at(-1)"
                          ".textContent.split(': ')[1]"),
            fmt::format("{:.3f}", asked["weights"].back().back().back().get<double>()));
}

TEST_F(Page, AWrongKeyIsSaid) {
  ServiceOptions options = options_of({"attention"});
  options.access.key = "right";
  expected_ = {"SEVERE"};  // the browser's own words for 401
  open(options);
  browser_->until("return document.getElementById('key-dialog').open");
  browser_->type("#key-input", "wrong" + std::string(kEnter));
  browser_->until(
      "return document.getElementById('key-problem').textContent.includes('Invalid API key')");
  browser_->type("#key-input", "right" + std::string(kEnter));
  wait_for_tabs();
  EXPECT_FALSE(browser_->run("return document.getElementById('key-dialog').open").get<bool>());
  // it is nowhere that outlives the tab
  EXPECT_EQ(browser_->run("return JSON.stringify(localStorage).includes('right')"), false);
}

TEST_F(Page, WhatModelsWriteStaysText) {
  open_tabs(options_of({"attention"}));
  const std::string evil =
      "<img src=x onerror=\"document.title='taken'\"> <script>document.title='taken'</script> "
      "[a](javascript:alert(1)) **<b>x</b>** `<i>`\n\n```html\n<iframe src=//example.org>\n```\n\n"
      "| <u>a</u> | b |\n|---|---|\n| <svg onload=alert(1)> | c |";
  browser_->run(
      "sessionStorage.setItem('tessera.chat', JSON.stringify(["
      "{role: 'user', content: arguments[0]}, {role: 'assistant', content: arguments[0],"
      " reasoning: arguments[0]}])); location.reload()",
      {evil});
  wait_for_tabs();
  browser_->until("return document.querySelectorAll('.turn').length === 2");
  EXPECT_EQ(browser_->run("return document.querySelectorAll('#turns img, #turns script, #turns a, "
                          "#turns b, #turns i, #turns u, #turns iframe, #turns svg').length"),
            0);
  EXPECT_NE(browser_->text(".turn.assistant").find("<img src=x onerror="), std::string::npos);
  EXPECT_EQ(browser_->run("return document.title"), "Chat – tessera");
}

// --- settings

/// Fields that the tabs set themselves, that mean nothing on a page, or that streams do not have.
const std::set<std::string> kNoSettings = {"model",
                                           "user",
                                           "messages",
                                           "prompt",
                                           "stream",
                                           "stream_options",
                                           "logprobs",
                                           "top_logprobs",
                                           "n_probs",
                                           "reasoning",  // reasoning_effort in an object
                                           "echo",
                                           "best_of",
                                           "n",
                                           "return_token_ids",
                                           "timings_per_token",
                                           "continue_final_message",
                                           "add_generation_prompt",
                                           "cache_prompt",
                                           "beams",
                                           "length_penalty",
                                           "early_stopping"};

/// The type of a schema, without the null beside it.
std::string type_of(const Json& schema) {
  if (!schema.contains("type")) return "";
  if (schema["type"].is_string()) return schema["type"];
  for (const Json& type : schema["type"])
    if (type != "null") return type;
  return "";
}

/// The control that a person expects: tag, type of an input, and the role that a screen reader
/// says.
struct Expected {
  std::string tag, type, role;
};
Expected control_of(const std::string& name, const Json& schema) {
  static const std::map<std::string, Expected> kNamed = {
      {"stop", {"TEXTAREA", "textarea", "textbox"}},
      {"response_format", {"INPUT", "checkbox", "checkbox"}},
      {"structured_outputs", {"", "", "textbox"}},  // a line for the pattern, lines for choices
      {"tool_choice", {"SELECT", "select-one", "combobox"}},
      {"retrieve", {"INPUT", "checkbox", "checkbox"}}};
  if (const auto found = kNamed.find(name); found != kNamed.end()) return found->second;
  if (schema.contains("enum")) return {"SELECT", "select-one", "combobox"};
  const std::string type = type_of(schema);
  if (type == "number" || type == "integer") return {"INPUT", "number", "spinbutton"};
  if (type == "boolean") return {"INPUT", "checkbox", "checkbox"};
  if (type == "string" && schema["maxLength"] <= 4096) return {"INPUT", "text", "textbox"};
  if (type == "array" && schema["items"].value("type", "") == "integer")
    return {"INPUT", "text", "textbox"};
  return {"TEXTAREA", "textarea", "textbox"};  // long texts, lists of strings, JSON
}

TEST_F(Page, EverySettingHasTheControlOfItsTypeAndShowsWhatIsInForce) {
  open_tabs(options_of({"attention"}));
  const Json api = server_->client().get("/openapi.json").json();
  const Json in_force =
      server_->client().get("/props").json()["models"][0]["default_generation_settings"];
  size_t checked = 0;
  for (const std::string tab : {"chat", "completion"}) {
    browser_->click("#tab-" + tab);
    browser_->run("for (const d of document.querySelectorAll('main details')) d.open = true");
    const std::string path = tab == "chat" ? "/v1/chat/completions" : "/v1/completions";
    const Json& fields = api["paths"][path]["post"]["requestBody"]["content"]["application/json"]
                            ["schema"]["properties"];
    for (const auto& [name, schema] : fields.items()) {
      const std::string selector = "#panel-" + tab + " [data-field=\"" + name + "\"] ";
      const Json found = browser_->run(
          "return [...document.querySelectorAll(arguments[0])].map(e => ({name: e.name, "
          "tag: e.tagName, type: e.type, min: e.min ?? '', max: e.max ?? '', step: e.step ?? '',"
          " value: e.type === 'checkbox' ? e.checked : e.value, placeholder: e.placeholder ?? '',"
          " label: e.labels[0]?.textContent ?? '', hint: e.getAttribute('aria-describedby')"
          ".split(' ').map(id => document.getElementById(id).textContent).join('')}))",
          {selector + ":is(input, select, textarea)"});
      if (kNoSettings.contains(name) || schema.contains("x-no-effect") ||
          schema.value("description", "").starts_with("another name of") ||
          // of indexes, and of servers with priorities
          name == "retrieve" || name == "priority") {
        EXPECT_EQ(found, Json::array()) << tab << " " << name;
        continue;
      }
      ASSERT_FALSE(found.empty()) << tab << " " << name << " has no control";
      const Expected expected = control_of(name, schema);
      for (const Json& control : found) {
        const std::string what = tab + " " + name + " " + control.dump();
        if (!expected.tag.empty()) {
          EXPECT_EQ(control["tag"], expected.tag) << what;
          EXPECT_EQ(control["type"], expected.type) << what;
        }
        EXPECT_EQ(browser_->role(browser_->element(
                      selector + "[name=" + control["name"].get<std::string>() + "]")),
                  expected.role)
            << what;
        // words of a person: no name of a field, and a sentence that helps
        EXPECT_NE(control["label"], "") << what;
        EXPECT_EQ(control["label"].get<std::string>().find('_'), std::string::npos) << what;
        EXPECT_GT(control["hint"].get<std::string>().size(), 8u) << what;
        EXPECT_EQ(control["placeholder"].get<std::string>().find("JSON"), std::string::npos)
            << what;
        ++checked;
      }
      const Json& control = found[0];
      if (expected.type == "number") {
        EXPECT_FALSE(control["step"].get<std::string>().empty()) << name;
        for (const auto& [bound, attribute] :
             {std::pair("minimum", "min"), std::pair("maximum", "max")})
          if (schema.contains(bound) && std::abs(schema[bound].get<double>()) <= 1 << 20) {
            EXPECT_EQ(std::stod(control[attribute].get<std::string>()), schema[bound].get<double>())
                << name;
          }
      }
      // what the server would do is what the field shows
      Json shown = in_force.value(name, Json());
      if (!shown.is_number()) shown = schema.value("default", Json());
      if (shown.is_boolean()) {
        EXPECT_EQ(control["value"], shown) << name;
      } else if (shown.is_number()) {
        EXPECT_EQ(std::stod(control["value"].get<std::string>()), shown.get<double>()) << name;
      }
    }
  }
  EXPECT_GT(checked, 90u);
}

/// The settings of a person, typed; `kind` is the event that a browser would send.
const char* const kSet =
    "const e = document.querySelector('#panel-chat [name=' + arguments[0] + ']');"
    "if (e.type === 'checkbox') { if (e.checked !== arguments[1]) e.click(); return; }"
    "e.value = arguments[1];"
    "e.dispatchEvent(new Event(e.tagName === 'SELECT' ? 'change' : 'input'))";

TEST_F(Page, SettingsAreWhatTheirNamesSay) {
  open_tabs(options_of({"attention"}));
  const auto label = [&](const char* name) {
    return browser_->label(browser_->element("#panel-chat [name=" + std::string(name) + "]"));
  };
  browser_->run("for (const d of document.querySelectorAll('main details')) d.open = true");
  EXPECT_EQ(label("temperature"), "Temperature");
  EXPECT_EQ(browser_->run("const e = document.querySelector('[name=temperature]');"
                          "return [e.type, e.min, e.max]"),
            Json::array({"number", "0", "10"}));
  EXPECT_EQ(label("ignore_eos"), "Ignore end of text");
  EXPECT_EQ(browser_->run("const e = document.querySelector('[name=ignore_eos]');"
                          "return [e.type, e.checked]"),
            Json::array({"checkbox", false}));
  EXPECT_EQ(label("grammar"), "Grammar (GBNF)");
  EXPECT_EQ(label("regex"), "Regular expression");
  // the most used first, the others folded
  browser_->run("location.reload()");
  wait_for_tabs();
  const Json shown = browser_->run(
      "return [...document.querySelectorAll('#panel-chat .settings [name]')]"
      ".filter(e => e.checkVisibility()).map(e => e.name)");
  EXPECT_EQ(shown, Json::array({"temperature", "top_p", "top_k", "min_p", "max_completion_tokens",
                                "seed"}));
  EXPECT_EQ(browser_->run("return [...document.querySelectorAll('#panel-chat [data-group]')]"
                          ".slice(0, 5).map(g => g.dataset.group)"),
            Json::array({"Sampling", "Penalties", "More samplers", "Length and stopping",
                         "Constrained decoding"}));
}

TEST_F(Page, NoTextIsLongerThanTheContext) {
  ServiceOptions options = options_of({"attention"});
  options.models.context = 48;
  open_tabs(options);
  EXPECT_EQ(server_->client().get("/props").json()["models"][0]["default_generation_settings"]
                                                  ["max_tokens"],
            48);
  EXPECT_EQ(browser_->run("const e = document.querySelector('#panel-chat "
                          "[name=max_completion_tokens]'); return [e.value, e.max]"),
            Json::array({"48", "48"}));
  browser_->run(kSet, {"max_completion_tokens", "49"});
  EXPECT_EQ(browser_->text("#panel-chat [data-field=max_completion_tokens] .field-error"),
            "Expected a whole number from -1 to 48");
  browser_->run(kSet, {"max_completion_tokens", "40"});
  EXPECT_EQ(browser_->text("#panel-chat [data-field=max_completion_tokens] .field-error"), "");
}

TEST_F(Page, SettingsAreSentAsTheirTypes) {
  open_tabs(options_of({"attention"}));
  const std::vector<std::pair<const char*, Json>> typed = {
      {"temperature", "0.9"},
      {"top_k", "7"},
      {"seed", "11"},
      {"max_completion_tokens", "12"},
      {"ignore_eos", true},
      {"parallel_tool_calls", false},
      {"stop", "one\\ntwo\nthree"},
      {"stop_token_ids", "1, 2 3"},
      {"logit_bias", "{\"5\": -3}"},
      {"samplers", "penalties, temperature,top_k"},
      {"reasoning_format", "none"},
      {"choice", "aa\nbb"}};
  for (const auto& [name, value] : typed) browser_->run(kSet, {name, value});
  browser_->run(
      "const real = fetch; window.sent = []; window.fetch = (path, how) => {"
      " if (how?.body) sent.push(how.body); return real(path, how); }");
  browser_->type("#message", "hello" + std::string(kEnter));
  browser_->until("return window.sent.length > 0");
  Json body = spec::parse_json(browser_->run("return sent[0]").get<std::string>(), "body");
  for (const char* tab : {"model", "messages", "stream", "stream_options"}) body.erase(tab);
  // what is as in force is left to the server
  const Json expected = {{"temperature", 0.9},
                         {"top_k", 7},
                         {"seed", 11},
                         {"max_completion_tokens", 12},
                         {"ignore_eos", true},
                         {"parallel_tool_calls", false},
                         {"stop", {"one\ntwo", "three"}},
                         {"stop_token_ids", {1, 2, 3}},
                         {"logit_bias", {{"5", -3}}},
                         {"samplers", {"penalties", "temperature", "top_k"}},
                         {"reasoning_format", "none"},
                         {"structured_outputs", {{"choice", {"aa", "bb"}}}}};
  EXPECT_EQ(body.size(), expected.size()) << body.dump();
  for (const auto& [name, value] : expected.items())
    EXPECT_EQ(body.value(name, Json()), value) << name;
  wait_for_answer();
  const std::string answer = conversation()[1]["content"];
  EXPECT_TRUE(answer == "aa" || answer == "bb") << answer;
  // they outlive a reload, are marked, and go back to what is in force
  browser_->run("location.reload()");
  wait_for_tabs();
  EXPECT_EQ(browser_->run("return document.querySelectorAll('#panel-chat .field.changed').length"),
            typed.size());
  browser_->run("document.querySelector('#panel-chat [data-field=temperature] .back').click()");
  const Json in_force = server_->client()
                            .get("/props")
                            .json()["models"][0]["default_generation_settings"]["temperature"];
  EXPECT_EQ(std::stod(browser_->run("return document.querySelector('[name=temperature]').value")
                          .get<std::string>()),
            in_force.get<double>());
  browser_->run(
      "[...document.querySelectorAll('#panel-chat .settings button')]"
      ".find(b => b.textContent.startsWith('Reset all')).click()");
  EXPECT_EQ(browser_->run("return document.querySelectorAll('.field.changed').length"), 0);
}

// who clicks into a field and types replaces its default
TEST_F(Page, TypingReplacesADefault) {
  open_tabs(options_of({"attention"}));
  for (const auto& [name, value] :
       {std::pair{"temperature", "0.5"}, {"max_completion_tokens", "57"}, {"top_k", "40"}}) {
    const std::string field = "#panel-chat [name=" + std::string(name) + "]";
    browser_->click(field);
    for (const char* c = value; *c != 0; ++c) browser_->press(std::string(1, *c));
    EXPECT_EQ(browser_->run("return document.querySelector(arguments[0]).value", {field}), value);
    // and a second click does not select what was typed
    browser_->click(field);
    browser_->press("1");
    EXPECT_EQ(browser_->run("return document.querySelector(arguments[0]).value", {field})
                  .get<std::string>()
                  .size(),
              std::string_view(value).size() + 1)
        << name;
  }
}

TEST_F(Page, AGrammarIsPlainText) {
  open_tabs(options_of({"attention"}));
  browser_->run(kSet, {"grammar", "root ::= \"a\" \"b\""});
  browser_->type("#message", "hello" + std::string(kEnter));
  wait_for_answer();
  EXPECT_EQ(conversation()[1]["content"], "ab");
  browser_->run(kSet, {"grammar", ""});
  browser_->run(kSet, {"regex", "b+a"});
  browser_->run("document.getElementById('new-chat').click()");
  browser_->type("#message", "hello" + std::string(kEnter));
  wait_for_answer();
  const std::string answer = conversation()[1]["content"];
  EXPECT_TRUE(answer.ends_with("a") && answer.find_first_not_of("b") == answer.size() - 1)
      << answer;
}

TEST_F(Page, WrongValuesAreMarkedAtTheirFields) {
  open_tabs(options_of({"attention"}));
  struct Wrong {
    const char *name, *value, *says;
  };
  for (const Wrong& wrong : {Wrong{"temperature", "99", "Expected a number from 0 to 10"},
                             Wrong{"top_k", "1.5", "Expected a whole number from -1"},
                             Wrong{"stop_token_ids", "a, b", "Expected token ids"},
                             Wrong{"logit_bias", "[1]", "Expected a JSON object"},
                             Wrong{"json_schema", "{\"type\":", "This is no JSON"},
                             Wrong{"samplers", "top_k, tpo_p", "There is no tpo_p"}}) {
    browser_->run(kSet, {wrong.name, wrong.value});
    const std::string field = "#panel-chat .field:has([name=" + std::string(wrong.name) + "]) ";
    EXPECT_EQ(browser_->run("return document.querySelector(arguments[0]).getAttribute("
                            "'aria-invalid')",
                            {field + "[name]"}),
              "true")
        << wrong.name;
    EXPECT_TRUE(browser_->text(field + ".field-error").starts_with(wrong.says))
        << browser_->text(field + ".field-error");
    // nothing is sent, and the field is where the eye and the keyboard are
    browser_->run(
        "const m = document.getElementById('message'); m.value = 'hello';"
        "document.getElementById('send').click()");
    browser_->until("return !document.getElementById('problem').hidden");
    EXPECT_EQ(browser_->run("return document.querySelectorAll('.turn').length"), 0);
    EXPECT_EQ(browser_->run("return document.activeElement.name"), wrong.name);
    EXPECT_TRUE(browser_->run("return document.activeElement.checkVisibility()").get<bool>());
    browser_->run(kSet, {wrong.name, ""});
    EXPECT_EQ(browser_->run("return document.querySelectorAll('[aria-invalid]').length"), 0);
  }
  // two forms of an answer exclude each other
  browser_->run(kSet, {"regex", "a"});
  browser_->run(kSet, {"grammar", "root ::= \"a\""});
  browser_->run("document.getElementById('send').click()");
  browser_->until("return document.querySelector('[aria-invalid]')");
  EXPECT_NE(browser_->text("#problem").find("empty: the answer can follow one of them"),
            std::string::npos)
      << browser_->text("#problem");
  browser_->run(kSet, {"regex", ""});
  // what only the server can know is marked too
  expected_ = {"SEVERE"};  // the browser's own words for 400
  browser_->run(kSet, {"grammar", "root ::= nope"});
  browser_->run("document.getElementById('send').click()");
  browser_->until("return document.querySelector('[name=grammar][aria-invalid]')");
  EXPECT_EQ(browser_->run("return document.activeElement.name"), "grammar");
}

TEST_F(Page, MarkdownIsWhatAPersonReads) {
  open_tabs(options_of({"attention"}));
  browser_->run(
      "sessionStorage.setItem('tessera.chat', JSON.stringify([{role: 'user', content: 'x'},"
      "{role: 'assistant', content: arguments[0]}])); location.reload()",
      {"# Title\n\n1. one\n   - in\n   - it\n2. two\n\n```py\nx = 1\n```\n\n~~no~~ "
       "[a](http://127.0.0.1/x) [b](ftp://x)\n\n---\n- [x] done"});
  wait_for_tabs();
  browser_->until("return document.querySelectorAll('.turn').length === 2");
  EXPECT_EQ(browser_->run("return [...document.querySelectorAll('.turn.assistant .said > *')]"
                          ".map(e => e.tagName)"),
            Json::array({"H3", "OL", "DIV", "P", "HR", "UL"}));
  EXPECT_EQ(browser_->run("return document.querySelectorAll('.said ol > li > ul > li').length"), 2);
  EXPECT_EQ(
      browser_->run("return [...document.querySelectorAll('.said a')].map(a => [a.href,"
                    " a.rel, a.target])"),
      Json::array({Json::array({"http://127.0.0.1/x", "noopener noreferrer nofollow", "_blank"})}));
  EXPECT_EQ(browser_->text(".said .code-head span"), "py");
  EXPECT_EQ(browser_->text(".said .code-head button"), "Copy");
  EXPECT_EQ(browser_->text(".said pre"), "x = 1");
}

const char* const kControls =
    "return [...document.querySelectorAll('button, input, select, textarea, summary, a[href], "
    "[tabindex=\"0\"], [role=button]')].filter(e => e.checkVisibility({visibilityProperty: true}) "
    "&&"
    " !e.disabled && e.type !== 'file')";

TEST_F(Page, EveryControlHasARoleAndAName) {
  open_tabs(options_of({"attention"}));
  set_up_chat({{"seed", "11"}, {"ignore_eos", true}, {"max_completion_tokens", "8"}});
  browser_->type("#message", "hello" + std::string(kEnter));
  wait_for_answer();
  const Json tabs =
      browser_->run("return [...document.querySelectorAll('[role=tab]')].map(t => t.id)");
  EXPECT_GE(tabs.size(), 6u);
  size_t controls = 0;
  for (const Json& tab : tabs) {
    browser_->click("#" + tab.get<std::string>());
    browser_->run("for (const d of document.querySelectorAll('main details')) d.open = true");
    if (tab == "tab-inspector") browser_->until("return document.querySelector('.node')");
    for (const Json& control : browser_->run(kControls)) {
      const std::string id = control.begin().value(), role = browser_->role(id);
      EXPECT_FALSE(role.empty() || role == "generic" || role == "none") << tab << " " << role;
      EXPECT_NE(browser_->label(id), "")
          << tab << " " << browser_->run("return arguments[0].outerHTML", {control});
      ++controls;
    }
  }
  EXPECT_GT(controls, 100u);
}

TEST_F(Page, TheKeyboardReachesEverything) {
  open_tabs(options_of({"attention"}));
  // Tab goes through the controls in the order of the document; of tabs there is one stop
  const Json expected =
      browser_->run("const all = (() => {" + std::string(kControls) +
                    "})().filter(e => e.tabIndex >= 0); all.forEach((e, i) => e.dataset.stop = i);"
                    "document.activeElement.blur(); return all.length");
  const int stops = expected.get<int>();
  ASSERT_GT(stops, 12);
  for (int i = 0; i < stops; ++i) {
    browser_->press(kTab);
    ASSERT_EQ(browser_->run(
                  "return document.activeElement.dataset.stop ?? document.activeElement.outerHTML"),
              std::to_string(i));
    // and what has the focus shows it
    EXPECT_NE(browser_->run(
                  "const s = getComputedStyle(document.activeElement);"
                  "return s.outlineStyle !== 'none' || !!document.activeElement.closest('.box')"),
              false);
  }
  // the arrows go from tab to tab
  browser_->run("document.querySelector('[role=tab][aria-selected=true]').focus()");
  browser_->press(kRight);
  EXPECT_EQ(browser_->run("return document.activeElement.id"), "tab-completion");
  EXPECT_EQ(
      browser_->run("return document.querySelector('main > [role=tabpanel]:not([hidden])').id"),
      "panel-completion");
  browser_->press(kHome);
  EXPECT_EQ(browser_->run("return document.activeElement.id"), "tab-chat");
}

/// The least contrast of any text that is seen, with what it is.
const char* const kContrast = R"(
  const parts = (c) => { const m = c.match(/[\d.]+/g).map(Number); return [m[0], m[1], m[2], m[3] ?? 1]; };
  const over = (top, under) => top.slice(0, 3).map((x, i) => x * top[3] + under[i] * (1 - top[3])).concat(1);
  const light = (c) => { const [r, g, b] = c.map((x) => { x /= 255; return x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4; }); return .2126 * r + .7152 * g + .0722 * b; };
  const ground = (e) => { const layers = []; for (; e; e = e.parentElement) { const c = parts(getComputedStyle(e).backgroundColor); layers.push(c); if (c[3] === 1) break; }
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255, 1]); };
  let worst = [99, ''];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || !e.checkVisibility() || e.closest('.hidden, .skip, script, style, option, title, svg')) continue;
    const under = ground(e), c = over(parts(getComputedStyle(e).color), under), a = light(c), b = light(under);
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < worst[0]) worst = [ratio, e.outerHTML.slice(0, 120)];
  }
  return worst;)";

TEST_F(Page, LooksFineInEveryLight) {
  open_tabs(options_of({"attention"}));
  set_up_chat({{"seed", "11"}, {"ignore_eos", true}, {"max_completion_tokens", "8"}});
  browser_->run("document.getElementById('chat-tokens').click()");
  browser_->type("#message", "hello" + std::string(kEnter));
  wait_for_answer();
  browser_->run(
      "[...document.querySelectorAll('.turn .actions button')]"
      ".find(b => b.textContent === 'Tokens').click();"
      "document.querySelector('.tokens [role=button]').click()");
  const Json tabs =
      browser_->run("return [...document.querySelectorAll('[role=tab]')].map(t => t.id)");
  for (const bool dark : {false, true})
    for (const int width : {1280, 320}) {
      browser_->look({.width = width, .height = 800, .dark = dark, .reduced_motion = dark});
      for (const Json& tab : tabs) {
        browser_->run("document.getElementById(arguments[0]).click()", {tab});
        if (tab == "tab-inspector") browser_->until("return document.querySelector('.node')");
        if (tab == "tab-server") browser_->until("return document.querySelector('#gauges dd')");
        const Json worst = browser_->run(kContrast);
        EXPECT_GE(worst[0].get<double>(), 4.5) << dark << " " << tab << " " << worst[1];
        // nothing sticks out to the side
        EXPECT_LE(browser_->run("return document.documentElement.scrollWidth"), width) << tab;
      }
    }
  EXPECT_EQ(browser_->run("const s = document.createElement('span'); s.className = 'waiting';"
                          "document.body.append(s); const name = getComputedStyle(s, '::after')"
                          ".animationName; s.remove(); return name"),
            "none");
}

/// The scroll bars that are seen: of the page and of what scrolls in it, but of boxes whose bar has
/// no colour.
const char* const kBars = R"(
  const seen = [];
  if (document.documentElement.scrollHeight > innerHeight) seen.push('page');
  for (const e of document.querySelectorAll('body *')) {
    const s = getComputedStyle(e);
    if (!e.checkVisibility() || e.tagName === 'TEXTAREA' || s.scrollbarWidth === 'none' || s.scrollbarColor.startsWith('rgba(0, 0, 0, 0)')) continue;
    if (/auto|scroll/.test(s.overflowY) && e.scrollHeight > e.clientHeight + 1 && e.clientHeight > 0) seen.push(e.className || e.tagName);
  }
  return seen;)";

TEST_F(Page, HasOneScrollBarAtMost) {
  open_tabs(options_of({"attention"}));
  browser_->look({.width = 1280, .height = 900});
  for (const char* tab : {"chat", "completion", "tokens"}) {
    browser_->click("#tab-" + std::string(tab));
    // nothing of the page is out of sight before anything is said
    EXPECT_EQ(browser_->run("return document.documentElement.scrollHeight"), 900) << tab;
    EXPECT_LE(browser_->run(kBars).size(), 1u) << tab << browser_->run(kBars);
  }
  // beside a conversation that is longer than the window
  Json talk = Json::array();
  for (int i = 0; i < 30; ++i) {
    talk.push_back({{"role", "user"}, {"content", "hello"}});
    talk.push_back({{"role", "assistant"}, {"content", "so_long"}});
  }
  browser_->click("#tab-chat");
  browser_->run("sessionStorage.setItem('tessera.chat', arguments[0]); location.reload()",
                {talk.dump()});
  wait_for_tabs();
  browser_->until("return document.querySelectorAll('.turn').length === 60");
  EXPECT_EQ(browser_->run(kBars), Json::array({"page"}));
  // the settings can be scrolled all the same, and show it while they are used
  EXPECT_EQ(browser_->run("const e = document.querySelector('#panel-chat .settings');"
                          "e.scrollTop = 10000;"
                          "return e.scrollTop + e.clientHeight + 2 >= e.scrollHeight"),
            true);
  browser_->run("document.querySelector('#panel-chat [name=temperature]').focus()");
  EXPECT_EQ(browser_->run(kBars).size(), 2u);
}

TEST_F(Page, SettingsFoldWhenTheWindowBecomesNarrow) {
  open_tabs(options_of({"attention"}));
  browser_->look({.width = 1280, .height = 900});
  browser_->click("#tab-chat");
  const char* const open = "return document.querySelector('#panel-chat .settings details').open";
  browser_->until(open);
  for (const auto& [width, height] : {std::pair{390, 844}, {768, 1024}}) {
    browser_->look({.width = width, .height = height});
    browser_->until("return !document.querySelector('#panel-chat .settings details').open");
    // the conversation and its composer are on the first screen
    EXPECT_EQ(browser_->run("return document.documentElement.scrollHeight"), height) << width;
    EXPECT_EQ(browser_->run("const seen = (e) => { const r = e.getBoundingClientRect();"
                            "return r.top >= 0 && r.bottom <= innerHeight; };"
                            "return seen(document.querySelector('.welcome'))"
                            " && seen(document.querySelector('.composer'))"),
              true)
        << width;
    browser_->look({.width = 1280, .height = 900});
    browser_->until(open);
  }
}

/// An encoder with a head for hidden words, or a decoder beside an encoder.
infer::LoadedModel text_model(const ModelEntry& entry) {
  if (entry.path == "mask") {
    const text::Tokenizer words = text::tokenizer_from_vocab(infer::kWords, "words");
    return {infer::tiny_model_of(
                fmt::format(R"({{"tessera": 1, "arch": "encoder", "vocab": {}, "d_model": 16,
                    "embed": {{"type": "token", "position": {{"type": "learned", "n_positions": 16}}}},
                    "norm": "layer_norm", "ffn": {{"type": "mlp", "d_hidden": 24}},
                    "layers": [{{"repeat": 2, "mixer": {{"type": "attention", "n_heads": 2}}}}],
                    "heads": [{{"type": "linear"}}]}})",
                            words.vocab_size()),
                3),
            words,
            {},
            {}};
  }
  const text::Tokenizer tokenizer = text::chat_tokenizer();
  return {infer::tiny_model_of(
              fmt::format(R"({{"tessera": 1, "arch": "encoder_decoder", "vocab": {}, "d_model": 16,
                  "start": 1, "head": "linear", "cross": {{"type": "cross_attention", "n_heads": 2}},
                  "ffn": {{"type": "mlp", "d_hidden": 24}},
                  "mixer": {{"type": "attention", "n_heads": 2, "position": "rope"}},
                  "stacks": {{"encoder": {{"layers": [{{}}]}}, "decoder": {{"layers": [{{}}]}}}}}})",
                          tokenizer.vocab_size()),
              7),
          tokenizer,
          {},
          {}};
}

ServiceOptions text_options(const std::string& kind) {
  ServiceOptions options = options_of({kind});
  options.models.load = text_model;
  options.models.chat_template = "";
  return options;
}

TEST_F(Page, FieldsOfATranslationStandInOneRow) {
  open_tabs(text_options("pair"), "translate");
  for (const int width : {1280, 1000, 700}) {
    browser_->look({.width = width, .height = 900});
    const Json boxes = browser_->run(
        "return ['source', 'target', 'beams'].map(n => {"
        " const b = document.getElementById('translate-' + n).getBoundingClientRect();"
        " return [b.top, b.bottom, b.left, b.right]; })");
    for (size_t i = 1; i < boxes.size(); ++i) {
      EXPECT_EQ(boxes[i][0], boxes[0][0]) << width << boxes;
      EXPECT_EQ(boxes[i][1], boxes[0][1]) << width << boxes;
      EXPECT_GT(boxes[i][2].get<double>(), boxes[i - 1][3].get<double>()) << width << boxes;
    }
    // as wide as the text above them
    const Json text = browser_->run(
        "const b = document.getElementById('translate-text').getBoundingClientRect();"
        "return [b.left, b.right]");
    EXPECT_NEAR(boxes[0][2].get<double>(), text[0].get<double>(), 1) << width;
    EXPECT_NEAR(boxes[2][3].get<double>(), text[1].get<double>(), 1) << width;
  }
}

TEST_F(Page, BarsOfHiddenWordsAreAsLongAsTheirShares) {
  open_tabs(text_options("mask"), "fill-mask");
  browser_->run("document.getElementById('fill-mask-text').value = 'the cat [MASK] the dog'");
  const Json told = server_->client()
                        .post("/v1/fill-mask", {{"input", "the cat [MASK] the dog"}, {"top_k", 10}})
                        .json()["data"][0]["masks"][0];
  browser_->click("#fill-mask-run");
  browser_->until("return document.querySelector('#panel-fill-mask .bars')");
  for (const int width : {1280, 320}) {
    browser_->look({.width = width, .height = 900});
    const Json rows = browser_->run(
        "return [...document.querySelectorAll('#panel-fill-mask .bars li')].map(li => {"
        " const box = e => e.getBoundingClientRect(), name = box(li.querySelector('.name')),"
        " track = box(li.querySelector('.bar')), bar = box(li.querySelector('.bar > span')),"
        " value = box(li.querySelector('.value'));"
        " return {name: name.right, left: track.left, track: track.width, bar: bar.width,"
        " height: bar.height, right: track.right, value: value.left}; })");
    ASSERT_EQ(rows.size(), told.size());
    const double most = told[0]["score"];
    for (size_t i = 0; i < rows.size(); ++i) {
      const Json& row = rows[i];
      EXPECT_GT(row["track"], width > 320 ? 100 : 16) << row;
      EXPECT_GT(row["height"], 4) << row;
      EXPECT_NEAR(row["bar"].get<double>(),
                  row["track"].get<double>() * told[i]["score"].get<double>() / most, 1.5)
          << row;
      // a word, its bar and its number, one beside the other
      EXPECT_LE(row["name"], row["left"]) << row;
      EXPECT_LE(row["right"], row["value"]) << row;
    }
  }
  // a word is no bar: its box is as wide as it is
  browser_->look({});
  EXPECT_EQ(browser_->run("const n = [...document.querySelectorAll('#panel-fill-mask .name')];"
                          "return new Set(n.map(e => Math.round(e.getBoundingClientRect().width)))"
                          ".size > 1"),
            true);
}

TEST_F(Page, AsksNobodyElse) {
  open_tabs(options_of({"attention"}));
  for (const char* tab : {"inspector", "server", "mixing", "tokens", "completion", "chat"})
    browser_->click("#tab-" + std::string(tab));
  browser_->type("#message", "hello" + std::string(kEnter));
  wait_for_answer();
  size_t requests = 0;
  for (const Json& line : browser_->log("performance")) {
    const Json event = spec::parse_json(line["message"].get<std::string>(), "event")["message"];
    if (event["method"] != "Network.requestWillBeSent") continue;
    const std::string url = event["params"]["request"]["url"];
    EXPECT_TRUE(url.starts_with(address() + "/") || url.starts_with("data:") ||
                url == "about:blank")
        << url;
    ++requests;
  }
  EXPECT_GT(requests, 6u);
}

TEST_F(Page, FiftyTurnsLeaveNothingBehind) {
  open_tabs(options_of({"attention"}));
  set_up_chat({{"max_completion_tokens", "4"}});
  const auto turns = [&](int n) {
    for (int i = 0; i < n; ++i) {
      const int before = browser_->run("return document.querySelectorAll('.turn').length");
      browser_->run(
          "const m = document.getElementById('message'); m.value = 'hi';"
          "document.getElementById('send').click()");
      browser_->until(
          "return document.querySelectorAll('.turn.assistant .figures').length * 2 === " +
          std::to_string(before + 2) +
          " && document.getElementById('send').textContent === 'Send'");
    }
    return browser_->run("gc(); return performance.memory.usedJSHeapSize").get<double>();
  };
  const double early = turns(10), late = turns(40);
  EXPECT_LT(late - early, 4e6);
  EXPECT_EQ(conversation().size(), 100u);
  browser_->click("#new-chat");
  EXPECT_EQ(browser_->run("return document.querySelectorAll('.turn').length"), 0);
  browser_->click("#chat-note button");
  EXPECT_EQ(browser_->run("return document.querySelectorAll('.turn').length"), 100);
}

}  // namespace
}  // namespace tessera::serve::page_browser_test
