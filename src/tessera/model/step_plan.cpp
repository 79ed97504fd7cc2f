#include "tessera/model/step_plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <variant>

#include "tessera/base/team.h"
#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/attention/kv_rows.h"
#include "tessera/kernels/basic/rope.h"
#include "tessera/kernels/basic/rowwise.h"
#include "tessera/kernels/weights/blocks.h"
#include "tessera/kernels/weights/digits.h"
#include "tessera/kernels/weights/matmul.h"
#include "tessera/model/branches.h"
#include "tessera/nn/activation_kernel.h"
#include "tessera/nn/guess_branches.h"
#include "tessera/nn/ffn/glu.h"
#include "tessera/nn/ffn/mlp.h"
#include "tessera/nn/mixer/attention/attention.h"
#include "tessera/nn/norm/layer_norm.h"
#include "tessera/nn/norm/rms_norm.h"
#include "tessera/nn/pattern/full.h"
#include "tessera/nn/pattern/window.h"
#include "tessera/nn/position/none.h"
#include "tessera/nn/position/rope_table.h"
#include "tessera/nn/residual/pre_norm.h"
#include "tessera/nn/residual/sandwich.h"
#include "tessera/ops/attention/kv_rows.h"
#include "tessera/ops/weights/product_input.h"

namespace tessera::model {
namespace {

// Beyond so many tokens what tensors cost is small beside the products.
constexpr int64_t kMostTokens = 32;

/// The numbers of a small weight as float32: its own memory where that holds them so, which training
/// may write, else a copy. What a weight gives as a tensor may itself be a copy: its storage decides.
class Numbers {
 public:
  Numbers() = default;
  explicit Numbers(nn::WeightPtr weight) : weight_(std::move(weight)) {
    if (weight_ && !in_place(*weight_))
      copy_ = weight_->tensor().detach().to(at::kCPU, at::kFloat).contiguous();
  }
  /// Null where there are none.
  const float* data() const {
    if (!weight_) return nullptr;
    return copy_.defined() ? copy_.const_data_ptr<float>()
                           : static_cast<const float*>(weight_->data());
  }
  static bool in_place(const ops::Weight& w) {
    return w.dtype() == DType::f32 && w.readable_by_kernels() &&
           reinterpret_cast<uintptr_t>(w.data()) % alignof(float) == 0;
  }

 private:
  nn::WeightPtr weight_;
  Tensor copy_;
};

/// Numbers that are not trained, so that no copy of them grows old.
bool fixed(const nn::WeightPtr& w) {
  return w == nullptr || (w->parts() == nullptr && (Numbers::in_place(*w) || !w->trainable()));
}

struct NormStep {
  bool centred = false;  // layer_norm
  Numbers weight, bias;
  float offset = 0, eps = 0;
  void operator()(const float* x, int64_t rows, int64_t d, float* y) const {
    if (centred)
      kernels::layer_norm(x, rows, d, weight.data(), bias.data(), offset, eps, y);
    else
      kernels::rms_norm(x, rows, d, weight.data(), offset, eps, y);
  }
};

struct Product {
  nn::WeightPtr weight;
  Numbers bias;
  int64_t rows() const { return weight->size(0); }
};

struct AttentionStep {
  nn::AttentionConfig config;
  Product q, k, v, o;
  std::optional<NormStep> q_norm, k_norm;
  const nn::RopeConfig* rope = nullptr;  // null = no positions
  size_t table = 0;                      // of its angles, among those of a call
  Numbers sinks;
  float query_scale = 1, logit_scale = 1;
  int64_t window = 0;
  size_t state = 0;
};

struct FfnStep {
  std::optional<Product> gate;
  Product up, down;
  kernels::Activation act = kernels::Activation::silu;
};

struct BranchStep {
  std::optional<NormStep> before, after;
  float scale = 1;
  std::variant<AttentionStep, FfnStep> part;
};

// --- what a spec is made of ----------------------------------------------------------------------

/// A part that is not known: what is asked for it is not answered.
struct Unknown {};

template <class C>
const C* as(const AnyPart& part) {
  return part ? dynamic_cast<const C*>(part.config.get()) : nullptr;
}

/// Throws Unknown where a field beside `served` is not at its default, so that an option that
/// nobody has taught the plan is never passed over.
template <class C>
void only(const C& config, std::initializer_list<std::string_view> served) {
  static const spec::Json plain = spec::dump_struct(C());
  const spec::Json own = spec::dump_struct(config);
  for (const auto& [key, value] : own.items())
    if (std::find(served.begin(), served.end(), key) == served.end() && value != plain.at(key))
      throw Unknown();
}

/// Throws Unknown.
class Reader {
 public:
  Reader(const ModelSpec& spec, const nn::Builder& root) : spec_(spec), root_(root) {}

