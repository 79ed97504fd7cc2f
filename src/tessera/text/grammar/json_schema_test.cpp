#include "tessera/text/grammar/json_schema.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>

#include "tessera/base/mapped_file.h"
#include "tessera/base/rng.h"
#include "tessera/base/testing.h"
#include "tessera/text/grammar/grammar_constraint.h"

namespace tessera::text::json_schema_test {
namespace {

using spec::Json;

std::shared_ptr<const TokenTrie> tokens_of(const std::vector<std::string>& texts) {
  std::vector<std::optional<std::string>> tokens(texts.begin(), texts.end());
  return std::make_shared<const TokenTrie>(std::move(tokens));
}

GrammarConstraint constraint_of(const std::string& schema) {
  static const auto letters = tokens_of({"a"});
  return GrammarConstraint(schema_grammar(spec::parse_json(schema, "schema"), "schema").grammar,
                           letters, "schema");
}

void check(const std::string& schema,
           const std::vector<std::string>& in,
           const std::vector<std::string>& out) {
  SCOPED_TRACE(schema);
  const GrammarConstraint constraint = constraint_of(schema);
  for (const std::string& text : in) EXPECT_TRUE(constraint.holds(text)) << text;
  for (const std::string& text : out) EXPECT_FALSE(constraint.holds(text)) << text;
}

TEST(JsonSchema, AnyValue) {
  check("{}",
        {"null", "true", "-0.5e+10", R"("a\n\u00e9\ud83d\ude00")", "[]", "[1,[2,{}]]",
         R"({"a":{"b":[null]},"":1})"},
        {"", "nul", "01", "1.", ".5", "+1", "[1,]", R"({"a"})", R"({a:1})", R"("a)", "\"\n\"",
         R"("\x")", R"("\ud83d")", "[1, 2]"});
  check("true", {"1"}, {"x"});
  const auto letters = tokens_of({"a"});
  const GrammarConstraint object(json_object_grammar(), letters, "json");
  EXPECT_TRUE(object.holds(R"({"a":[1,2]})"));
  EXPECT_FALSE(object.holds("[1]"));
}

TEST(JsonSchema, TypesAndLists) {
  check(R"({"type": "integer"})", {"0", "-7", "120"}, {"1.5", "00", "null", "1e3"});
  check(R"({"type": ["null", "boolean"]})", {"null", "true", "false"}, {"0", "\"\""});
  check(R"({"enum": [1, "a", null, {"b": [1.5]}]})", {"1", "\"a\"", "null", R"({"b":[1.5]})"},
        {"2", "a", R"({"b": [1.5]})"});
  check(R"({"const": "é\n"})", {"\"é\\n\""}, {"\"é\"", "\"e\""});
  check(R"({"type": "string", "enum": ["a", 1, "long"], "maxLength": 2})", {"\"a\""},
        {"1", "\"long\""});
}

TEST(JsonSchema, Strings) {
  check(R"({"type": "string", "minLength": 2, "maxLength": 3})",
        {"\"ab\"", "\"éé€\"", R"("\n\u0041")", R"("\ud83d\ude00a")"},
        {"\"a\"", "\"abcd\"", "\"\""});
  check(R"({"type": "string", "pattern": "^[a-c\"]+$"})", {"\"abc\"", R"("a\"")"},
        {"\"\"", "\"abd\"", "\"a\"\""});
  check(R"({"type": "string", "pattern": "b\\d"})", {"\"b1\"", "\"xxb1yy\""}, {"\"b\"", "\"1b\""});
  check(R"({"type": "string", "pattern": "^(a|b)|c$"})", {"\"axx\"", "\"xxc\""},
        {"\"xa\"", "\"cx\""});
  check(R"({"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 3})",
        {"\"ab\"", "\"abc\""}, {"\"a\"", "\"abcd\"", "\"AB\""});
  check(R"({"type": "string", "format": "date"})", {"\"2024-02-28\"", "\"1999-12-31\""},
        {"\"2024-02-30\"", "\"2024-13-01\"", "\"2024-04-31\"", "\"24-01-01\""});
  check(R"({"type": "string", "format": "date-time"})",
        {"\"2024-02-28T23:59:59Z\"", "\"2024-02-28T00:00:00.25+05:30\""},
        {"\"2024-02-28\"", "\"2024-02-28T24:00:00Z\"", "\"2024-02-28T00:00:00\""});
  check(R"({"type": "string", "format": "ipv4"})", {"\"1.2.3.4\"", "\"255.0.10.99\""},
        {"\"256.1.1.1\"", "\"1.2.3\"", "\"01.2.3.4\""});
  check(R"({"type": "string", "format": "uuid"})", {"\"123e4567-e89b-12d3-a456-426614174000\""},
        {"\"123e4567\""});
  // others only describe
  check(R"({"type": "string", "format": "color"})", {"\"x\""}, {"1"});
}

