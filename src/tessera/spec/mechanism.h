// What the toolkit knows about a mechanism without computing it: its config and field list, what it
// declares about itself, and the parameters, state and cost that follow from a config. Torch-free,
// so that reading a spec, planning a 405B model, schemas and pages cost nothing.
#pragma once

#include <cmath>
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/base/error.h"
#include "tessera/spec/json.h"

namespace tessera::spec {

/// The places of an architecture that a mechanism can fill: the rows of slots.def.
enum class Slot {
#define TESSERA_SLOT(name, Interface) name,
#define TESSERA_PLAIN_SLOT(name) name,
#include "tessera/spec/slots.def"
};
const char* name_of(Slot slot);
inline constexpr int kSlotCount = 0
#define TESSERA_SLOT(name, Interface) +1
#define TESSERA_PLAIN_SLOT(name) +1
#include "tessera/spec/slots.def"
    ;

/// How the past may depend on the future (tested by the contract suite).
enum class Causality {
  bitwise,    // a changed future leaves the past bit-equal
  rounding,   // global transforms: 1e-12 relative in double
  selection,  // no future value is read, but a future token may change what is selected
  none,       // reads the future
};
const char* name_of(Causality causality);

/// The evaluation forms a mechanism offers; they are tested to agree.
struct Forms {
  bool parallel = true;
  bool chunked = false;
  bool recurrent = false;  // one token at a time from a state
  /// Whether operations of a decoding step are the same at every position, so that a device can
  /// record and replay them (model/recorded_steps.h).
  bool recorded = false;
};

/// Where a position scheme acts. A pair of scheme and place that do not fit is refused when the
/// spec is read.
enum class Place { nowhere, embedding, rotation, score_bias };
const char* name_of(Place place);

/// The places that a parent offers to a position scheme.
struct Places {
  bool embedding = false, rotation = false, score_bias = false;
  bool offers(Place place) const;
  std::string text() const;
};

/// How a quantity grows with the tokens T of a document while widths, windows and memories stay as
/// they are.
enum class Growth { constant, linear, linear_log, three_halves, quadratic };
const char* name_of(Growth growth);
/// The factor between T = 1 and T = length.
double grown(Growth growth, double length);

/// Metadata of a mechanism; its page, its row in tables and its seat in the tests come
/// from it.
struct Info {
  std::string summary;  // one sentence
  std::string paper;    // authors, title, arXiv number
  int year = 0;
  Causality causality = Causality::bitwise;
  Forms forms;
  Place place = Place::nowhere;  // positions only
  bool any_width = false;        // reads inputs of another width than d_model (Scope::input_width)
  // of one layer, forward and backward; the parts inside it have their own (that of attention comes
  // from its pattern). `tessera bench mixers` measures both
  Growth time = Growth::linear;
  Growth memory = Growth::linear;  // the peak beyond weights and input
};

/// What surrounds a part: filled by its parent, used for defaults, rules, shapes and costs.
struct Scope {
  int64_t d_model = 0;
  int64_t vocab = 0;
  int64_t n_layers = 1;  // invocations in this stack
  int64_t layer = 0;     // which of them
  int64_t earlier = 0;   // parts of the same type that run before it in this stack
  bool causal = true;
  int64_t source = 0;   // width of the encoder's output that this stack reads, 0 = there is none
  int64_t d_in = 0;     // width of what a mixer or ffn reads, 0 = d_model
  int64_t width = 0;    // for norms: channels; for positions: width of one head or of the embedding
  int64_t rotated = 0;  // for rotations: how many channels of a head they turn, 0 = width
  int64_t n_heads = 0;  // for positions that act on scores: query heads
  int64_t n_experts = 0;  // for routers: experts to choose from
  bool of_batch = false;  // for norms: they get all tokens of a call at once, one row each
  Places places;          // for positions: where the parent lets them act
  std::string path;       // "layers[3].mixer", for messages
  int64_t turned() const { return rotated > 0 ? rotated : width; }
  int64_t input_width() const { return d_in > 0 ? d_in : d_model; }
  Scope at(std::string_view child) const {
    Scope scope = *this;
    scope.path = path.empty() ? std::string(child) : path + "." + std::string(child);
    return scope;
  }
};

// --- parameters -------------------------------------------------------------------------------

enum class ParamKind { matrix, embedding, norm, bias, structural };
const char* name_of(ParamKind kind);

/// Initial values, drawn from a stream keyed by the parameter's full name.
struct Init {
  enum class Kind {
    constant,        // a
    normal,          // mean 0, standard deviation a
    truncated_normal,  // the same, drawn again while further than b deviations from 0
    uniform,         // in [a, b)
    log_of_uniform,  // ln of a uniform in [a, b)                                  (Mamba: A_log)
    softplus_log_uniform,     // x with softplus(x) log-uniform in [a, b), at least c     (Mamba:
                              // dt_bias)
    sigmoid_root_of_uniform,  // x with sigmoid(-x)^2 uniform in [a, b)            (RG-LRU: lambda)
    repeat,                   // `values`, over and over in row-major order
  };
  /// What a matrix is there for, where the spec's `init` chooses its values (nn/init).
  enum class Use {
    own,      // drawn as declared here, whatever the spec's init
    product,  // y = x W^T within a branch
    query,    // the same, of queries of width `count`
    content,  // the same, of values and hidden units, which a branch's output is made of
    output,   // back into the residual stream of `count` layers
    table,    // rows that are looked up
    logits,
  };
  Kind kind = Kind::normal;
  double a = 0.02, b = 0, c = 0;
  std::vector<double> values = {};
  Use use = Use::own;
  int64_t count = 0;