  std::vector<std::vector<BranchStep>> layers() {
    std::vector<std::vector<BranchStep>> out;
    if (!spec_.embed || !spec_.causal()) throw Unknown();
    if (!spec_.embed.config->state(spec_.scope(0)).empty()) ++state_;
    for (int64_t i = 0; i < static_cast<int64_t>(spec_.layers.size()); ++i) {
      const LayerSpec& layer = spec_.layers[static_cast<size_t>(i)];
      if (layer.depth || layer.reads(kEmbedding)) throw Unknown();
      const nn::Builder builder = root_.under(spec_.prefix(i), spec_.scope(i));
      auto& steps = out.emplace_back();
      for (const GroupSpec& group : layer.groups) {
        if (group.aside || group.branches.size() != 1) throw Unknown();
        steps.push_back(branch(i, group, builder));
      }
    }
    return out;
  }

 private:
  BranchStep branch(int64_t layer, const GroupSpec& group, const nn::Builder& builder) {
    const BranchSpec& branch = group.branches[0];
    if (!branch.reads_stream_alone() || !branch.adapters.empty()) throw Unknown();
    const auto* const sandwich = as<nn::SandwichConfig>(group.residual);
    const auto* const pre_norm = as<nn::PreNormConfig>(group.residual);
    if (sandwich != nullptr)
      only(*sandwich, {"scale", "dropout"});
    else if (pre_norm != nullptr)
      only(*pre_norm, {"scale", "dropout"});
    else
      throw Unknown();
    BranchStep step;
    step.scale = static_cast<float>(group.residual_config().scale);
    const auto names = group.norm_names();
    for (size_t n = 0; n < branch.norms.size(); ++n)
      if (branch.norms[n])
        (n == 0 ? step.before : step.after) =
            norm(branch.norms[n], norm_builder(spec_, layer, branch, names[n], builder));
    if (sandwich != nullptr && (!step.before || !step.after)) throw Unknown();
    const nn::Builder here = part_builder(spec_, layer, branch, builder);
    if (const auto* attention = as<nn::AttentionConfig>(branch.part))
      step.part = attention_step(*attention, here);
    else if (const auto* glu = as<nn::GluConfig>(branch.part))
      step.part = glu_step(*glu, here);
    else if (const auto* mlp = as<nn::MlpConfig>(branch.part))
      step.part = mlp_step(*mlp, here);
    else
      throw Unknown();
    return step;
  }

  static float offset_of(nn::NormWeight weight) {
    return weight == nn::NormWeight::plus_one ? 1.0f : 0.0f;
  }
  static Numbers numbers(const nn::WeightPtr& weight) {
    if (!fixed(weight)) throw Unknown();
    return Numbers(weight);
  }
  static NormStep norm(const AnyPart& part, const nn::Builder& here) {
    if (const auto* rms = as<nn::RmsNormConfig>(part)) {
      only(*rms, {"eps", "weight"});
      return {false,
              numbers(here.optional("weight")),
              {},
              offset_of(rms->weight),
              static_cast<float>(rms->eps)};
    }
    if (const auto* layer = as<nn::LayerNormConfig>(part)) {
      only(*layer, {"eps", "weight", "bias"});
      return {true, numbers(here.optional("weight")), numbers(here.optional("bias")),
              offset_of(layer->weight), static_cast<float>(layer->eps)};
    }
    throw Unknown();
  }

