#include "tessera/nn/select/indexer_step.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/kernels/attention/indexer.h"
#include "tessera/nn/position/turn.h"
#include "tessera/ops/attention/indexer.h"

namespace tessera::nn {
namespace {

/// The choice of an earlier layer.
class SharedCall final : public SelectCall {
 public:
  explicit SharedCall(const IndexerConfig& config) : config_(config) {}
  void enter(Context& context) override {
    const Tensor& key_NK = context.values.at(selected_keys_name(config_.share));
    if (key_NK.size(0) > 0) key_NK_ = key_NK;
  }
  void project(Team&, const float*, const float*, float*) override {}
  void keep(size_t, float*) override {}
  void choose(Team&, float*) override {}
  const Tensor& keys() const override { return key_NK_; }

 private:
  const IndexerConfig& config_;
  Tensor key_NK_;
};

class SharedStep final : public SelectStep {
 public:
  explicit SharedStep(const IndexerConfig& config) : config_(config) {}
  std::unique_ptr<SelectCall> begin(Context& context, const StateRows&, size_t) const override {
    if (context.batch->in_order()) return nullptr;
    return std::make_unique<SharedCall>(config_);
  }
  int64_t dense_length() const override { return config_.top_k; }

 private:
  const IndexerConfig& config_;
};

class IndexerStep final : public SelectStep {
 public:
  IndexerStep(const IndexerParts& parts, StepWeights& of)
      : config(parts.config),
        position(parts.position),
        q(of.product(parts.q)),
        k(of.product(parts.k)),
        weights(of.product(parts.weights)),
        k_norm(of.norm(*parts.k_norm)) {
    of.alike({&k, &weights});
  }
  std::unique_ptr<SelectCall> begin(Context& context,
                                    const StateRows& rows,
                                    size_t slot) const override;
  int64_t dense_length() const override { return config.top_k; }

  const IndexerConfig& config;
  const Position& position;
  StepProduct q, k, weights;
  std::shared_ptr<const NormStep> k_norm;
};

class IndexerCall final : public SelectCall {
 public:
  IndexerCall(const IndexerStep& step, Context& context, const StateRows& rows, size_t slot)
      : s_(step),
        c_(step.config),
        batch_(*context.batch),
        rows_(rows),
        slot_(slot),
        n_(batch_.n_tokens()) {
    if (c_.rotary_dim > 0) {
      turn_q_ = rotation(Side::query, context);
      turn_k_ = rotation(Side::key, context);
    }
    if (batch_.longest() > c_.top_k) key_NK_ = at::zeros({n_, c_.top_k}, at::kInt);
    input_ = memory_.take(StepInput::floats(n_, s_.k.width()));
    k_ = memory_.take(n_ * c_.head_dim);
    if (!key_NK_.defined()) return;
    input_latent_ = memory_.take(StepInput::floats(n_, s_.q.width()));
    q_ = memory_.take(n_ * c_.n_heads * c_.head_dim);
    weights_ = memory_.take(n_ * c_.n_heads);
    longest_ = batch_.longest();
    scores_ = memory_.take(n_ * longest_);
    runs_.resize(batch_.segments.size()), keys_.resize(runs_.size()), calls_.resize(runs_.size());
  }

  void enter(Context& context) override {
    if (c_.name.empty()) return;
    context.values.put(selected_keys_name(c_.name),
                       key_NK_.defined() ? key_NK_ : at::empty({0, c_.top_k}, at::kInt));
  }

  void project(Team& team, const float* x_ND, const float* latent_NQ, float* memory) override {
    const bool all = !key_NK_.defined();
    StepInput in(x_ND, n_, s_.k.width(), memory + input_),
        of_latent(latent_NQ, n_, s_.q.width(), memory + input_latent_);
    in.prepare(team, {&s_.k, &s_.weights});
    if (!all) of_latent.prepare(team, {&s_.q});
    team.wait();
    if (all)
      multiply(team, in, {{&s_.k, memory + k_}});
    else
      multiply(team, in,
               {{&s_.k, memory + k_},
                {&s_.weights, memory + weights_},
                {&s_.q, memory + q_, &of_latent}});
    team.wait();
  }

  void keep(size_t segment, float* memory) override {
    keep_keys(segment, memory + k_);
    if (key_NK_.defined()) plan(segment, memory);
  }

