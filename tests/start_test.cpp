// When tessera-tensors opens libtorch: not for inference of models whose parts have decoding steps
// and kernels.
#include <filesystem>
#include <string>

#include "cli_testing.h"

namespace tessera {
namespace {

#if defined(__x86_64__) && defined(__linux__)

class Start : public CliRunner {
 protected:
  struct Started {
    Outcome outcome;
    bool opened;  // libtorch
  };

  /// Runs a command whose dynamic loader lists the libraries that it opens.
  Started start(const std::string& arguments, const std::string& input = "") {
    const std::filesystem::path lists = folder_ / "lists";
    std::filesystem::remove_all(lists);
    std::filesystem::create_directories(lists);
    Started started{
        run(arguments, "LD_DEBUG=libs LD_DEBUG_OUTPUT='" + (lists / "list").string() + "' ",
            "<<'END'\n" + input + "END\n"),
        false};
    bool listed = false;
    for (const auto& list : std::filesystem::directory_iterator(lists)) {
      const std::string text = read_text_file(list.path());
      listed |= text.find("libc10.so") != std::string::npos;
      started.opened |= text.find("libtorch_cpu.so") != std::string::npos;
    }
    EXPECT_TRUE(listed) << "the loader's list of tessera-tensors is missing";
    EXPECT_EQ(started.outcome.code, 0) << arguments << "\n" << started.outcome.err;
    return started;
  }

  void expect_light(const std::string& arguments, const std::string& input = "") {
    const Started started = start(arguments, input);
    EXPECT_FALSE(started.opened) << arguments;
    EXPECT_NE(started.outcome.out, "") << arguments;
  }

  std::string file() const { return kGoldens + "/llama/gguf/base.gguf"; }
};

TEST_F(Start, InferenceOfAPlainModelOpensNoLibtorch) {
  const std::string ids = " --input-ids 5,6,7,8,9,10,11 --max-tokens 4";
  for (const std::string& model :
       {file(), tiny(), kGoldens + "/qwen3/base", kGoldens + "/phi3/base", kGoldens + "/gemma/base",
        kGoldens + "/gpt_neox/base"}) {
    expect_light("generate " + model + ids);
    expect_light("generate " + model + ids + " --temperature 0.8 --top-p 0.9 --seed 3 --choices 2");
  }
  expect_light("generate " + file() + ids + " --beams 3");
  expect_light("generate " + file() + " --prompt '!' --max-tokens 4 --lookup 2");
  expect_light("embed " + file() + " --pooling mean --text '!'");
  expect_light("generate --help");
}

TEST_F(Start, OtherModelsAndVerbsOpenIt) {
  EXPECT_TRUE(
      start("generate " + kGoldens + "/mamba2/base --input-ids 5,6,7 --max-tokens 2").opened);
  EXPECT_TRUE(start("doctor").opened);
}

#endif

}  // namespace
}  // namespace tessera
