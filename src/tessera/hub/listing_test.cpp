// What a hub answers, read; and what a download takes of it.
#include "tessera/hub/listing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/spec/json.h"

namespace tessera::hub::listing_test {
namespace {

using spec::Json;
using test::error_of;
using test::expect_error;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kCommit(40, 'c'), kGit(40, 'a'), kSha(64, 'd');

Json file(const std::string& path, int64_t size = 5) {
  return {{"rfilename", path}, {"size", size}, {"blobId", kGit}};
}
Json large(const std::string& path, int64_t size) {
  Json out = file(path, size);
  out["lfs"] = {{"sha256", kSha}, {"size", size}, {"pointerSize", 134}};
  return out;
}
Json answer(const Json& siblings) {
  return {{"id", "org/name"}, {"sha", kCommit}, {"siblings", siblings}, {"tags", {"x"}}};
}
Listing read(const Json& json) {
  return read_listing(json.dump(), "pull");
}
/// A list of files of 5 bytes, by their paths.
Listing listing_of(const std::vector<std::string>& paths) {
  Json all = Json::array();
  for (const std::string& path : paths) all.push_back(file(path));
  return read(answer(all));
}
std::vector<std::string> taken(const std::vector<std::string>& paths, const Wanted& wanted = {}) {
  std::vector<std::string> out;
  for (const RemoteFile& one : wanted_files(listing_of(paths), wanted, "org/name"))
    out.push_back(one.path);
  return out;
}

TEST(Listing, HasPathsSizesAndHashes) {
  const Listing listing = read(answer({large("model.safetensors", 70), file("a/config.json")}));
  EXPECT_EQ(listing.commit, kCommit);
  ASSERT_EQ(listing.files.size(), 2u);
  EXPECT_EQ(listing.files[0].path, "a/config.json");
  EXPECT_EQ(listing.files[0].hash, kGit);
  EXPECT_EQ(listing.files[1].bytes, 70u);
  EXPECT_EQ(listing.files[1].hash, kSha);
}

TEST(Listing, RefusesWhatCannotBe) {
  const auto refused = [](const Json& json, std::string_view words) {
    expect_error(ErrorKind::file, words, [&] { read(json); });
  };
  refused(Json::array(), "the answer is an array");
  Json json = answer(Json::array({file("a")}));
  json["sha"] = "main";
  refused(json, "sha is \"main\"; expected a commit");
  json.erase("sha");
  refused(json, "sha is \"\"");
  refused({{"sha", kCommit}}, "no list of files");
  refused(answer(Json::array({"x"})), "siblings holds a string");
  refused(answer(Json::array({file("../a")})), "a file is called \"../a\"");
  refused(answer({file("a"), file("a")}), "\"a\" is listed twice");
  refused(answer({file("a"), file("a/b")}), "\"a\" is a file and a folder");
  for (const Json& size :
       {Json(-1), Json("5"), Json(2.5), Json(), Json(int64_t{1} << 60), Json(~uint64_t{0})}) {
    Json one = file("a");
    one["size"] = size;
    refused(answer(Json::array({one})), "size is ");
  }
  Json one = file("a");
  one["blobId"] = "xyz";
  refused(answer(Json::array({one})), "blobId is \"xyz\"");
  one["blobId"] = "../../../../../../../../../../../../etc/x";  // 40 characters
  refused(answer(Json::array({one})), "blobId is ");
  one = large("a", 5);
  one["lfs"]["sha256"] = kGit;
  refused(answer(Json::array({one})), "sha256 is ");
  one = large("a", 5);
  one["lfs"]["size"] = 6;
  refused(answer(Json::array({one})), "5 bytes, and 6 in LFS");
  one["lfs"] = "x";
  refused(answer(Json::array({one})), "lfs is a string");
  refused(answer({large("a", 5), large("b", 6)}), "6 bytes, and 5 elsewhere for the same hash");
  Json many = Json::array();
  for (int i = 0; i < 50'001; ++i) many.push_back({{"rfilename", std::to_string(i)}});
  refused(answer(many), "50001 files; at most 50000");
  Json huge = Json::array();
  for (int i = 0; i < 3; ++i) {
    Json next = file(std::to_string(i), int64_t{1} << 49);
    next["blobId"] = std::string(39, 'a') + std::to_string(i);
    huge.push_back(next);
  }
  refused(answer(huge), "more than 1125899906842624 bytes");
  expect_error(ErrorKind::file, "[pull] ", [] { read_listing("{\"sha\": \"", "pull"); });
}

TEST(Wanted, TakesWhatALoaderOpens) {
  EXPECT_THAT(
      taken({"README.md", "config.json", "model.safetensors", "pytorch_model.bin", "tf_model.h5",
             "flax_model.msgpack", "onnx/model.onnx", "tokenizer.json", "1_Pooling/config.json",
             "picture.png", ".gitattributes", "original/consolidated.00.pth", "extra-Q4_0.gguf"}),
      ElementsAre("1_Pooling/config.json", "README.md", "config.json", "model.safetensors",
                  "tokenizer.json"));
  EXPECT_THAT(taken({"config.json", "pytorch_model-00001-of-00002.bin",
                     "pytorch_model-00002-of-00002.bin", "pytorch_model.bin.index.json"}),
              testing::SizeIs(4));
  EXPECT_THAT(taken({"README.md", "name-Q4_K_M.gguf", "mmproj-f16.gguf"}),
              ElementsAre("README.md", "name-Q4_K_M.gguf"));
}

TEST(Wanted, ChoosesAmongGgufFiles) {
  const std::vector<std::string> files = {"README.md", "name-Q4_K_M.gguf", "name-Q8_0.gguf",
                                          "F16/name-F16-00001-of-00002.gguf",
                                          "F16/name-F16-00002-of-00002.gguf"};
  const std::string message = error_of(ErrorKind::usage, [&] { taken(files); });
  EXPECT_EQ(message,
            "[pull] org/name has 3 GGUF files; expected one of --quant F16 (10 bytes), --quant "
            "Q4_K_M (5 bytes), --quant Q8_0 (5 bytes)");
  EXPECT_THAT(taken(files, {{}, "q4_k_m"}), ElementsAre("name-Q4_K_M.gguf"));
  EXPECT_THAT(taken(files, {{}, "F16"}),
              ElementsAre("F16/name-F16-00001-of-00002.gguf", "F16/name-F16-00002-of-00002.gguf"));
  EXPECT_THAT(taken(files, {{"*.md"}, "Q8_0"}), ElementsAre("README.md", "name-Q8_0.gguf"));
  expect_error(ErrorKind::usage, "has no GGUF file of quantization \"Q5_0\"; there: --quant F16",
               [&] {
                 taken(files, {{}, "Q5_0"});
               });
  expect_error(ErrorKind::file, "the hub has 1 of 2 parts", [&] {
    taken({"a-Q8_0-00002-of-00002.gguf"}, {{}, "Q8_0"});
  });
  expect_error(ErrorKind::usage, "there: none", [&] { taken({"config.json"}, {{}, "Q8_0"}); });
}

TEST(Wanted, GlobsCrossFolders) {
  const std::vector<std::string> files = {"a.json", "b/c.json", "d.txt"};
  EXPECT_THAT(taken(files, {{"*.json"}, ""}), ElementsAre("a.json", "b/c.json"));
  EXPECT_THAT(taken(files, {{"b/*", "d.*"}, ""}), ElementsAre("b/c.json", "d.txt"));
  expect_error(ErrorKind::usage, "no file fits --include \"x*\"", [&] {
    taken(files, {{"*.json", "x*"}, ""});
  });
  expect_error(ErrorKind::usage, "no file that tessera opens", [&] { taken({"a.png"}); });
}

TEST(Bytes, AreReadable) {
  EXPECT_EQ(readable_bytes(0), "0 bytes");
  EXPECT_EQ(readable_bytes(999), "999 bytes");
  EXPECT_EQ(readable_bytes(1234), "1.2 kB");
  EXPECT_EQ(readable_bytes(999'600), "1.0 MB");
  EXPECT_EQ(readable_bytes(12'345'678), "12 MB");
  EXPECT_EQ(readable_bytes(5'300'000'000), "5.3 GB");
}

}  // namespace
}  // namespace tessera::hub::listing_test
