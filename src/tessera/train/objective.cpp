#include "tessera/train/objective.h"

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
        l2_wrap_(recipe.train.l2_wrap) {
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
    sums[kNextToken] =
        loss_and_backward(model, hidden, targets_of(packed), options, parts.weighted());
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
  std::string name_;
  bool counts_bytes_;
  double z_loss_, l2_wrap_;
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
