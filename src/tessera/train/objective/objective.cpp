#include "tessera/train/objective/objective.h"

#include <algorithm>

#include <fmt/format.h>

#include "tessera/infer/evaluation/score.h"
#include "tessera/model/predictor_spec.h"
#include "tessera/nn/router/policy_gradient.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/train/loop/batch_tensors.h"
#include "tessera/train/objective/loss.h"
#include "tessera/train/objective/mask_predict/length_loss.h"
#include "tessera/train/objective/mask_predict/mask_predict_objective.h"
#include "tessera/train/objective/next_token/mtp_targets.h"
#include "tessera/train/objective/objective_config.h"
#include "tessera/train/objective/part_losses.h"

namespace tessera::train {
namespace {

constexpr const char* kNextToken = "loss";
constexpr const char* kSmoothed = "smoothed";
constexpr const char* kZLoss = "z_loss";
constexpr const char* kOfEncoder = "encoder.";

/// Calls both probes, each for its own names.
nn::Probe both(nn::Probe a, nn::Probe b) {
  if (!a) return b;
  if (!b) return a;
  return {[a, b](const std::string& name, const Tensor& value) {
            a(name, value);
            b(name, value);
          },
          [a, b](const std::string& name) {
            const bool first = a.wants(name);
            return b.wants(name) || first;
          }};
}

class CrossEntropy final : public Objective {
 public:
  CrossEntropy(const DataPlan& plan,
               const ObjectiveConfig& objective,
               std::unique_ptr<Dataset> source)
      : Objective(std::move(source)),
        name_(objective.type()),
        kinds_(objective.kinds()),
        loss_{.z_loss = plan.train.z_loss,
              .l2_wrap = plan.train.l2_wrap,
              .smoothing = plan.train.label_smoothing},
        ahead_(plan.train.predictors > 0 ? std::ssize(plan.spec.predictors) : 0),
        ahead_weight_(plan.train.predictors),
        exit_(plan.train.early_exit),
        steps_(plan.train.steps),
        layers_(std::ssize(plan.spec.layers)) {
    check_head_of_tokens(plan.spec, name_);
    if (const auto* masks = dynamic_cast<const ObjectiveOf<MaskPredictRecipe>*>(&objective))
      length_weight_ = masks->keys().length_weight;
  }

  std::string_view name() const override { return name_; }
  std::string main_loss() const override { return kNextToken; }
  Evaluation evaluate(const model::Model& model, const EvaluateOptions& options) const override {
    Evaluation out = evaluate_tokens(model, source(), kinds_, options);
    if (length_weight_) evaluate_lengths(model, source(), options, out);
    return out;
  }

  Denominators denominators(const PackedBatch& packed) const override {
    Denominators out;
    out.losses[kNextToken] = static_cast<double>(packed.n_targets);
    // the same targets
    for (const char* name : {kSmoothed, kZLoss}) out.losses[name] = out.losses[kNextToken];
    if (exit_.scale > 0)
      for (int64_t layer = 0; layer + 1 < layers_; ++layer)
        out.losses[exit_loss(layer)] = out.losses[kNextToken];
    if (length_weight_) out.losses[kLengthLoss] = static_cast<double>(packed.pieces.size());
    for (int64_t k = 0; k < ahead_; ++k)
      out.losses[ahead_loss(k)] = static_cast<double>(targets_ahead(packed, k));
    for (size_t i = 0; i < packed.kinds.size(); ++i) {
      const PackedDocument& piece = packed.pieces[i];
      const auto first = packed.targets.begin() + piece.begin;
      out.losses[loss_of_kind(packed.kinds[i])] +=
          static_cast<double>(piece.length - std::count(first, first + piece.length, -1));
    }
    out.tokens = static_cast<double>(packed.ids.size());
    for (const auto& source : packed.sources)
      out.source_tokens += static_cast<double>(source.size());
    return out;
  }