  Product product(const nn::Builder& here, const std::string& name) {
    Product out{here.weight(name + ".weight"), numbers(here.optional(name + ".bias"))};
    const ops::Weight& w = *out.weight;
    if (w.parts() != nullptr || w.shape().size() != 2 || !w.readable_by_kernels() ||
        w.is_of_whole_texts() || !kernels::can_dequantize(w.dtype()))
      throw Unknown();
    // x is rounded and ordered once for all that read it
    const kernels::Arithmetic arithmetic = ops::arithmetic_of(w);
    if (arithmetic != kernels::Arithmetic::exact) {
      if (arithmetic_ && *arithmetic_ != arithmetic) throw Unknown();
      arithmetic_ = arithmetic;
    }
    return out;
  }

  static void read_alike(std::initializer_list<const Product*> products) {
    const ops::Weight& first = *(*products.begin())->weight;
    for (const Product* product : products)
      if (!ops::same_order(first.columns(), product->weight->columns(), first.size(1)))
        throw Unknown();
  }

  /// Tokens that a query sees, 0 = all.
  static int64_t window_of(const AnyPart& pattern) {
    if (as<nn::FullPatternConfig>(pattern) != nullptr) return 0;
    const auto* const window = as<nn::WindowPatternConfig>(pattern);
    if (window == nullptr) throw Unknown();
    only(*window, {"width"});
    return window->width;
  }

  AttentionStep attention_step(const nn::AttentionConfig& c, const nn::Builder& here) {
    // dropout acts in training alone; the parts are looked at below
    only(c, {"n_heads", "n_kv_heads", "head_dim", "bias", "qk_norm", "qk_norm_over", "scale",
             "scale_value", "scale_on", "softcap", "sinks", "pattern", "position", "dropout"});
    const bool learned =
        c.scale == nn::ScoreScale::learned || c.scale == nn::ScoreScale::learned_headwise;
    if (learned || (c.qk_norm && c.qk_norm_over == nn::QkNormOver::each_head)) throw Unknown();
    AttentionStep step{.config = c,
                       .q = product(here, "q"),
                       .k = product(here, "k"),
                       .v = product(here, "v"),
                       .o = product(here, "o"),
                       .q_norm = {},
                       .k_norm = {},
                       .sinks = {}};
    read_alike({&step.q, &step.k, &step.v});
    if (c.qk_norm) {
      step.q_norm = norm(c.qk_norm, here.under("q_norm"));
      step.k_norm = norm(c.qk_norm, here.under("k_norm"));
    }
    if (const auto* rope = as<nn::RopeConfig>(c.position)) {
      only(*rope, {"theta", "layout", "rotary_dim", "scaling"});
      step.rope = rope;
      step.table = ropes_.emplace(spec::dump_struct(*rope).dump(), ropes_.size()).first->second;
    } else if (as<nn::NoPositionConfig>(c.position) == nullptr) {
      throw Unknown();
    }
    if (c.sinks) step.sinks = numbers(here.weight("sinks"));
    const int64_t layer = here.scope().layer;
    if (c.scale_on == nn::ScaleOn::query)
      step.query_scale = static_cast<float>(c.score_scale(layer));
    step.logit_scale = static_cast<float>(c.logit_scale(layer));
    step.window = window_of(c.pattern);
    if (c.state(here.scope()).size() != 2) throw Unknown();
    step.state = state_++;
    return step;
  }

