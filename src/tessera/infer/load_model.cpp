#include "tessera/infer/load_model.h"

#include "tessera/convert/tokenizer.h"

namespace tessera::infer {

model::Weights weights_of(const convert::Checkpoint& checkpoint) {
  std::map<std::string, model::WeightPtr> weights;
  for (const format::TensorView& view : checkpoint.tensors)
    weights[view.name] = std::make_shared<ops::Weight>(ops::Weight::stored(view.name, view.dtype, view.shape, view.data.data(), view.owner));
  return model::Weights::check(checkpoint.spec, std::move(weights));
}

LoadedModel load_model(const std::filesystem::path& path, const convert::LoadOptions& options) {
  convert::Checkpoint source = convert::load_checkpoint(path, options);
  std::optional<text::Tokenizer> tokenizer;
  if (source.gguf != nullptr) {
    tokenizer = convert::tokenizer_of(*source.gguf, path.string());
  } else if (std::filesystem::is_directory(path)) {
    for (const char* name : {"tokenizer.json", "tokenizer.gguf", "tokenizer.bin"})
      if (!tokenizer && std::filesystem::exists(path / name)) tokenizer = convert::find_tokenizer(path, static_cast<int32_t>(source.spec.vocab));
  }
  model::Model model(source.spec, weights_of(source));
  return {std::move(model), std::move(tokenizer), std::move(source)};
}

}  // namespace tessera::infer
