// What other people's programs make of ours: Hugging Face folders in transformers
// (tools/golden/export_check.py), files of torch.save (tools/golden/containers_check.py),
// libtessera_ops.so in Python's torch
// (tools/golden/torch_ops_check.py), modules of tessera.nn compared with plain PyTorch
// (tools/golden/nn_module_check.py), the notebook of examples (tools/golden/notebook_check.py),
// GGUF files in llama.cpp (tools/golden/gguf_check.py), a run's events in TensorBoard
// (tools/golden/tensorboard_check.py), the server in OpenAI's client
// (tools/golden/openai_check.py), in schemathesis and Prometheus' own reader
// (tools/golden/serve_clients_check.py), the cache of models in PyPI's huggingface_hub
// (tools/golden/hub_check.py). Needs TESSERA_REFERENCE_PYTHON, a Python with these;
// TESSERA_REQUIRE_REFERENCE=1 makes its absence a failure. TensorBoard has a Python of its own,
// TESSERA_TENSORBOARD_PYTHON (scripts/setup.sh tensorboard), which `make test` sets up.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tessera/base/testing.h"

namespace {

class ReferenceScripts : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* python = std::getenv("TESSERA_REFERENCE_PYTHON")) {
      python_ = python;
      return;
    }
    const char* required = std::getenv("TESSERA_REQUIRE_REFERENCE");
    if (required != nullptr && std::string(required) == "1")
      FAIL() << "TESSERA_REFERENCE_PYTHON is not set";
    GTEST_SKIP() << "TESSERA_REFERENCE_PYTHON is not set";
  }
  /// The exit status of tools/golden/`script` with these arguments.
  int run(const std::string& script, const std::string& arguments) const {
    return std::system(
        (python_ + " '" + source_ + "/tools/golden/" + script + "' " + arguments + " 2>/dev/null")
            .c_str());
  }
  /// The same with the Python module.
  int run_with_module(const std::string& script) const {
    return std::system(("PYTHONPATH='" + source_ +
                        "/python' TESSERA_LIBRARY='" TESSERA_LIBRARY "' " + python_ + " '" +
                        source_ + "/tools/golden/" + script + "' > /dev/null 2>&1")
                           .c_str());
  }
  std::string python_;
  std::string source_ = TESSERA_SOURCE_DIR;
};

TEST_F(ReferenceScripts, TransformersLoadsWhatIsWritten) {
  const tessera::test::TemporaryFolder work;
  EXPECT_EQ(run("export_check.py", "'" TESSERA_PROGRAM "' '" + source_ +
                                       "/tests/golden/families' '" + work.path().string() + "'"),
            0);
}

TEST_F(ReferenceScripts, FilesOfTorchSaveBecomeFoldersThatOpenWithoutAWarning) {
  const tessera::test::TemporaryFolder work;
  EXPECT_EQ(
      run("containers_check.py", "'" TESSERA_PROGRAM "' '" + source_ + "/tests/golden/families' '" +
                                     work.path().string() + "'"),
      0);
}

TEST_F(ReferenceScripts, LlamaCppRunsWhatIsWritten) {
  if (std::system((python_ + " -c 'import llama_cpp, gguf' 2>/dev/null").c_str()) != 0)
    GTEST_SKIP() << "llama-cpp-python 0.3.36 or gguf is not installed there";
  const tessera::test::TemporaryFolder work;
  const char* model = std::getenv("TESSERA_SMOLLM2");
  const char* data = std::getenv("TESSERA_TEST_DATA");
  std::string more;
  if (model != nullptr) more += " '" + std::string(model) + "'";
  if (model != nullptr && data != nullptr)
    more += " '" + std::string(data) + "/text/wikitext2.test.txt'";
  EXPECT_EQ(run("gguf_check.py", "'" TESSERA_PROGRAM "' '" + source_ + "/tests/golden/families' '" +
                                     work.path().string() + "'" + more),
            0);
}

