// For tests: the golden Llama as a model of a type "quill" that no family of the program reads.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/convert/checkpoint.h"
#include "tessera/convert/tensor_ops.h"
#include "tessera/format/safetensors.h"

namespace tessera::convert::test_quill {

namespace fs = std::filesystem;
using test::TemporaryFolder;

inline const fs::path kBase = fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families/llama/base";

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

/// The golden Llama as a type "quill", by other keys and names, with these tensors.
inline fs::path write_quill(const TemporaryFolder& scratch,
                            const std::vector<TensorView>& tensors) {
  Json config = spec::read_json_file(kBase / "config.json");
  config["model_type"] = "quill";
  scratch.write("quill/config.json", config.dump(1));
  format::write_safetensors(scratch / "quill" / "model.safetensors", tensors);
  return scratch / "quill";
}

inline std::vector<TensorView> llama_tensors() {
  return format::open_safetensors(kBase / "model.safetensors").tensors();
}

inline void expect_llama(const Checkpoint& found) {
  const Checkpoint want = load_checkpoint(kBase);
  EXPECT_EQ(found.spec_json, want.spec_json);
  ASSERT_EQ(found.tensors.size(), want.tensors.size());
  for (size_t i = 0; i < want.tensors.size(); ++i)
    EXPECT_TRUE(equal_values(found.tensors[i], want.tensors[i])) << want.tensors[i].name;
}

/// The golden Llama's folder as a type "quill", with keys renamed and added.
inline fs::path write_keys(const TemporaryFolder& scratch,
                           const std::map<std::string, std::string>& renamed,
                           const Json& added) {
  Json config = spec::read_json_file(kBase / "config.json");
  config["model_type"] = "quill";
  for (const auto& [from, to] : renamed) {
    config[to] = config.at(from);
    config.erase(from);
  }
  config.update(added);
  scratch.write("quill/config.json", config.dump(1));
  format::write_safetensors(scratch / "quill" / "model.safetensors", llama_tensors());
  return scratch / "quill";
}

}  // namespace tessera::convert::test_quill
