#include "tessera/train/objective.h"

#include "tessera/model/predictor_spec.h"
#include "tessera/train/ahead.h"
#include "tessera/train/batch_tensors.h"
#include "tessera/train/loss.h"
#include "tessera/train/part_losses.h"

namespace tessera::train {
namespace {

constexpr const char* kNextToken = "loss";
constexpr const char* kOfEncoder = "encoder.";

class TokenObjective final : public Objective {
 public:
  TokenObjective(const Recipe& recipe, std::unique_ptr<Source> source)
      : Objective(std::move(source)),
        name_(recipe.task              ? spec::enum_name(recipe.task->type)
              : recipe.spec.encoder    ? "seq2seq"
              : recipe.data.source_key ? "prefix_lm"
                                       : "causal_lm"),
        counts_bytes_(!recipe.task),
        z_loss_(recipe.train.z_loss),
        l2_wrap_(recipe.train.l2_wrap),
        ahead_(recipe.train.predictors > 0 ? std::ssize(recipe.spec.predictors) : 0),
        ahead_weight_(recipe.train.predictors) {
    if (const int64_t width = infer::head_width(recipe.spec); width < recipe.spec.vocab)
      fail(ErrorKind::spec, "spec.head",
           "{} numbers a token; objective \"{}\" needs those of {} tokens", width, name_,
           recipe.spec.vocab);
  }

  std::string_view name() const override { return name_; }
  std::string main_loss() const override { return kNextToken; }
  bool counts_bytes() const override { return counts_bytes_; }

  Denominators denominators(const PackedBatch& packed) const override {
    Denominators out;
    out.losses[kNextToken] = static_cast<double>(packed.n_targets);
    for (int64_t k = 0; k < ahead_; ++k)
      out.losses[ahead_loss(k)] = static_cast<double>(targets_ahead(packed, k));
    out.tokens = static_cast<double>(packed.ids.size());
    for (const auto& source : packed.sources)
      out.source_tokens += static_cast<double>(source.size());
    return out;
  }

  LossSums learn(const model::Model& model,
                 const PackedBatch& packed,
                 const nn::Batch& batch,
                 const model::ForwardOptions& given,
                 const Denominators& whole) const override {
    LossSums sums;
    PartLosses parts(whole);
    model::ForwardOptions forward = given;
    forward.add_loss = parts.sink();
    const Tensor hidden = hidden_of(model, packed, batch, forward);
    const LossOptions options{
        .scale = 1 / std::max(1.0, whole.of(kNextToken)), .z_loss = z_loss_, .l2_wrap = l2_wrap_};
    const Tensor added = look_ahead(model, packed, batch, forward, hidden, whole, sums);
    const Tensor& of_parts = parts.weighted();
    sums[kNextToken] = loss_and_backward(model, hidden, targets_of(packed), options,
                                         !added.defined()     ? of_parts
                                         : of_parts.defined() ? added + of_parts
                                                              : added);
    for (const auto& [name, sum] : parts.sums()) sums[name] = sum.item<double>();
    return sums;
  }

  std::vector<infer::Request> questions(const PackedBatch& packed) const override {
    std::vector<infer::Request> out;
    for (size_t i = 0; i < packed.pieces.size(); ++i) {
      const Piece& piece = packed.pieces[i];
      const auto of_piece = [&](const std::vector<int64_t>& all) {
        return std::vector<int64_t>(all.begin() + piece.begin,
                                    all.begin() + piece.begin + piece.length);
      };
      infer::Sequence text{{}, of_piece(packed.ids), piece.prefix};
      if (!packed.sources.empty()) text.source = packed.sources[i];
      out.push_back(infer::scoring(std::move(text), {0, of_piece(packed.targets)}));
    }
    return out;
  }

 private:
  /// The losses of the predictors one after the other, so that the logits of one are there at a
  /// time, and a number with their gradients on what they read (undefined = none have any).
  Tensor look_ahead(const model::Model& model,
                    const PackedBatch& packed,
                    const nn::Batch& batch,
                    const model::ForwardOptions& forward,
                    const Tensor& trunk_ND,
                    const Denominators& whole,
                    LossSums& sums) const {
    Tensor added, previous = trunk_ND;
    std::optional<Ahead> before;
    for (int64_t k = 0; k < ahead_; ++k) {
      const auto index = static_cast<size_t>(k);
      Ahead ahead = ahead_of(packed, batch, k, model.spec().predictors[index].token);
      const std::string name = ahead_loss(k);
      sums[name] += 0;
      if (ahead.tokens.empty()) break;
      const bool chained =
          model.spec().predictors[index].reads == model::PredictorReads::previous && before;
      const Tensor read_MD = chained
                                 ? previous.index_select(0, rows_in(*before, ahead))
                                 : trunk_ND.index_select(0, at::tensor(ahead.tokens, at::kLong));
      previous = model.predict(index, read_MD, ahead.batch, forward);
      const LossOptions options{
          .scale = ahead_weight_ / static_cast<double>(ahead_) / std::max(1.0, whole.of(name)),
          .z_loss = z_loss_,
          .l2_wrap = l2_wrap_};
      const auto [nats, root, gradient] =
          head_loss(model, previous, at::tensor(ahead.targets, at::kLong), options);
      sums[name] += nats;
      if (root.defined()) {
        const Tensor share = (root * gradient).sum();
        added = added.defined() ? added + share : share;
      }
      before = std::move(ahead);
    }
    return added;
  }

  /// Where the tokens of `ahead`, some of those of `before`, stand there.
  static Tensor rows_in(const Ahead& before, const Ahead& ahead) {
    std::vector<int64_t> rows;
    size_t at = 0;
    for (const int64_t token : ahead.tokens) {
      while (before.tokens[at] != token) ++at;
      rows.push_back(static_cast<int64_t>(at));
    }
    return at::tensor(rows, at::kLong);
  }

  std::string name_;
  bool counts_bytes_;
  double z_loss_, l2_wrap_;
  int64_t ahead_;  // predictors that learn
  double ahead_weight_;
};

}  // namespace

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

std::unique_ptr<Objective> token_objective(const Recipe& recipe, std::unique_ptr<Source> source) {
  return std::make_unique<TokenObjective>(recipe, std::move(source));
}

std::unique_ptr<Objective> open_objective(const Recipe& recipe,
                                          const std::filesystem::path& cache,
                                          const CancelToken* cancel) {
  return token_objective(recipe, open_source(recipe, cache, cancel));
}

}  // namespace tessera::train
