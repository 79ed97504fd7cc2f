// Names in caches that are made up here, as huggingface_hub lays them out; and hostile ones.
#include "tessera/hub/find_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <fcntl.h>
#include <unistd.h>

#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"
#include "tessera/hub/cache.h"
#include "tessera/hub/gguf_files.h"

namespace tessera::hub::find_model_test {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::expect_error;
using testing::ElementsAre;

const std::string kFirst = "0123456789abcdef0123456789abcdef01234567";
const std::string kSecond = "fedcba9876543210fedcba9876543210fedcba98";

class FindModel : public testing::Test {
 protected:
  /// A file of a snapshot: a blob, and the link to it.
  void put(const std::string& folder,
           const std::string& commit,
           const std::string& path,
           const std::string& content) {
    const std::string blob = "blob" + std::to_string(std::hash<std::string>()(content));
    folder_.write("hub/" + folder + "/blobs/" + blob, content);
    const fs::path link = cache() / folder / "snapshots" / commit / path;
    fs::create_directories(link.parent_path());
    fs::create_symlink(fs::relative(cache() / folder / "blobs" / blob, link.parent_path()), link);
  }
  void ref(const std::string& folder, const std::string& name, const std::string& commit) {
    folder_.write("hub/" + folder + "/refs/" + name, commit);
  }
  void model(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) put("models--org--name", kFirst, path, path);
    ref("models--org--name", "main", kFirst);
  }
  fs::path cache() const { return folder_ / "hub"; }
  fs::path snapshot(const std::string& commit = kFirst) const {
    return cache() / "models--org--name/snapshots" / commit;
  }
  std::string find(const std::string& text) const { return find_model(text, cache()).path; }
  std::string refused(const std::string& text) const {
    const std::string message = error_of(ErrorKind::file, [&] { find(text); });
    EXPECT_NE(message, "") << text;
    return message;
  }
  const test::TemporaryFolder folder_;
};

TEST_F(FindModel, APathThatExistsWins) {
  model({"config.json"});
  const std::string file = folder_.write("org/name", "x");
  const fs::path before = fs::current_path();
  fs::current_path(folder_.path());
  EXPECT_EQ(find("org/name"), "org/name");
  EXPECT_EQ(find_model("org/name", cache()).name, "");
  fs::remove(file);
  EXPECT_EQ(find("org/name"), snapshot().string());
  EXPECT_EQ(find_model("org/name", cache()).name, "org/name");
  fs::current_path(before);
}

TEST_F(FindModel, WhatCanOnlyBeAPathStaysOne) {
  for (const char* text : {"/no/such", "./no", "../no", "a/b/c", "no.gguf", "org/no.safetensors",
                           "no.json", "", "8", "a b"})
    EXPECT_EQ(find(text), text);
}

TEST_F(FindModel, AFolderOfTheCacheIsItsMainRevision) {
  model({"config.json", "x-Q8_0.gguf"});
  const std::string folder = (cache() / "models--org--name").string();
  EXPECT_EQ(find_model(folder, "/nowhere").path, (snapshot() / "x-Q8_0.gguf").string());
  EXPECT_EQ(find_model(folder + "/", "/nowhere").path, (snapshot() / "x-Q8_0.gguf").string());
  EXPECT_EQ(find_model(folder + ":config.json", "/nowhere").path,
            (snapshot() / "config.json").string());
  EXPECT_EQ(find_model(folder, "/nowhere").name, "org/name");
}

TEST_F(FindModel, RevisionsAreReferencesOrCommits) {
  model({"config.json"});
  put("models--org--name", kSecond, "config.json", "another");
  ref("models--org--name", "refs/pr/1", kSecond);
  ref("models--org--name", "v1.0", kFirst + "\n");
  EXPECT_EQ(find("org/name"), snapshot().string());
  EXPECT_EQ(find("org/name@v1.0"), snapshot().string());
  EXPECT_EQ(find("org/name@refs/pr/1"), snapshot(kSecond).string());
  EXPECT_EQ(find("org/name@" + kSecond), snapshot(kSecond).string());
  EXPECT_EQ(find("org/name@fedcba9"), snapshot(kSecond).string());
  const std::string message = refused("org/name@v2");
  EXPECT_EQ(message,
            "[model] org/name: no revision v2 in the cache; there: main, refs/pr/1, v1.0, "
            "0123456789ab, fedcba987654; `tessera pull org/name --revision v2` downloads it");
  refused("org/name@fedc");
  // two that begin so
  put("models--org--name", "fedcba98" + std::string(32, '0'), "config.json", "a third");
  refused("org/name@fedcba9");
}

