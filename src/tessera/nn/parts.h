// The interfaces of the slots, and how a part is built from its config and its weights.
// Parts hold handles to named weights; all that changes between calls is in the Context and the
// State.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "tessera/nn/context.h"
#include "tessera/nn/state.h"
#include "tessera/ops/attention/attention.h"
#include "tessera/ops/weights/product_input.h"
#include "tessera/ops/weights/weight.h"
#include "tessera/spec/mechanism.h"

namespace tessera::ops {
struct RotaryTable;
}  // namespace tessera::ops

namespace tessera::nn {

using ops::WeightPtr;

// What parts may offer for calls of few tokens (decode_step.h); null = nothing, the tensor path
// serves.
class NormStep;
class PartStep;
class ResidualStep;
class RouterStep;
struct BranchSteps;

/// x [..., C] -> same shape.
class Norm {
 public:
  virtual ~Norm() = default;
  virtual Tensor forward(const Tensor& x, const ops::ProductSettings& products) const = 0;
  /// The same of all tokens of a call, where training may differ from inference.
  virtual Tensor forward(const Tensor& x, const Context& context) const {
    return forward(x, context.products);
  }
  virtual std::shared_ptr<const NormStep> step() const { return nullptr; }
};

/// The scores that a mixer will compute, for position schemes.
struct ScoreSite {
  int64_t n_heads = 1;
  int64_t head_dim = 0;
  int64_t longest = 0;  // keys of the longest document of the call, past included
  double scale = 1;     // on q . k; a scheme with terms of its own may change it
  /// The mixer's own projections of rows [R, d_model] to [R, H, D], for schemes that share them.
  std::function<Tensor(const Tensor&)> project_q, project_k;
};

/// What a rotation turns; some schemes scale the two inversely.
enum class Side { query, key };

/// How heads are turned: pairs of channels by the angles of their token; without a table not at
/// all.
struct Rotation {
  const ops::RotaryTable* table = nullptr;
  bool interleaved = false;
};

/// Acts in one place (Info::place); the other functions do nothing.
class Position {
 public:
  virtual ~Position() = default;
  /// What the scores gain.
  virtual ops::ScoreTerm score_term(ScoreSite&, Context&) const { return {}; }
  /// Without rows over whole documents; with rows, those of its config's state(), it continues from
  /// them and updates them.
  virtual Tensor embed(const Tensor& x_ND, Context&, const StateRows* /*rows*/) const {
    return x_ND;
  }
  /// x_NHD: queries or keys, heads apart; overwritten if no other tensor shares it.
  virtual Tensor rotate(Tensor x_NHD, Side, Context&) const { return x_NHD; }
  /// Whether it does nothing else than rotate(), and that by the tables of rotation().
  virtual bool only_rotates() const { return false; }
  /// Of heads of `width` channels; the table lives as long as the context.
  virtual Rotation rotation(Side, int64_t /*width*/, at::ScalarType, Context&) const { return {}; }
};

/// What a mixer hands to the part that chooses its keys.
struct SelectInput {
  Tensor x_ND;                         // what the mixer reads
  Tensor latent_NQ;                    // what its queries are projected from
  const Position* position = nullptr;  // of its queries and keys
};

/// The attention of a call whose keys were chosen, as the part that chose them learns from it.
struct SelectedAttention {
  Tensor q_NHK, k_NGK;
  ops::ScoreOptions how;  // scale, cap and sinks count
};

/// Chooses the keys that a mixer's queries attend to (nn/select/select_config.h).
class Select {
 public:
  virtual ~Select() = default;
  /// The blocks of block() keys of the document that every query attends to, int32 [N, top_k] on
  /// the CPU, or [N, G, top_k] for G groups of heads: that of position p has min(top_k, p / block()
  /// + 1) of them, ascending; one after p holds no key. Undefined where no query has more blocks:
  /// each has all keys before it. Without rows it runs over whole documents; with rows, whose
  /// entries from `slot` on are those of its config's state(), it continues from them.
  virtual Tensor choose(const SelectInput&, Context&, const StateRows* rows, size_t slot) const = 0;
  virtual int64_t block() const { return 1; }
  /// Length of a document up to which every query has all keys before it, for what choose() gave.
  virtual int64_t dense_length(const Tensor& chosen) const { return chosen.size(-1) * block(); }
  /// Adds the losses by which it learns, of whole documents; key_NK: what it chose.
  virtual void learn(const SelectInput&,
                     const Tensor& /*key_NK*/,
                     const SelectedAttention&,
                     Context&) const {}
};

/// Mixes tokens. Without rows it runs over whole documents; with rows it continues from them and
/// updates them.
class Mixer {
 public:
  virtual ~Mixer() = default;
  virtual Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const = 0;
  /// What a row without tokens begins with, where that is a parameter (RowState::begin_at).
  virtual void begin(RowState&) const {}
  /// `products`: those of the calls that it will serve.
  virtual std::shared_ptr<const PartStep> step(const ops::ProductSettings& /*products*/) const {
    return nullptr;
  }
};

class Ffn {
 public:
  virtual ~Ffn() = default;
  virtual Tensor forward(const Tensor& x_ND, Context& context) const = 0;
  /// `products`: those of the calls that it will serve.
  virtual std::shared_ptr<const PartStep> step(const ops::ProductSettings& /*products*/) const {
    return nullptr;
  }
};

/// What the layers hand on: x_ND alone, or what residuals make of it between entering and leaving
/// (several streams, outputs of earlier branches).
using Stream = std::vector<Tensor>;

/// Assignment of the N tokens of a call to experts.
struct Routing {
  /// The experts of every token in the order in which their outputs are added: int64 on the CPU,
  /// -1 = none. Gradients reach a router by the weights alone, float32 or double.
  Tensor expert_NK, weight_NK;
  /// Instead of choices: what experts read, rows sorted by expert, and the way back to the tokens.
  struct Slots {
    Tensor x_SD;
    Groups groups;
    std::function<Tensor(const Tensor& y_SD)> combine;  // [N, D]
  };
  std::optional<Slots> slots = {};
};

class Router {
 public:
  virtual ~Router() = default;
  virtual Routing route(const Tensor& x_ND, Context& context) const = 0;
  /// `products`: those of the calls that it will serve.
  virtual std::shared_ptr<const RouterStep> step(const ops::ProductSettings& /*products*/) const {
    return nullptr;
  }
};

/// A branch as its residual sees it.
struct Branch {
  std::vector<std::unique_ptr<Norm>> norms;  // parallel to ResidualConfig::norms(); may be empty
  std::function<Tensor(const Tensor& x_ND, Context&)> run;
  std::string name;                // "layers.3.mixer", keys its random numbers
  std::vector<WeightPtr> weights;  // all that norms and run read
  WeightPtr gain;  // factors on its output, one [1] or by channel [D]; null where it has none
  WeightPtr sum_gain;  // a factor [1] on the sum of stream and branch; null where it has none
  /// What it reads instead of the stream alone; null where it reads just that.
  std::function<Tensor(const Tensor& x_ND, Context&)> read;
  /// What it runs on: what it reads, normalised by the first norm where it has one.
  Tensor input(const Tensor& x_ND, Context& context) const {
    const Tensor x = read ? read(x_ND, context) : x_ND;
    return norms.empty() || norms[0] == nullptr ? x : norms[0]->forward(x, context);
  }
};

class Residual {
 public:
  virtual ~Residual() = default;
  virtual Stream forward(Stream stream,
                         std::span<const Branch> branches,
                         Context& context) const = 0;
  /// Where a run of residuals that carry one kind of stream begins (ResidualConfig::carries), and
  /// where it ends: of the first and of the last of the run.
  virtual Stream enter(const Tensor& x_ND, Context&) const { return {x_ND}; }
  virtual Tensor leave(const Stream& stream, Context&) const { return stream.front(); }
  /// Of a group of these branches, on a stream of one tensor of `width` channels.
  virtual std::shared_ptr<const ResidualStep> step(std::span<const BranchSteps>,
                                                   int64_t /*width*/) const {
    return nullptr;
  }
};

/// A layer as what decides on its tokens sees it.
struct DepthLayer {
  /// Its branches, on the tokens of the context's batch: the stream in and out, [M, D].
  std::function<Tensor(const Tensor& x_MD, Context& context)> run;
  /// Tokens of a segment's row that its branches have seen in earlier calls.
  std::function<int64_t(const Context& context, const Segment& segment)> seen;
  /// Whether it is first, last among layers of one loop (DepthConfig::loop); alone: both.
  bool first = true, last = true;
};

/// Decides which tokens a layer computes, and how what it makes of them joins the stream.
class Depth {
 public:
  virtual ~Depth() = default;
  virtual Tensor forward(const Tensor& x_ND, const DepthLayer& layer, Context& context) const = 0;
};

/// Without rows it runs over whole documents; with rows it continues from them and updates them.
class Embed {
 public:
  virtual ~Embed() = default;
  virtual Tensor forward(Context& context, const StateRows* rows) const = 0;
};

class Head {
 public:
  virtual ~Head() = default;
  virtual Tensor forward(const Tensor& h_ND, const ops::ProductSettings& products) const = 0;
};

/// Where parts find their weights: by full name, nullptr when the table has none of that name.
using WeightSource = std::function<WeightPtr(const std::string& name)>;

/// Hands a part its weights and surroundings while the model is built.
class Builder {
 public:
  Builder(WeightSource source, std::string prefix, spec::Scope scope)
      : source_(std::move(source)), prefix_(std::move(prefix)), scope_(std::move(scope)) {}

