// What the tests of this layer share.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/train/recipe.h"

namespace tessera::train {

/// A folder that lives as long as the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "tessera_train_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) ADD_FAILURE() << "no temporary folder";
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }
  std::string write(const std::string& name, std::string_view content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

/// Expects an Error of a kind whose message holds `part`.
template <class Call>
void expect_error(ErrorKind kind, const std::string& part, Call call) {
  try {
    call();
    ADD_FAILURE() << "no error; expected one with \"" << part << "\"";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

inline spec::Json json_of(std::string_view text) {
  return spec::parse_json(text, "test");
}

/// A text with structure to learn, of any length.
inline std::string counting_text(size_t bytes) {
  std::string text;
  for (int i = 0; text.size() < bytes; ++i)
    text += std::to_string(i % 100) + (i % 7 == 6 ? "\n" : " ");
  text.resize(bytes);
  return text;
}

/// A recipe over `text_file` with a decoder of two small layers.
inline spec::Json tiny_recipe(const std::string& text_file) {
  spec::Json json = json_of(R"({
    "spec": {"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 16,
             "layers": [{"repeat": 2, "mixer": {"type": "attention", "n_heads": 2, "position": {"type": "rope"}}}],
             "ffn": {"type": "glu", "d_hidden": 32}, "head": {"type": "tied"}},
    "data": {"valid_fraction": 0.1},
    "train": {"steps": 12, "batch": 4, "length": 16, "log_every": 1, "eval_every": 5, "eval_batches": 2},
    "optimizer": {"lr": 0.01},
    "schedule": {"type": "wsd", "warmup": 2},
    "checkpoint": {"every": 5}})");
  json["data"]["train"] = {text_file};
  return json;
}

}  // namespace tessera::train
