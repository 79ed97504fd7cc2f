// Specs of two stacks: common defaults are next to "stacks", differences inside.
#include <algorithm>

#include "tessera/model/spec_reader.h"
#include "tessera/nn/head/head_config.h"
#include "tessera/nn/head/head_list.h"

namespace tessera::model {
namespace {

/// The stack `name` as separate JSON: missing keys come from the spec around it.
Json own_stack(const Json& json, const std::string& name) {
  const Json& stacks = json["stacks"];
  const std::string path = "stacks." + name;
  if (!stacks.contains(name))
    fail(ErrorKind::spec, path, "missing; expected {{\"layers\": [...], ...}}");
  std::vector<std::string> keys = stack_keys();
  if (name == "encoder") keys.insert(keys.end(), {"vocab", "head", "heads"});
  check_keys(stacks[name], keys, path);
  Json own = stacks[name];
  for (const char* key :
       {"embed", "norm", "residual", "depth", "quantization", "mixer", "cross", "ffn"})
    if (!own.contains(key) && json.contains(key) &&
        (name == "decoder" || key != std::string("cross")))
      own[key] = json[key];
  return own;
}

bool reads_the_encoder(const ModelSpec& decoder) {
  const auto layout = state_layout(decoder);
  return std::any_of(layout.begin(), layout.end(), [](const BranchState& branch) {
    return std::any_of(branch.tensors.begin(), branch.tensors.end(), [](const auto& decl) {
      return decl.kind == spec::StateDecl::Kind::per_source;
    });
  });
}

/// The head for target lengths, required if the decoder sees targets whole.
void read_encoder_heads(const Json& own, bool whole, ModelSpec& encoder) {
  const std::string path = "stacks.encoder";
  const nn::HeadList heads = nn::read_heads(own, Json(), encoder.embed, encoder.scope_out(path));
  const bool tells = heads.logits && heads.pooler &&
                     heads.logits.as<nn::HeadConfig>().reads() == nn::HeadInput::pooled;
  if (whole && !tells)
    fail(ErrorKind::spec, path + ".heads",
         "a decoder that sees targets whole (\"mask\") must be told how long they are; expected "
         "[{{\"type\": \"classifier\", \"n_labels\": most tokens of a target}}, {{\"type\": "
         "\"pooler\", \"of\": \"mean\"}}]");
  if (!whole && (heads.logits || heads.pooler))
    fail(ErrorKind::spec, path + ".heads",
         "unused: heads of an encoder predict target lengths of non-autoregressive decoders; "
         "expected \"mask\" next to \"stacks\", or no heads");
  encoder.head = heads.logits;
  encoder.pooler = heads.pooler;
}

}  // namespace

void read_stacks(const Json& json, ModelSpec& out) {
  for (const char* key : {"layers", "cycles", "n_layers", "overrides", "final_norm"})
    if (json.contains(key))
      fail(ErrorKind::spec, key,
           "has no meaning next to \"stacks\"; expected it in \"stacks.encoder\" or "
           "\"stacks.decoder\"");
  if (!json.contains("stacks"))
    fail(ErrorKind::spec, "stacks",
         "missing; expected {{\"encoder\": {{...}}, \"decoder\": {{...}}}}");
  check_keys(json["stacks"], {"encoder", "decoder"}, "stacks");
  const Json tokens = json.value("tokens", Json("shared"));
  if (tokens != "shared" && tokens != "own")
    fail(ErrorKind::spec, "tokens", "found {}; expected \"shared\" or \"own\"", tokens.dump());
  out.shared_tokens = tokens == "shared";
  auto encoder = std::make_shared<ModelSpec>();
  encoder->arch = Arch::encoder;
  encoder->stack = "encoder";
  encoder->d_model = out.d_model;
  encoder->context = out.context;
  encoder->shared_tokens = out.shared_tokens;
  encoder->init = out.init;
  const Json of_encoder = own_stack(json, "encoder");
  encoder->vocab = read_integer(of_encoder, "vocab", 1, kMaxWidth, out.vocab, "stacks.encoder");
  if (out.shared_tokens && encoder->vocab != out.vocab)
    fail(ErrorKind::spec, "stacks.encoder.vocab",
         "found {}; the decoder's vocabulary of {} tokens is shared; expected \"tokens\": \"own\"",
         encoder->vocab, out.vocab);
  read_stack(of_encoder, "stacks.encoder", *encoder);
  read_encoder_heads(of_encoder, json.contains("mask"), *encoder);
  out.encoder = encoder;
  out.stack = "decoder";
  if (json.contains("mask")) {
    if (json.contains("start"))
      fail(ErrorKind::spec, "start",
           "has no meaning with \"mask\": a non-autoregressive decoder has no start token; leave "
           "it out");
    out.mask = read_integer(json, "mask", 0, out.vocab - 1, std::nullopt, "");
  }
  out.start = read_integer(json, "start", 0, out.vocab - 1, 0, "");
  read_stack(own_stack(json, "decoder"), "stacks.decoder", out);
  encoder->decoder_layers = std::ssize(out.layers);
  if (!reads_the_encoder(out))
    fail(ErrorKind::spec, "stacks.decoder",
         "no layer reads the encoder; expected a branch with mixer \"cross_attention\" or "
         "\"merged_attention\"");
}

Json resolve_stacks(const ModelSpec& spec) {
  Json encoder = resolve_stack(*spec.encoder);
  if (spec.encoder->vocab != spec.vocab) encoder["vocab"] = spec.encoder->vocab;
  if (spec.mask) nn::dump_heads({spec.encoder->head, spec.encoder->pooler}, encoder);
  return {{"encoder", std::move(encoder)}, {"decoder", resolve_stack(spec)}};
}

}  // namespace tessera::model
