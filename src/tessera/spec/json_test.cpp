#include "tessera/spec/json.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/testing.h"
#include "tessera/spec/json_difference.h"

namespace tessera::spec::json_test {
namespace {

std::string error_of(std::string_view text, const JsonLimits& limits = {}) {
  return test::error_of([&] { parse_json(text, "test", limits); });
}

TEST(Json, KeepsKeyOrder) {
  EXPECT_EQ(parse_json(R"({"b":1,"a":[true,null,"x"]})", "test").dump(),
            R"({"b":1,"a":[true,null,"x"]})");
}

TEST(Json, RefusesDuplicateKeys) {
  EXPECT_EQ(error_of(R"({"a":1,"a":2})"), "[test] key \"a\" appears twice in one object");
  EXPECT_EQ(error_of(R"({"a":{"a":1},"b":{"a":2}})"), "");
}

TEST(Json, RefusesDepthBeyondLimit) {
  const std::string deep = std::string(65, '[') + std::string(65, ']');
  EXPECT_EQ(error_of(deep), "[test] JSON nested deeper than 64");
  EXPECT_EQ(error_of(std::string(64, '[') + std::string(64, ']')), "");
}

TEST(Json, RefusesMalformedText) {
  for (const std::string_view text :
       {std::string_view("{}\0x", 4), std::string_view("\xef\xbb\xbf{}")})
    EXPECT_NE(error_of(text), "");
  EXPECT_EQ(error_of("{\"a\\n\":1,\"a\\n\":2}"), "[test] key \"a\\n\" appears twice in one object");
  for (const char* text :
       {"", "{", "[1,]", "{\"a\":}", "1 2", "\"\xff\"", "nul", "1e999", "// c\n1"})
    EXPECT_NE(error_of(text), "") << text;
}

TEST(Json, NumbersThatAreNotFiniteAreNamed) {
  EXPECT_EQ(error_of(R"({"a": NaN})"), "[test] byte 7: found NaN; expected a finite number");
  EXPECT_EQ(error_of("[nan]"), "[test] byte 2: found nan; expected a finite number");
  EXPECT_EQ(error_of("[-Infinity, 1]"), "[test] byte 3: found Infinity; expected a finite number");
  EXPECT_EQ(error_of("inf"), "[test] byte 1: found inf; expected a finite number");
}

TEST(Json, NumbersBeyondADoubleAreNamedPlainly) {
  EXPECT_EQ(error_of("[1e999]"), "[test] byte 6: invalid JSON: number overflow parsing '1e999'");
}

TEST(Json, CommentsOnlyWhereAllowed) {
  JsonLimits limits;
  limits.comments = true;
  EXPECT_EQ(parse_json("// c\n{\"a\": /* d */ 1}", "test", limits)["a"], 1);
}

/// "path: before; after" of the first difference.
std::string difference(const char* before, const char* after) {
  const auto found =
      first_difference(parse_json(before, "test"), parse_json(after, "test"),
                       [](const std::string& path) { return path == "free" || path == "a.free"; });
  if (!found) return "";
  const auto text = [](const std::optional<Json>& value) { return value ? value->dump() : "-"; };
  return found->path + ": " + text(found->before) + "; " + text(found->after);
}

TEST(FirstDifference, NamesThePlaceAndBothValues) {
  EXPECT_EQ(difference(R"({"a": [1, {"b": 2}]})", R"({"a": [1, {"b": 3}]})"), "a[1].b: 2; 3");
  EXPECT_EQ(difference(R"({"a": {"b": 2, "c": 1}})", R"({"a": {"b": 2}})"), "a.c: 1; -");
  EXPECT_EQ(difference(R"({"a": {"b": 2}})", R"({"a": {"c": 1, "b": 2}})"), "a.c: -; 1");
  EXPECT_EQ(difference("[1, 2]", "[1, 2, 3]"), "[2]: -; 3");
  EXPECT_EQ(difference("[1, 2]", "[1]"), "[1]: 2; -");
  EXPECT_EQ(difference("{}", "[]"), ": {}; []");
  EXPECT_EQ(difference(R"({"a": null})", R"({"a": false})"), "a: null; false");
}

TEST(FirstDifference, NeitherOrderNorWhatIsSkippedCounts) {
  EXPECT_EQ(
      difference(R"({"a": 1, "b": [{"c": 1, "d": 2}]})", R"({"b": [{"d": 2, "c": 1}], "a": 1.0})"),
      "");
  EXPECT_EQ(difference(R"({"free": 1, "a": {"free": [1]}})", R"({"a": {"free": {}}})"), "");
  EXPECT_EQ(difference(R"({"free": 1, "b": {"free": 1}})", R"({"b": {"free": 2}})"),
            "b.free: 1; 2");
}

TEST(NearestName, FindsNearAndNothingFar) {
  EXPECT_EQ(nearest_name("n_head", {"n_heads", "eps"}), "n_heads");
  EXPECT_EQ(nearest_name("zzzz", {"n_heads", "eps"}), "");
}

}  // namespace
}  // namespace tessera::spec::json_test