TEST_F(ReferenceScripts, OpenAisClientTalksToTheServer) {
  if (std::system((python_ + " -c 'import openai' 2>/dev/null").c_str()) != 0)
    GTEST_SKIP() << "this Python has no openai";
  const char* model = std::getenv("TESSERA_SMOLLM2");
  if (model == nullptr) GTEST_SKIP() << "TESSERA_SMOLLM2 does not name the GGUF file";
  EXPECT_EQ(run("openai_check.py", "'" TESSERA_PROGRAM "' '" + std::string(model) + "'"), 0);
}

TEST_F(ReferenceScripts, WhatIsDocumentedOfTheServerHolds) {
  if (std::system((python_ + " -c 'import schemathesis, prometheus_client' 2>/dev/null").c_str()) !=
      0)
    GTEST_SKIP() << "this Python has no schemathesis or prometheus_client";
  EXPECT_EQ(run("serve_clients_check.py", "'" TESSERA_PROGRAM "' '" + source_ +
                                              "/tests/golden/families/llama/gguf/base.gguf'"),
            0);
}

TEST_F(ReferenceScripts, HuggingfaceHubSharesTheCache) {
  EXPECT_EQ(run("hub_check.py",
                "'" TESSERA_PROGRAM "' '" + source_ + "/tests/golden/families/llama/base'"),
            0);
}

TEST_F(ReferenceScripts, TorchTakesTheOps) {
  EXPECT_EQ(run("torch_ops_check.py", "'" TESSERA_TORCH_OPS "'"), 0);
}

TEST_F(ReferenceScripts, PartsTrainInPyTorch) {
  EXPECT_EQ(run_with_module("nn_module_check.py"), 0);
}

TEST_F(ReferenceScripts, TheNotebookRuns) {
  EXPECT_EQ(run_with_module("notebook_check.py"), 0);
}

TEST(Tensorboard, ReadsARunAndSeesWhatIsBroken) {
  const char* python = std::getenv("TESSERA_TENSORBOARD_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "TESSERA_TENSORBOARD_PYTHON is not set";
  // nothing of the machine's own Python packages
  const auto check = [&](const std::string& run) {
    return std::system((std::string(python) +
                        " -I '" TESSERA_SOURCE_DIR "/tools/golden/tensorboard_check.py' '" + run +
                        "' 2>/dev/null")
                           .c_str());
  };
  const tessera::test::TemporaryFolder work;
  std::string text;
  for (int i = 0; i < 500; ++i) text += std::to_string(i) + " ";
  work.write("text.txt", text);
  work.write("recipe.json", R"({
    "spec": {"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 16, "head": "tied",
             "layers": [{"repeat": 2}], "mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
             "ffn": {"type": "glu", "d_hidden": 32}},
    "data": {"train": ["text.txt"], "valid_fraction": 0.1},
    "train": {"steps": 4, "batch": 2, "length": 16, "accumulate": 2, "log_every": 1, "eval_every": 2},
    "watch": {"noise_scale": 2, "norms": 3},
    "schedule": {"type": "constant"}})");
  const std::string folder = work.path().string(), train = "'" TESSERA_PROGRAM "' train '" +
                                                           folder + "/recipe.json' --out '" +
                                                           folder + "/run' ";
  // a run that goes on writes its file anew
  ASSERT_EQ(std::system((train + "> /dev/null 2>&1").c_str()), 0);
  ASSERT_EQ(std::system((train + "--resume --set train.steps=6 > /dev/null 2>&1").c_str()), 0);
  EXPECT_EQ(check(folder + "/run"), 0);

  const std::filesystem::path events = work / "run/events.out.tfevents.tessera";
  std::string bytes;
  {
    std::ifstream in(events, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  ASSERT_GT(bytes.size(), 200u);
  const auto broken = [&](const std::string& other) {
    std::ofstream(events, std::ios::binary) << other;
    return check(folder + "/run");
  };
  std::string flipped = bytes;
  flipped[bytes.size() / 2] = static_cast<char>(flipped[bytes.size() / 2] ^ 1);
  EXPECT_NE(broken(flipped), 0) << "a changed byte";
  EXPECT_NE(broken(bytes.substr(0, bytes.size() - 3)), 0) << "the end is missing";
  EXPECT_EQ(broken(bytes), 0);
}

}  // namespace
