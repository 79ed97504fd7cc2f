#include "tessera/nn/mixer/attention/latent_attention_step.h"

#include <algorithm>
#include <optional>

#include "tessera/nn/decode_step.h"
#include "tessera/nn/mixer/attention/attention_calls.h"
#include "tessera/nn/position/turn.h"
#include "tessera/nn/select/select_step.h"
#include "tessera/nn/select/selected_keys.h"
#include "tessera/nn/step_products.h"

namespace tessera::nn {
namespace {

class LatentStep final : public PartStep {
 public:
  LatentStep(const LatentAttentionParts& parts, StepWeights& weights)
      : config(parts.config),
        position(parts.position),
        q(weights.product(parts.q)),
        kv_a(weights.product(parts.kv_a)),
        o(weights.product(parts.o)),
        k_b(weights.heads(parts.k_b, config.n_heads)),
        v_b(weights.heads(parts.v_b, config.n_heads)),
        window(*config.pattern_config().window()) {
    if (parts.q_a.weight) q_a = weights.product(parts.q_a);
    weights.alike({&reads_x(), &kv_a});
    if (parts.q_norm != nullptr && q_a) q_norm = weights.norm(*parts.q_norm);
    if (parts.kv_norm != nullptr) kv_norm = weights.norm(*parts.kv_norm);
    if (const auto* stepped = dynamic_cast<const SteppedSelect*>(parts.select))
      select = stepped->step(weights, parts.position);
  }
  std::unique_ptr<StepCall> begin(Context& context, const StateRows* rows) const override;

  /// The queries' product of what the layer reads.
  const StepProduct& reads_x() const { return q_a ? *q_a : q; }

  const LatentAttentionConfig& config;
  const Position& position;
  std::optional<StepProduct> q_a;
  StepProduct q, kv_a, o, k_b, v_b;
  std::shared_ptr<const NormStep> q_norm, kv_norm;
  int64_t window;  // tokens that a query sees, 0 = all
  std::shared_ptr<const SelectStep> select;
};

/// What is of heads lies by head, then by token: rows of the products with k_b and v_b.
class LatentCall final : public StepCall {
 public:
  LatentCall(const LatentStep& step,
             Context& context,
             const StateRows& rows,
             std::unique_ptr<SelectCall> select)
      : s_(step),
        c_(step.config),
        batch_(*context.batch),
        rows_(rows),
        n_(batch_.n_tokens()),
        shared_(AttentionCalls::of(context)),
        select_(std::move(select)) {
    if (c_.qk_rope_head_dim > 0) {
      turn_q_ = s_.position.rotation(Side::query, c_.qk_rope_head_dim, at::kFloat, context);
      turn_k_ = s_.position.rotation(Side::key, c_.qk_rope_head_dim, at::kFloat, context);
    }
    if (c_.temperature.acts()) {
      const Tensor positions = batch_.positions_N.to(at::kCPU).contiguous();
      for (int64_t i = 0; i < n_; ++i)
        growth_.push_back(
            static_cast<float>(c_.temperature.factor(positions.const_data_ptr<int64_t>()[i])));
    }
    for (int64_t h = 0; h <= c_.n_heads; ++h) offsets_.push_back(h * n_);
    const int64_t by_head = n_ * c_.n_heads, rank = s_.q_a ? s_.q.width() : 0;
    input_ = memory_.take(StepInput::floats(n_, s_.kv_a.width()));
    input_latent_ = memory_.take(StepInput::floats(n_, rank));
    input_unrotated_ = memory_.take(StepInput::floats(by_head, c_.qk_nope_head_dim));
    input_read_ = memory_.take(StepInput::floats(by_head, c_.kv_lora_rank));
    input_out_ = memory_.take(StepInput::floats(n_, s_.o.width()));
    latent_ = memory_.take(n_ * rank);
    q_ = memory_.take(by_head * c_.head_dim());
    entry_ = memory_.take(n_ * c_.entry());
    unrotated_ = memory_.take(by_head * c_.qk_nope_head_dim);
    absorbed_ = memory_.take(by_head * c_.entry());
    read_ = memory_.take(by_head * c_.kv_lora_rank);
    out_ = memory_.take(by_head * c_.v_head_dim);
    joined_ = memory_.take(by_head * c_.v_head_dim);
    partials_ = memory_.take(shared_->floats(c_.n_heads, c_.kv_lora_rank));
    if (select_ != nullptr) of_select_ = memory_.take(select_->floats());
  }

