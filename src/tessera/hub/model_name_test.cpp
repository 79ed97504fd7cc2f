#include "tessera/hub/model_name.h"

#include <gtest/gtest.h>

namespace tessera::hub {
namespace {

TEST(ModelName, HasARepositoryARevisionAndAChoice) {
  const auto name = parse_model_name("Qwen/Qwen2.5-0.5B-Instruct-GGUF@refs/pr/1:q4_k_m");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->repo, "Qwen/Qwen2.5-0.5B-Instruct-GGUF");
  EXPECT_EQ(name->revision, "refs/pr/1");
  EXPECT_EQ(name->selection, "q4_k_m");
  EXPECT_EQ(name->folder(), "models--Qwen--Qwen2.5-0.5B-Instruct-GGUF");
  EXPECT_EQ(name->text(), "Qwen/Qwen2.5-0.5B-Instruct-GGUF@refs/pr/1:q4_k_m");
  EXPECT_EQ(parse_model_name("gpt2")->folder(), "models--gpt2");
  EXPECT_EQ(parse_model_name("gpt2")->revision, "main");
  EXPECT_EQ(parse_model_name("org/name@main")->text(), "org/name");
  EXPECT_EQ(parse_model_name("org/name:onnx/model.onnx")->selection, "onnx/model.onnx");
}

TEST(ModelName, AddressesOfTheHubAreNames) {
  const std::pair<const char*, const char*> cases[] = {
      {"https://huggingface.co/org/name", "org/name"},
      {"https://huggingface.co/org/name/", "org/name"},
      {"http://hf.co/org/name?library=transformers#use", "org/name"},
      {"huggingface.co/org/name/tree/main", "org/name"},
      {"https://huggingface.co/org/name/tree/v1.0", "org/name@v1.0"},
      {"https://huggingface.co/org/name/blob/main/onnx/a.gguf", "org/name:onnx/a.gguf"},
      {"https://huggingface.co/org/name/resolve/dev/a.gguf?download=true", "org/name@dev:a.gguf"},
      {"hf://org/name", "org/name"}};
  for (const auto& [address, name] : cases) {
    const auto parsed = parse_model_name(address);
    ASSERT_TRUE(parsed) << address;
    EXPECT_EQ(parsed->text(), name);
  }
  for (const char* other : {"https://example.org/org/name", "https://huggingface.co/",
                            "https://huggingface.co/org/name/blob/main/../x",
                            "https://huggingface.co/org/name/tree/", "https://huggingface.co/a/b/c"})
    EXPECT_FALSE(parse_model_name(other)) << other;
}

TEST(ModelName, RefusesWhatIsNone) {
  for (const char* text : {"",
                           "/",
                           "/abs/path",
                           "./x",
                           "../x",
                           "a/b/c",
                           "a//b",
                           "org/",
                           "/name",
                           "org/na me",
                           "org/name@",
                           "org/name:",
                           "org/name@a..b",
                           "org/name@../x",
                           "org/name:../x",
                           "org/name:/etc/x",
                           "org/name:a/../b",
                           "org/name@a b",
                           "org/--name",
                           "org/na..me",
                           "org/name.git",
                           "-org/name",
                           "org/name-",
                           ".hidden/x",
                           "8",
                           "org/n\xc3\xa4me",
                           "org/name:a\nb",
                           "org/name@a\\b"})
    EXPECT_FALSE(parse_model_name(text)) << text;
  EXPECT_FALSE(is_repo_id("org/" + std::string(97, 'a')));
  EXPECT_TRUE(is_repo_id("org/" + std::string(96, 'a')));
}

TEST(ModelName, FoldersSayTheirRepository) {
  EXPECT_EQ(repo_of_folder("models--org--name"), "org/name");
  EXPECT_EQ(repo_of_folder("models--gpt2"), "gpt2");
  for (const char* folder :
       {"datasets--org--name", "models--", "models--a--b--c", "models", ".locks", "models--..--x"})
    EXPECT_FALSE(repo_of_folder(folder)) << folder;
}

TEST(SafePath, StaysBelowItsFolder) {
  for (const char* path : {"a", "a/b", "a.b/c-d", "..a", "a..", "\xc3\xa4/x", "a b"})
    EXPECT_TRUE(is_safe_path(path)) << path;
  for (const char* path : {"", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/./b", "a\\b",
                           "a\tb", "\xff", "a/\x7f"})
    EXPECT_FALSE(is_safe_path(path)) << path;
  EXPECT_FALSE(is_safe_path(std::string("a\0b", 3)));
  EXPECT_FALSE(is_safe_path(std::string(256, 'a')));
  EXPECT_TRUE(is_safe_path(std::string(255, 'a')));
}

}  // namespace
}  // namespace tessera::hub
