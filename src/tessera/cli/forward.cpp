#include "tessera/cli/cli.h"
#include "tessera/format/safetensors.h"
#include "tessera/infer/load_model.h"
#include "tessera/infer/tensor_files.h"
#include "tessera/model/padding.h"
#include "tessera/nn/head/head_config.h"

namespace tessera::cli {
namespace {

struct Options {
  std::string model, input, output, families;
  std::vector<std::string> probes;
};

int forward(const Options& o) {
  const format::TensorFile file = format::open_safetensors(o.input);
  const auto input = [&](const char* name) { return infer::tensor_or_undefined(file, name); };
  for (const format::TensorView& view : file.tensors()) {
    static const std::vector<std::string> known = {"input_ids", "attention_mask", "position_ids",
                                                   "token_type_ids", "global_attention_mask"};
    if (std::find(known.begin(), known.end(), view.name) == known.end())
      fail(ErrorKind::input, "forward",
           "{}: tensor \"{}\" is not an input of this model; known: {}", o.input, view.name,
           fmt::join(known, ", "));
  }
  const Tensor ids = input("input_ids"), mask = input("attention_mask");
  if (!ids.defined())
    fail(ErrorKind::input, "forward", "{}: tensor \"input_ids\" is missing; expected int64 [B, T]",
         o.input);
  const infer::LoadedModel loaded = infer::load_model(o.model, {o.families});
  const nn::Batch batch = model::from_padded(
      ids, mask, input("position_ids"), input("token_type_ids"), input("global_attention_mask"));

  const at::NoGradGuard no_gradients;
  std::vector<std::pair<std::string, Tensor>> out;
  model::ForwardOptions options;
  options.cancel = &cancel_token();
  options.probe = [&](const std::string& name, const Tensor& value) {
    if (std::find(o.probes.begin(), o.probes.end(), name) != o.probes.end())
      out.emplace_back(name, model::to_padded(value, ids, mask));
  };
  const Tensor hidden = loaded.model.hidden(batch, options);
  for (const std::string& probe : o.probes)
    if (std::none_of(out.begin(), out.end(),
                     [&](const auto& entry) { return entry.first == probe; }))
      fail(ErrorKind::usage, "forward",
           "no intermediate is called \"{}\"; expected \"embed\", \"final\" or "
           "\"layers.<i>.<branch>.in\" or \".out\"",
           probe);
  const model::ModelSpec& spec = loaded.model.spec();
  const Tensor pooled = spec.pooler ? loaded.model.pooled(hidden, batch) : Tensor();
  if (spec.head) {
    const bool of_documents = spec.head.as<nn::HeadConfig>().reads() == nn::HeadInput::pooled;
    const Tensor logits = loaded.model.logits(of_documents ? pooled : hidden);
    out.emplace_back("logits", of_documents ? logits : model::to_padded(logits, ids, mask));
  }
  if (pooled.defined()) out.emplace_back("pooler_output", pooled);
  out.emplace_back("last_hidden_state", model::to_padded(hidden, ids, mask));
  infer::write_tensors(o.output, out);
  return kExitOk;
}

}  // namespace

std::function<int()> add_forward(CLI::App& app) {
  auto o = std::make_shared<Options>();
  app.add_option("model", o->model, "a tessera or Hugging Face folder, or a GGUF file")->required();
  app.add_option("--input", o->input,
                 "safetensors: input_ids [B,T], and where wanted attention_mask, position_ids, "
                 "token_type_ids, global_attention_mask")
      ->required();
  app.add_option(
         "--output", o->output,
         "safetensors to write: last_hidden_state, and logits and pooler_output where the model "
         "has them; float32, padding is 0")
      ->required();
  app.add_option("--probe", o->probes,
                 "also write this intermediate: embed, final, layers.0.mixer.out ...; repeatable");
  app.add_option("--families", o->families, "a folder of further family files");
  examples(app, {"tessera forward folder --input in.safetensors --output out.safetensors --probe "
                 "layers.0.mixer.out"});
  return [o] { return forward(*o); };
}

}  // namespace tessera::cli