  FfnStep glu_step(const nn::GluConfig& c, const nn::Builder& here) {
    only(c, {"act", "d_hidden", "bias", "dropout"});
    FfnStep step{product(here, "gate"), product(here, "up"), product(here, "down"),
                 nn::kernel_of(c.act)};
    read_alike({&*step.gate, &step.up});
    return step;
  }
  FfnStep mlp_step(const nn::MlpConfig& c, const nn::Builder& here) {
    only(c, {"act", "d_hidden", "bias", "dropout"});
    return {std::nullopt, product(here, "up"), product(here, "down"), nn::kernel_of(c.act)};
  }

  const ModelSpec& spec_;
  const nn::Builder& root_;
  size_t state_ = 0;
  std::map<std::string, size_t> ropes_;
  std::optional<kernels::Arithmetic> arithmetic_;
};

// --- a call --------------------------------------------------------------------------------------

/// Rows that products read: as they are, in the order in which columns of weights lie, and in
/// digits where a weight asks for them.
class Inputs {
 public:
  /// `ordered` has room for the rows.
  Inputs(const float* x, int64_t rows, int64_t width, const Tensor& memory, float* ordered)
      : x_(x),
        rows_(rows),
        width_(width),
        memory_(reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.data_ptr()) + 63) / 64 *
                                        64)),
        ordered_(ordered) {}
  /// Orders and rounds this thread's rows for `products`, which all see after a wait(); false where
  /// they are read as they are. Products read the same order.
  bool prepare(const Team& team, std::initializer_list<const Product*> products) {
    const Team::Share mine = team.share(rows_);
    const int64_t own = mine.end - mine.begin;
    const int32_t* columns = (*products.begin())->weight->columns();
    if (columns != nullptr) {
      const int64_t first = mine.begin * width_;
      ops::in_order(x_ + first, own, width_, width_, columns, ordered_ + first);
      x_ = ordered_;
    }
    for (const Product* product : products) {
      const kernels::Arithmetic arithmetic = ops::arithmetic_of(*product->weight);
      if (arithmetic == kernels::Arithmetic::exact) continue;
      digits_ = kernels::rows_to_round(x_, rows_, width_, width_, arithmetic, memory_);
      if (own > 0) kernels::round(digits_->some(mine.begin, own));
      return true;
    }
    return columns != nullptr;
  }
  /// Columns [begin, end) of y [rows, product.rows()].
  void times(const Product& product, int64_t begin, int64_t end, float* y) const {
    const ops::Weight& w = *product.weight;
    const auto* data =
        static_cast<const char*>(w.data()) + begin * storage_bytes(w.dtype(), width_);
    const float* bias = product.bias.data();
    if (bias != nullptr) bias += begin;
    if (digits_ && ops::arithmetic_of(w) != kernels::Arithmetic::exact)
      kernels::digit_matmul(*digits_, w.dtype(), data, end - begin, bias, y + begin,
                            product.rows());
    else
      kernels::matmul(x_, rows_, width_, width_, w.dtype(), data, end - begin, bias, y + begin,
                      product.rows());
  }

 private:
  const float* x_;
  int64_t rows_, width_;
  void* memory_;
  float* ordered_;
  std::optional<kernels::RoundedRows> digits_;
};

/// Columns that fill the lanes of every target.
constexpr int64_t kTile = 32;

struct Target {
  const Product* product;
  float* y;
};

/// The products of the same rows with several weights, columns shared out among the threads.
void multiply(const Team& team, const Inputs& x, std::initializer_list<Target> targets) {
  int64_t tiles = 0;
  for (const Target& t : targets) tiles += (t.product->rows() + kTile - 1) / kTile;
  const Team::Share mine = team.share(tiles);
  int64_t first = 0;
  for (const Target& t : targets) {
    const int64_t n = (t.product->rows() + kTile - 1) / kTile;
    const int64_t begin = std::clamp<int64_t>(mine.begin - first, 0, n),
                  end = std::clamp<int64_t>(mine.end - first, 0, n);
    if (begin < end)
      x.times(*t.product, begin * kTile, std::min(end * kTile, t.product->rows()), t.y);
    first += n;
  }
}

