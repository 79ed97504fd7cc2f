// PEFT adapters and the tiny models that they were trained for, for tests.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tessera/format/safetensors.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/infer/loading/tensor_files.h"

namespace tessera::infer::adapter_test {

namespace fs = std::filesystem;

inline const fs::path kGolden = fs::path(TESSERA_SOURCE_DIR) / "tests/golden";
inline constexpr double kTolerance = 1e-4;

/// As tools/golden/adapters.py names them.
inline fs::path base_of(const std::string& name) {
  const bool tied = name.find("-tied") != std::string::npos;
  return kGolden / "families" / name.substr(0, name.find('-')) /
         (tied ? "tie_word_embeddings" : "base");
}
inline fs::path adapter_of(const std::string& name) {
  return kGolden / "adapters" / name;
}

inline Tensor logits_of(const model::Model& model, const Tensor& ids_BT) {
  const at::NoGradGuard guard;
  std::vector<std::vector<int64_t>> rows;
  for (int64_t b = 0; b < ids_BT.size(0); ++b) {
    const Tensor row = ids_BT[b].contiguous();
    rows.emplace_back(row.const_data_ptr<int64_t>(), row.const_data_ptr<int64_t>() + row.numel());
  }
  return model.logits(model.hidden(nn::Batch::of(rows))).to(at::kDouble);
}

inline double apart(const Tensor& a, const Tensor& b) {
  return (a - b.to(at::kDouble).reshape(a.sizes())).abs().max().item<double>();
}

inline model::Model model_of(const convert::Checkpoint& checkpoint) {
  return {checkpoint.spec, weights_of(checkpoint)};
}

/// PEFT's results with and without the adapter.
struct Golden {
  explicit Golden(const std::string& name)
      : file(format::open_safetensors(adapter_of(name) / "io.safetensors")),
        ids(tensor_or_undefined(file, "input_ids")),
        with(tensor_or_undefined(file, "logits")),
        without(tensor_or_undefined(file, "base")) {}
  format::TensorFile file;
  Tensor ids, with, without;
};

}  // namespace tessera::infer::adapter_test
