// Tiny classifier checkpoints with a vocabulary, for tests.
#pragma once

#include <filesystem>

#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"
#include "tessera/format/safetensors.h"
#include "tessera/spec/json.h"

namespace tessera::infer {

inline constexpr const char* kWords =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ncat\ndog\nsun\nmoon\nquery\n:\n";

/// A BERT of tests/golden/families, with kWords.
inline std::string bert_with_words(const test::TemporaryFolder& folder,
                                   const char* golden,
                                   const std::string& name = {}) {
  const std::string at = name.empty() ? golden : name;
  std::filesystem::copy(
      std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/golden/families/bert" / golden,
      folder / at);
  folder.write((std::filesystem::path(at) / "vocab.txt").string(), kWords);
  return folder / at;
}

/// A pair classifier with one output: the first class of the golden classifier.
inline std::string cross_encoder(const test::TemporaryFolder& folder) {
  const std::string path = bert_with_words(folder, "classifier", "cross_encoder");
  const format::TensorFile file = format::open_safetensors(path + "/model.safetensors");
  std::vector<format::TensorView> tensors = file.tensors();
  for (format::TensorView& tensor : tensors) {
    if (!tensor.name.starts_with("classifier.")) continue;
    tensor.data = tensor.data.first(tensor.data.size() / static_cast<size_t>(tensor.shape[0]));
    tensor.shape[0] = 1;
  }
  format::write_safetensors(folder / "cut", tensors, file.metadata());
  std::filesystem::rename(folder / "cut", path + "/model.safetensors");
  spec::Json config = spec::parse_json(read_text_file(path + "/config.json"), "config");
  config["id2label"] = {{"0", "LABEL_0"}};
  config["label2id"] = {{"LABEL_0", 0}};
  folder.write("cross_encoder/config.json", config.dump());
  return path;
}

}  // namespace tessera::infer