TEST(JsonSchema, Numbers) {
  for (const auto& [lo, hi] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 12}, {-5, 5}, {7, 7}, {98, 1203}, {-1203, -98}, {-1, 0}, {1, 1000}, {-12, 340}}) {
    const GrammarConstraint c = constraint_of(
        fmt::format(R"({{"type": "integer", "minimum": {}, "maximum": {}}})", lo, hi));
    for (int64_t n = -1400; n <= 1400; ++n)
      ASSERT_EQ(c.holds(std::to_string(n)), lo <= n && n <= hi) << n << " of " << lo << " " << hi;
  }
  check(R"({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6})", {"4", "5"},
        {"3", "6", "04"});
  check(R"({"type": "integer", "minimum": 3.5})", {"4", "1000", "123456789012345"}, {"3", "-4"});
  check(R"({"type": "integer", "minimum": 3, "exclusiveMinimum": true})", {"4"}, {"3"});
  check(R"({"type": "integer", "multipleOf": 7})", {"0", "7", "-49", "700"}, {"1", "71", "07"});
  // fractions: all of two digits, by their value
  for (const auto& [lo, hi] : std::vector<std::pair<double, double>>{
           {0, 1}, {-1, 1}, {0.25, 0.75}, {-2.5, 0.5}, {1.05, 3.4}, {-3.4, -1.05}, {2, 2.5}})
    for (const bool out : {false, true}) {
      const GrammarConstraint c = constraint_of(
          out ? fmt::format(
                    R"({{"type": "number", "exclusiveMinimum": {}, "exclusiveMaximum": {}}})", lo,
                    hi)
              : fmt::format(R"({{"type": "number", "minimum": {}, "maximum": {}}})", lo, hi));
      size_t held = 0;
      for (int n = -400; n <= 400; ++n) {
        const std::string text =
            fmt::format("{}{}.{:02}", n < 0 ? "-" : "", std::abs(n) / 100, std::abs(n) % 100);
        const double value = n / 100.0;
        const bool want = out ? lo < value && value < hi : lo <= value && value <= hi;
        ASSERT_EQ(c.holds(text), want) << text << " of " << lo << " " << hi << out;
        held += want ? 1 : 0;
      }
      EXPECT_GT(held, 10U);
    }
}

TEST(JsonSchema, Arrays) {
  check(R"({"type": "array", "items": {"type": "integer"}})", {"[]", "[1]", "[1,2,3]"},
        {"[\"a\"]", "[1,]", "[,1]", "1"});
  check(R"({"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 3})",
        {"[null,null]", "[null,null,null]"}, {"[]", "[null]", "[null,null,null,null]"});
  check(R"({"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": false})",
        {"[]", "[1]", "[1,2]"}, {"[2]", "[1,2,3]"});
  check(R"({"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 3}, "minItems": 2,
            "maxItems": 3})",
        {"[1,3]", "[1,3,3]"}, {"[1]", "[3,3]", "[1,3,3,3]"});
  check(R"({"items": [{"const": 1}], "additionalItems": false, "type": "array"})", {"[]", "[1]"},
        {"[1,1]"});
  check(R"({"type": "array", "items": false})", {"[]"}, {"[1]"});
  check(R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"});
}

