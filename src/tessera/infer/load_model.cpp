#include "tessera/infer/load_in_blocks.h"

#include <algorithm>
#include <set>

#include "tessera/convert/tokenizer.h"
#include "tessera/format/safetensors.h"
#include "tessera/infer/adapter.h"
#include "tessera/nn/head/head_config.h"

namespace tessera::infer {
namespace {

/// The parameters that products read, by name.
std::set<std::string> multiplied(const model::ModelSpec& spec) {
  const bool tied = spec.head && spec.head.as<nn::HeadConfig>().tied();
  std::set<std::string> names;
  for (const spec::ParamDecl& decl : model::parameters(spec))
    if (decl.quantises() && (decl.kind == spec::ParamKind::matrix ||
                             (tied && decl.name == spec.under(model::kTokenTable))))
      names.insert(decl.name);
  return names;
}

bool is_plain(DType type) {
  return type == DType::f32 || type == DType::f16 || type == DType::bf16;
}

model::Weights held_weights(const convert::Checkpoint& checkpoint,
                            const model::ModelSpec& spec,
                            const Products& products) {
  const std::set<std::string> matrices =
      products.blocks ? multiplied(spec) : std::set<std::string>();
  bool any = false;
  std::map<std::string, model::WeightPtr> weights;
  for (const format::TensorView& view : checkpoint.tensors) {
    ops::Weight weight = ops::Weight::stored(view);
    if (matrices.contains(view.name) && is_plain(view.dtype) &&
        view.shape.back() % layout_of(*products.blocks).block_elements == 0) {
      weight = weight.converted(*products.blocks);
      any = true;
    }
    weights[view.name] = std::make_shared<ops::Weight>(weight.multiplied_in(products.arithmetic));
  }
  if (products.blocks && !any)
    fail(ErrorKind::usage, "blocks",
         "no matrix of this model can be rounded to {}; expected one of f32, f16 or bf16 with rows "
         "of whole blocks of {}",
         name_of(*products.blocks), layout_of(*products.blocks).block_elements);
  return model::Weights::check(spec, std::move(weights));
}

}  // namespace

model::Weights weights_of(const convert::Checkpoint& checkpoint, kernels::Arithmetic arithmetic) {
  return weights_of(checkpoint, checkpoint.spec, arithmetic);
}

model::Weights weights_of(const convert::Checkpoint& checkpoint,
                          const model::ModelSpec& spec,
                          kernels::Arithmetic arithmetic) {
  return held_weights(checkpoint, spec, {arithmetic});
}

std::vector<int64_t> end_ids(const LoadedModel& loaded) {
  std::vector<int64_t> ids;
  if (loaded.tokenizer && loaded.tokenizer->eos()) ids.push_back(*loaded.tokenizer->eos());
  for (const int64_t id : loaded.generation.ends)
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  return ids;
}

SamplingOptions sampling_defaults(const convert::GenerationConfig& config,
                                  bool greedy_unless_asked) {
  SamplingOptions options;
  options.repetition_penalty = config.repetition_penalty.value_or(1);
  if (greedy_unless_asked && !config.do_sample.value_or(false)) return options;
  options.temperature = config.temperature.value_or(1);
  options.top_k = config.top_k.value_or(0);
  options.top_p = config.top_p.value_or(1);
  options.min_p = config.min_p.value_or(0);
  options.typical_p = config.typical_p.value_or(1);
  return options;
}

namespace {

/// The tokenizer that a trained checkpoint names in its metadata: "bytes", or a file or folder
/// beside the weights.
std::string named_tokenizer(const convert::Checkpoint& source) {
  if (source.dialect != "tessera") return "";
  const format::TensorFile file = format::open_safetensors_folder(source.folder);
  const auto found = file.metadata().find("tessera_tokenizer");
  if (found == file.metadata().end()) return "";
  if (found->second.empty() || found->second.find('/') != std::string::npos ||
      found->second.front() == '.')
    fail(ErrorKind::file, "tokenizer",
         "{}: tessera_tokenizer = \"{}\"; expected a name within the folder",
         source.folder.string(), found->second);
  return found->second;
}

/// A checkpoint of `path` with what lies beside it.
LoadedModel load_model(const std::filesystem::path& path,
                       convert::Checkpoint source,
                       const Products& products) {
  std::optional<text::Tokenizer> tokenizer;
  if (source.gguf != nullptr) {
    tokenizer = convert::tokenizer_of(*source.gguf, path.string());
  } else if (const std::string named = named_tokenizer(source); !named.empty()) {
    // the folder, not the file alone, also knows tokenizer_config.json
    const bool of_folder = text::tokenizer_file_in(path) == path / named;
    const std::filesystem::path from = of_folder          ? path
                                       : named == "bytes" ? std::filesystem::path(named)
                                                          : path / named;
    tokenizer = convert::find_tokenizer(from, static_cast<int32_t>(source.spec.vocab));
  } else if (std::filesystem::is_directory(path)) {
    if (convert::holds_tokenizer(path))
      tokenizer = convert::find_tokenizer(path, static_cast<int32_t>(source.spec.vocab));
  }
  convert::GenerationConfig generation;
  if (std::filesystem::is_directory(path))
    generation = convert::read_generation_config(path, source.spec.vocab);
  model::Model model(source.spec, held_weights(source, source.spec, products));
  return {std::move(model), std::move(tokenizer), std::move(source), generation};
}

}  // namespace

LoadedModel load_model(const std::filesystem::path& path,
                       const convert::LoadOptions& options,
                       kernels::Arithmetic arithmetic) {
  return load_model(path, convert::load_checkpoint(path, options), {arithmetic});
}

LoadedModel load_model(const std::filesystem::path& path,
                       const convert::LoadOptions& options,
                       const std::vector<std::string>& adapters,
                       kernels::Arithmetic arithmetic) {
  return load_model(path, options, adapters, Products{arithmetic});
}

LoadedModel load_model(const std::filesystem::path& path,
                       const convert::LoadOptions& options,
                       const std::vector<std::string>& adapters,
                       const Products& products) {
  convert::Checkpoint source = convert::load_checkpoint(path, options);
  for (const std::string& adapter : adapters) source = with_head_of(std::move(source), adapter);
  LoadedModel loaded = load_model(path, std::move(source), products);
  std::vector<model::Overlay> all;
  for (const std::string& adapter : adapters)
    for (model::Overlay& overlay : read_adapter(adapter, loaded.source, options))
      all.push_back(std::move(overlay));
  if (!all.empty()) loaded.model = model::with_overlays(loaded.model, all);
  return loaded;
}

LoadedModel load_model(const std::filesystem::path& path,
                       const convert::LoadOptions& options,
                       const std::filesystem::path& adapter,
                       kernels::Arithmetic arithmetic) {
  return load_model(path, options, std::vector<std::string>{adapter.string()}, arithmetic);
}

}  // namespace tessera::infer
