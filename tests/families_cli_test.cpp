// Families as the program drafts and checks them.
#include <gmock/gmock.h>

#include "cli_testing.h"

#include "tessera/spec/json.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class FamiliesVerb : public CliRunner {
 protected:
  /// The tiny llama as a type that no family reads.
  std::string unknown() const {
    spec::Json config = spec::read_json_file(tiny() + "/config.json");
    config["model_type"] = "quill";
    folder_.write("m/config.json", config.dump(1));
    fs::copy_file(tiny() + "/model.safetensors", folder_ / "m/model.safetensors",
                  fs::copy_options::overwrite_existing);
    return (folder_ / "m").string();
  }
};

TEST_F(FamiliesVerb, ADraftLoadsTheModel) {
  const std::string model = unknown(), file = (folder_ / "families/quill.json").string();
  fs::create_directories(folder_ / "families");
  expect_refused("show " + model, 1, "tessera families propose");
  const Outcome drafted = run("families propose " + model + " --out " + file);
  EXPECT_EQ(drafted.code, 0) << drafted.err;
  EXPECT_THAT(drafted.out, HasSubstr("every tensor is mapped"));
  const std::string families = " --families " + (folder_ / "families").string();
  EXPECT_EQ(run("show " + model + families).out, run("show " + tiny()).out);
  // without --out the file alone is on stdout
  EXPECT_EQ(run("families propose " + model).out, read_text_file(file));
  expect_refused("families propose " + model + " --out " + file, 2, "--force to write over it");
  const Outcome checked = run("families check " + file + " " + model);
  EXPECT_EQ(checked.code, 0) << checked.err;
  EXPECT_THAT(checked.out, HasSubstr("family quill on the base"));
  expect_complaint(run("families propose " + model + " --text " + file), 2, "has no tokenizer");
  expect_refused("families propose " + tiny(), 2, "is known");
  expect_refused("families propose " + model + " --base lama", 2, "did you mean \"llama\"");
}

TEST_F(FamiliesVerb, WhatDoesNotFitIsNamed) {
  const std::string model = unknown();
  const std::string file = folder_.write(
      "x.json",
      R"({"family": "x", "base": "llama", "dialects": {"hf": {"types": ["quill"], "names": {"model.norm.weight": "model.nrm.weight"}}}})");
  const Outcome checked = run("families check " + file + " " + model);
  EXPECT_EQ(checked.code, 3) << checked.err;
  EXPECT_THAT(checked.out, HasSubstr("unmapped tensors of the file: 1"));
  EXPECT_THAT(checked.out, HasSubstr("model.norm.weight (nearest rule: \"model.norm.weight\")"));
  expect_refused("families check " + folder_.write("y.json", "{\n\"family\": 3}"), 2, "y.json:2");
  expect_refused("families check " + folder_.write("z.json", "{\n\n oops}"), 1, "z.json:3");
  // the spec of an incomplete file
  const Outcome spec = run("families check " + file + " " + model + " --spec");
  EXPECT_EQ(spec.code, 3);
  EXPECT_EQ(spec::parse_json(spec.out, "spec").at("arch"), "decoder");
  EXPECT_THAT(spec.err, HasSubstr("unmapped tensors of the file: 1"));
  const Outcome schema = run("families schema");
  EXPECT_EQ(schema.code, 0);
  EXPECT_TRUE(spec::parse_json(schema.out, "schema").is_object());
}

TEST_F(FamiliesVerb, AFileThatReadsOnlyNamesWhatWritingNeeds) {
  const std::string file = folder_.write(
      "x.json",
      "{\"family\": \"x\", \"base\": \"llama\", \"dialects\": {\"hf\": {\"types\": [\"quill\"],\n"
      "\"write\": {\"attention_bias\": \"=absent\"},\n\"read\": {\n"
      "\"norm\": {\"type\": \"layer_norm\", \"eps\": \"=eps\", \"bias\": false}}}}}");
  const Outcome checked = run("families check " + file + " " + unknown());
  EXPECT_EQ(checked.code, 0) << checked.err;
  EXPECT_THAT(checked.out, HasSubstr("reads only: it cannot be written because"));
  EXPECT_THAT(checked.out, HasSubstr("x.json:4: x.hf.read.norm] writing needs the same value"));
  // a spec that is none names the entry that gives it
  const std::string wrong = folder_.write(
      "w.json",
      "{\"family\": \"w\", \"base\": \"llama\", \"dialects\": {\"hf\": {\"types\": [\"quill\"], "
      "\"read\": {\n\"positions\": \"=[{type: 'none', layout: 'half'} for i in "
      "range(n_layers)]\"}}}}");
  const Outcome refused = run("families check " + wrong + " " + unknown());
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.out, HasSubstr("w.json:2: w.hf.read.positions] [layers[0].mixer.position] "
                                     "unknown key \"layout\""));
}

TEST_F(FamiliesVerb, EntriesThatNothingInTheModelHasAreListed) {
  const std::string file = folder_.write(
      "x.json",
      "{\"family\": \"x\", \"base\": \"llama\", \"dialects\": {\"hf\": {\"types\": [\"quill\"],\n"
      "\"keys\": {\"rms_norm_eps\": \"norm_epsln\"},\n"
      "\"ignored_tensors\": {\"rotary.*\": \"a buffer\"}}}}");
  const Outcome checked = run("families check " + file + " " + unknown());
  EXPECT_EQ(checked.code, 0) << checked.err;
  EXPECT_THAT(checked.out,
              HasSubstr("entries of the family file that nothing in the model has: 2"));
  EXPECT_THAT(checked.out,
              HasSubstr("x.json:2: x.hf.keys.rms_norm_eps] config.json has no \"norm_epsln\""));
  EXPECT_THAT(checked.out, HasSubstr("x.json:3: x.hf.ignored_tensors.rotary.*] the file has no"));
}

TEST_F(FamiliesVerb, AFileForAnotherTypeIsNotForTheModel) {
  const std::string other = folder_.write(
      "o.json", R"({"family": "o", "base": "llama", "dialects": {"hf": {"types": ["quil"]}}})");
  const Outcome refused = run("families check " + other + " " + unknown());
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.out, HasSubstr("\"types\" lacks \"quill\"; it has quil"));
}

TEST_F(FamiliesVerb, ShowsWhatAFamilyConsistsOf) {
  const Outcome shown = run("families show gemma2");
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("builds on: "));
  EXPECT_THAT(shown.out, HasSubstr("sandwich: factor on the token embedding"));
  EXPECT_THAT(shown.out, HasSubstr("layers.{i}.mixer.o.{part} <- "));
  EXPECT_TRUE(spec::parse_json(run("families show gemma2 --json").out, "shown").contains("spec"));
  EXPECT_EQ(spec::parse_json(run("families show decoder").out, "shown").at("fragment"), "decoder");
  expect_refused("families show lama", 2, "did you mean \"llama\"");
}

}  // namespace
}  // namespace tessera