TEST(JsonSchema, Objects) {
  check(R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"},
            "c": {}}, "required": ["b"], "additionalProperties": false})",
        {R"({"b":null})", R"({"a":1,"b":null})", R"({"a":1,"b":null,"c":[1]})",
         R"({"b":null,"c":2})"},
        {"{}", R"({"a":1})", R"({"b":null,"a":1})", R"({"b":null,"b":null})", R"({"b":null,})",
         R"({,"b":null})", R"({"b":null,"d":1})", R"({"b":1})"});
  check(R"({"type": "object", "properties": {"ab": {"type": "integer"}}})",
        {"{}", R"({"ab":1})", R"({"ab":1,"x":null,"a":2})", R"({"abc":"x"})", R"({"":1})"},
        {R"({"ab":"x"})", R"({"x":1,"ab":1})", R"({"\u0061b":"x"})"});
  check(R"({"type": "object", "additionalProperties": {"type": "integer"}, "required": ["z"]})",
        {R"({"z":1})", R"({"z":1,"y":2})"}, {"{}", R"({"z":"1"})", R"({"z":1,"y":"2"})"});
  check(R"({"type": "object", "properties": {}, "additionalProperties": false})", {"{}"},
        {R"({"a":1})"});
  check(R"({"type": "object", "properties": {"a": false, "b": {"const": 1}}})",
        {R"({"b":1})", "{}"}, {R"({"a":1})"});
}

TEST(JsonSchema, ReferencesAndCombinations) {
  check(R"({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties":
            {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
            "required": ["v"], "additionalProperties": false}}})",
        {R"({"v":1})", R"({"v":1,"kids":[{"v":2},{"v":3,"kids":[]}]})"},
        {R"({"kids":[]})", R"({"v":1,"kids":[{}]})"});
  check(R"({"anyOf": [{"type": "integer"}, {"const": "x"}]})", {"1", "\"x\""}, {"\"y\"", "null"});
  check(R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "additionalProperties": false, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})",
        {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":1})"}, {"{}"});
  check(R"({"oneOf": [{"type": "string"}, {"type": "integer", "maximum": 5}]})", {"\"a\"", "5"},
        {"6", "null"});
  check(R"({"oneOf": [{"type": "object", "properties": {"k": {"const": "a"}, "x": {"type": "null"}},
             "required": ["k", "x"], "additionalProperties": false},
            {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"],
             "additionalProperties": false}]})",
        {R"({"k":"a","x":null})", R"({"k":"b"})"}, {R"({"k":"a"})", R"({"k":"b","x":null})"});
  check(R"({"allOf": [{"type": "integer", "minimum": 2}, {"type": "number", "maximum": 4}]})",
        {"2", "4"}, {"1", "5", "2.5"});
  check(R"({"allOf": [{"properties": {"a": {"type": "integer"}}, "additionalProperties": false},
             {"properties": {"a": {"minimum": 3}}, "required": ["a"]}], "type": "object"})",
        {R"({"a":3})"}, {R"({"a":2})", "{}", R"({"a":3,"b":1})"});
  check(R"({"allOf": [{"properties": {"b": {}}}, {"properties": {"a": {}},
             "additionalProperties": false}], "type": "object"})",
        {"{}", R"({"a":1})"}, {R"({"b":1})"});
  check(R"({"properties": {"a/b~": {"type": "null"}, "c": {"$ref": "#/properties/a~1b~0"}},
            "type": "object", "additionalProperties": false})",
        {R"({"c":null})"}, {R"({"c":1})"});
}

