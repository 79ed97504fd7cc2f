#include "tessera/train/objective/preference/preference.h"

#include <cmath>

#include "tessera/infer/evaluation/score.h"
#include "tessera/ops/weights/product.h"
#include "tessera/train/loop/batch_tensors.h"
#include "tessera/train/loop/precision.h"
#include "tessera/train/objective/loss.h"
#include "tessera/train/objective/objective_config.h"
#include "tessera/train/objective/part_losses.h"
#include "tessera/train/objective/preference/preference_loss.h"
#include "tessera/train/objective/preference/reference_scores.h"

namespace tessera::train {
namespace {

/// Sum of ln p over the targets of each document, from the nats of all tokens.
std::vector<double> log_p_of(const PackedBatch& packed, const Tensor& nll_N) {
  const Tensor here_N = nll_N.cpu();  // one copy from another device
  std::vector<double> out;
  for (const PackedDocument& piece : packed.pieces)
    out.push_back(-infer::sum_in_order(here_N.narrow(0, piece.begin, piece.length)));
  return out;
}

/// Without gradients, but with the matrix products of training: quantized weights use another
/// arithmetic otherwise.
Tensor nats_of(const model::Model& model,
               const Tensor& hidden_ND,
               const Tensor& targets_N,
               ops::ProductType products) {
  Tensor nll_N;
  head_loss(model, hidden_ND.detach(), targets_N,
            {.gradients = false, .products = products, .nll_N = &nll_N});
  return nll_N;
}

int64_t targets_in(const PackedBatch& packed, const PackedDocument& piece) {
  const auto first = packed.targets.begin() + piece.begin;
  return piece.length - std::count(first, first + piece.length, int64_t{-1});
}

/// Sums over pairs, by name in the log.
struct PairSums {
  LossSums of;
  PairSums() {
    for (const char* name : kNames) of[name] = 0;
  }
  void add(const PairLoss& pair, const AnswerScore& chosen, const AnswerScore& rejected) {
    of["loss"] += pair.loss;
    of["accuracy"] += pair.reward_chosen > pair.reward_rejected ? 1 : 0;
    of["margin"] += pair.reward_chosen - pair.reward_rejected;
    of["reward_chosen"] += pair.reward_chosen;
    of["reward_rejected"] += pair.reward_rejected;
    of["log_p_chosen"] += chosen.log_p;
    of["log_p_rejected"] += rejected.log_p;
  }
  static constexpr const char* kNames[] = {"loss",          "accuracy",        "margin",
                                           "reward_chosen", "reward_rejected", "log_p_chosen",
                                           "log_p_rejected"};
};

class Preference final : public Objective {
 public:
  Preference(const PreferenceRecipe& how,
             Precision precision,
             std::unique_ptr<Dataset> source,
             std::vector<PairScore> references)
      : Objective(std::move(source)),
        how_(how),
        precision_(precision),
        references_(std::move(references)) {}

  std::string_view name() const override { return PreferenceRecipe::kType; }
  std::string main_loss() const override { return "loss"; }
  double predicted(const Denominators& whole) const override { return whole.of(kTargets); }

  Denominators denominators(const PackedBatch& packed) const override {
    Denominators out;
    for (const char* name : PairSums::kNames)
      out.losses[name] = static_cast<double>(packed.items.size());
    out.losses[kTargets] = static_cast<double>(packed.n_targets);
    out.tokens = static_cast<double>(packed.ids.size());
    return out;
  }

