// A GGUF file as initial model, with and without quantized weights.
#pragma once

#include <optional>

#include "tessera/base/testing.h"
#include "tessera/format/gguf.h"
#include "tessera/ops/weights/weight.h"

namespace tessera::train {

/// The golden file, or the same with quantized matrices.
inline std::filesystem::path gguf_file(const test::TemporaryFolder& folder,
                                       std::optional<DType> blocks) {
  namespace fs = std::filesystem;
  const fs::path golden =
      fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families/llama/gguf/base.gguf";
  if (!blocks) return golden;
  const format::GgufFile file = format::open_gguf(golden);
  std::vector<format::TensorView> tensors;
  for (const format::TensorView& view : file.tensors.tensors()) {
    tensors.push_back(view);
    if (view.shape.size() < 2 || view.shape.back() % 32 != 0) continue;
    const auto weight = std::make_shared<const ops::Weight>(
        ops::Weight::stored(view.name, view.dtype, view.shape, view.data.data(), view.owner)
            .converted(*blocks));
    tensors.back() = {
        view.name,
        *blocks,
        view.shape,
        {static_cast<const std::byte*>(weight->data()), static_cast<size_t>(weight->bytes())},
        weight};
  }
  format::write_gguf(folder / "blocks.gguf", file.metadata.entries(), tensors);
  return folder / "blocks.gguf";
}

}  // namespace tessera::train
