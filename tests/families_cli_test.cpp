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
  const Outcome schema = run("families schema");
  EXPECT_EQ(schema.code, 0);
  EXPECT_TRUE(spec::parse_json(schema.out, "schema").is_object());
}

}  // namespace
}  // namespace tessera