  static Init constant(double value) { return {Kind::constant, value, 0, 0}; }
  static Init normal(double deviation) { return {Kind::normal, deviation, 0, 0}; }
  static Init truncated_normal(double deviation, double cut) {
    return {Kind::truncated_normal, deviation, cut, 0};
  }
  static Init chosen(Use use, int64_t count = 0) { return {Kind::normal, 0.02, 0, 0, {}, use, count}; }
  static Init product() { return chosen(Use::product); }
  static Init query(int64_t width) { return chosen(Use::query, width); }
  static Init content() { return chosen(Use::content); }
  static Init into_stream(int64_t n_layers) { return chosen(Use::output, n_layers); }
  static Init table() { return chosen(Use::table); }
  static Init logits() { return chosen(Use::logits); }
  static Init uniform(double low, double high) { return {Kind::uniform, low, high, 0}; }
  static Init repeat(std::vector<double> values) {
    return {Kind::repeat, 0, 0, 0, std::move(values)};
  }
  /// Whether every seed gives the same numbers.
  bool fixed() const { return kind == Kind::constant || kind == Kind::repeat; }
};

/// What a dimension of a parameter counts.
enum class Role {
  none,        // nothing that is cut or chosen from
  out,         // channels that a product makes
  in,          // channels that a product reads: the last dimension, which blocks of a quantiser cut
  expert,      // experts, of which a token uses some
  head,        // attention heads
  vocabulary,  // tokens, rows that are looked up
  position,    // places or distances, rows that are looked up
};
const char* name_of(Role role);

/// How a parameter that no gradient reaches moves in training: after every update, by what the
/// parts counted over the whole of it.
struct UpdateRule {
  /// Whose sum over the update (nn::Context::add_statistic) the rule reads; below the parameter's
  /// own prefix.
  std::string statistic;
  std::function<void(std::span<float> values, std::span<const double> counts)> apply;
  int64_t n_counts = 0;  // 0 = one for each of the parameter's numbers
  explicit operator bool() const { return apply != nullptr; }
};

/// Whether weight decay acts.
enum class Decay { by_kind, yes, no };

struct ParamDecl {
  std::string name;            // local: "q.weight"; the full name adds the prefix of the part
  std::vector<int64_t> shape;  // matrices are [out, in]
  Init init;
  ParamKind kind = ParamKind::matrix;
  /// One for every dimension. ParamList::add fills what is left out: [out, in] of a matrix, [out]
  /// of a bias, none of norms and structural ones. Embeddings and matrices of more dimensions say
  /// it.
  std::vector<Role> roles = {};
  double share = 1;  // of its numbers that one token uses: k / E of routed experts
  bool trainable = true;
  Decay decay = Decay::by_kind;
  UpdateRule rule = {};  // of what is not trainable
  double lr_factor = 1;  // on the rate of an optimizer with steps independent of gradient size