  LossSums forward_backward(const model::Model& model, const MicroBatch& micro) const override {
    const auto& [packed, batch, given, whole, update, terms] = micro;
    PartLosses parts(whole);
    model::ForwardOptions forward = given;
    forward.training = false;  // no dropout
    forward.add_loss = parts.sink();
    const Tensor hidden = hidden_of(model, packed, batch, forward), targets = targets_of(packed);
    // gradients depend on both answers of a pair
    std::vector<double> slopes;
    LossSums sums =
        compare(packed, log_p_of(packed, nats_of(model, hidden, targets, forward.products)),
                &slopes)
            .of;
    for (const auto& [name, sum] : parts.sums()) sums[name] = DeferredNumber(sum);
    if (!std::isfinite(double{sums.at("loss")})) return sums;
    std::vector<double> factors(packed.ids.size());
    for (size_t i = 0; i < packed.pieces.size(); ++i)
      // d/d nats = -d/d ln p
      std::fill_n(factors.begin() + packed.pieces[i].begin, packed.pieces[i].length, -slopes[i]);
    const HeadLoss head = head_loss(model, hidden, targets,
                                    {.scale = 1 / whole.divisor("loss"),
                                     .weight_N = at::tensor(factors, at::kDouble),
                                     .products = forward.products});
    backward_from(head, parts.weighted());
    return sums;
  }

  Evaluation evaluate(const model::Model& model, const EvaluateOptions& options) const override {
    LossSums sums;
    int64_t pairs = 0, tokens = 0;
    for (const std::vector<int64_t>& pass : passes_of(source().valid_samples(), options)) {
      if (options.cancel != nullptr) options.cancel->check("evaluate");
      const PackedBatch packed = source().valid(pass);
      for (const auto& [name, sum] :
           compare(packed, answer_log_p(model, packed, precision_), nullptr).of)
        sums[name] += sum;
      pairs += std::ssize(pass);
      tokens += packed.n_targets;
    }
    Evaluation out;
    out.tokens = tokens;
    for (auto& [name, sum] : sums) {
      const double mean = sum / static_cast<double>(std::max<int64_t>(1, pairs));
      if (name == "loss")
        out.loss = mean;
      else
        out.scores[name] = mean;
    }
    out.accuracy = out.scores["accuracy"];
    return out;
  }

 private:
  static constexpr const char* kTargets = "targets";

  /// `slopes`, if given: of each answer, the derivative of its pair's loss by its ln p.
  PairSums compare(const PackedBatch& packed,
                   const std::vector<double>& log_p,
                   std::vector<double>* slopes) const {
    PairSums out;
    for (size_t row = 0; row < packed.items.size(); ++row) {
      const auto answer = [&](size_t i) {
        AnswerScore score{log_p[2 * row + i], 0, targets_in(packed, packed.pieces[2 * row + i])};
        if (!references_.empty())
          score.reference = references_.at(static_cast<size_t>(packed.items[row]))[i];
        return score;
      };
      const AnswerScore chosen = answer(0), rejected = answer(1);
      const PairLoss pair = pair_loss(chosen, rejected, how_);
      out.add(pair, chosen, rejected);
      if (slopes != nullptr) slopes->insert(slopes->end(), {pair.d_chosen, pair.d_rejected});
    }
    return out;
  }

  PreferenceRecipe how_;
  Precision precision_;
  std::vector<PairScore> references_;  // by pair number; empty without a reference
};

}  // namespace

std::vector<double> answer_log_p(const model::Model& model,
                                 const PackedBatch& packed,
                                 Precision precision) {
  model::ForwardOptions forward;
  forward.products = product_type(precision);
  const at::AutoGradMode recorded(true);
  const Tensor hidden = hidden_of(model, packed, batch_of(packed), forward);
  return log_p_of(packed, nats_of(model, hidden, targets_of(packed), forward.products));
}

std::unique_ptr<Objective> preference(const ModelPlan& plan,
                                      const ObjectivePtr& objective,
                                      std::unique_ptr<Dataset> source,
                                      const ObjectiveOptions& options) {
  const auto& how = keys_of<PreferenceRecipe>(*objective);
  check_head_of_tokens(plan.spec, objective->type());
  std::vector<PairScore> references;
  if (how.has_reference())
    references = reference_scores(plan, dynamic_cast<const PreferenceSource&>(*source), options);
  return std::make_unique<Preference>(how, plan.train.precision, std::move(source),
                                      std::move(references));
}

}  // namespace tessera::train