  LossSums forward_backward(const model::Model& model, const MicroBatch& micro) const override {
    const auto& [packed, batch, given, whole, update, added_terms] = micro;
    const PassTerms terms = added_terms != nullptr ? *added_terms : PassTerms{};
    LossSums sums;
    PartLosses parts(whole);
    model::ForwardOptions forward = given;
    forward.add_loss = parts.sink();
    const std::vector<double> weights =
        exit_.scale > 0 ? exit_.weights(layers_, forward.step, steps_) : std::vector<double>();
    // layers with an exit loss, by the name of their output
    std::map<std::string, int64_t> exits;
    for (int64_t layer = 0; layer + 1 < std::ssize(weights); ++layer)
      if (weights[static_cast<size_t>(layer)] > 0)
        exits[fmt::format("layers.{}.out", layer)] = layer;
    std::map<int64_t, Tensor> handed_on;
    if (!exits.empty())
      forward.probe = both(
          given.probe,
          {[&](const std::string& name, const Tensor& x_ND) { handed_on[exits.at(name)] = x_ND; },
           [&](const std::string& name) { return exits.contains(name); }});
    std::vector<Tensor> policies;
    forward.take_values = [&](const nn::LayerValues& values) {
      for (const auto& [name, value] : values.all())
        if (name.starts_with(nn::kPolicy)) policies.push_back(value);
    };
    nn::Encoded encoded;
    const Tensor hidden = hidden_of(model, packed, batch, forward, &encoded);
    forward.probe = {};
    forward.take_values = nullptr;
    const Tensor targets = targets_of(packed);
    const ops::ProductSettings of_heads{.type = forward.products};
    LossOptions options = loss_;
    options.products = forward.products;
    options.scale = terms.own / whole.divisor(kNextToken);
    Tensor added = look_ahead(model, packed, batch, forward, hidden, whole, terms.own, sums);
    const auto add = [&added](const Tensor& share) {
      if (share.defined()) added = added.defined() ? added + share : share;
    };
    if (length_weight_) {
      const Tensor nll =
          length_nll(model.target_lengths(encoded, of_heads), lengths_of(packed)).sum();
      sums[kLengthLoss] = DeferredNumber(nll);
      add(nll * (*length_weight_ * terms.own / whole.divisor(kLengthLoss)));
    }
    for (const auto& [layer, x_ND] : handed_on) {
      LossOptions early = options;
      early.scale *= weights[static_cast<size_t>(layer)];
      const HeadLoss loss = head_loss(model, model.exit(x_ND, layer + 1, of_heads), targets, early);
      sums[exit_loss(layer)] = loss.sums.nll;
      add(loss.share());
    }
    add(parts.weighted());
    if (terms.after_forward) add(terms.after_forward());
    if (!weights.empty()) options.scale *= weights.back();
    Tensor nll_N;
    if (!policies.empty() || !packed.kinds.empty()) options.nll_N = &nll_N;
    options.added_gradient = terms.of_logits;
    const HeadLoss head = head_loss(model, hidden, targets, options);
    const TokenLosses& own = head.sums;
    for (const Tensor& policy_N : policies)
      add(policy_loss(policy_N, nll_N, targets, whole.divisor(kNextToken)));
    if (!own.known_bad()) backward_from(head, added);
    sums[kNextToken] = own.nll;
    if (loss_.smoothing.share > 0) sums[kSmoothed] = own.smoothed;
    if (loss_.z_loss > 0) sums[kZLoss] = own.z;
    for (size_t i = 0; i < packed.kinds.size(); ++i) {
      const PackedDocument& piece = packed.pieces[i];
      sums[loss_of_kind(packed.kinds[i])] +=
          infer::sum_in_order(nll_N.narrow(0, piece.begin, piece.length));
    }
    for (const auto& [name, sum] : parts.sums()) sums[name] = DeferredNumber(sum);
    return sums;
  }

 private:
  const std::string& loss_of_kind(int64_t kind) const {
    return kinds_.at(static_cast<size_t>(kind));
  }
  /// "exit_2": after the first two layers.
  static std::string exit_loss(int64_t layer) { return fmt::format("exit_{}", layer + 1); }
  /// REINFORCE: how much worse than the batch mean each token was, times the log-probability of its
  /// routing.
  static Tensor policy_loss(const Tensor& policy_N,
                            const Tensor& nll_N,
                            const Tensor& targets_N,
                            double divisor) {
    const Tensor asked = (targets_N >= 0).to(nll_N.device(), at::kDouble);
    const double mean = infer::sum_in_order(nll_N) /
                        std::max(1.0, static_cast<double>(targets_N.ge(0).sum().item<int64_t>()));
    return ops::ordered_sum(policy_N * ((nll_N - mean) * asked / divisor).to(policy_N.options()));
  }
  /// The losses of the predictors, one after the other, so that only one has logits at a time, and
  /// a scalar with their gradients on their inputs (undefined = none).
  Tensor look_ahead(const model::Model& model,
                    const PackedBatch& packed,
                    const nn::Batch& batch,
                    const model::ForwardOptions& forward,
                    const Tensor& trunk_ND,
                    const Denominators& whole,
                    double factor,
                    LossSums& sums) const {
    Tensor added, previous = trunk_ND;
    std::optional<MtpBatch> before;
    for (int64_t k = 0; k < ahead_; ++k) {
      const auto index = static_cast<size_t>(k);
      MtpBatch ahead = ahead_of(packed, batch, k, model.spec().predictors[index].token);
      const std::string name = ahead_loss(k);
      sums[name] += 0;
      if (ahead.tokens.empty()) break;
      const bool chained =
          model.spec().predictors[index].reads == model::PredictorReads::previous && before;
      const Tensor read_MD =
          chained
              ? previous.index_select(0, rows_in(*before, ahead).to(trunk_ND.device()))
              : trunk_ND.index_select(0, at::tensor(ahead.tokens, at::kLong).to(trunk_ND.device()));
      previous = model.predict(index, read_MD, ahead.batch, forward);
      LossOptions options = loss_;
      options.products = forward.products;
      options.scale = factor * ahead_weight_ / static_cast<double>(ahead_) / whole.divisor(name);
      const HeadLoss loss =
          head_loss(model, previous, at::tensor(ahead.targets, at::kLong), options);
      sums[name] += loss.sums.nll;
      if (const Tensor share = loss.share(); share.defined())
        added = added.defined() ? added + share : share;
      before = std::move(ahead);
    }
    return added;
  }