TEST(JsonSchema, RefusesByPlaceWhatItCannotHoldTo) {
  const auto refused = [](const std::string& schema, const char* what) {
    SCOPED_TRACE(schema);
    const Json json = spec::parse_json(schema, "schema");
    test::expect_error(ErrorKind::input, what, [&] { schema_grammar(json, "s.json"); });
  };
  refused(R"({"properties": {"x": {"not": {"type": "null"}}}, "type": "object"})",
          "unsupported schema: #/properties/x/not");
  refused(R"({"type": "array", "uniqueItems": true})", "unsupported schema: #/uniqueItems");
  refused(R"({"type": "array", "contains": {}})", "#/contains");
  refused(R"({"type": "object", "patternProperties": {"a": {}}})", "#/patternProperties");
  refused(R"({"type": "object", "minProperties": 1})", "#/minProperties");
  refused(R"x({"type": "string", "pattern": "(?=a)"})x", "look-around");
  refused(R"({"type": "string", "pattern": "^ab*c$", "maxLength": 5})", "#/maxLength");
  refused(R"({"oneOf": [{"type": "string"}, {"minLength": 3}]})",
          "#/oneOf: branches 0 and 1 may both accept a value");
  refused(R"({"$ref": "other.json"})", "expected a place within the schema");
  refused(R"({"$ref": "#/$defs/x"})", "leads nowhere");
  refused(R"({"$ref": "#"})", "left recursion");
  refused(R"({"type": "str"})", "#/type: found \"str\"");
  refused(R"({"type": "integer", "minimum": "3"})", "#/minimum: found \"3\"");
  for (const char* bad : {"0", "-2", "0.0", "\"3\"", "null"})
    refused(fmt::format(R"({{"type": "integer", "multipleOf": {}}})", bad), "#/multipleOf: found ");
  for (const char* key : {"anyOf", "oneOf", "allOf"})
    refused(fmt::format(R"({{"{}": []}})", key),
            "found an empty array; expected an array of schemas");
  refused("3", "expected a schema");
  refused(R"({"enum": []})", "no text fits");
  refused(R"({"type": "integer", "minimum": 3, "maximum": 2})", "no text fits");
  // what is not strict tells what it leaves out
  const auto loose = schema_grammar(
      spec::parse_json(R"({"type": "array", "uniqueItems": true})", "schema"), "schema", false);
  EXPECT_EQ(loose.ignored, (std::vector<std::string>{"#/uniqueItems"}));
}

// a vocabulary that cuts a text across the parts of its grammar
TEST(JsonSchema, TokensGoAcrossParts) {
  const std::vector<std::string> pieces = {"{",     "}",    "\"",   "a",  "b",  ":",   "{\"",
                                           "\"a\"", "a\":", "\": ", "1",  "2",  "12",  "0",
                                           "3",     "13",   "-",    "1}", "2}", "12}", " "};
  const auto vocabulary = tokens_of(pieces);
  const GrammarConstraint constraint(
      schema_grammar(spec::parse_json(
                         R"({"type": "object", "properties": {"a": {"type": "integer",
                             "minimum": 0, "maximum": 12}}, "required": ["a"],
                             "additionalProperties": false})",
                         "schema"),
                     "schema")
          .grammar,
      vocabulary, "schema");
  using Ids = std::set<int64_t>;
  const auto behind = [&](const std::string& text) {
    auto state = constraint.start();
    for (const char c : text)
      EXPECT_TRUE(state->accept(std::find(pieces.begin(), pieces.end(), std::string(1, c)) -
                                pieces.begin()));
    std::vector<uint64_t> bits(1);
    state->allow(bits);
    Ids ids;
    for (int64_t id = 0; id < 64; ++id)
      if (has_bit(bits, id)) ids.insert(id);
    EXPECT_EQ(state->must_end(), text.ends_with('}'));
    return ids;
  };
  EXPECT_EQ(behind(""), (Ids{0, 6}));
  EXPECT_EQ(behind("{"), (Ids{2, 7}));
  EXPECT_EQ(behind("{\""), (Ids{3, 8}));
  EXPECT_EQ(behind("{\"a"), (Ids{2}));
  EXPECT_EQ(behind("{\"a\":"), (Ids{10, 11, 12, 13, 14, 17, 18, 19}));
  EXPECT_EQ(behind("{\"a\":1"), (Ids{1, 10, 11, 13, 17, 18}));
  EXPECT_EQ(behind("{\"a\":12"), (Ids{1}));
  EXPECT_EQ(behind("{\"a\":0"), (Ids{1}));
  EXPECT_EQ(behind("{\"a\":12}"), Ids{});
}

// --- against PyPI's jsonschema