TEST_F(FindModel, NothingIsDownloadedUnasked) {
  EXPECT_EQ(refused("org/name"),
            "[model] org/name: no file or folder of that name, and no model in the cache " +
                cache().string() + "; `tessera pull org/name` downloads it");
  EXPECT_THAT(refused("gpt2"), testing::HasSubstr("`tessera pull gpt2`"));
  EXPECT_THAT(refused("org/name@v1"), testing::HasSubstr("`tessera pull org/name --revision v1`"));
  EXPECT_FALSE(fs::exists(cache()));
}

TEST_F(FindModel, AQuantizationChoosesAmongGgufFiles) {
  model({"README.md", "name-Q4_K_M.gguf", "name-UD-Q4_K_M.gguf", "name-Q8_0.gguf",
         "mmproj-F16.gguf", "BF16/name-BF16-00001-of-00002.gguf",
         "BF16/name-BF16-00002-of-00002.gguf"});
  EXPECT_EQ(find("org/name:Q8_0"), (snapshot() / "name-Q8_0.gguf").string());
  EXPECT_EQ(find("org/name:q4_k_m"), (snapshot() / "name-Q4_K_M.gguf").string());
  EXPECT_EQ(find("org/name:UD-Q4_K_M"), (snapshot() / "name-UD-Q4_K_M.gguf").string());
  EXPECT_EQ(find("org/name:BF16"), (snapshot() / "BF16/name-BF16-00001-of-00002.gguf").string());
  EXPECT_EQ(find("org/name:name-Q8_0.gguf"), (snapshot() / "name-Q8_0.gguf").string());
  EXPECT_EQ(find("org/name:mmproj-F16.gguf"), (snapshot() / "mmproj-F16.gguf").string());
  EXPECT_EQ(refused("org/name"),
            "[model] org/name has 4 GGUF files; expected one of org/name:BF16, org/name:Q4_K_M, "
            "org/name:Q8_0, org/name:UD-Q4_K_M");
  EXPECT_THAT(refused("org/name:Q5_0"), testing::HasSubstr("no quantization \"Q5_0\"; there: "));
  fs::remove(snapshot() / "BF16/name-BF16-00002-of-00002.gguf");
  EXPECT_THAT(refused("org/name:BF16"), testing::HasSubstr("1 of 2 parts"));
}

TEST_F(FindModel, OneQuantizationInSeveralFilesIsSaid) {
  model({"a-Q8_0.gguf", "b-Q8_0.gguf"});
  EXPECT_EQ(refused("org/name:Q8_0"),
            "[model] org/name:Q8_0 means 2 files; expected one of org/name:a-Q8_0.gguf, "
            "org/name:b-Q8_0.gguf");
}

TEST_F(FindModel, FoldersWithWeightsAreTheModel) {
  model({"config.json", "model.safetensors", "a-Q8_0.gguf", "b-Q4_0.gguf"});
  EXPECT_EQ(find("org/name"), snapshot().string());
  EXPECT_EQ(find("org/name:Q4_0"), (snapshot() / "b-Q4_0.gguf").string());
}

TEST_F(FindModel, AFolderOfYourOwnHasQuantizationsToo) {
  folder_.write("mine/x-Q4_0.gguf", "a");
  folder_.write("mine/x-Q8_0.gguf", "b");
  const std::string mine = (folder_ / "mine").string();
  EXPECT_EQ(find(mine + ":Q8_0"), mine + "/x-Q8_0.gguf");
  EXPECT_EQ(find(mine), mine);
  EXPECT_THAT(refused(mine + ":Q5_0"), testing::HasSubstr("no quantization \"Q5_0\""));
}

TEST_F(FindModel, LinksStayWithinTheCache) {
  model({"config.json"});
  const std::string outside = folder_.write("outside", "secret");
  const fs::path link = snapshot() / "model.safetensors";
  fs::create_symlink(outside, link);
  EXPECT_EQ(refused("org/name"), "[model] " + link.string() + ": leads to " + outside +
                                     ", outside of the cache " + cache().string());
  fs::remove(link);
  fs::create_symlink("../../blobs/gone", link);
  EXPECT_THAT(refused("org/name"), testing::HasSubstr("a link that leads nowhere"));
  fs::remove(link);
  fs::create_symlink("model.safetensors", link);
  EXPECT_THAT(refused("org/name"), testing::HasSubstr(link.string()));
  fs::remove(link);
  // a folder, and the snapshot itself
  fs::create_directory_symlink(folder_.path(), snapshot() / "more");
  EXPECT_THAT(refused("org/name"), testing::HasSubstr("more: "));
  fs::remove(snapshot() / "more");
  EXPECT_EQ(find("org/name"), snapshot().string());
  fs::rename(snapshot(), folder_ / "moved");
  fs::create_directory_symlink(folder_ / "moved", snapshot());
  EXPECT_THAT(refused("org/name"), testing::HasSubstr("no revision main"));
}

