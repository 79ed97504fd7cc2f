// An architecture as data: read from JSON, completed with every default, checked, and dumped again.
// Torch-free. Format: design of specs in ARCHITECTURE.md; `tessera show SPEC --resolved` prints
// one.
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

/// The parameter that embeds tokens, and that a tied head multiplies by.
inline constexpr const char* kTokenTable = "embed.token.weight";

/// What a branch reads, by name, besides the outputs of earlier branches of its layer.
inline constexpr const char* kStream = "stream";
inline constexpr const char* kEmbedding = "embedding";

/// A product of low rank beside some products of a part, which read one input: W x + B A x, with
/// one A for all. The parameters are each use's own, also where the part is shared.
struct AdapterSpec {
  int64_t rank = 0;
  std::vector<std::string> of;  // names of the products: "q", "gate"
};

/// One mixer or feed-forward layer and the norms its residual asks for.
struct BranchSpec {
  std::string name;  // "mixer", "ffn", or as given: the prefix of its parameters within the layer
  Slot slot = Slot::mixer;
  AnyPart part;
  std::vector<AnyPart> norms;  // parallel to norm_names(); empty when an earlier branch's is shared
  std::vector<std::string> inputs = {kStream};  // side by side: the width is their number * d_model
  std::vector<std::string> add;                 // added to that, one input only
  std::string share;  // branches with one id and name use the same parameters in all layers
  std::vector<AdapterSpec> adapters;

  bool reads_stream_alone() const {
    return add.empty() && inputs.size() == 1 && inputs[0] == kStream;
  }
};

/// Branches that join the stream together: one, or several under `parallel`.
struct GroupSpec {
  AnyPart residual;
  std::vector<BranchSpec> branches;
  bool aside =
      false;  // the output of the one branch does not join; later ones of the layer read it

  std::vector<std::string> norm_names() const;
  const nn::ResidualConfig& residual_config() const;
  /// Where it stands among neighbours that carry one kind of stream (ResidualConfig::carries),
  /// which is not x_ND alone.
  struct Run {
    bool begins = false, ends = false;
  };
};

/// One invocation of a layer.
struct LayerSpec {
  std::vector<GroupSpec> groups;
  AnyPart depth;      // decides which tokens it computes; absent: all
  std::string share;  // invocations with one id use the same parameters, each with its own state

  /// Whether a branch reads what `name` stands for.
  bool reads(std::string_view name) const;
  /// Null where all tokens are computed.
  const nn::DepthConfig* depth_config() const;
  /// Of the tokens, how many it computes in inference.
  double share_of_tokens() const;
};

struct ModelSpec;

/// What a predictor of tokens further ahead reads (predictor_spec.h).
enum class PredictorReads { trunk, previous };
struct PredictorSpec {
  PredictorReads reads = PredictorReads::previous;
  bool token = true;
  AnyPart norm;                            // of what is joined, one for each; may be absent
  std::shared_ptr<const ModelSpec> stack;  // named "predictors.0", without an embedding
};

/// One stack of layers with what stands before and behind it. An encoder_decoder is a decoder
/// beside its encoder: embed, layers and final_norm are the decoder's.
struct ModelSpec {
  Arch arch = Arch::decoder;
  std::string stack;  // "encoder" and "decoder" where there are two: the prefix of its parameters
  std::shared_ptr<const ModelSpec> encoder;  // of an encoder_decoder
  bool shared_tokens = false;                // both stacks embed tokens by one table
  int64_t decoder_layers = 0;                // of an encoder: layers of the decoder beside it
  int64_t start = 0;  // of an encoder_decoder: the id that every target begins with
  /// Of an encoder_decoder whose decoder sees targets whole, both ways: the id that stands for a
  /// token that is not known yet. Its encoder has a head that tells how long the target is.
  std::optional<int64_t> mask = {};
  int64_t vocab = 0;
  int64_t d_model = 0;
  int64_t context = 0;  // longest sequence it is made for, 0 = not stated
  AnyPart init;         // how matrices are drawn; of all stacks
  AnyPart embed;
  std::vector<LayerSpec> layers;  // in order of invocation
  AnyPart final_norm;             // may be absent
  AnyPart head;    // gives logits; may be absent (encoders): the model then ends with hidden states
  AnyPart pooler;  // may be absent
  /// Of a decoder: predictor k gives the logits of the token k + 2 places on.
  std::vector<PredictorSpec> predictors;

