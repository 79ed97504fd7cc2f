// What counts as a use of a value of a family file.
#include <gmock/gmock.h>

#include "tessera/base/testing.h"
#include "tessera/convert/family.h"

namespace tessera::convert {
namespace {

using testing::HasSubstr;

std::string error_of_file(const std::string& members) {
  const test::TemporaryFolder scratch;
  scratch.write("families/x.json", "{\"family\": \"x\", \"base\": \"llama\", " + members + "}");
  return test::error_of([&] { FamilySet::load(scratch / "families").named("x"); });
}

std::string read_of(const std::string& values) {
  return "\"dialects\": {\"hf\": {\"types\": [\"x\"], \"read\": {" + values + "}}}";
}

// texts, keys of objects, members, loop variables and parameters are no uses
TEST(FamilyKeys, AWordThatIsNoReferenceDoesNotUseAValue) {
  for (const char* name : {"half", "type", "rows", "pairs", "full", "rotates", "layout",
                           "interleaved", "r", "layer", "part", "factor", "mixer", "window"})
    EXPECT_THAT(
        error_of_file(read_of(fmt::format("\"{}\": 1", name))),
        HasSubstr(fmt::format("x.hf.read.{}] no expression of the family has this name", name)));
  for (const char* name : {"theta", "hf_pairs", "positions", "position", "norm_parts"})
    EXPECT_EQ(error_of_file(read_of(fmt::format("\"{}\": 1", name))), "") << name;
}

TEST(FamilyKeys, AFunctionThatNothingCallsUsesNoValue) {
  const std::string function = R"~("functions": {"twice(a)": "=a * mine"}, "let": {"mine": 2}, )~";
  EXPECT_THAT(error_of_file(function + read_of("")), HasSubstr("x.let.mine] no expression"));
  EXPECT_EQ(error_of_file(function + read_of(R"~("length": "=twice(512)")~")), "");
  // nor does the list of a loop within the loop
  EXPECT_EQ(error_of_file(R"~("let": {"mine": [1, 2]}, )~" +
                          read_of(R"~("length": "=len([mine for mine in mine])")~")),
            "");
}

}  // namespace
}  // namespace tessera::convert
