#include "tessera/infer/loading/quantize_on_load.h"

#include <algorithm>
#include <set>

#include "tessera/convert/checkpoint_place.h"
#include "tessera/convert/text_settings.h"
#include "tessera/convert/tokenizer.h"
#include "tessera/format/safetensors.h"
#include "tessera/infer/loading/adapter.h"
#include "tessera/infer/sampling/decoding_fields.h"
#include "tessera/nn/embed/feature_embed.h"
#include "tessera/nn/head/head_config.h"

namespace tessera::infer {
namespace {

/// The parameters in matrix products, by name.
std::set<std::string> multiplied(const model::ModelSpec& spec) {
  const bool tied = spec.head && spec.head.as<nn::HeadConfig>().tied();
  std::set<std::string> names;
  for (const spec::ParamDecl& decl : model::parameters(spec))
    if (decl.quantises() && (decl.kind == spec::ParamKind::matrix ||
                             (tied && decl.name == spec.under(model::kTokenTable))))
      names.insert(decl.name);
  // rounded by their own rule when the model is built
  for (const std::string& name : model::ternary_weights(spec)) names.erase(name);
  return names;
}

bool is_plain(DType type) {
  return type == DType::f32 || type == DType::f16 || type == DType::bf16;
}

/// The weights of a checkpoint, with float matrices of products in `blocks` if given.
model::Weights held_weights(const convert::Checkpoint& checkpoint,
                            const model::ModelSpec& spec,
                            std::optional<DType> blocks) {
  const std::set<std::string> matrices = blocks ? multiplied(spec) : std::set<std::string>();
  bool any = false;
  std::map<std::string, model::WeightPtr> weights;
  for (const format::TensorView& view : checkpoint.tensors) {
    ops::Weight weight = ops::Weight::stored(view);
    if (matrices.contains(view.name) && is_plain(view.dtype) &&
        view.shape.back() % layout_of(*blocks).block_elements == 0) {
      weight = weight.converted(*blocks);
      any = true;
    }
    weights[view.name] = std::make_shared<ops::Weight>(std::move(weight));
  }
  if (blocks && !any)
    fail(ErrorKind::usage, "blocks",
         "no matrix of this model can be rounded to {}; expected one of f32, f16 or bf16 with rows "
         "of whole blocks of {}",
         name_of(*blocks), layout_of(*blocks).block_elements);
  return model::Weights::check(spec, std::move(weights));
}

}  // namespace

model::Weights weights_of(const convert::Checkpoint& checkpoint) {
  return weights_of(checkpoint, checkpoint.spec);
}

model::Weights weights_of(const convert::Checkpoint& checkpoint, const model::ModelSpec& spec) {
  return held_weights(checkpoint, spec, std::nullopt);
}

std::vector<int64_t> eos_ids(const LoadedModel& loaded) {
  std::vector<int64_t> ids;
  if (loaded.tokenizer)
    for (const int32_t id : loaded.tokenizer->ends()) ids.push_back(id);
  for (const int64_t id : loaded.generation.ends)
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  return ids;
}

namespace {

/// A remark about a tokenizer of more tokens than its model has rows.
void add_remark(const text::Tokenizer& tokenizer, int64_t rows, convert::Checkpoint& source) {
  if (tokenizer.vocab_size() <= rows) return;
  int32_t id = static_cast<int32_t>(rows);
  while (!tokenizer.has(id)) ++id;
  source.remarks.push_back(fmt::format(
      "the tokenizer has {} tokens and the model embeddings of {}: token {} (\"{}\") and those "
      "after it are refused in prompts and never generated; in transformers, "
      "resize_token_embeddings adds rows",
      tokenizer.vocab_size(), rows, id, tokenizer.token(id)));
}

/// Remarks about a tokenizer that does not match its model.
void add_remarks(const text::Tokenizer& tokenizer, convert::Checkpoint& source) {
  for (const std::string& note : tokenizer.notes()) source.remarks.push_back(note);
  // a model of images or sounds reads no tokens
  if (dynamic_cast<const nn::FeatureEmbedConfig*>(source.spec.embed.config.get()) != nullptr)
    return;
  add_remark(tokenizer, source.spec.vocab, source);
  if (source.spec.encoder && source.spec.encoder->vocab != source.spec.vocab)
    add_remark(tokenizer.of_source(), source.spec.encoder->vocab, source);
}

/// The model of a checkpoint with its tokenizer and settings.
LoadedModel load_model(const std::filesystem::path& given,
                       convert::Checkpoint source,
                       const MatmulOptions& products) {
  const std::filesystem::path path = convert::model_folder(given);
  std::optional<text::Tokenizer> tokenizer;
  if (source.gguf != nullptr) {
    tokenizer = convert::tokenizer_of(*source.gguf, path.string());
  } else if (const std::string named =
                 source.dialect == "tessera" ? convert::named_tokenizer(source.folder) : "";
             !named.empty()) {
    // the folder also has tokenizer_config.json, the file alone has not
    const bool of_folder = text::tokenizer_file_in(path) == path / named;
    const std::filesystem::path from = of_folder          ? path
                                       : named == "bytes" ? std::filesystem::path(named)
                                                          : path / named;
    tokenizer = convert::find_tokenizer(from, static_cast<int32_t>(source.spec.vocab));
  } else if (std::filesystem::is_directory(path)) {
    if (convert::holds_tokenizer(path)) try {
        tokenizer = convert::find_tokenizer(path, static_cast<int32_t>(source.spec.vocab));
      } catch (const Error& error) {
        // an unsupported tokenizer class: the model has no tokenizer
        if (error.kind() != ErrorKind::spec) throw;
        source.remarks.push_back(fmt::format("no tokenizer: {}", error.what()));
      }
  }
  if (tokenizer && std::filesystem::is_directory(path))
    tokenizer = convert::with_template_in(path, *tokenizer);
  if (tokenizer) add_remarks(*tokenizer, source);
  convert::GenerationConfig generation;
  if (std::filesystem::is_directory(path))
    generation = convert::read_generation_config(path, source.spec.vocab, config_numbers());
  else if (source.gguf != nullptr)
    generation = convert::read_generation_config(*source.gguf, gguf_numbers());
  if (source.spec.encoder != nullptr && !source.spec.mask && generation.start)
    source.spec.start = *generation.start;
  model::Model model(source.spec, held_weights(source, source.spec, products.blocks),
                     products.arithmetic);
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
  return load_model(path, options, adapters, MatmulOptions{arithmetic});
}

LoadedModel load_model(const std::filesystem::path& path,
                       const convert::LoadOptions& options,
                       const std::vector<std::string>& adapters,
                       const MatmulOptions& products) {
  convert::Checkpoint source = convert::load_checkpoint(path, options);
  std::string with_tokens;  // an adapter with another vocabulary
  for (const std::string& adapter : adapters) {
    const int64_t vocab = source.spec.vocab;
    source = base_for_adapter(std::move(source), adapter, options);
    if (source.spec.vocab != vocab) with_tokens = adapter;
  }
  LoadedModel loaded = load_model(path, std::move(source), products);
  if (!with_tokens.empty() && convert::holds_tokenizer(with_tokens))
    loaded.tokenizer =
        convert::find_tokenizer(with_tokens, static_cast<int32_t>(loaded.source.spec.vocab));
  // inference uses the chat template of training
  for (const std::string& adapter : adapters) {
    const convert::TextSettings settings =
        convert::settings_of_adapter(adapter, loaded.source.spec.vocab);
    if (loaded.tokenizer && !settings.chat_template.empty())
      loaded.tokenizer = text::with_chat_template(*loaded.tokenizer, settings.chat_template);
    for (const int64_t end : settings.ends) loaded.generation.ends.push_back(end);
  }
  std::vector<model::WeightAdapter> all;
  for (const std::string& adapter : adapters)
    for (model::WeightAdapter& overlay : read_adapter(adapter, loaded.source, options))
      all.push_back(std::move(overlay));
  if (!all.empty()) loaded.model = model::with_adapters(loaded.model, all);
  return loaded;
}

LoadedModel load_model(const std::filesystem::path& path,
                       const convert::LoadOptions& options,
                       const std::filesystem::path& adapter,
                       kernels::Arithmetic arithmetic) {
  return load_model(path, options, std::vector<std::string>{adapter.string()}, arithmetic);
}

}  // namespace tessera::infer
