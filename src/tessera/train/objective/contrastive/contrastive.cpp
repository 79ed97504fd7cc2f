#include "tessera/train/objective/contrastive/contrastive.h"

#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "tessera/train/loop/batch_tensors.h"
#include "tessera/train/objective/contrastive/contrastive_loss.h"
#include "tessera/train/objective/contrastive/contrastive_source.h"
#include "tessera/train/objective/loss.h"
#include "tessera/train/objective/metrics.h"
#include "tessera/train/objective/objective_config.h"
#include "tessera/train/objective/part_losses.h"

namespace tessera::train {
namespace {

constexpr const char *kLossName = "loss", *kAccuracy = "accuracy", *kTokens = "tokens";

/// Of an update: sums and gradients of each micro-batch, by the number of its first sample.
struct CachedGradients final : UpdateView {
  struct MicroBatchResult {
    LossSums sums;
    Tensor gradient_ND;
  };
  std::map<int64_t, MicroBatchResult> parts;
};

/// Sums over the samples from `first` on.
LossSums sums_of(const ContrastLosses& losses, int64_t first, int64_t count) {
  return {{kLossName, deferred_sum(losses.loss_B.narrow(0, first, count))},
          {kAccuracy, DeferredNumber((losses.ahead_B.narrow(0, first, count) == 0).sum())}};
}

class Contrastive final : public Objective {
 public:
  Contrastive(const ContrastiveRecipe& how, std::unique_ptr<Dataset> source)
      : Objective(std::move(source)), how_(how) {}

  std::string_view name() const override { return ContrastiveRecipe::kType; }
  std::string main_loss() const override { return kLossName; }
  double predicted(const Denominators& whole) const override { return whole.of(kTokens); }

  Denominators denominators(const PackedBatch& packed) const override {
    Denominators out;
    ContrastLayout layout;
    layout.add(packed);
    for (const char* name : {kLossName, kAccuracy})
      out.losses[name] = static_cast<double>(layout.samples());
    out.tokens = static_cast<double>(packed.ids.size());
    return out;
  }

  LossSums forward_backward(const model::Model& model, const MicroBatch& micro) const override {
    if (micro.update != nullptr && micro.update->packed.size() > 1) {
      if (micro.update->view == nullptr)
        micro.update->view = cached(model, micro.update->packed, micro.forward);
      const auto& all = dynamic_cast<const CachedGradients&>(*micro.update->view);
      const CachedGradients::MicroBatchResult& part = all.parts.at(micro.packed.first_sample);
      return backward(model, micro, [&](const Tensor&) {
        return CachedGradients::MicroBatchResult{part.sums,
                                                 part.gradient_ND * micro.whole.loss_scale};
      });
    }
    return backward(model, micro, [&](const Tensor& vectors_ND) {
      ContrastLayout layout;
      layout.add(micro.packed);
      const Tensor own = vectors_ND.detach().requires_grad_(true);
      const ContrastLosses losses = contrast(own, layout, how_);
      (losses.loss_B.sum() / micro.whole.divisor(kLossName)).backward();
      return CachedGradients::MicroBatchResult{sums_of(losses, 0, layout.samples()), own.grad()};
    });
  }

  Evaluation evaluate(const model::Model& model, const EvaluateOptions& options) const override {
    const auto& texts = dynamic_cast<const ContrastiveSource&>(source());
    ContrastLayout all;
    std::vector<Tensor> vectors;
    std::vector<double> said, cosines;
    Evaluation out;
    double nats = 0;
    for (const std::vector<int64_t>& pass : passes_of(source().valid_samples(), options)) {
      if (options.cancel != nullptr) options.cancel->check("evaluate");
      std::vector<int64_t> plain, scored;
      for (const int64_t number : pass) (texts.score_of(number) ? scored : plain).push_back(number);
      if (!scored.empty()) {
        const Tensor v = vectors_of_held_out(model, scored, false);
        for (size_t i = 0; i < scored.size(); ++i) {
          said.push_back(*texts.score_of(scored[i]));
          const auto row = static_cast<int64_t>(2 * i);
          cosines.push_back(
              at::cosine_similarity(v[row].to(at::kDouble), v[row + 1].to(at::kDouble), 0)
                  .item<double>());
        }
      }
      if (plain.empty()) continue;
      ContrastLayout layout;
      for (ContrastLayout* to : {&layout, &all}) to->add(source().valid(plain));
      vectors.push_back(vectors_of_held_out(model, plain, texts.unsupervised()));
      nats += sums_of(contrast(vectors.back(), layout, how_), 0, layout.samples()).at(kLossName);
      for (const PackedDocument& piece : source().valid(plain).pieces) out.tokens += piece.length;
    }
    if (!said.empty()) {
      out.scores["spearman"] = spearman(said, cosines);
      // with scored pairs only: 1 minus the rank correlation
      out.loss = 1 - out.scores["spearman"];
    }
    if (vectors.empty()) return out;
    out.loss = nats / static_cast<double>(all.samples());
    const Tensor every = at::cat(vectors);
    for (const int64_t dims : how_.dims)
      out.scores[fmt::format("accuracy_{}", dims)] = found(ranks(every, all, dims)).first;
    std::tie(out.accuracy, out.scores["mrr"]) = found(ranks(every, all, 0));
    out.scores["accuracy"] = out.accuracy;
    return out;
  }

