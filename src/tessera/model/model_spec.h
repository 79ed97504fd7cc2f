// An architecture as data: parsed from JSON, completed with defaults, checked, and written again.
// Torch-free. Format: docs/guide/specs.md; `tessera show SPEC --resolved` prints one.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tessera/spec/kv_type.h"
#include "tessera/spec/mechanism.h"

namespace tessera::nn {
struct DepthConfig;
struct ResidualConfig;
struct InitSite;
}  // namespace tessera::nn

namespace tessera::model {

using spec::AnyPart;
using spec::Json;
using spec::Slot;

enum class Arch { decoder, encoder, encoder_decoder };
const char* name_of(Arch arch);

/// The token embedding, which a tied head uses as well.
inline constexpr const char* kTokenTable = "embed.token.weight";

/// Inputs of a branch by name, in addition to outputs of earlier branches of its layer.
inline constexpr const char* kStream = "stream";
inline constexpr const char* kEmbedding = "embedding";

/// A low-rank adapter inside a spec, for products of a part with one input: W x + B A x, with one A
/// for all. Its parameters belong to one use, also of a shared part. (model::WeightAdapter is the
/// adapter of a loaded model.)
struct AdapterSpec {
  int64_t rank = 0;
  std::vector<std::string> of;  // names of the products: "q", "gate"
};

/// Products of a branch whose operands are rounded, in training with straight-through gradients
/// (quantization-aware training) and in inference: BitLinear (ops::OperandRounding).
struct QuantizationSpec {
  bool ternary = true;          // "weights": "ternary" by their mean magnitude, or "stored"
  bool int8 = true;             // "activations": "int8" by the largest of each token, or "float"
  std::vector<std::string> of;  // names of the products; empty: all but a router's
};

/// One mixer or feed-forward part of a layer, with the norms of its residual.
struct BranchSpec {
  std::string name;  // "mixer", "ffn", or as given: prefix of its parameters within the layer
  Slot slot = Slot::mixer;
  AnyPart part;
  std::vector<AnyPart> norms;  // parallel to norm_names(); empty when an earlier branch's is shared
  std::vector<std::string> inputs = {kStream};  // concatenated: the width is their number * d_model
  std::vector<std::string> add;                 // added to a single input
  std::string share;  // branches with the same id and name share parameters in all layers
  std::vector<AdapterSpec> adapters;
  std::optional<QuantizationSpec> quantization = {};

  bool reads_stream_alone() const {
    return add.empty() && inputs.size() == 1 && inputs[0] == kStream;
  }
};

/// Branches that are added to the stream together: one, or several with `parallel`.
struct GroupSpec {
  AnyPart residual;
  std::vector<BranchSpec> branches;
  bool aside = false;  // the output of the branch is not added; later ones of the layer read it

  std::vector<std::string> norm_names() const;
  const nn::ResidualConfig& residual_config() const;
  /// Position among neighbours with the same kind of stream (ResidualConfig::carries), which has
  /// more than x_ND.
  struct Run {
    bool begins = false, ends = false;
  };
};

/// One invocation of a layer.
struct LayerSpec {
  std::vector<GroupSpec> groups;
  AnyPart depth;      // selects the tokens that it computes; absent: all
  std::string share;  // invocations with the same id share parameters, each with its own state

  /// True if a branch reads the input `name`.
  bool reads(std::string_view name) const;
  /// nullptr if all tokens are computed.
  const nn::DepthConfig* depth_config() const;
  /// Share of the tokens that it computes in inference.
  double share_of_tokens() const;
};

struct ModelSpec;

/// The input of a predictor (predictor_spec.h).
enum class PredictorReads { trunk, previous };
struct PredictorSpec {
  PredictorReads reads = PredictorReads::previous;
  bool token = true;
  AnyPart norm;                            // of its inputs, one for each; may be absent
  std::shared_ptr<const ModelSpec> stack;  // named "predictors.0", without an embedding
};

/// One stack of layers with embedding and heads. An encoder-decoder is a decoder with its encoder:
/// embed, layers and final_norm are the decoder's.
struct ModelSpec {
  Arch arch = Arch::decoder;
  std::string stack;  // "encoder" and "decoder" with two stacks: prefix of its parameters
  std::shared_ptr<const ModelSpec> encoder;  // of an encoder-decoder
  bool shared_tokens = false;                // both stacks share the token embedding
  int64_t decoder_layers = 0;                // of an encoder: number of layers of its decoder
  int64_t start = 0;  // of an encoder-decoder: the start token of every target
  /// For an encoder-decoder with a bidirectional decoder (Mask-Predict): the mask token. Its
  /// encoder has a head that predicts the target length.
  std::optional<int64_t> mask = {};
  int64_t vocab = 0;
  int64_t d_model = 0;
  int64_t context = 0;  // context length, 0 = not given
  AnyPart init;         // initialization of matrices; of all stacks
  AnyPart embed;
  std::vector<LayerSpec> layers;  // in order of invocation
  AnyPart final_norm;             // may be absent
  AnyPart
      head;  // computes logits; may be absent (encoders): the model then ends with hidden states
  AnyPart pooler;  // may be absent
  /// For a decoder: predictor k gives the logits of the token k + 2 positions later.
  std::vector<PredictorSpec> predictors;