  /// Positions of the tokens of `ahead`, a subset of `before`, in `before`.
  static Tensor rows_in(const MtpBatch& before, const MtpBatch& ahead) {
    std::vector<int64_t> rows;
    size_t at = 0;
    for (const int64_t token : ahead.tokens) {
      while (before.tokens[at] != token) ++at;
      rows.push_back(static_cast<int64_t>(at));
    }
    return at::tensor(rows, at::kLong);
  }

  std::string name_;
  std::vector<std::string> kinds_;  // losses of the mixture
  LossOptions loss_;                // except the scale
  int64_t ahead_;                   // trained predictors
  double ahead_weight_;
  EarlyExit exit_;
  int64_t steps_, layers_;
  std::optional<double> length_weight_;  // weight of length prediction, if trained
};

}  // namespace

void check_head_of_tokens(const model::ModelSpec& spec, std::string_view type) {
  if (const int64_t width = infer::head_width(spec); width < spec.vocab)
    fail(ErrorKind::spec, "spec.head",
         "{} numbers a token; objective \"{}\" needs those of {} tokens", width, type, spec.vocab);
}

Denominators& Denominators::operator+=(const Denominators& other) {
  for (const auto& [name, count] : other.losses) losses[name] += count;
  tokens += other.tokens;
  source_tokens += other.source_tokens;
  return *this;
}

double Denominators::of(const std::string& loss) const {
  const auto found = losses.find(loss);
  if (found != losses.end()) return found->second;
  return loss.starts_with(kOfEncoder) ? source_tokens : tokens;
}

std::unique_ptr<Objective> token_objective(const DataPlan& plan,
                                           const ObjectiveConfig& objective,
                                           std::unique_ptr<Dataset> source) {
  return std::make_unique<CrossEntropy>(plan, objective, std::move(source));
}

std::unique_ptr<Objective> tokens(const ModelPlan& plan,
                                  const ObjectivePtr& objective,
                                  std::unique_ptr<Dataset> source,
                                  const ObjectiveOptions&) {
  return token_objective(plan, *objective, std::move(source));
}

// those of the table
#define TESSERA_OBJECTIVE(entries, train)                                                \
  std::unique_ptr<Objective> train(const ModelPlan& plan, const ObjectivePtr& objective, \
                                   std::unique_ptr<Dataset> source,                      \
                                   const ObjectiveOptions& options);
#include "tessera/train/objective/objectives.def"

namespace {

/// By table row.
using Maker = std::unique_ptr<Objective> (*)(const ModelPlan& plan,
                                             const ObjectivePtr& objective,
                                             std::unique_ptr<Dataset> source,
                                             const ObjectiveOptions& options);
constexpr Maker kMakers[] = {
#define TESSERA_OBJECTIVE(entries, train) train,
#include "tessera/train/objective/objectives.def"
};

}  // namespace

std::unique_ptr<Objective> open_objective(const Recipe& recipe, const ObjectiveOptions& options) {
  auto source = open_source(recipe, options.cache, options.cancel);
  if (options.say)
    for (const std::string& line : source->notes()) options.say(line);
  const std::optional<size_t> row = objective_row(recipe.objective->type());
  return (row ? kMakers[*row] : tokens)(recipe.model_plan(), recipe.objective, std::move(source),
                                        options);
}

std::unique_ptr<Objective> open_objective(const Recipe& recipe,
                                          const std::filesystem::path& cache,
                                          const CancelToken* cancel,
                                          at::Device device) {
  return open_objective(recipe, {.cache = cache, .cancel = cancel, .device = device});
}

}  // namespace tessera::train