  int64_t elements() const;
  bool decays() const {
    return decay == Decay::by_kind ? kind == ParamKind::matrix || kind == ParamKind::embedding
                                   : decay == Decay::yes;
  }
  /// The dimension of a role, -1 where it has none.
  int axis_of(Role role) const;
  /// The dimension that ranks of tensor or expert parallelism may split, -1 = each has all:
  /// experts, else heads, rows of the vocabulary, or channels made.
  int shard_axis() const;
  /// Whether a low-rank adapter may be added to it: a matrix [out, in], or one for each expert.
  bool adapts() const;
  /// Whether it may be stored in blocks of a quantiser: its rows are read by products or looked up.
  bool quantises() const;
};

class ParamList {
 public:
  explicit ParamList(std::string prefix = "") : prefix_(std::move(prefix)) {}
  void add(ParamDecl decl);
  /// Declares that a part with this config goes without `name`, which it may ask for.
  void without(std::string_view name);
  /// Declares `decl`, or goes without it.
  void add_if(bool present, ParamDecl decl);
  /// y = x W^T (+ b): declares `name`.weight [out, in] and, if asked, `name`.bias [out].
  void linear(
      std::string_view name, int64_t out, int64_t in, bool bias, Init init = Init::product());
  /// Declares under a further prefix.
  ParamList under(std::string_view name) const;
  /// Declares for the whole model under an id, once for all parts that name it (Builder::shared).
  static ParamList shared(std::string_view id) { return ParamList("shared." + std::string(id)); }
  void append(const ParamList& other);
  const std::vector<ParamDecl>& all() const { return decls_; }
  /// Names that parts may ask for and that stand for nothing here.
  const std::vector<std::string>& absent() const { return absent_; }

 private:
  std::string full(const std::string& name) const;
  std::string prefix_;
  std::vector<ParamDecl> decls_;
  std::vector<std::string> absent_;
};

// --- state ------------------------------------------------------------------------------------

/// One tensor that a part keeps per row of a state.
struct StateDecl {
  /// per_source: one entry for every token of the row's source (what the encoder read), made by the
  /// row's first call and kept as it is.
  enum class Kind { per_token, fixed, per_source };
  std::string name;
  Kind kind = Kind::per_token;
  std::vector<int64_t> shape;  // of one entry, or of the whole tensor
  int64_t keep = 0;            // per_token: how many of the last entries are kept, 0 = all
  DType dtype = DType::f32;
  int64_t first = 0;  // per_token, with keep: how many of the first entries are also kept
  double start = 0;   // fixed: the value of every number before the first token
  int64_t every = 1;  // per_token: one entry for this many tokens, once the last of them is seen
  /// Keys or values [heads, width] that only attention reads, where they lie: they may be kept in
  /// fewer bits (kv_type.h).
  bool packs = false;

