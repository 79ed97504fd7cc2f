// Quantised folders against what transformers computes with the numbers that their weights stand
// for (tests/golden/quantized).
#include <gtest/gtest.h>

#include <filesystem>

#include "tessera/format/safetensors.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/infer/loading/tensor_files.h"
#include "tessera/model/padding.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

TEST(QuantizedFolders, LogitsAreThoseOfTransformers) {
  const fs::path golden = fs::path(TESSERA_SOURCE_DIR) / "tests/golden/quantized";
  int cases = 0;
  for (const auto& entry : fs::directory_iterator(golden)) {
    SCOPED_TRACE(entry.path().filename().string());
    const format::TensorFile expected =
        format::open_safetensors(entry.path() / "expected.safetensors");
    const Tensor ids = infer::tensor_or_undefined(expected, "input_ids"),
                 want = infer::tensor_or_undefined(expected, "logits");
    for (const auto arithmetic : {kernels::Arithmetic::float32, kernels::Arithmetic::int15}) {
      const infer::LoadedModel loaded = infer::load_model(entry.path(), {}, arithmetic);
      const at::NoGradGuard no_grad;
      const Tensor got =
          loaded.model.logits(loaded.model.hidden(model::from_padded(ids, at::ones_like(ids))));
      // two digits of x: 1e-4 of what an output is made of
      const double tolerance = arithmetic == kernels::Arithmetic::float32 ? 1e-4 : 5e-3;
      EXPECT_LT((got - want.flatten(0, 1)).abs().max().item<double>(), tolerance);
    }
    ++cases;
  }
  EXPECT_GE(cases, 20);
}

}  // namespace
}  // namespace tessera
