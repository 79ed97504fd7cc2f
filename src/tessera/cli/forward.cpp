#include "tessera/base/threads.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/device_flag.h"
#include "tessera/cli/features.h"
#include "tessera/cli/load_flags.h"
#include "tessera/cli/model_source.h"
#include "tessera/cli/out_place.h"
#include "tessera/format/safetensors.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/infer/loading/tensor_files.h"
#include "tessera/model/padding.h"
#include "tessera/model/call_plan.h"
#include "tessera/nn/embed/feature_batch.h"
#include "tessera/nn/embed/token.h"
#include "tessera/nn/head/head_config.h"
#include "tessera/nn/pattern/longformer.h"
#include "tessera/nn/position/m_rope.h"

namespace tessera::cli {
namespace {

struct ForwardArgs {
  DeviceFlag device;
  LoadFlags loading;
  std::string model, input, audio, output;
  std::vector<std::string> adapters;
  std::vector<std::string> probes;
  bool force = false;
  int threads = 0;
};

const std::vector<std::string> kInputs = {"input_ids", "attention_mask", "position_ids"};
const char* const kTypes = "token_type_ids";
const char* const kGlobal = "global_attention_mask";
const std::string kPrefixes = "prefix_lengths";
const std::vector<std::string> kTargets = {"decoder_input_ids", "decoder_attention_mask"};

/// The padded tensors of one stack's input.
struct Input {
  Tensor ids, mask;
  nn::Batch batch;
  Tensor padded(const Tensor& x_N) const { return model::to_padded(x_N, ids, mask); }
};

/// Whether a layer of that stack has the mechanism of this config in it.
template <class Config>
bool layers_have(const model::ModelSpec& spec) {
  bool found = false;
  for (const model::LayerSpec& layer : reader_of(spec).layers)
    for (const model::GroupSpec& group : layer.groups)
      for (const model::BranchSpec& branch : group.branches)
        spec::for_each_part(branch.part, [&](const model::AnyPart& part) {
          found = found || dynamic_cast<const Config*>(part.config.get()) != nullptr;
        });
  return found;
}

bool has_types(const model::ModelSpec& spec) {
  const model::AnyPart& embed = reader_of(spec).embed;
  return embed.type() == "token" && embed.as<nn::TokenEmbedConfig>().n_types > 0;
}

/// An input that the model has no place for would have no effect without a message.
void check_names(const format::TensorFile& file, const model::ModelSpec& spec) {
  const bool pair = spec.encoder != nullptr;
  const nn::FeatureEmbedConfig* features = features_of(spec);
  std::vector<std::string> known =
      features != nullptr ? std::vector<std::string>{features->input()} : kInputs;
  if (has_types(spec)) known.push_back(kTypes);
  if (layers_have<nn::LongformerPatternConfig>(spec)) known.push_back(kGlobal);
  if (model::CallPlan(spec).reads_given()) known.push_back(kPrefixes);
  if (pair) known.insert(known.end(), kTargets.begin(), kTargets.end());
  for (const format::TensorView& view : file.tensors())
    if (std::find(known.begin(), known.end(), view.name) == known.end())
      fail(ErrorKind::input, "forward",
           "{}: tensor \"{}\" is not an input of this model; known: {}", file.file(), view.name,
           fmt::join(known, ", "));
  if (features != nullptr && file.find(features->input()) == nullptr)
    fail(ErrorKind::input, "forward",
         "{}: tensor \"{}\" is missing; expected floats [B, ...], each {}", file.file(),
         features->input(), features->shape_text());
  for (const char* name : {"input_ids", "decoder_input_ids"})
    if ((name == kInputs[0] ? features == nullptr : pair) && file.find(name) == nullptr)
      fail(ErrorKind::input, "forward", "{}: tensor \"{}\" is missing; expected int64 [B, T]",
           file.file(), name);
}

Tensor numbers(const format::TensorFile& file, const char* name) {
  const Tensor x = infer::tensor_or_undefined(file, name);
  if (x.defined() && !at::isIntegralType(x.scalar_type(), /*includeBool=*/true))
    fail(ErrorKind::input, "forward", "{}: tensor \"{}\" holds {}; expected int64", file.file(),
         name, x.dtype().name());
  return x;
}

Input source_of(const format::TensorFile& file) {
  const auto get = [&](const char* name) { return numbers(file, name); };
  Input in{get("input_ids"), get("attention_mask"), {}};
  in.batch = model::from_padded(in.ids, in.mask, get("position_ids"), get(kTypes), get(kGlobal));
  return in;
}

/// Rows of features as a call has them.
Input source_of(const nn::FeatureEmbedConfig& embed, const Tensor& features) {
  if (features.dim() < 2 || features.size(0) == 0)
    fail(ErrorKind::input, "forward", "{} is [{}]; expected [B, ...], each {}", embed.input(),
         fmt::join(features.sizes(), ", "), embed.shape_text());
  Input in;
  in.batch = nn::feature_batch(embed, features.unbind());
  in.ids = in.batch.ids_N.reshape({features.size(0), -1});
  return in;
}

/// What the model reads of a sound, [1, mels, frames].
Tensor heard(const std::string& path, const model::ModelSpec& spec) {
  if (spec.encoder)
    fail(ErrorKind::usage, "forward",
         "--audio with a model that has a decoder; expected --input, with input_features and "
         "decoder_input_ids, or `tessera generate`");
  return spectrogram(path, spec, "forward").unsqueeze(0);
}

Input target_of(const format::TensorFile& file, const Input& source) {
  const auto get = [&](const char* name) { return numbers(file, name); };
  Input in{get("decoder_input_ids"), get("decoder_attention_mask"), {}};
  in.batch = model::from_padded(in.ids, in.mask);
  if (in.ids.size(0) != source.ids.size(0))
    fail(ErrorKind::input, "forward",
         "{}: decoder_input_ids has {} rows, the sources {}; expected one target for every source",
         file.file(), in.ids.size(0), source.ids.size(0));
  return in;
}

int forward(const ForwardArgs& o) {
  if (o.threads > 0) set_thread_count(o.threads);
  o.device.check();  // before there are files to read
  check_out_place("forward", o.output, o.force, holds_array("last_hidden_state"));
  const format::TensorFile file =
      o.input.empty() ? format::TensorFile() : format::open_safetensors(o.input);
  const infer::LoadedModel loaded =
      o.device.loaded([&] { return infer::load_model(o.model, o.loading.options(), o.adapters); });
  say_differences(loaded.source);
  const bool pair = loaded.model.spec().encoder != nullptr;
  if (o.audio.empty()) check_names(file, loaded.model.spec());
  const nn::FeatureEmbedConfig* features = features_of(loaded.model.spec());
  const Tensor given = !o.audio.empty()      ? heard(o.audio, loaded.model.spec())
                       : features != nullptr ? infer::tensor_or_undefined(file, features->input())
                                             : Tensor();
  const Input source = given.defined() ? source_of(*features, given) : source_of(file);
  Input read = pair ? target_of(file, source) : source;
  if (const Tensor lengths = numbers(file, kPrefixes.c_str()); lengths.defined())
    model::set_prefixes(read.batch, lengths);
  if (source.batch.axes_3N.defined() && !layers_have<nn::MRopeConfig>(loaded.model.spec()))
    fail(ErrorKind::input, "forward",
         "{}: position_ids has three axes, but no layer has position \"m_rope\"; expected [B, T]",
         file.file());

  const at::NoGradGuard no_gradients;
  std::vector<std::pair<std::string, Tensor>> out;
  const Input* stack = &source;  // whose rows the probes have
  model::ForwardOptions options;
  options.cancel = &cancel_token();
  options.probe = [&](const std::string& name, const Tensor& value) {
    if (std::find(o.probes.begin(), o.probes.end(), name) != o.probes.end())
      out.emplace_back(name, stack->padded(value.cpu()));
  };
  nn::Encoded encoded;
  if (pair) {
    encoded = loaded.model.encode(source.batch, options);
    out.emplace_back("encoder_last_hidden_state", source.padded(encoded.x_SD.cpu()));
    options.encoded = &encoded;
    stack = &read;
  }
  const Tensor hidden = loaded.model.hidden(read.batch, options);
  for (const std::string& probe : o.probes)
    if (std::none_of(out.begin(), out.end(),
                     [&](const auto& entry) { return entry.first == probe; }))
      fail(ErrorKind::usage, "forward",
           "no intermediate is called \"{}\"; expected \"embed\", \"final\" or "
           "\"layers.<i>.<branch>.in\" or \".out\", after \"encoder.\" or \"decoder.\" for two "
           "stacks",
           probe);
  const model::ModelSpec& spec = loaded.model.spec();
  const Tensor pooled = spec.pooler ? loaded.model.pooled(hidden, read.batch) : Tensor();
  if (spec.head) {
    const bool of_documents = spec.head.as<nn::HeadConfig>().reads() == nn::HeadInput::pooled;
    const Tensor logits = loaded.model.logits(of_documents ? pooled : hidden);
    out.emplace_back("logits", of_documents ? logits : read.padded(logits.cpu()));
  }
  if (pooled.defined()) out.emplace_back("pooler_output", pooled);
  out.emplace_back("last_hidden_state", read.padded(hidden.cpu()));
  infer::write_tensors(o.output, out);
  return kExitOk;
}

}  // namespace

std::function<int()> add_forward(CLI::App& app) {
  auto o = std::make_shared<ForwardArgs>();
  group(app, "Input");
  add_model(app, o->model);
  auto* input = app.add_option(
      "--input", o->input,
      "safetensors: input_ids [B,T]; optional attention_mask (0 at the ends of a row only), "
      "position_ids [B,T] or [3,B,T] (m_rope; default from 0), token_type_ids, "
      "global_attention_mask (longformer), prefix_lengths [B] (prefix). Images and audio: "
      "pixel_values [B,C,H,W], input_features [B,mels,frames] instead of input_ids. "
      "Encoder-decoder: also decoder_input_ids [B,T], decoder_attention_mask");
  auto* audio =
      app.add_option("--audio", o->audio,
                     "instead of --input: 16 kHz WAV file (cut or padded to 30 s) for a speech "
                     "encoder (embed \"frames\")");
  audio->excludes(input);
  group(app, "Output");
  add_out(app, o->output,
          "safetensors file to write: last_hidden_state and, where the model has them, logits, "
          "pooler_output and encoder_last_hidden_state; float32, padding is 0")
      ->required();
  add_force(app, o->force);
  app.add_option("--probe", o->probes,
                 "also write this activation: embed, final, layers.0.mixer.out ...; repeatable");
  group(app, "Model");
  add_adapters(app, o->adapters);
  o->loading.add(app);
  group(app, "Precision and performance");
  o->device.add(app);
  add_threads(app, o->threads);
  examples(app, {"tessera forward folder --input in.safetensors --out out.safetensors --probe "
                 "layers.0.mixer.out"});
  return [o, input, audio] {
    if (input->empty() && audio->empty())
      fail(ErrorKind::usage, "forward", "nothing to read; expected --input or --audio");
    return forward(*o);
  };
}

}  // namespace tessera::cli