TEST_F(FindModel, ReferencesAreCommits) {
  model({"config.json"});
  for (const std::string& content :
       {std::string("../../../../etc"), std::string(""), std::string(39, 'a'), std::string(41, 'a'),
        std::string("main")}) {
    ref("models--org--name", "main", content);
    EXPECT_THAT(refused("org/name"), testing::HasSubstr("expected a commit of 40 digits"))
        << content;
  }
  folder_.write("elsewhere", kFirst);
  fs::remove(cache() / "models--org--name/refs/main");
  fs::create_symlink(folder_ / "elsewhere", cache() / "models--org--name/refs/main");
  EXPECT_THAT(refused("org/name"), testing::HasSubstr("no revision main"));
}

TEST(GgufModels, HaveTheQuantizationOfTheirName) {
  const auto quantization = [](const std::string& path) {
    return gguf_models({path}).at(0).quantization;
  };
  EXPECT_EQ(quantization("a/Qwen2.5-0.5B-Instruct-Q4_K_M.gguf"), "Q4_K_M");
  EXPECT_EQ(quantization("x.q8_0.gguf"), "Q8_0");
  EXPECT_EQ(quantization("x-IQ2_XXS.gguf"), "IQ2_XXS");
  EXPECT_EQ(quantization("x-UD-IQ1_S.gguf"), "UD-IQ1_S");
  EXPECT_EQ(quantization("x-bf16.gguf"), "BF16");
  EXPECT_EQ(quantization("x-MXFP4_MOE.gguf"), "MXFP4_MOE");
  EXPECT_EQ(quantization("Q6_K/x-00001-of-00009.gguf"), "Q6_K");
  EXPECT_EQ(quantization("x-Q5_K_M-00001-of-00009.gguf"), "Q5_K_M");
  EXPECT_EQ(quantization("qwen3.gguf"), "");
  EXPECT_TRUE(gguf_models({"mmproj-x-f16.gguf", "x.imatrix.gguf", "README.md"}).empty());
}

// --- the whole cache
// ------------------------------------------------------------------------------

TEST_F(FindModel, CachesAreListed) {
  model({"config.json", "model.safetensors"});
  put("models--org--name", kSecond, "config.json", "another");
  ref("models--org--name", "dev", kSecond);
  folder_.write("hub/models--org--name/blobs/x.incomplete", "abc");
  put("models--gpt2", kFirst, "config.json", "x");
  put("datasets--org--data", kFirst, "x", "x");
  fs::create_directories(cache() / ".locks/models--org--name");
  const auto models = cached_models(cache());
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(models[0].repo, "gpt2");
  EXPECT_EQ(models[1].repo, "org/name");
  ASSERT_EQ(models[1].revisions.size(), 2u);
  EXPECT_EQ(models[1].revisions[0].commit, kFirst);
  EXPECT_THAT(models[1].revisions[0].refs, ElementsAre("main"));
  EXPECT_THAT(models[1].revisions[1].refs, ElementsAre("dev"));
  EXPECT_EQ(models[1].bytes, std::string("config.jsonmodel.safetensorsanother").size());
  EXPECT_EQ(models[1].incomplete_bytes, 3u);
  EXPECT_TRUE(cached_models(folder_ / "nowhere").empty());
  // a damaged model hides no other, and files that lie in a snapshot count
  folder_.write("hub/models--gpt2/refs/main", "main");
  folder_.write("hub/models--org--name/snapshots/" + std::string(kFirst) + "/copied.bin",
                "1234567");
  const auto damaged = cached_models(cache());
  ASSERT_EQ(damaged.size(), 2u);
  EXPECT_NE(damaged[0].damage.find("expected a commit of 40 digits"), std::string::npos);
  EXPECT_TRUE(damaged[1].damage.empty());
  EXPECT_EQ(damaged[1].bytes, models[1].bytes + 7);
}