  void choose(Team& team, float* memory) override {
    if (!key_NK_.defined()) return;
    kernels::index_scores(team, calls_.data(), static_cast<int64_t>(calls_.size()));
    team.wait();
    const float* scores = memory + scores_;
    const Team::Share mine = team.share(n_);
    auto* keys = key_NK_.data_ptr<int32_t>();
    for (const Segment& s : batch_.segments)
      for (int64_t i = std::max(mine.begin, s.begin); i < std::min(mine.end, s.begin + s.length);
           ++i)
        ops::top_of_scores(scores + i * longest_, s.start + i - s.begin + 1, c_.top_k,
                           keys + i * c_.top_k);
  }

  const Tensor& keys() const override { return key_NK_; }

 private:
  Rotation rotation(Side side, Context& context) const {
    Rotation by = s_.position.rotation(side, c_.rotary_dim, at::kFloat, context);
    by.interleaved = c_.layout == RopeLayout::interleaved;
    return by;
  }
  /// Channels of a head before those that rotate.
  int64_t still() const {
    return c_.rotated == RotatedChannels::first ? 0 : c_.head_dim - c_.rotary_dim;
  }

  /// The index keys of a segment: normed, turned, appended.
  void keep_keys(size_t index, float* k) const {
    const Segment& s = batch_.segments[index];
    const int64_t width = c_.head_dim;
    k += s.begin * width;
    (*s_.k_norm)(k, s.length, width, k);
    turn(turn_k_, s.begin, s.length, {k + still(), 1, width, width});
    TokenBuffer& held = rows_[index]->tokens(slot_);
    require(held.length() == s.start, "indexer", "the state holds {} keys, the call starts at {}",
            held.length(), s.start);
    for (int64_t t = 0; t < s.length; ++t) held.append(k + t * width, 1, width);
  }

  /// Its queries and what they are scored against.
  void plan(size_t index, float* memory) {
    const Segment& s = batch_.segments[index];
    const int64_t heads = c_.n_heads, width = c_.head_dim;
    float *q = memory + q_ + s.begin * heads * width, *w = memory + weights_ + s.begin * heads;
    turn(turn_q_, s.begin, s.length, {q + still(), heads, width, heads * width});
    const auto root = static_cast<float>(std::sqrt(static_cast<double>(heads)));
    for (int64_t j = 0; j < s.length * heads; ++j) w[j] /= root;
    const TokenBuffer& held = rows_[index]->tokens(slot_);
    std::vector<TokenBuffer::Run>& runs = runs_[index];
    held.runs(0, held.length(), runs);
    for (const TokenBuffer::Run& run : runs)
      keys_[index].push_back({static_cast<const float*>(run.data), run.count});
    calls_[index] = {.T = s.length,
                     .H = heads,
                     .D = width,
                     .q = q,
                     .weights = w,
                     .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(width))),
                     .spans = keys_[index].data(),
                     .n_spans = static_cast<int64_t>(keys_[index].size()),
                     .first = s.start,
                     .out = memory + scores_ + s.begin * longest_,
                     .out_stride = longest_};
  }

  const IndexerStep& s_;
  const IndexerConfig& c_;
  const Batch& batch_;
  const StateRows& rows_;
  size_t slot_;
  int64_t n_, longest_ = 0;
  Rotation turn_q_, turn_k_;
  Tensor key_NK_;
  std::vector<std::vector<TokenBuffer::Run>> runs_;  // by segment, as the following
  std::vector<std::vector<kernels::IndexKeys>> keys_;
  std::vector<kernels::IndexScores> calls_;
  int64_t input_ = 0, input_latent_ = 0, q_ = 0, k_ = 0, weights_ = 0, scores_ = 0;
};

std::unique_ptr<SelectCall> IndexerStep::begin(Context& context,
                                               const StateRows& rows,
                                               size_t slot) const {
  if (context.batch->in_order()) return nullptr;
  for (size_t i = 0; i < rows.size(); ++i) {
    const TokenBuffer& keys = rows[i]->tokens(slot);
    if (keys.stored_type() != at::kFloat || !keys.on_cpu()) return nullptr;
  }
  return std::make_unique<IndexerCall>(*this, context, rows, slot);
}

}  // namespace

std::shared_ptr<const SelectStep> indexer_step(const IndexerParts& parts, StepWeights& weights) {
  // kl_loss acts in training only
  if (!others_at_default(parts.config, {"n_heads", "head_dim", "top_k", "rotary_dim", "rotated",
                                        "layout", "norm_eps", "kl_loss", "name", "share"}))
    return nullptr;
  if (!parts.config.share.empty()) return std::make_shared<SharedStep>(parts.config);
  return std::make_shared<IndexerStep>(parts, weights);
}

}  // namespace tessera::nn
