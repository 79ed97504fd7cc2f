// Models in every container, as the program takes them: weights of torch.save, one file or a
// folder.
#include <gmock/gmock.h>

#include "cli_testing.h"

#include "tessera/format/safetensors.h"
#include "tessera/format/torch_testing.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Containers : public CliRunner {
 protected:
  /// The tiny llama's config beside a file of its weights.
  std::string written(const std::string& name,
                      const std::string& prefix = "",
                      const std::string& under = "") {
    const format::TensorFile file = format::open_safetensors(tiny() + "/model.safetensors");
    const std::string path =
        folder_.write("m/" + name, format::test::torch_file_of(file.tensors(), prefix, under));
    fs::copy_file(tiny() + "/config.json", folder_ / "m/config.json",
                  fs::copy_options::overwrite_existing);
    return path;
  }
};

TEST_F(Containers, ShowListsTensorsOfEveryFormat) {
  const std::string file = written("pytorch_model.bin");
  const Outcome safe = run("show " + tiny() + " --tensors"),
                torch = run("show " + file + " --tensors");
  EXPECT_EQ(safe.code, 0) << safe.err;
  EXPECT_THAT(safe.out, HasSubstr("model.embed_tokens.weight"));
  EXPECT_EQ(torch.out, safe.out);
  EXPECT_EQ(run("show " + (folder_ / "m").string() + " --tensors").out, safe.out);
  // types that are listed alone
  const std::string header = R"({"a":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]},)"
                             R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})";
  const std::string listed =
      run("show " +
          folder_.write("f8.safetensors",
                        format::test::ByteString().sized(header).raw("abc").text()) +
          " --tensors")
          .out;
  EXPECT_THAT(listed, testing::ContainsRegex("a +F8_E4M3 +\\[2\\] +2\n"));
  EXPECT_THAT(listed, testing::ContainsRegex("b +u8 +\\[1\\] +1\n"));
  EXPECT_THAT(listed, HasSubstr("2 tensors, 3 bytes\n"));
}

TEST_F(Containers, ConvertReadsFilesOfTorchSave) {
  const std::string plain = (folder_ / "plain").string(), wrapped = (folder_ / "wrapped").string();
  written("pytorch_model.bin");
  EXPECT_EQ(run("convert " + (folder_ / "m").string() + " --to hf --out " + plain).code, 0);
  const Outcome lightning =
      run("convert " + written("last.ckpt", "net.", "state_dict") + " --to hf --out " + wrapped);
  EXPECT_EQ(lightning.code, 0) << lightning.err;
  EXPECT_THAT(lightning.err, HasSubstr("names are read without their prefix \"net.\""));
  const std::string original = read_text_file(plain + "/model.safetensors");
  EXPECT_EQ(read_text_file(wrapped + "/model.safetensors"), original);
}

TEST_F(Containers, CodeInAPickleIsRefusedInOneLine) {
  const std::string file = written("pytorch_model.bin");
  const fs::path touched = folder_ / "touched";
  folder_.write("m/pytorch_model.bin",
                "\x80\x02"
                "cposix\nsystem\n(U" +
                    std::string(1, static_cast<char>(touched.string().size() + 6)) + "touch " +
                    touched.string() + "tR.");
  const std::string words = "it names \"posix.system\"", out = (folder_ / "out").string();
  for (const std::string& verb :
       {"convert " + (folder_ / "m").string() + " --out " + out, "show " + file + " --tensors",
        "show " + file + " --resolved", "generate " + (folder_ / "m").string() + " --prompt a"})
    expect_refused(verb, 1, words);
  EXPECT_FALSE(fs::exists(touched));
  EXPECT_FALSE(fs::exists(out));
}

TEST_F(Containers, OptionsOfFoldersBelongToFolders) {
  const std::string out = (folder_ / "x").string();
  expect_refused("convert " + tiny() + " --to gguf --dtype bfloat16 --out " + out, 2, "--to hf");
  expect_refused("convert " + tiny() + " --shard-size 1MB --out " + out, 2, "--to hf");
  expect_refused("convert " + tiny() + " --to hf --dtype float32 --float32 --out " + out, 2,
                 "excludes");
  const Outcome done =
      run("convert " + tiny() + " --to hf --dtype bfloat16 --shard-size 10KB --out " + out);
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_TRUE(fs::exists(out + "/model.safetensors.index.json"));
  EXPECT_TRUE(fs::exists(out + "/README.md"));
}

}  // namespace
}  // namespace tessera