  /// Of a group of this spec.
  GroupSpec::Run run_of(const GroupSpec& group) const;
  /// Where a layer stands among neighbours whose depths are of one loop (DepthConfig::loop).
  struct Loop {
    bool begins = true, ends = true;
  };
  Loop loop_of(int64_t layer) const;
  bool causal() const { return arch != Arch::encoder && !mask; }
  /// Of a pair with a mask: tokens of the longest target, which is the last of the classes of its
  /// encoder's head; class i is a target of i + 1.
  int64_t longest_target() const;
  /// Whether it is the stack of a predictor, which has no embedding.
  bool is_predictor() const { return stack.starts_with("predictors."); }
  /// Surroundings of the parts of layer `i`.
  spec::Scope scope(int64_t layer, std::string path = "") const;
  /// The same for a branch and its first norm, which see what the branch reads.
  spec::Scope scope(int64_t layer, const BranchSpec& branch) const;
  /// The same for what the residual keeps for a branch: `earlier` counts the groups before its own.
  spec::Scope residual_scope(int64_t layer, const BranchSpec& branch) const;
  nn::InitSite init_site() const;
  /// Width of the hidden states: d_model, or twice that where the stack ends with two streams.
  int64_t width_out() const;
  /// Surroundings of what reads them: the final norm and the heads.
  spec::Scope scope_out(std::string path = "") const;
  /// The name of a head of this stack: "head", and "encoder.head" of the encoder of a pair.
  std::string head_name(std::string_view name) const {
    return arch == Arch::encoder ? under(name) : std::string(name);
  }
  /// The name of something of this stack: "layers.3", or "decoder.layers.3" beside an encoder.
  std::string under(std::string_view name) const {
    return stack.empty() ? std::string(name) : stack + "." + std::string(name);
  }
  /// Where a parameter of this stack is kept: under its own name, but for token vectors that both
  /// stacks share.
  std::string kept_as(const std::string& name) const;
  /// Prefix of the parameters of layer `i`: under("layers.3"), or "shared.<id>".
  std::string prefix(int64_t layer) const;
  /// Prefix of the parameters of a branch: prefix(i).<name>, or "shared.<id>.<name>".
  std::string prefix(int64_t layer, const BranchSpec& branch) const;
  /// Prefix of what a branch does not share: "layers.3.<name>.adapters.0".
  std::string adapter_prefix(int64_t layer, const BranchSpec& branch, size_t adapter) const;
  /// Longest sequence that every part can take, 0 = any.
  int64_t max_positions() const;
  /// The smaller of `context` and max_positions(), 0 = neither limits.
  int64_t longest_sequence() const;
  /// "" when logits can be made from the output of the first `layers` layers; else why not.
  std::string no_exit_reason(int64_t layers) const;
  /// Most ids before a token's own that a part reads.
  int64_t ids_before() const;
  /// "" when every part can continue from a state; else the reason why not.
  std::string no_state_reason() const;
  /// What whoever trains a decoder must know of parts whose selection for a token hangs on later
  /// ones (Causality::selection), in one line; "" where there are none.
  std::string selection_note() const;
  /// "" when text can be generated; else which part selects by tokens that are not there yet.
  std::string no_generation_reason() const;
};

/// Calls `visit` with the parts of a stack, and with the parts inside them, in order of use.
void for_each_part(const ModelSpec& spec, const std::function<void(const AnyPart&)>& visit);

/// Throws Error(spec) with the path of the key and what was expected.
ModelSpec read_model_spec(const Json& json);
ModelSpec load_model_spec(const std::filesystem::path& path,
                          const std::vector<std::string>& overrides = {});

/// "path.to[0].key=value"; the value is JSON, or a string when it is not valid JSON.
void apply_override(Json& json, std::string_view assignment);

/// Every default written out; equal neighbouring layers folded by `repeat`.
Json resolve(const ModelSpec& spec);

/// Every parameter once, with its full name, in order of use; those of an encoder come first.
struct ParamTable {
  std::vector<spec::ParamDecl> all;  // in the order of the layers
  std::set<std::string> absent;      // what parts may ask for and this spec leaves out
};
ParamTable parameter_table(const ModelSpec& spec);
std::vector<spec::ParamDecl> parameters(const ModelSpec& spec);

/// Declares the parameters of a branch's adapters; throws Error(spec) where a product is not there.
spec::ParamList adapter_parameters(const ModelSpec& spec, int64_t layer, const BranchSpec& branch);

/// The last ids of a row, where parts read those before a token: the last entry of a layout.
inline constexpr const char* kIds = "ids";

/// What one row keeps of a layer invocation's branch ("layers.3.mixer"), or of what gives the
/// layers their input ("embed", before them). Of an encoder_decoder, the decoder's.
struct BranchState {
  std::string name;
  std::vector<spec::StateDecl> tensors;
  bool selective = false;  // it may see some tokens of a row alone
  double share = 1;        // of the tokens that it sees, as its layer means to
};
/// Keys and values stored as `type`, where they can be (kv_quantization.h); Error(spec) where none
/// can.
std::vector<BranchState> state_layout(const ModelSpec& spec, spec::KvType type = spec::KvType::f32);

/// JSON schema of the whole spec format, from the registry.
Json spec_schema();

}  // namespace tessera::model
