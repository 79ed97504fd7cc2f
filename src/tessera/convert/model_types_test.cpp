// The list of transformers' model types against the families: a type that a family reads has no
// reason to be refused, and every other has one.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "tessera/base/mapped_file.h"
#include "tessera/convert/family.h"
#include "tessera/convert/model_types.h"

namespace tessera::convert::model_types_test {
namespace {

TEST(ModelTypes, RefusedAreThoseThatNoFamilyReads) {
  const std::vector<std::string> read = FamilySet::load().types("hf");
  const std::set<std::string> known(read.begin(), read.end());
  for (const ModelType& type : model_types()) {
    EXPECT_EQ(type.refused.empty(), known.contains(type.name))
        << type.name << (type.refused.empty() ? " has no reason, and no family reads it"
                                              : " is read by a family, and has a reason")
        << ": run tools/golden/model_types.py";
    EXPECT_FALSE(type.classes.empty());
  }
}

TEST(ModelTypes, TheReadmeCountsThem) {
  const auto types = model_types();
  const auto run = std::count_if(types.begin(), types.end(),
                                 [](const ModelType& type) { return type.refused.empty(); });
  const std::string said =
      fmt::format("{} of the {} text types of transformers", run, types.size());
  EXPECT_NE(read_text_file(TESSERA_SOURCE_DIR "/README.md").find(said), std::string::npos) << said;
}

TEST(ModelTypes, EveryAutoClassOfTextIsThere) {
  std::map<std::string, int> counted;
  for (const ModelType& type : model_types())
    for (const std::string& of : type.classes) ++counted[of];
  EXPECT_EQ(counted.size(), 3u);
  EXPECT_GT(counted["AutoModelForCausalLM"], 150);
  EXPECT_GT(counted["AutoModelForMaskedLM"], 40);
  EXPECT_GT(counted["AutoModelForSeq2SeqLM"], 30);
  EXPECT_FALSE(model_types_version().empty());
}

}  // namespace
}  // namespace tessera::convert::model_types_test