  /// For a group of this spec.
  GroupSpec::Run run_of(const GroupSpec& group) const;
  /// Position among neighbouring layers whose depths belong to one loop (DepthConfig::loop).
  struct Loop {
    bool begins = true, ends = true;
  };
  Loop loop_of(int64_t layer) const;
  bool causal() const { return arch != Arch::encoder && !mask; }
  /// For a pair with a mask: max. target length, the last class of its encoder's head; class i is
  /// length i + 1.
  int64_t longest_target() const;
  /// True for the stack of a predictor, which has no embedding.
  bool is_predictor() const { return stack.starts_with("predictors."); }
  /// Scope of the parts of layer `i`.
  spec::Scope scope(int64_t layer, std::string path = "") const;
  /// The same for a branch and its first norm, with the width of the branch's inputs.
  spec::Scope scope(int64_t layer, const BranchSpec& branch) const;
  /// The same for the residual's parameters of a branch: `earlier` counts the groups before its
  /// own.
  spec::Scope residual_scope(int64_t layer, const BranchSpec& branch) const;
  nn::InitSite init_site() const;
  /// Width of the hidden states: d_model, or twice that for a stack that ends with two streams.
  int64_t width_out() const;
  /// Scope of their readers: the final norm and the heads.
  spec::Scope scope_out(std::string path = "") const;
  /// The name of a head of this stack: "head", and "encoder.head" for the encoder of a pair.
  std::string head_name(std::string_view name) const {
    return arch == Arch::encoder ? under(name) : std::string(name);
  }
  /// The full name of something in this stack: "layers.3", or "decoder.layers.3" with an encoder.
  std::string under(std::string_view name) const {
    return stack.empty() ? std::string(name) : stack + "." + std::string(name);
  }
  /// The stored name of a parameter of this stack: its own, except for token embeddings shared by
  /// both stacks.
  std::string kept_as(const std::string& name) const;
  /// Prefix of the parameters of layer `i`: under("layers.3"), or "shared.<id>".
  std::string prefix(int64_t layer) const;
  /// Prefix of the parameters of a branch: prefix(i).<name>, or "shared.<id>.<name>".
  std::string prefix(int64_t layer, const BranchSpec& branch) const;
  /// Prefix of parameters that a branch does not share: "layers.3.<name>.adapters.0".
  std::string adapter_prefix(int64_t layer, const BranchSpec& branch, size_t adapter) const;
  /// Max. tokens that every part supports, 0 = any.
  int64_t max_positions() const;
  /// The smaller of `context` and max_positions(), 0 = no limit.
  int64_t longest_sequence() const;
  /// "" if logits can be computed after the first `layers` layers; otherwise the reason.
  std::string no_exit_reason(int64_t layers) const;
  /// Max. number of ids before a token that a part reads.
  int64_t ids_before() const;
  /// "" if every part can continue from a state; otherwise the reason.
  std::string no_state_reason() const;
  /// "" if decoding steps can be recorded on a device and replayed (recorded_steps.h), with a KV
  /// cache of `type`; otherwise the reason.
  std::string not_recorded_reason(spec::KvType type = spec::KvType::f32) const;
  /// A line for training a decoder with parts whose selection for a token depends on later tokens
  /// (Causality::selection); "" if there are none.
  std::string selection_note() const;
  /// "" if text can be generated; otherwise the part that selects by future tokens.
  std::string no_generation_reason() const;
};

/// Calls `visit` with the parts of a stack, nested parts included, in order of use.
void for_each_part(const ModelSpec& spec, const std::function<void(const AnyPart&)>& visit);

/// Throws Error(spec) with the path of the key and what was expected.
ModelSpec read_model_spec(const Json& json);
ModelSpec load_model_spec(const std::filesystem::path& path,
                          const std::vector<std::string>& overrides = {});

/// "path.to[0].key=value"; the value is JSON, or a string if it is not valid JSON.
void apply_override(Json& json, std::string_view assignment);

/// The spec with every default; equal neighbouring layers are folded with `repeat`.
Json resolve(const ModelSpec& spec);

/// Every parameter once, with its full name, in order of use; those of an encoder come first.
struct ParamTable {
  std::vector<spec::ParamDecl> all;  // in the order of the layers
  std::set<std::string> absent;      // optional parameters that this spec leaves out
};
ParamTable parameter_table(const ModelSpec& spec);
std::vector<spec::ParamDecl> parameters(const ModelSpec& spec);

/// Declares the parameters of a branch's adapters; throws Error(spec) for an unknown product.
spec::ParamList adapter_parameters(const ModelSpec& spec, int64_t layer, const BranchSpec& branch);

/// The names of a branch's products with rounded operands, without ".weight"; none without
/// `quantization`.
std::vector<std::string> quantized_products(const ModelSpec& spec,
                                            int64_t layer,
                                            const BranchSpec& branch);

/// The full names of the matrices that products round to ternary ones, of all stacks.
std::set<std::string> ternary_weights(const ModelSpec& spec);

/// The last ids of a row, for parts that read ids before a token: the last entry of a layout.
inline constexpr const char* kIds = "ids";

/// State of one row for a branch of a layer invocation ("layers.3.mixer"), or for the layers' input
/// ("embed", before them). For an encoder-decoder, the decoder's.
struct BranchState {
  std::string name;
  std::vector<spec::StateDecl> tensors;
  bool selective = false;  // it may see only some tokens of a row
  double share = 1;        // expected share of the tokens that it sees
};
/// Keys and values stored as `type`, where supported (kv_quantization.h); throws Error(spec) if no
/// branch supports it.
std::vector<BranchState> state_layout(const ModelSpec& spec, spec::KvType type = spec::KvType::f32);

/// JSON schema of the whole spec format, from the registry.
Json spec_schema();

}  // namespace tessera::model