class Plan final : public StepPlan {
 public:
  Plan(const ModelSpec& spec, std::vector<std::vector<BranchStep>> layers)
      : d_(spec.d_model), layers_(std::move(layers)) {
    for (const auto& layer : layers_)
      for (const BranchStep& branch : layer)
        if (const auto* a = std::get_if<AttentionStep>(&branch.part)) {
          const auto& c = a->config;
          widest_ = std::max(widest_, c.n_heads * c.head_dim);
          keys_ = std::max(keys_, c.n_kv_heads * c.head_dim);
          windows_ = windows_ || a->window > 0;
          if (a->rope != nullptr) {
            ropes_.resize(std::max(ropes_.size(), a->table + 1));
            ropes_[a->table] = a->rope;
          }
        } else {
          hidden_ = std::max(hidden_, std::get<FfnStep>(branch.part).up.rows());
        }
    widest_ = std::max({widest_, hidden_, d_});
  }

  bool serves(const Tensor& x_ND, nn::Context& context) const override {
    const nn::Batch& batch = *context.batch;
    if (off() || !ops::use_kernels(x_ND) || x_ND.dim() != 2 || x_ND.size(1) != d_ ||
        context.call.state == nullptr || context.call.replace || context.probe || !context.causal ||
        context.training || batch.n_tokens() > kMostTokens || batch.axes_3N.defined() ||
        batch.global_N.defined() || context.groups != nullptr)
      return false;
    for (const nn::Segment& s : batch.segments)
      // a window may not hold both the oldest visible key and several new ones
      if (s.places != nullptr || s.length == 0 || (windows_ && s.length > 1)) return false;
    for (const auto& layer : layers_)
      for (const BranchStep& branch : layer)
        if (const auto* a = std::get_if<AttentionStep>(&branch.part))
          return kept_alike(*a, context);
    return true;
  }

  Tensor run(const Tensor& x_ND, nn::Context& context, int64_t layers) const override;

 private:
  /// Whether the rows keep keys and values as kernels read them: all layers do as the first one.
  static bool kept_alike(const AttentionStep& a, nn::Context& context) {
    for (const nn::RowState* row : context.call.state->branch(a.state, *context.batch))
      if (row->tokens(0).stored_type() == at::kDouble || !row->tokens(0).on_cpu()) return false;
    return true;
  }

  struct Call;
  Call prepared(const Tensor& x_ND, nn::Context& context, int64_t layers) const;
  void attention(
      const AttentionStep& a, size_t layer, Team& team, const Inputs& in, Call& call) const;
  void ffn(const FfnStep& f, Team& team, const Inputs& in, Call& call) const;

  int64_t d_;
  int64_t widest_ = 0, keys_ = 0, hidden_ = 0;
  bool windows_ = false;
  std::vector<std::vector<BranchStep>> layers_;
  std::vector<const nn::RopeConfig*> ropes_;
};

/// What all threads share. Rows are those of the call's tokens.
struct Plan::Call {
  const nn::Batch* batch = nullptr;
  int64_t n = 0;
  Tensor x_ND, memory, digits;
  float *x = nullptr, *normed = nullptr, *y = nullptr;  // the stream; what a part reads; its output
  float* ordered = nullptr;  // what products read, where columns lie in another order
  float *q = nullptr, *k = nullptr, *v = nullptr, *heads = nullptr;
  float *gate = nullptr, *up = nullptr;
  float* partials = nullptr;  // of attention
  std::vector<ops::RotaryTable> tables;
  std::vector<nn::StateRows> rows;  // by layer of attention
  std::vector<std::vector<nn::TokenBuffer::Run>> keys,
      values;  // by segment, of the layer under way
  /// Queries that attention takes together: a segment, or one token of a branch of guesses.
  struct Unit {
    size_t segment;
    int64_t begin, length, position;  // begin: in the call
    std::vector<int64_t> way;         // in the segment, of a branch; else empty
  };
  std::vector<Unit> units;                           // by segment
  std::vector<size_t> first_unit;                    // of each segment, and behind the last
  std::vector<std::vector<kernels::KeySpan>> spans;  // by unit
  std::vector<kernels::Attention> calls;             // by unit
};