  void enter(Context& context) override {
    if (select_ == nullptr) return;
    select_->enter(context);
    const Tensor& key_NK = select_->keys();
    if (!key_NK.defined()) return;
    for (const Segment& s : batch_.segments)
      chosen_.push_back(s.start + s.length <= s_.select->dense_length()
                            ? nullptr
                            : std::make_unique<SelectedKeys>(key_NK.narrow(0, s.begin, s.length),
                                                             s.start, 1, c_.n_heads));
  }

  void run(Team& team, const float* x_ND, float* y_ND, float* memory) override {
    project(team, x_ND, memory);
    // a sequence is one thread's: angles, its latents kept, and where they lie; so is what `select`
    // keeps of it, perhaps another's
    const auto segments = static_cast<int64_t>(batch_.segments.size());
    if (select_ != nullptr) {
      select_->project(team, x_ND, s_.q_a ? memory + latent_ : x_ND, memory + of_select_);
      const Team::Share own = team.share(2 * segments);
      for (int64_t i = own.begin; i < own.end; ++i)
        if (i < segments)
          select_->keep(static_cast<size_t>(i), memory + of_select_);
        else
          finish(static_cast<size_t>(i - segments), memory);
      team.wait();
      select_->choose(team, memory + of_select_);
    } else {
      const Team::Share own = team.share(segments);
      for (int64_t i = own.begin; i < own.end; ++i) finish(static_cast<size_t>(i), memory);
    }
    team.wait();
    of_heads(team, s_.k_b, memory + unrotated_, memory + input_unrotated_, memory + absorbed_,
             c_.entry());
    kernels::attend(team, shared_->calls.data(), shared_->count(), memory + partials_);
    team.wait();
    of_heads(team, s_.v_b, memory + read_, memory + input_read_, memory + out_, c_.v_head_dim);
    // by token again
    const Team::Share mine = team.share(n_);
    const int64_t width = c_.v_head_dim;
    for (int64_t i = mine.begin; i < mine.end; ++i)
      for (int64_t h = 0; h < c_.n_heads; ++h)
        std::copy_n(memory + out_ + (h * n_ + i) * width, width,
                    memory + joined_ + (i * c_.n_heads + h) * width);
    StepInput joined(memory + joined_, n_, s_.o.width(), memory + input_out_);
    joined.prepare(team, {&s_.o});
    team.wait();
    multiply(team, joined, {{&s_.o, y_ND}});
  }

 private:
  /// Queries and entries before norms and angles; waits.
  void project(Team& team, const float* x_ND, float* memory) const {
    StepInput in(x_ND, n_, s_.kv_a.width(), memory + input_);
    in.prepare(team, {&s_.reads_x(), &s_.kv_a});
    team.wait();
    multiply(team, in,
             {{&s_.reads_x(), memory + (s_.q_a ? latent_ : q_)}, {&s_.kv_a, memory + entry_}});
    team.wait();
    if (!s_.q_a) return;
    const int64_t rank = s_.q.width();
    const Team::Share mine = team.share(n_);
    float* latent = memory + latent_ + mine.begin * rank;
    if (s_.q_norm) (*s_.q_norm)(latent, mine.end - mine.begin, rank, latent);
    StepInput of_latent(memory + latent_, n_, rank, memory + input_latent_);
    of_latent.prepare(team, {&s_.q});
    team.wait();
    multiply(team, of_latent, {{&s_.q, memory + q_}});
    team.wait();
  }

  /// y [heads * N, stride] of each head's matrix; waits.
  void of_heads(Team& team,
                const StepProduct& product,
                const float* x,
                float* input,
                float* y,
                int64_t stride) const {
    StepInput in(x, n_ * c_.n_heads, product.width(), input, offsets_);
    if (in.prepare(team, {&product})) team.wait();
    multiply(team, in, {{&product, y, nullptr, stride}});
    team.wait();
  }

