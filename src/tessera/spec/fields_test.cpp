#include "tessera/spec/fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/testing.h"

namespace tessera::spec::fields_test {
namespace {

struct Bounded {
  double share = 0.5;
  double more = 1;
  int64_t count = 1;
  std::vector<double> betas = {0.9};
  std::optional<double> maybe = {};
  double any = 0;
  static constexpr auto fields() {
    using C = Bounded;
    return std::tuple{field("share", &C::share, "s", {.min = 0, .below = 1}),
                      field("more", &C::more, "m", {.above = 0}),
                      field("count", &C::count, "c", {.min = 1, .max = 64}),
                      field("betas", &C::betas, "b", {.min = 0, .below = 1}),
                      field("maybe", &C::maybe, "o", {.above = 0, .max = 2}),
                      field("any", &C::any, "a")};
  }
};

Scope here() {
  Scope scope;
  scope.path = "part";
  return scope;
}

TEST(Fields, BoundsHoldForNumbersAndThoseOfLists) {
  const auto refused = [](const char* json, const char* message) {
    SCOPED_TRACE(json);
    test::expect_error(ErrorKind::spec, message,
                       [&] { read_struct<Bounded>(Json::parse(json), here()); });
  };
  refused(R"({"share": -0.5})", "[part.share] found -0.5; expected at least 0");
  refused(R"({"share": 1})", "[part.share] found 1; expected less than 1");
  refused(R"({"more": 0})", "[part.more] found 0; expected more than 0");
  refused(R"({"count": 0})", "[part.count] found 0; expected at least 1");
  refused(R"({"count": 65})", "[part.count] found 65; expected at most 64");
  refused(R"({"betas": [0.5, 1]})", "[part.betas[1]] found 1; expected less than 1");
  refused(R"({"maybe": 0})", "[part.maybe] found 0; expected more than 0");
  refused(R"({"maybe": 2.5})", "[part.maybe] found 2.5; expected at most 2");
  // null is no number
  refused(R"({"any": null})",
          "[part.any] found null; expected a number, or no such key for the default 0.0");
  refused(R"({"count": null})",
          "[part.count] found null; expected an integer, or no such key for the default 1");
  refused(R"({"betas": null})",
          "[part.betas] found null; expected a list, or no such key for the default");
  EXPECT_FALSE(read_struct<Bounded>(Json::parse(R"({"maybe": null})"), here()).maybe);
  // no number is infinite in float32
  refused(R"({"more": 1e300})",
          "[part.more] found 1e+300; expected a magnitude of at most 3.403e+38 (float32)");
  refused(R"({"any": -1e39})",
          "[part.any] found -1e+39; expected a magnitude of at most 3.403e+38");
  refused(R"({"betas": [1e300]})", "[part.betas[0]] found 1e+300; expected a magnitude of at most");
  refused(R"({"maybe": 1e300})", "[part.maybe] found 1e+300; expected a magnitude of at most");
  const auto read = read_struct<Bounded>(
      Json::parse(R"({"share": 0, "more": 3.4e38, "count": 64, "betas": [0, 0.999],
                      "maybe": 2, "any": -3.4e38})"),
      here());
  EXPECT_EQ(read.count, 64);
  EXPECT_EQ(read.maybe, 2);
}

TEST(Fields, SchemaAndDocumentationHaveTheBounds) {
  const Json properties = struct_schema<Bounded>()["properties"];
  EXPECT_EQ(properties["share"]["minimum"], 0);
  EXPECT_EQ(properties["share"]["exclusiveMaximum"], 1);
  EXPECT_EQ(properties["more"]["exclusiveMinimum"], 0);
  EXPECT_EQ(properties["count"]["maximum"], 64);
  EXPECT_EQ(properties["betas"]["items"]["exclusiveMaximum"], 1);
  EXPECT_FALSE(properties["betas"].contains("exclusiveMaximum"));
  EXPECT_EQ(properties["maybe"]["maximum"], 2);
  const Bounded defaults;
  std::vector<std::string> types;
  for (const FieldDoc& doc : detail::object_docs(&defaults, detail::object_type<Bounded>()))
    types.push_back(doc.type);
  EXPECT_THAT(types, testing::ElementsAre("number, in [0, 1)", "number, > 0", "integer, in [1, 64]",
                                          "list of number, in [0, 1)", "number or null, in (0, 2]",
                                          "number"));
}

}  // namespace
}  // namespace tessera::spec::fields_test