Plan::Call Plan::prepared(const Tensor& x_ND, nn::Context& context, int64_t layers) const {
  Call call;
  const nn::Batch& batch = *context.batch;
  const int64_t n = batch.n_tokens();
  call.batch = &batch;
  call.n = n;
  call.x_ND = x_ND.contiguous().clone();
  call.x = call.x_ND.data_ptr<float>();
  for (const nn::RopeConfig* rope : ropes_)
    call.tables.push_back(nn::rope_table(*rope, batch, at::kFloat));
  int64_t most_heads = 0, most_width = 0;
  for (int64_t i = 0; i < layers; ++i)
    for (const BranchStep& branch : layers_[static_cast<size_t>(i)])
      if (const auto* a = std::get_if<AttentionStep>(&branch.part)) {
        call.rows.push_back(context.call.state->branch(a->state, batch));
        most_heads = std::max(most_heads, a->config.n_heads);
        most_width = std::max(most_width, a->config.head_dim);
      }
  const size_t segments = batch.segments.size();
  call.keys.resize(segments), call.values.resize(segments);
  int64_t longest = 0;
  for (size_t i = 0; i < segments; ++i) {
    const nn::Segment& s = batch.segments[i];
    longest = std::max(longest, s.start + s.length);
    call.first_unit.push_back(call.units.size());
    const auto ways = nn::branches_of(batch, s);
    if (ways.empty()) call.units.push_back({i, s.begin, s.length, s.start, {}});
    for (size_t t = 0; t < ways.size(); ++t)
      call.units.push_back({i, s.begin + static_cast<int64_t>(t), 1,
                            s.start + static_cast<int64_t>(ways[t].size()) - 1, ways[t]});
  }
  call.first_unit.push_back(call.units.size());
  call.spans.resize(call.units.size()), call.calls.resize(call.units.size());
  for (size_t u = 0; u < call.units.size(); ++u) {
    call.calls[u].T = call.units[u].length, call.calls[u].first_position = call.units[u].position;
    call.calls[u].H = most_heads, call.calls[u].V = most_width;
  }
  // one piece of memory; each part of it begins at a cache line
  constexpr int64_t kLine = 16;
  std::vector<std::pair<float**, int64_t>> parts = {
      {&call.normed, n * d_},
      {&call.y, n * d_},
      {&call.ordered, n * widest_},
      {&call.q, n * widest_},
      {&call.k, n * keys_},
      {&call.v, n * keys_},
      {&call.heads, n * widest_},
      {&call.gate, n * hidden_},
      {&call.up, n * hidden_},
      {&call.partials,
       kernels::team_floats(call.calls.data(), static_cast<int64_t>(call.calls.size()), longest)}};
  int64_t floats = kLine;
  for (const auto& [to, size] : parts) floats += (size + kLine - 1) / kLine * kLine;
  call.memory = at::empty({floats}, at::kFloat);
  const auto aligned = [](void* p) {
    return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(p) + 63) / 64 * 64);
  };
  auto* at = static_cast<float*>(aligned(call.memory.data_ptr()));
  for (const auto& [to, size] : parts) {
    *to = at;
    at += (size + kLine - 1) / kLine * kLine;
  }
  call.digits = at::empty({kernels::rounded_bytes(n, widest_) + 64}, at::kByte);
  return call;
}