/// A text of the language, every byte drawn; its end where it may be, more often the longer it is.
std::string random_text(const GrammarConstraint& constraint, const RandomKey& key) {
  const auto state = constraint.start();
  std::string text;
  std::vector<uint64_t> bits(4);
  for (uint64_t i = 0; i < 100'000 && !state->must_end(); ++i) {
    if (state->may_end() && key.bits(3 * i) % 3 == 0) break;
    state->allow(bits);
    std::vector<int64_t> ids;
    for (int64_t id = 0; id < 256; ++id)
      if (has_bit(bits, id)) ids.push_back(id);
    if (ids.empty()) break;
    // the longer, the more is what closes
    int64_t id = ids[key.bits(3 * i + 1) % ids.size()];
    if (text.size() > 40 && key.bits(3 * i + 2) % 2 == 0)
      for (const char c : {'"', '}', ']', '0'})
        if (has_bit(bits, c)) {
          id = c;
          break;
        }
    EXPECT_TRUE(state->accept(id));
    text += static_cast<char>(id);
  }
  EXPECT_TRUE(state->may_end()) << text;
  return text;
}

TEST(JsonSchemaReference, AnswersAreValid) {
  const char* python = std::getenv("TESSERA_REFERENCE_PYTHON");
  const char* required = std::getenv("TESSERA_REQUIRE_REFERENCE");
  if (python == nullptr && required != nullptr && std::string(required) == "1")
    FAIL() << "TESSERA_REFERENCE_PYTHON is not set";
  if (python == nullptr) GTEST_SKIP() << "TESSERA_REFERENCE_PYTHON is not set";
  if (std::system((std::string(python) + " -c 'import jsonschema' 2>/dev/null").c_str()) != 0)
    GTEST_SKIP() << "this Python has no jsonschema";
  const test::TemporaryFolder work;
  const auto script = [&](const std::string& arguments) {
    return std::system(fmt::format("'{}' '{}/tools/golden/schema_reference.py' {}", python,
                                   TESSERA_SOURCE_DIR, arguments)
                           .c_str());
  };
  const std::string drawn = (work.path() / "drawn.jsonl").string(),
                    answers = (work.path() / "answers.jsonl").string();
  ASSERT_EQ(script(fmt::format("draw 600 '{}'", drawn)), 0);
  std::vector<std::optional<std::string>> bytes;
  for (int b = 0; b < 256; ++b) bytes.emplace_back(std::string(1, static_cast<char>(b)));
  const auto vocabulary = std::make_shared<const TokenTrie>(std::move(bytes));
  std::ifstream lines(drawn);
  std::ofstream out(answers);
  size_t schemas = 0, unsupported = 0, held = 0, valid = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json row = spec::parse_json(line, "drawn");
    SCOPED_TRACE(row["schema"].dump());
    std::optional<GrammarConstraint> constraint;
    try {
      constraint.emplace(schema_grammar(row["schema"], "schema").grammar, vocabulary, "schema");
    } catch (const Error& error) {
      const std::string what = error.what();
      ASSERT_TRUE(what.find("unsupported schema") != std::string::npos ||
                  what.find("no text fits") != std::string::npos)
          << what;
      // what nothing fits is accepted by none
      const bool nothing = what.find("no text fits") != std::string::npos;
      for (const Json& instance : row["instances"])
        EXPECT_FALSE(nothing && instance["valid"].get<bool>());
      ++unsupported;
      continue;
    }
    ++schemas;
    for (const Json& instance : row["instances"]) {
      const bool in = constraint->holds(instance["text"].get<std::string>());
      EXPECT_TRUE(!in || instance["valid"].get<bool>()) << instance["text"];
      valid += instance["valid"].get<bool>() ? 1 : 0;
      held += in ? 1 : 0;
    }
    const RandomKey key(schemas);
    for (uint64_t i = 0; i < 10; ++i)
      out << Json{{"schema", row["schema"]}, {"answer", random_text(*constraint, key.fold(i))}}
                 .dump()
          << "\n";
  }
  out.close();
  EXPECT_GT(schemas, 400U);
  // most of what is valid can be said
  EXPECT_GT(held * 10, valid * 8);
  EXPECT_EQ(script(fmt::format("check '{}'", answers)), 0);
  std::cout << schemas << " schemas, " << unsupported << " refused, " << held << " of " << valid
            << " valid instances held\n";
}

}  // namespace
}  // namespace tessera::text::json_schema_test
