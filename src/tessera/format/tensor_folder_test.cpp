#include "tessera/format/tensor_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/format/safetensors.h"
#include "tessera/format/torch_testing.h"

namespace tessera::format::tensor_folder_test {
namespace {

using test::dictionary;
using test::error_of;
using test::TemporaryFolder;
using test::tensor_pickle;
using test::torch_zip;

std::string torch_file(std::string_view name) {
  return torch_zip(dictionary(tensor_pickle(), name)).str();
}

std::vector<std::string> names_of(const TensorFile& file) {
  std::vector<std::string> names;
  for (const TensorView& tensor : file.tensors()) names.push_back(tensor.name);
  return names;
}

void write_one(const std::filesystem::path& path, const std::string& name) {
  const std::vector<std::byte> zeros(4);
  const std::vector<TensorView> tensors = {{name, DType::f32, {1}, zeros}};
  write_safetensors(path, tensors);
}

using Names = std::vector<std::string>;

TEST(TensorFolder, SafetensorsComeBeforePickles) {
  const TemporaryFolder folder;
  EXPECT_FALSE(holds_tensor_files(folder.path()));
  folder.write("pytorch_model.bin", torch_file("pickled"));
  EXPECT_TRUE(holds_tensor_files(folder.path()));
  EXPECT_EQ(names_of(open_tensor_folder(folder.path())), (Names{"pickled"}));
  write_one(folder / "model.safetensors", "safe");
  EXPECT_EQ(names_of(open_tensor_folder(folder.path())), (Names{"safe"}));
}

TEST(TensorFolder, ShardsOfPicklesAreJoined) {
  const TemporaryFolder folder;
  folder.write("pytorch_model-00001-of-00002.bin", torch_file("a"));
  folder.write("pytorch_model-00002-of-00002.bin", torch_file("b"));
  const auto index = [&](std::string_view second) {
    folder.write(
        "pytorch_model.bin.index.json",
        fmt::format(R"({{"weight_map": {{"a": "pytorch_model-00001-of-00002.bin", "b": "{}"}}}})",
                    second));
  };
  index("pytorch_model-00002-of-00002.bin");
  EXPECT_EQ(names_of(open_tensor_folder(folder.path())), (Names{"a", "b"}));
  const auto error = [&] { return error_of([&] { open_tensor_folder(folder.path()); }); };
  index("pytorch_model-00003-of-00003.bin");
  EXPECT_THAT(error(), testing::HasSubstr("No such file; expected all 2 shards"));
  index("../elsewhere.bin");
  EXPECT_THAT(error(), testing::HasSubstr("expected a plain file name that ends with .bin"));
  index("model.safetensors");
  EXPECT_THAT(error(), testing::HasSubstr("expected a plain file name that ends with .bin"));
}

TEST(TensorFolder, AFileIsToldByItsFirstBytes) {
  const TemporaryFolder folder;
  folder.write("weights.ckpt", torch_file("pickled"));
  write_one(folder / "weights.pt", "safe");
  EXPECT_EQ(names_of(open_tensor_file(folder / "weights.ckpt")), (Names{"pickled"}));
  EXPECT_EQ(names_of(open_tensor_file(folder / "weights.pt")), (Names{"safe"}));
}

TEST(TensorFolder, AnEmptyFolderNamesWhatIsExpected) {
  const TemporaryFolder folder;
  EXPECT_THAT(
      error_of([&] { open_tensor_folder(folder.path()); }),
      testing::HasSubstr("holds neither model.safetensors.index.json nor model.safetensors"));
}

}  // namespace
}  // namespace tessera::format::tensor_folder_test