Tensor Plan::run(const Tensor& x_ND, nn::Context& context, int64_t layers) const {
  Call call = prepared(x_ND, context, layers);
  for (const nn::StateRows& rows : call.rows)
    for (size_t i = 0; i < rows.size(); ++i) rows[i]->begin_call(call.batch->segments[i].pending);
  work_together([&](Team& team) {
    const at::NoGradGuard no_gradients;
    const Team::Share mine = team.share(call.n);
    const int64_t own = mine.end - mine.begin;
    float *x = call.x + mine.begin * d_, *y = call.y + mine.begin * d_;
    size_t attention_layer = 0;
    for (int64_t i = 0; i < layers; ++i)
      for (const BranchStep& branch : layers_[static_cast<size_t>(i)]) {
        float* normed = branch.before ? call.normed : call.x;
        if (branch.before) (*branch.before)(x, own, d_, normed + mine.begin * d_);
        Inputs in(normed, call.n, d_, call.digits, call.ordered);
        if (const auto* a = std::get_if<AttentionStep>(&branch.part)) {
          in.prepare(team, {&a->q, &a->k, &a->v});
          team.wait();
          attention(*a, attention_layer++, team, in, call);
        } else {
          const auto& f = std::get<FfnStep>(branch.part);
          in.prepare(team, {&f.up, f.gate ? &*f.gate : &f.up});
          team.wait();
          ffn(f, team, in, call);
        }
        team.wait();
        if (branch.after) (*branch.after)(y, own, d_, y);
        for (int64_t j = 0; branch.scale != 1 && j < own * d_; ++j) y[j] *= branch.scale;
        kernels::add(y, x, own * d_);
      }
  });
  for (const nn::StateRows& rows : call.rows)
    for (size_t i = 0; i < rows.size(); ++i) rows[i]->end_call({}, call.batch->segments[i]);
  return call.x_ND;
}

/// The rows [first, first + n) of heads of queries or keys: normed, and turned by their positions.
void finish_heads(const std::optional<NormStep>& norm,
                  bool over_head,
                  float scale,
                  const nn::RopeConfig* rope,
                  const ops::RotaryTable* table,
                  int64_t first,
                  int64_t n,
                  int64_t heads,
                  int64_t width,
                  float* x) {
  float* from = x + first * heads * width;
  if (norm && over_head) (*norm)(from, n * heads, width, from);
  if (norm && !over_head) (*norm)(from, n, heads * width, from);
  for (int64_t j = 0; scale != 1 && j < n * heads * width; ++j) from[j] *= scale;
  if (rope == nullptr) return;
  const int64_t pairs = table->cos_NR.size(1);
  kernels::rope(from,
                {.tokens = n,
                 .heads = heads,
                 .head_stride = width,
                 .token_stride = heads * width,
                 .rotary_dim = 2 * pairs,
                 .interleaved = rope->layout == nn::RopeLayout::interleaved},
                table->cos_NR.const_data_ptr<float>() + first * pairs,
                table->sin_NR.const_data_ptr<float>() + first * pairs);
}