  /// What comes between the products, of one segment.
  void finish(size_t index, float* memory) const {
    const Segment& s = batch_.segments[index];
    const int64_t heads = c_.n_heads, width = c_.head_dim(), nope = c_.qk_nope_head_dim,
                  rope = c_.qk_rope_head_dim, latent = c_.kv_lora_rank, entry = c_.entry();
    float *q = memory + q_ + s.begin * heads * width, *a = memory + entry_ + s.begin * entry;
    for (int64_t t = 0; !growth_.empty() && t < s.length; ++t)
      for (int64_t j = 0; j < heads * width; ++j)
        q[t * heads * width + j] *= growth_[static_cast<size_t>(s.begin + t)];
    turn(turn_q_, s.begin, s.length, {q + nope, heads, width, heads * width});
    turn(turn_k_, s.begin, s.length, {a + latent, 1, rope, entry});
    TokenBuffer& held = rows_[index]->tokens(0);
    for (int64_t t = 0; t < s.length; ++t) {
      float* own = a + t * entry;
      if (s_.kv_norm) (*s_.kv_norm)(own, 1, latent, own);
      held.append(own, 1, entry);
      for (int64_t h = 0; h < heads; ++h) {
        const float* from = q + (t * heads + h) * width;
        const int64_t row = h * n_ + s.begin + t;
        std::copy_n(from, nope, memory + unrotated_ + row * nope);
        std::copy_n(from + nope, rope, memory + absorbed_ + row * entry + latent);
      }
    }
    shared_->find(s, index, {held, nullptr, 1, entry, latent}, s_.window);
    for (size_t u = shared_->first_unit[index]; u < shared_->first_unit[index + 1]; ++u) {
      const int64_t begin = shared_->units[u].begin;
      kernels::Attention& of = shared_->calls[u];
      of.H = heads, of.V = latent;
      of.q = memory + absorbed_ + begin * entry;
      of.out = memory + read_ + begin * latent;
      of.q_token_stride = entry, of.q_head_stride = n_ * entry;
      of.out_token_stride = latent, of.out_head_stride = n_ * latent;
      of.scale = static_cast<float>(c_.score_scale());
      of.softcap = 0;
      of.sinks = nullptr;
      if (!chosen_.empty()) of.visible = chosen_[index].get();
    }
  }

  const LatentStep& s_;
  const LatentAttentionConfig& c_;
  const Batch& batch_;
  const StateRows& rows_;
  int64_t n_;
  std::shared_ptr<AttentionCalls> shared_;
  std::unique_ptr<SelectCall> select_;                 // null: none
  std::vector<std::unique_ptr<SelectedKeys>> chosen_;  // by segment; null: all
  Rotation turn_q_, turn_k_;
  std::vector<float> growth_;     // factors of positions; empty where there are none
  std::vector<int64_t> offsets_;  // rows of each head
  int64_t input_, input_latent_, input_unrotated_, input_read_, input_out_, latent_, q_, entry_,
      unrotated_, absorbed_, read_, out_, joined_, partials_, of_select_ = 0;
};

std::unique_ptr<StepCall> LatentStep::begin(Context& context, const StateRows* rows) const {
  if (!reads_entries(*context.batch, rows, window)) return nullptr;
  std::unique_ptr<SelectCall> choice;
  if (select != nullptr) {
    // queries with and without a choice in one segment are two calls of attention
    for (const Segment& s : context.batch->segments)
      if (s.start < select->dense_length() && s.start + s.length > select->dense_length())
        return nullptr;
    choice = select->begin(context, *rows, kLatentSelectSlot);
    if (choice == nullptr) return nullptr;
  }
  return std::make_unique<LatentCall>(*this, context, *rows, std::move(choice));
}

}  // namespace

std::shared_ptr<const PartStep> latent_attention_step(const LatentAttentionParts& parts,
                                                      const ops::ProductSettings& products) {
  const LatentAttentionConfig& c = parts.config;
  const PatternConfig& pattern = c.pattern_config();
  // dropout acts in training only; parts in slots check their own options
  if (!others_at_default(c, {"n_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim",
                             "qk_rope_head_dim", "v_head_dim", "latent_norm", "bias", "temperature",
                             "scale", "scale_value", "pattern", "position", "select", "dropout"}) ||
      !parts.position.only_rotates() || !pattern.window() || pattern.first_kept() > 0 ||
      pattern.farthest() > 0 || pattern.global_projections())
    return nullptr;
  StepWeights weights(products);
  auto step = std::make_shared<LatentStep>(parts, weights);
  if (parts.select != nullptr && step->select == nullptr) return nullptr;
  return weights.serve() ? step : nullptr;
}

}  // namespace tessera::nn