  /// The weight `prefix.name`; throws Error(internal) when it was not declared.
  WeightPtr weight(std::string_view name) const;
  /// The same, or nullptr where its declaration goes without it (spec::ParamList::without).
  WeightPtr optional(std::string_view name) const;
  /// For parameters declared with ParamList::shared.
  Builder shared(std::string_view id) const {
    return {source_, "shared." + std::string(id), scope_};
  }
  /// For a weight outside the part (a tied head's embedding).
  WeightPtr absolute(const std::string& name) const { return source_(name); }
  const std::string& prefix() const { return prefix_; }
  const spec::Scope& scope() const { return scope_; }
  Builder under(std::string_view name) const { return under(name, scope_); }
  Builder under(std::string_view name, spec::Scope scope) const {
    return {source_, prefix_.empty() ? std::string(name) : prefix_ + "." + std::string(name),
            std::move(scope)};
  }

 private:
  WeightSource source_;
  std::string prefix_;
  spec::Scope scope_;
};

/// build_norm, build_position, ...: the part that a config describes, for every slot that has an
/// interface.
#define TESSERA_SLOT(name, Interface) \
  std::unique_ptr<Interface> build_##name(const spec::AnyPart& part, const Builder& builder);
#include "tessera/spec/slots.def"

/// Runs a mixer on the rows of a state: replays what a roll-back left to replay, computes, and
/// books the new tokens as pending or committed, as their segments say.
Tensor run_mixer(const Mixer& mixer, const Tensor& x_ND, Context& context, const StateRows* rows);

/// The same of what gives the layers their input, whose state is entries per token alone.
Tensor run_embed(const Embed& embed, Context& context, const StateRows* rows);

/// y = W x + b, as a pair of handles.
struct Linear {
  WeightPtr weight, bias;
  Linear() = default;
  Linear(const Builder& builder, const std::string& name)
      : weight(builder.weight(name + ".weight")), bias(builder.optional(name + ".bias")) {}
  /// x: a Tensor or an ops::SharedInput.
  template <class X>
  Tensor operator()(const X& x, const ops::ProductSettings& products) const {
    return ops::linear(x, *weight, bias.get(), products);
  }
  /// The same in a call; of experts, where it computes many of them at once.
  template <class X>
  Tensor operator()(const X& x, const Context& context) const {
    return context.groups == nullptr ? (*this)(x, context.products)
                                     : ops::grouped_linear(x, *weight, context.groups->offsets,
                                                           bias.get(), context.products);
  }
};

}  // namespace tessera::nn
