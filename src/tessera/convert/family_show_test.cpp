// What is shown of families, and what fragments state of their values.
#include <gmock/gmock.h>

#include "tessera/convert/family_show.h"
#include "tessera/convert/spec_place.h"

namespace tessera::convert {
namespace {

using testing::HasSubstr;

Json object_of(const Json& file, const std::vector<std::string>& path) {
  const Json* at = &file;
  for (const std::string& key : path) {
    if (!at->contains(key)) return Json::object();
    at = &at->at(key);
  }
  return *at;
}

const std::vector<std::vector<std::string>>& defining_entries() {
  static const std::vector<std::vector<std::string>> paths = {
      {"let"}, {"dialects", "hf", "read"}, {"functions"}, {"tables"}};
  return paths;
}

TEST(FamilyShow, NamesTheFileThatGivesAValue) {
  FamilySet families = FamilySet::load();
  const std::string text = shown_family(families, "starcoder2", "hf");
  EXPECT_THAT(text, HasSubstr("eps = config.norm_epsilon ?? 1e-5\n      starcoder2: epsilon"));
  EXPECT_THAT(text, HasSubstr("norm_parts = [\"weight\",\"bias\"]\n      layer_norms: "));
  EXPECT_THAT(text, HasSubstr("hf_patterns(types, window, n_layers) = "));
  EXPECT_THAT(text, HasSubstr("final_norm.{part} <- {p}{final_norm_name}.{part}"));
  EXPECT_EQ(families.files_of("starcoder2").back(), "starcoder2");
}

// The tables of the guide come of "meanings".
TEST(FamilyShow, EveryValueOfSharedFragmentsHasAMeaning) {
  const FamilySet families = FamilySet::load();
  std::set<std::string> meant;
  for (const std::string& fragment : families.fragments()) {
    const Json& file = families.file(fragment);
    const Json meanings = object_of(file, {"meanings"});
    for (const auto& [name, meaning] : meanings.items()) {
      meant.insert(name);
      bool defined = object_of(file, {"values"}).contains(name);
      for (const auto& path : defining_entries())
        defined = defined || object_of(file, path).contains(name);
      EXPECT_TRUE(defined) << fragment << " gives " << name << " a meaning and no value";
    }
  }
  for (const char* fragment :
       {"decoder", "decoder_tensors", "decoder_ends", "pre_norms", "layer_places", "head_norms",
        "layer_norms", "ungated", "window_types", "hf_rope", "hf_common", "sandwich", "encoder",
        "encoder_tensors", "encoder_qkv"})
    for (const auto& path : defining_entries()) {
      const Json entries = object_of(families.file(fragment), path);
      for (const auto& [name, value] : entries.items())
        EXPECT_TRUE(meant.contains(name)) << fragment << ": " << name << " has no meaning";
    }
}

TEST(SpecPlace, IsTheEntryThatGivesWhatIsWrong) {
  const Json merged = Json::parse(
      R"~({"spec": {"layers": [{"$for": "i in range(n)", "item": {"mixer": {"position": "=positions[i]", "bias": true}}}]}})~");
  const Json own = Json::parse(R"~({"dialects": {"hf": {"read": {"positions": "=x"}}}})~");
  EXPECT_EQ(spec_place(merged, own, "[layers[3].mixer.position] unknown key"), "hf.read.positions");
  EXPECT_EQ(spec_place(merged, Json::object(), "[layers[3].mixer.position] unknown key"),
            "spec.layers[0].item.mixer.position");
  EXPECT_EQ(spec_place(merged, own, "[layers[3].mixer.bias.q] found"),
            "spec.layers[0].item.mixer.bias");
  EXPECT_EQ(spec_place(merged, own, "no place"), "spec");
}

}  // namespace
}  // namespace tessera::convert