  int64_t bytes_per_entry() const;
  /// Entries that exist after `length` tokens, and those of them that are kept.
  int64_t entries(int64_t length) const { return length / every; }
  int64_t kept(int64_t length) const {
    return keep == 0 ? entries(length) : std::min(entries(length), first + keep);
  }
};

/// Bytes that one row keeps after `length` tokens, with a source of `source` tokens.
int64_t state_bytes(const std::vector<StateDecl>& decls, int64_t length, int64_t source = 0);

// --- mechanisms -------------------------------------------------------------------------------

/// Base of every config. The virtual functions are what the rest of the toolkit may ask of it.
struct Config {
  virtual ~Config() = default;
  /// Fills what the user left open from the surroundings (head_dim = d_model / n_heads).
  virtual void complete(const Scope&) {}
  /// Throws Error(spec) with a reason and a suggestion when the config cannot work here.
  virtual void check(const Scope&) const {}
  virtual void params(ParamList&, const Scope&) const {}
  /// The same, under the name of the field that holds this part.
  void params_under(ParamList& list, std::string_view name, const Scope& scope) const;
  virtual std::vector<StateDecl> state(const Scope&) const { return {}; }
  /// Why this config cannot continue from a state although its mechanism can, "" when it can.
  virtual std::string no_state_reason() const { return ""; }
  /// Why decoding steps of this config cannot be recorded although those of its mechanism can
  /// (Forms::recorded), "" when they can.
  virtual std::string not_recorded_reason() const { return ""; }
  /// Of a mechanism whose causality is `selection`: whether what it selects for the last token of a
  /// text is what the trained model selects, so that text can be generated: by a causal predictor,
  /// by routing that drops nothing, or since the method itself decodes by whole passes.
  virtual bool selects_without_future() const { return false; }
  /// How many ids before a token's own it reads (nn::Batch::before_NM).
  virtual int64_t ids_before() const { return 0; }
  /// Longest document that it can take (a table of positions, a matrix over tokens), 0 = any: the
  /// least of all parts bounds a model's context.
  virtual int64_t max_positions() const { return 0; }
  /// Multiply-adds times two per token that are not a product with a parameter matrix, after
  /// `context` tokens.
  virtual double extra_flops(const Scope&, int64_t /*context*/) const { return 0; }
};

struct AnyPart;

struct FieldDoc {
  std::string name, type, fallback, doc;
  bool required = false;
};

/// One registered mechanism.
struct Mechanism {
  Slot slot{};
  std::string name;
  Info info;
  std::shared_ptr<const Config> (*read)(const Json&, const Scope&) = nullptr;
  Json (*dump)(const Config&) = nullptr;
  Json (*schema)() = nullptr;
  std::vector<FieldDoc> (*fields)() = nullptr;
  /// The parts that a config holds in its fields.
  std::vector<const AnyPart*> (*parts)(const Config&) = nullptr;
  /// A config for documents of up to `length` tokens, as example() of its class defines it. Without
  /// "type": call example_part().
  Json (*example)(const Scope&, int64_t length) = nullptr;
};

/// All mechanisms, in the order of mechanisms.def. Filled by nn::register_mechanisms().
const std::vector<Mechanism>& mechanisms();
void add_mechanism(Mechanism mechanism);
/// nullptr when there is none.
const Mechanism* find_mechanism(Slot slot, std::string_view name);

/// A chosen mechanism with its config: the value of a field such as "norm" or "mixer".
struct AnyPart {
  const Mechanism* mechanism = nullptr;
  std::shared_ptr<const Config> config;

  explicit operator bool() const { return mechanism != nullptr; }
  const std::string& type() const { return mechanism->name; }
  const Info& info() const { return mechanism->info; }
  template <class C>
  const C& as() const {
    return dynamic_cast<const C&>(*config);
  }
};

/// The same with its slot in the type.
template <Slot S>
struct Part : AnyPart {};

/// Calls `visit` with a part and with every part inside it.
void for_each_part(const AnyPart& part, const std::function<void(const AnyPart&)>& visit);

/// Reads {"type": ..., ...} or the short form "name". Unknown types and keys name the nearest valid
/// one.
AnyPart read_part(Slot slot, const Json& json, const Scope& scope);
Json dump_part(const AnyPart& part);
/// {"type": ..., ...}: a config of ordinary sizes for documents of up to `length` tokens, heads 64
/// wide; what is measured where a mechanism is compared with others.
Json example_part(const Mechanism& mechanism, const Scope& scope, int64_t length);
/// A part with all its defaults, for fields whose default is a mechanism.
AnyPart default_part(Slot slot, std::string_view name, const Scope& scope);

}  // namespace tessera::spec