void Plan::attention(
    const AttentionStep& a, size_t layer, Team& team, const Inputs& in, Call& call) const {
  const nn::AttentionConfig& c = a.config;
  const int64_t heads = c.n_heads, groups = c.n_kv_heads, width = c.head_dim;
  multiply(team, in, {{&a.q, call.q}, {&a.k, call.k}, {&a.v, call.v}});
  team.wait();
  // a sequence is one thread's: norms and angles, its keys and values kept, and where all of them
  // lie
  const bool over_head = c.qk_norm_over == nn::QkNormOver::head;
  const ops::RotaryTable* table = a.rope != nullptr ? &call.tables[a.table] : nullptr;
  const Team::Share own = team.share(static_cast<int64_t>(call.batch->segments.size()));
  for (auto i = static_cast<size_t>(own.begin); i < static_cast<size_t>(own.end); ++i) {
    const nn::Segment& s = call.batch->segments[i];
    finish_heads(a.q_norm, over_head, a.query_scale, a.rope, table, s.begin, s.length, heads, width,
                 call.q);
    finish_heads(a.k_norm, over_head, 1, a.rope, table, s.begin, s.length, groups, width, call.k);
    nn::TokenBuffer &keys = call.rows[layer][i]->tokens(0),
                    &values = call.rows[layer][i]->tokens(1);
    for (int64_t t = s.begin; t < s.begin + s.length; ++t) {
      keys.append(call.k + t * groups * width, groups, width);
      values.append(call.v + t * groups * width, groups, width);
    }
    const int64_t end = s.start + s.length,
                  from = a.window > 0 ? std::max<int64_t>(0, s.start - a.window + 1) : 0;
    const DType type = ops::kv_dtype(keys.stored_type());
    const int64_t row = kernels::kv_row_bytes(type, width);
    std::vector<nn::TokenBuffer::Run>&held = call.keys[i], &beside = call.values[i];
    for (size_t u = call.first_unit[i]; u < call.first_unit[i + 1]; ++u) {
      const Call::Unit& unit = call.units[u];
      std::vector<kernels::KeySpan>& spans = call.spans[u];
      spans.clear();
      // entries from `first` on, as those of positions from `position` on
      const auto add = [&](int64_t first, int64_t behind, int64_t position) {
        held.clear(), beside.clear();
        keys.runs(first, behind, held);
        values.runs(first, behind, beside);
        for (size_t j = 0; j < held.size(); ++j)
          spans.push_back({held[j].data, beside[j].data, groups * row, row, groups * row, row,
                           position + held[j].first - first, held[j].count, type});
      };
      add(from, unit.way.empty() ? end : s.start, from);
      for (size_t j = 0, k = 0; j < unit.way.size(); j = k) {
        while (k < unit.way.size() && unit.way[k] - unit.way[j] == static_cast<int64_t>(k - j)) ++k;
        add(s.start + unit.way[j], s.start + unit.way[j] + static_cast<int64_t>(k - j),
            s.start + static_cast<int64_t>(j));
      }
      kernels::Attention& of = call.calls[u];
      of.H = heads, of.G = groups, of.K = of.V = width;
      of.q = call.q + unit.begin * heads * width;
      of.out = call.heads + unit.begin * heads * width;
      of.q_token_stride = of.out_token_stride = heads * width;
      of.q_head_stride = of.out_head_stride = width;
      of.kv = {spans.data(), static_cast<int64_t>(spans.size())};
      of.window = a.window;
      of.scale = a.logit_scale;
      of.softcap = static_cast<float>(c.softcap);
      of.sinks = a.sinks.data();
    }
  }
  team.wait();
  kernels::attend(team, call.calls.data(), static_cast<int64_t>(call.calls.size()), call.partials);
  team.wait();
  Inputs out(call.heads, call.n, heads * width, call.digits, call.ordered);
  if (out.prepare(team, {&a.o})) team.wait();
  multiply(team, out, {{&a.o, call.y}});
}

void Plan::ffn(const FfnStep& f, Team& team, const Inputs& in, Call& call) const {
  const int64_t width = f.up.rows();
  if (f.gate)
    multiply(team, in, {{&*f.gate, call.gate}, {&f.up, call.up}});
  else
    multiply(team, in, {{&f.up, call.up}});
  team.wait();
  const Team::Share mine = team.share(call.n);
  float *up = call.up + mine.begin * width, *gate = call.gate + mine.begin * width;
  const int64_t numbers = (mine.end - mine.begin) * width;
  if (f.gate)
    kernels::glu(f.act, gate, up, numbers, up);
  else
    kernels::act(f.act, up, numbers, up);
  Inputs hidden(call.up, call.n, width, call.digits, call.ordered);
  hidden.prepare(team, {&f.down});
  team.wait();
  multiply(team, hidden, {{&f.down, call.y}});
}

}  // namespace

std::shared_ptr<const StepPlan> StepPlan::of(const ModelSpec& spec, const nn::Builder& root) {
  try {
    return std::make_shared<Plan>(spec, Reader(spec, root).layers());
  } catch (const Unknown&) {
    return nullptr;
  }
}

}  // namespace tessera::model
