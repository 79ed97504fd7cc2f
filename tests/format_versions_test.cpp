// Files of version 1 of every format that carries a version open and work (tests/golden/versions/1,
// written by tools/golden/format_versions.sh), and a later version is refused in one line.
#include <algorithm>
#include <functional>

#include "cli_testing.h"
#include "tessera/base/sha256.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class FormatVersions : public CliRunner {
 protected:
  void SetUp() override {
    fs::copy(kSource / "tests/golden/versions/1", folder_ / "1",
             fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  }
  std::string at(const std::string& name) const {
    return "'" + (folder_ / "1" / name).string() + "'";
  }
  Outcome opened(const std::string& arguments) {
    Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.err;
    return outcome;
  }
  /// Replaces the first `from` of a file by `to`.
  void edit(const std::string& name, const std::string& from, const std::string& to) {
    std::string text = read_text_file(folder_ / "1" / name);
    const size_t found = text.find(from);
    ASSERT_NE(found, std::string::npos) << name << ": " << from;
    folder_.write("1/" + name, text.replace(found, from.size(), to));
  }
};

TEST_F(FormatVersions, Version1Opens) {
  opened("plan " + at("spec.json"));
  const std::string once = "generate " + at("run") + " line -n 4 --temperature 0 --ignore-eos";
  EXPECT_EQ(opened(once).out, "lineeeee\n");
  opened(once + " --adapter " + at("adapter"));
  // a saved state is of the specs that its version knew: it continues, or is refused
  const Outcome session = run("generate " + at("run") + " -n 2 --session " + at("session"));
  if (session.code != 0)
    expect_complaint(session, 1, "made by another model: it differs in spec");
  else
    EXPECT_NE(session.out, "");
  const Outcome found = opened("search " + at("index") + " 'line 3' --with " + at("run"));
  EXPECT_NE(found.out.find("line 3"), std::string::npos) << found.out;
  // a checkpoint resumes with its optimizer's state
  opened("train " + at("recipe.json") + " --out " + at("run") + " --resume --set train.steps=3");
  EXPECT_TRUE(fs::exists(folder_ / "1/run/step-3/model.safetensors"));
}

TEST_F(FormatVersions, ALaterVersionIsRefusedInOneLine) {
  edit("recipe.json", "\"steps\"", "\"later\": 1, \"steps\"");
  expect_refused("train " + at("recipe.json") + " --out " + at("new"), 2, "unknown key \"later\"");
  edit("spec.json", "\"tessera\": 1", "\"tessera\": 2");
  expect_refused("plan " + at("spec.json"), 2,
                 "\"tessera\": 2; this program reads specs of version 1");
  edit("session", R"("tessera_session":"1")", R"("tessera_session":"2")");
  expect_refused("generate " + at("run/step-2") + " --session " + at("session"), 1,
                 "session of version \"2\"; this program reads version 1");
  edit("index/index.json", "\"tessera_index\": 1", "\"tessera_index\": 2");
  expect_refused("search " + at("index") + " 'line 3' --with " + at("run"), 1,
                 "version 2; expected 1: rebuild the index");
  edit("adapter/step-1/adapter.safetensors", R"(\"tessera\":1)", R"(\"tessera\":2)");
  expect_refused("generate " + at("run/step-2") + " line --adapter " + at("adapter/step-1"), 2,
                 "\"tessera\": 2; this program reads specs of version 1");
  edit("run/step-2/model.safetensors", R"(\"tessera\":1)", R"(\"tessera\":2)");
  expect_refused("generate " + at("run/step-2") + " line", 2,
                 "\"tessera\": 2; this program reads specs of version 1");
}

TEST_F(FormatVersions, ALaterCheckpointIsNotResumed) {
  const fs::path step = folder_ / "1/run/step-2";
  const std::string resume =
      "train " + at("recipe.json") + " --out " + at("run") + " --resume --set train.steps=3";
  edit("run/step-2/manifest.json", "\"version\": 1", "\"version\": 2");
  expect_complaint(run(resume), 1, "manifest.json: version 2; this program reads version 1");
  edit("run/step-2/manifest.json", "\"version\": 2", "\"version\": 1");
  const std::string before = sha256_file(step / "trainer.json");
  edit("run/step-2/trainer.json", "\"version\": 1", "\"version\": 2");
  edit("run/step-2/manifest.json", before, sha256_file(step / "trainer.json"));
  expect_complaint(run(resume), 1, "trainer.json: version 2; this program reads version 1");
}

}  // namespace
}  // namespace tessera
