// Models whose weights lie in files of torch.save, under names that programs wrapped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/convert/checkpoint.h"
#include "tessera/convert/wrapped_names.h"
#include "tessera/format/safetensors.h"
#include "tessera/format/torch_testing.h"

namespace tessera::convert::torch_folder_test {
namespace {

namespace fs = std::filesystem;
using format::test::torch_file_of;
using test::TemporaryFolder;

fs::path base_of(const char* family) {
  return fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families" / family / "base";
}

void expect_same(const Checkpoint& one, const Checkpoint& other) {
  EXPECT_EQ(one.spec_json, other.spec_json);
  ASSERT_EQ(one.tensors.size(), other.tensors.size());
  for (size_t i = 0; i < one.tensors.size(); ++i) {
    EXPECT_EQ(one.tensors[i].name, other.tensors[i].name);
    EXPECT_EQ(one.tensors[i].dtype, other.tensors[i].dtype);
    EXPECT_TRUE(std::ranges::equal(one.tensors[i].data, other.tensors[i].data))
        << one.tensors[i].name;
  }
}

/// A folder of the family's config whose weights are what `text` says.
struct Folder {
  explicit Folder(const char* family) : base(base_of(family)) {
    fs::copy_file(base / "config.json", folder / "config.json");
    tensors = format::open_safetensors(base / "model.safetensors");
  }
  fs::path base;
  TemporaryFolder folder;
  format::TensorFile tensors;
};

TEST(TorchFolder, IsTheModelOfItsSafetensors) {
  for (const char* family : {"llama", "gpt2", "bert", "mixtral", "mamba2", "t5"}) {
    SCOPED_TRACE(family);
    const Folder f(family);
    f.folder.write("pytorch_model.bin", torch_file_of(f.tensors.tensors()));
    expect_same(load_checkpoint(f.folder.path()), load_checkpoint(f.base));
  }
}

TEST(TorchFolder, NamesOfWrappersAreFound) {
  for (const char* family : {"llama", "gpt2", "bert", "t5"})
    for (const char* prefix : {"module.", "_orig_mod.", "model.", "anything.net."}) {
      SCOPED_TRACE(std::string(family) + " " + prefix);
      const Folder f(family);
      f.folder.write("last.ckpt", torch_file_of(f.tensors.tensors(), prefix, "state_dict"));
      const Checkpoint read = load_checkpoint(f.folder / "last.ckpt");
      expect_same(read, load_checkpoint(f.base));
      EXPECT_EQ(read.folder, f.folder.path());
      EXPECT_THAT(read.remarks,
                  testing::Contains(testing::HasSubstr(
                      std::string("names are read without their prefix \"") + prefix)));
    }
}

TEST(TorchFolder, WrappedSafetensorsAreReadToo) {
  const Folder f("llama");
  std::vector<TensorView> wrapped = f.tensors.tensors();
  for (TensorView& tensor : wrapped) tensor.name = "module." + tensor.name;
  format::write_safetensors(f.folder / "model.safetensors", wrapped, {});
  expect_same(load_checkpoint(f.folder.path()), load_checkpoint(f.base));
}

// What a file lacks is named as the file has it, not as a guess of ours.
TEST(TorchFolder, AMissingTensorIsNamedAsItIs) {
  const Folder f("llama");
  std::vector<TensorView> some = f.tensors.tensors();
  std::erase_if(some, [](const TensorView& t) { return t.name == "model.norm.weight"; });
  f.folder.write("pytorch_model.bin", torch_file_of(some));
  test::expect_error(ErrorKind::file, "tensor \"model.norm.weight\" is missing",
                     [&] { load_checkpoint(f.folder.path()); });
}

TEST(TorchFolder, CodeIsNeverRun) {
  const Folder f("llama");
  f.folder.write("pytorch_model.bin",
                 "\x80\x02"
                 "cos\nsystem\n(X\x05\0\0\0touch"
                 "tR.");
  test::expect_error(ErrorKind::file, "it names \"os.system\"",
                     [&] { load_checkpoint(f.folder.path()); });
}

TEST(TorchFolder, AFileWithoutAConfigSaysWhatItNeeds) {
  const Folder f("llama");
  fs::remove(f.folder / "config.json");
  f.folder.write("model.pt", torch_file_of(f.tensors.tensors()));
  test::expect_error(ErrorKind::file, "begins as a file of torch.save; expected config.json",
                     [&] { load_checkpoint(f.folder / "model.pt"); });
}

TEST(WrappedNames, ArePrefixesOfMoreThanHalf) {
  const std::vector<std::byte> zeros(4);
  const auto file = [&](std::vector<std::string> names) {
    std::vector<TensorView> tensors;
    for (const std::string& name : names) tensors.push_back({name, DType::f32, {1}, zeros});
    return format::TensorFile("test", "x", std::move(tensors));
  };
  const auto ways = unwrapped(file({"a.b.x", "a.b.y", "a.c.z", "d"}));
  ASSERT_EQ(ways.size(), 1u);
  EXPECT_EQ(ways[0].prefix, "a.");
  EXPECT_NE(ways[0].file.find("b.x"), nullptr);
  EXPECT_NE(ways[0].file.find("d"), nullptr);
  EXPECT_TRUE(unwrapped(file({"a.x", "b.x", "c", "d"})).empty());
  EXPECT_TRUE(unwrapped(file({"a.x", "a.y", "x"})).empty());  // two would be x
}

}  // namespace
}  // namespace tessera::convert::torch_folder_test