TEST_F(FindModel, WhatIsRemovedLiesInTheCache) {
  model({"config.json", "model.safetensors"});
  put("models--org--name", kSecond, "config.json", "another");
  ref("models--org--name", "dev", kSecond);
  const fs::path repo = cache() / "models--org--name";
  // links whose targets end in what is no name of a blob
  for (const char* target : {"../../blobs/..", "../../blobs/.", "../../blobs/"})
    fs::create_symlink(target, repo / "snapshots" / kSecond /
                                   ("evil" + std::to_string(std::string(target).size())));
  remove_model(cache(), *parse_model_name("org/name@dev"), false);
  EXPECT_TRUE(fs::exists(repo / "snapshots" / kFirst / "config.json"));
  EXPECT_TRUE(fs::exists(repo / "snapshots" / kFirst / "model.safetensors"));
  // and a link in the place of a folder
  folder_.write("elsewhere/" + std::string(kFirst) + "/victim", "x");
  fs::create_symlink(folder_ / "elsewhere", repo / ".no_exist");
  expect_error(ErrorKind::usage, "is a link",
               [&] { remove_model(cache(), *parse_model_name("org/name@main"), false); });
  EXPECT_TRUE(fs::exists(folder_ / "elsewhere" / kFirst / "victim"));
}

TEST_F(FindModel, WithItsLastRevisionAModelGoes) {
  model({"config.json", "model.safetensors"});
  EXPECT_EQ(remove_model(cache(), *parse_model_name("org/name@main"), false).files, 2u);
  EXPECT_FALSE(fs::exists(cache() / "models--org--name"));
  EXPECT_TRUE(cached_models(cache()).empty());
}

TEST_F(FindModel, RemovingARevisionKeepsWhatOthersUse) {
  model({"config.json", "model.safetensors"});
  put("models--org--name", kSecond, "config.json", "config.json");  // the same blob
  put("models--org--name", kSecond, "more.json", "more");
  ref("models--org--name", "dev", kSecond);
  const Removed what = removable(cache(), *parse_model_name("org/name@dev"), false);
  EXPECT_EQ(what.files, 1u);
  EXPECT_EQ(what.bytes, 4u);
  EXPECT_EQ(remove_model(cache(), *parse_model_name("org/name@dev"), false).files, 1u);
  EXPECT_FALSE(fs::exists(snapshot(kSecond)));
  EXPECT_FALSE(fs::exists(cache() / "models--org--name/refs/dev"));
  EXPECT_EQ(snapshot_files(cache(), snapshot()).size(), 2u);
  expect_error(ErrorKind::file, "no revision dev in the cache; there: main",
               [&] { remove_model(cache(), *parse_model_name("org/name@dev"), false); });
  remove_model(cache(), *parse_model_name("org/name"), true);
  EXPECT_FALSE(fs::exists(cache() / "models--org--name"));
  expect_error(ErrorKind::file, "org/name: not in the cache",
               [&] { remove_model(cache(), *parse_model_name("org/name"), true); });
}

TEST_F(FindModel, NothingOutsideOfTheCacheIsRemoved) {
  const std::string victim = folder_.write("mine/blobs/victim", "x");
  folder_.write("mine/snapshots/" + kFirst + "/x", "x");
  fs::create_directories(cache());
  fs::create_directory_symlink(folder_ / "mine", cache() / "models--org--name");
  const ModelName name = *parse_model_name("org/name");
  expect_error(ErrorKind::usage, "is a link or a file; expected a folder of the cache",
               [&] { remove_model(cache(), name, true); });
  fs::remove(cache() / "models--org--name");
  for (const char* below : {"blobs", "snapshots", "refs"}) {
    fs::remove_all(cache());
    fs::create_directories(cache() / "models--org--name");
    fs::create_directory_symlink(folder_ / "mine/blobs", cache() / "models--org--name" / below);
    expect_error(ErrorKind::usage, "is a link", [&] { remove_model(cache(), name, true); });
  }
  // links within go, what they lead to stays
  fs::remove_all(cache());
  model({"config.json"});
  fs::create_directory_symlink(folder_ / "mine", snapshot() / "link");
  fs::create_symlink(victim, cache() / "models--org--name/blobs/link");
  remove_model(cache(), name, true);
  EXPECT_FALSE(fs::exists(cache() / "models--org--name"));
  EXPECT_EQ(read_text_file(victim), "x");
  EXPECT_TRUE(fs::exists(folder_ / "mine/snapshots" / kFirst / "x"));
}

TEST_F(FindModel, WhatIsBeingDownloadedIsNotRemoved) {
  model({"config.json"});
  const std::string lock = folder_.write("hub/.locks/models--org--name/x.lock", "");
  const int descriptor = ::open(lock.c_str(), O_RDWR);
  ASSERT_EQ(flock(descriptor, LOCK_EX), 0);
  expect_error(ErrorKind::resource, "is being downloaded",
               [&] { remove_model(cache(), *parse_model_name("org/name"), true); });
  EXPECT_EQ(find("org/name"), snapshot().string());
  ::close(descriptor);
  remove_model(cache(), *parse_model_name("org/name"), true);
  EXPECT_FALSE(fs::exists(fs::path(lock).parent_path()));
}

}  // namespace
}  // namespace tessera::hub::find_model_test