 private:
  /// Share of samples whose positive is the nearest, and mean reciprocal rank.
  static std::pair<double, double> found(const std::vector<int64_t>& ranks) {
    double first = 0, reciprocal = 0;
    for (const int64_t rank : ranks) {
      first += rank == 1 ? 1 : 0;
      reciprocal += 1 / static_cast<double>(rank);
    }
    const auto n = static_cast<double>(std::max<size_t>(1, ranks.size()));
    return {first / n, reciprocal / n};
  }

  Tensor vectors_of(const model::Model& model,
                    const PackedBatch& packed,
                    const nn::Batch& batch,
                    const model::ForwardOptions& forward) const {
    return text_vectors(model, hidden_of(model, packed, batch, forward), batch, how_.pooling,
                        {.type = forward.products});
  }

  /// For a text twice, with fixed dropout.
  Tensor vectors_of_held_out(const model::Model& model,
                             const std::vector<int64_t>& samples,
                             bool drops) const {
    const at::NoGradGuard no_gradients;
    const PackedBatch packed = source().valid(samples);
    model::ForwardOptions forward;
    forward.training = drops;
    forward.key = RandomKey(hash_name("valid"));
    return vectors_of(model, packed, batch_of(packed), forward);
  }

  /// The gradients of all vectors of an update (Gao et al. 2021, arXiv:2101.06983).
  std::unique_ptr<CachedGradients> cached(const model::Model& model,
                                          const std::vector<PackedBatch>& packed,
                                          const model::ForwardOptions& forward) const {
    ContrastLayout layout;
    std::vector<Tensor> vectors;
    std::vector<int64_t> ends;  // cumulative samples by batch
    nn::UpdateCounts counts;
    for (const PackedBatch& part : packed) {
      layout.add(part);
      ends.push_back(layout.samples());
      // the passes with a gradient are counted
      model::ForwardOptions once = forward;
      once.update = &counts;
      once.add_statistic = nullptr;
      vectors.push_back(vectors_of(model, part, batch_of(part), once).detach());
    }
    const Tensor all = at::cat(vectors).requires_grad_(true);
    const ContrastLosses losses = contrast(all, layout, how_);
    losses.loss_B.mean().backward();
    auto out = std::make_unique<CachedGradients>();
    int64_t row = 0, sample = 0;
    for (size_t i = 0; i < packed.size(); ++i) {
      const int64_t pieces = std::ssize(packed[i].pieces);
      out->parts[packed[i].first_sample] = {sums_of(losses, sample, ends[i] - sample),
                                            all.grad().narrow(0, row, pieces)};
      row += pieces;
      sample = ends[i];
    }
    return out;
  }

  /// Forward pass, and backward pass from the gradients of the vectors that `loss` returns.
  template <class Loss>
  LossSums backward(const model::Model& model, const MicroBatch& micro, Loss loss) const {
    PartLosses parts(micro.whole);
    model::ForwardOptions forward = micro.forward;
    forward.add_loss = parts.sink();
    const Tensor vectors = vectors_of(model, micro.packed, micro.batch, forward);
    CachedGradients::MicroBatchResult part = loss(vectors);
    for (const auto& [name, sum] : parts.sums()) part.sums[name] = DeferredNumber(sum);
    const DeferredNumber& nats = part.sums.at(kLossName);
    if ((nats.is_read() && !std::isfinite(double{nats})) || !vectors.requires_grad())
      return part.sums;
    std::vector<Tensor> roots{vectors}, gradients{part.gradient_ND};
    if (const Tensor& added = parts.weighted(); added.defined() && added.requires_grad()) {
      roots.push_back(added);
      gradients.push_back(at::ones_like(added));
    }
    torch::autograd::backward(roots, gradients);
    return part.sums;
  }

  ContrastiveRecipe how_;
};

}  // namespace

Tensor text_vectors(const model::Model& model,
                    const Tensor& hidden_ND,
                    const nn::Batch& batch,
                    TextVector pooling,
                    const ops::ProductSettings& products) {
  if (pooling == TextVector::pooler) return model.pooled(hidden_ND, batch, products);
  std::vector<Tensor> vectors;
  for (const nn::Segment& s : batch.segments) {
    const Tensor x_TD = hidden_ND.narrow(0, s.begin, s.length);
    vectors.push_back(pooling == TextVector::mean  ? x_TD.mean(0)
                      : pooling == TextVector::max ? x_TD.amax(0)
                                                   : x_TD[pooling == TextVector::cls ? 0 : -1]);
  }
  return at::stack(vectors);
}

std::unique_ptr<Objective> contrastive(const ModelPlan&,
                                       const ObjectivePtr& objective,
                                       std::unique_ptr<Dataset> source,
                                       const ObjectiveOptions&) {
  return std::make_unique<Contrastive>(keys_of<ContrastiveRecipe>(*objective), std::move(source));
}

}  // namespace tessera::train
