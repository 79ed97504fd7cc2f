// The language: what expressions mean, and how the malformed and the hostile fail.
#include "tessera/convert/expr.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/testing.h"
#include "tessera/convert/template.h"

namespace tessera::convert::expr_test {
namespace {

using testing::HasSubstr;

Json eval(std::string_view text, const Json& config = Json::object()) {
  Environment env;
  env.constant("config", config);
  return Expr::parse(text, "test").evaluate(env);
}

std::string error_of(std::string_view text, const Json& config = Json::object()) {
  return test::error_of([&] { eval(text, config); });
}

TEST(Expr, NumbersKeepTheirKind) {
  EXPECT_EQ(eval("2 + 3 * 4"), 14);
  EXPECT_EQ(eval("(2 + 3) * 4"), 20);
  EXPECT_EQ(eval("-2 ** 2").dump(), "-4.0");
  EXPECT_EQ(eval("96 / 4").dump(), "24");
  EXPECT_EQ(eval("7 / 2").dump(), "3.5");
  EXPECT_EQ(eval("-7 // 2").dump(), "-4");
  EXPECT_EQ(eval("-7 % 4").dump(), "1");
  EXPECT_EQ(eval("round_up(27, 16)").dump(), "32");
  EXPECT_EQ(eval("round_up(32, 16)").dump(), "32");
  EXPECT_EQ(eval("int(64 * 0.25)").dump(), "16");
  EXPECT_EQ(eval("floor(-1.5)").dump(), "-2");
  EXPECT_EQ(eval("ceil(1.2) + min(3, 2, 5) + max([1, 9])").dump(), "13");
  EXPECT_DOUBLE_EQ(eval("sqrt(576)").get<double>(), 24);
  EXPECT_DOUBLE_EQ(eval("ln(exp(2)) + pow(2, 10)").get<double>(), 1026);
  EXPECT_DOUBLE_EQ(eval("normal_quantile(0.95)").get<double>(), 1.6448536269514722);
  EXPECT_DOUBLE_EQ(eval("normal_cdf(1)").get<double>(), 0.84134474606854293);
  EXPECT_EQ(eval("[normal_quantile(0.5), normal_cdf(normal_quantile(0))]"), Json({0, 0}));
  EXPECT_EQ(eval("is_infinite(normal_quantile(0)) and normal_quantile(0) < 0"), true);
}

TEST(Expr, AbsenceIsCarriedAndNullIsNotAbsence) {
  const Json config = {{"a", nullptr}, {"b", {{"c", 7}}}};
  EXPECT_EQ(eval("config.b.c", config), 7);
  EXPECT_EQ(eval("config.x.y.z ?? 5", config), 5);
  EXPECT_EQ(eval("config.a ?? 5", config), 5);
  EXPECT_EQ(eval("get(config.a, 5)", config), nullptr);
  EXPECT_EQ(eval("get(config.x, 5)", config), 5);
  EXPECT_EQ(eval("[has(config.a), has(config.x)]", config), Json({true, false}));
  EXPECT_TRUE(is_absent(eval("config.a.b", config)));
}

TEST(Expr, ConditionsListsAndTables) {
  EXPECT_EQ(eval("[i % 6 != 5 for i in range(7)]").dump(), "[true,true,true,true,true,false,true]");
  EXPECT_EQ(eval("[i for i in range(1, 9) if i in [2, 4, 12] or i > 7]").dump(), "[2,4,8]");
  EXPECT_EQ(eval("'a' if 1 < 2 and not false else 'b'"), "a");
  EXPECT_EQ(eval("[1, 2, 3][-1] + {x: 4}.x + {'y': 5}['y']"), 12);
  EXPECT_EQ(eval("starts_with('gated-gelu', 'gated-') and 'gelu' in 'gated-gelu'"), true);
  EXPECT_EQ(eval("replace('gated-gelu', 'gated-', '') + '!'"), "gelu!");
  EXPECT_EQ(eval("characters('M-*')"), (Json{"M", "-", "*"}));
  EXPECT_EQ(eval("characters('\xc3\xa9"
                 "a')"),
            (Json{"\xc3\xa9", "a"}));
  EXPECT_EQ(eval("characters('')"), Json::array());
  EXPECT_EQ(eval("pick('b', {a: 1, b: 2})"), 2);
  EXPECT_EQ(eval("key_of(2, {a: 1, b: 2, c: 2})"), "b");
  EXPECT_EQ(eval("merge({a: 1, b: 2}, null, {b: 3}).b"), 3);
}

TEST(Expr, FailuresNameWhatWasFound) {
  EXPECT_THAT(error_of("pick(config.act, {silu: 1, gelu: 2})", {{"act", "frobnicate"}}),
              HasSubstr("config.act: found \"frobnicate\"; expected one of silu, gelu"));
  EXPECT_THAT(error_of("config.n * 2", {{"n", "x"}}),
              HasSubstr("config.n: found \"x\"; expected a number"));
  EXPECT_THAT(error_of("config.n * 2"), HasSubstr("config.n: found nothing; expected a number"));
  EXPECT_THAT(error_of("normal_quantile(1.5)"), HasSubstr("found 1.5; expected a share, 0 to 1"));
  EXPECT_THAT(error_of("nobody"), HasSubstr("there is no value \"nobody\""));
  EXPECT_THAT(error_of("1 if 0 else 2"), HasSubstr("expected true or false"));
  EXPECT_THAT(error_of("[1][3]"), HasSubstr("there is no element 3; the list has 1"));
  EXPECT_THAT(error_of("9223372036854775807 + 1"), HasSubstr("does not fit 64 bits"));
  EXPECT_THAT(error_of("5 // 0"), HasSubstr("division by zero"));
  EXPECT_THAT(error_of("(-9223372036854775807 - 1) // -1"), HasSubstr("does not fit 64 bits"));
  EXPECT_THAT(error_of("sqrt(-1)"), HasSubstr("the root of -1"));
}

TEST(Expr, MalformedTextIsRefusedWithItsColumn) {
  for (const char* text : {"",      "1 +", "(1",     "[1, 2",        "'abc",
                           "a b",   "1 2", "{a 1}",  "{a: 1, a: 2}", "f(1,, 2)",
                           "@",     "a.",  "x if y", "[i for in x]", "99999999999999999999",
                           "'\\n'", "if",  "1e999",  "not",          "a not b"}) {
    const std::string error = error_of(text);
    EXPECT_THAT(error, HasSubstr("[test]")) << text;
  }
  EXPECT_THAT(error_of("1 + * 2"), HasSubstr("column 5"));
}

TEST(Expr, HostileTextEndsSoon) {
  EXPECT_THAT(error_of(std::string(1900, '(')), HasSubstr("nested deeper"));
  EXPECT_THAT(error_of(std::string(1900, '-') + "1"), HasSubstr("nested deeper"));
  EXPECT_THAT(error_of(std::string(3000, ' ')), HasSubstr("3000 bytes"));
  EXPECT_THAT(
      error_of("[[[j for j in range(100000)] for i in range(100000)] for k in range(100000)]"),
      HasSubstr("steps of work"));
  EXPECT_THAT(error_of("range(1000000000000)"), HasSubstr("expected at most"));
  // what is copied counts by its size
  const Json big = {{"list", Json(Json::array_t(1'000'000, 1))}, {"text", std::string(9000, 'x')}};
  EXPECT_EQ(eval("len(config.list)", big), 1'000'000);
  EXPECT_THAT(error_of("[config.list for i in range(9)]", big), HasSubstr("steps of work"));
  EXPECT_THAT(error_of("[config.text for i in range(9000)]", big), HasSubstr("steps of work"));
  EXPECT_THAT(error_of("config.text + config.text", big),
              HasSubstr("the result has 18000 bytes; expected at most 10000"));
  EXPECT_THAT(error_of("replace(config.text, 'x', 'yy')", big),
              HasSubstr("the result has more than 10000 bytes"));
  std::string sum = "1";
  while (sum.size() < 1990) sum += "+1";
  EXPECT_EQ(eval(sum).dump(), std::to_string(sum.size() / 2 + 1));
}

TEST(Expr, PathsOfAConfigAreCollected) {
  std::set<std::string> paths;
  Expr::parse("config.a ?? config.b.c ?? pick(config['d'], {}) + [config.e for i in config.f]",
              "test")
      .collect_paths("config", paths);
  EXPECT_EQ(paths, (std::set<std::string>{"a", "b", "b.c", "d", "e", "f"}));
}

TEST(Environment, ValuesThatDoubleEndSoon) {
  Environment env;
  env.lazy("v0", Template::compile("=[1, 2]", "v0"));
  for (int i = 1; i <= 40; ++i) {
    const std::string before = "v" + std::to_string(i - 1);
    env.lazy("v" + std::to_string(i), Template::compile("=" + before + " + " + before, "v"));
  }
  EXPECT_THAT(test::error_of(ErrorKind::resource, [&] { env.find("v40"); }),
              HasSubstr("steps of work"));
}

TEST(Environment, ValuesAreComputedOnceAndCyclesAreRefused) {
  Environment env;
  env.lazy("a", Template::compile("=b + 1", "a"));
  env.lazy("b", Template::compile("=a + 1", "b"));
  env.lazy("gone", Template::compile("=absent", "gone"));
  EXPECT_THROW(env.find("a"), Error);
  EXPECT_THROW(env.find("gone"), Error);
  env.function("f", {{"x"}, Template::compile("=f(x)", "f")});
  EXPECT_THROW(Expr::parse("f(1)", "test").evaluate(env), Error);
}

TEST(Template, ControlFormsBuildJson) {
  Environment env;
  env.constant("n", 3);
  env.constant("kind", "linear");
  const Json json = {
      {"list", {{{"$for", "i in range(n)"}, {"item", {{"at", "=i"}}}}, 9}},
      {"left_out", "=absent"},
      {"scaling",
       {{"$match", "kind"}, {"cases", {{"linear", {{"type", "linear"}}}, {"none", nullptr}}}}},
      {"if", {{"$if", "n > 2"}, {"then", "=n * n"}}},
      {"text", "plain"}};
  EXPECT_EQ(Template::compile(json, "t")->evaluate(env),
            Json({{"list", {{{"at", 0}}, {{"at", 1}}, {{"at", 2}}, 9}},
                  {"scaling", {{"type", "linear"}}},
                  {"if", 9},
                  {"text", "plain"}}));
  env.constant("kind", "frobnicate");
  EXPECT_THROW(Template::compile(json, "t")->evaluate(env), Error);
  EXPECT_THROW(Template::compile({{"$if", "true"}}, "t"), Error);
  EXPECT_THROW(Template::compile({{"$while", "true"}}, "t"), Error);
  EXPECT_THROW(Template::compile({{"$for", "i range(n)"}, {"item", 1}}, "t"), Error);
}

}  // namespace
}  // namespace tessera::convert::expr_test
