#include "tessera/train/objective/replaced_token/replaced_token.h"

#include <cmath>

#include "tessera/infer/evaluation/score.h"
#include "tessera/model/placement.h"
#include "tessera/ops/weights/to_device.h"
#include "tessera/train/loop/batch_tensors.h"
#include "tessera/train/objective/loss.h"
#include "tessera/train/objective/objective_config.h"
#include "tessera/train/objective/part_losses.h"
#include "tessera/train/objective/replaced_token/replaced_objective.h"

namespace tessera::train {
namespace {

constexpr const char *kFound = "loss", *kGenerator = "generator", *kDifference = "difference";

struct DetectionCounts {
  double hits = 0, predicted = 0, truth = 0, right = 0;
};

/// Names of parameters that both stacks may share.
bool is_table(const std::string& name) {
  return name.starts_with("embed.") && !name.starts_with("embed.project");
}

class ReplacedToken final : public Objective {
 public:
  ReplacedToken(const ObjectiveConfig& objective, uint64_t seed, std::unique_ptr<Dataset> source)
      : Objective(std::move(source)),
        how_(keys_of<ReplacedTokenRecipe>(objective)),
        spec_(generator_of(objective)),
        seed_(seed) {}

  std::string_view name() const override { return ReplacedTokenRecipe::kType; }
  std::string main_loss() const override { return kFound; }

  AuxiliaryParameters join(const model::Model& model) override {
    const model::Weights fresh =
        model::Weights::initial(spec_, RandomKey(seed_).fold(kGenerator).bits(0));
    std::map<std::string, model::WeightPtr> weights;
    AuxiliaryParameters out;
    tables_.clear();
    int64_t alike = 0;
    const at::Device device = model::device_of(model);
    for (const auto& [decl, initial] : fresh.all()) {
      const model::WeightPtr weight = ops::to_device(initial, device);
      weights[decl.name] = weight;
      const model::WeightPtr other = model.weights().find(decl.name);
      if (how_.share == SharedTables::none || !is_table(decl.name) || other == nullptr ||
          other->shape() != weight->shape())
        continue;
      ++alike;
      if (how_.share == SharedTables::embeddings) {
        weights[decl.name] = other;
        continue;
      }
      // both begin with the table of the spec
      const at::NoGradGuard values;
      Table table{other->dense_tensor(), weight->dense_tensor(),
                  at::zeros_like(other->dense_tensor())};
      table.of_generator.copy_(table.own);
      spec::ParamDecl difference = decl;
      difference.name = fmt::format("{}.{}", kDifference, decl.name);
      out.parameters.push_back({std::move(difference), table.difference.requires_grad_(true)});
      out.derived.push_back(decl.name);
      table.own.requires_grad_(true);  // forward_backward() passes its gradient on
      tables_.push_back(std::move(table));
    }
    if (how_.share != SharedTables::none && alike == 0)
      fail(ErrorKind::spec, "objective.share",
           "\"{}\", and no table of the generator is as wide as the spec's; expected its "
           "embed.width to be that of the spec, or \"none\"",
           spec::enum_name(how_.share));
    generator_ = std::make_unique<model::Model>(spec_, model::Weights::check(spec_, weights));
    out.companion = {kGenerator, generator_.get()};
    if (!tables_.empty()) out.derive = [this] { derive(); };
    return out;
  }

  Denominators denominators(const PackedBatch& packed) const override {
    Denominators out;
    out.tokens = static_cast<double>(packed.ids.size());
    out.losses[kFound] = out.tokens;
    out.losses[kGenerator] = static_cast<double>(packed.n_targets);
    return out;
  }

  LossSums forward_backward(const model::Model& model, const MicroBatch& micro) const override {
    const auto& [packed, batch, given, whole, update, terms] = micro;
    derive();
    PartLosses parts(whole), parts_of_generator(whole);
    model::ForwardOptions forward = given;
    forward.add_loss = parts_of_generator.sink();
    forward.key = given.key.fold(kGenerator);
    forward.add_statistic = nullptr;  // its statistics would have the names of the discriminator's
    const Tensor hidden = hidden_of(*generator_, packed, batch, forward);
    const Replaced replaced = replace(packed, hidden, [&](int64_t row) {
      return RandomKey(seed_)
          .fold("objective")
          .fold(static_cast<uint64_t>(packed.first_sample + row));
    });
    const HeadLoss hidden_tokens = head_loss(
        *generator_, hidden, targets_of(packed),
        {.scale = how_.generator_weight / whole.divisor(kGenerator), .products = given.products});

    forward.key = given.key;
    forward.add_statistic = given.add_statistic;
    forward.add_loss = parts.sink();
    const Tensor losses_N =
        found(model, hidden_of(model, replaced.packed, batch_of(replaced.packed), forward),
              replaced.is_other_N, given.products, nullptr);
    LossSums sums{{kFound, deferred_sum(losses_N)}, {kGenerator, hidden_tokens.sums.nll}};
    for (const auto& [name, sum] : parts.sums()) sums[name] = DeferredNumber(sum);
    for (const auto& [name, sum] : parts_of_generator.sums())
      sums[fmt::format("{}.{}", kGenerator, name)] = DeferredNumber(sum);
    // not finite if either is, so that the run stops
    DeferredNumber& both = sums[kFound];
    both += hidden_tokens.sums.nll.times(0);
    if (both.is_read() && !std::isfinite(double{both})) return sums;
    Tensor added = losses_N.sum() * (how_.weight / whole.divisor(kFound));
    for (const PartLosses* of : {&parts, &parts_of_generator})
      if (of->weighted().defined()) added = added + of->weighted();
    backward_from(hidden_tokens, added);
    for (const Table& table : tables_) {
      Tensor &from = Tensor(table.own).mutable_grad(),
             &to = Tensor(table.difference).mutable_grad();
      if (from.defined()) to = to.defined() ? to.add_(from) : from;
      from = Tensor();
    }
    return sums;
  }

  Evaluation evaluate(const model::Model& model, const EvaluateOptions& options) const override {
    const at::NoGradGuard no_gradients;
    derive();
    double nats = 0, of_generator = 0;
    int64_t tokens = 0, asked = 0;
    DetectionCounts sum;
    for (const std::vector<int64_t>& pass : passes_of(source().valid_samples(), options)) {
      if (options.cancel != nullptr) options.cancel->check("evaluate");
      const PackedBatch packed = source().valid(pass);
      const Tensor hidden = hidden_of(*generator_, packed, batch_of(packed), {});
      of_generator += infer::score(*generator_, hidden, targets_of(packed)).nats;
      const Replaced replaced = replace(packed, hidden, [&](int64_t row) {
        return RandomKey(hash_name("valid"))
            .fold(static_cast<uint64_t>(pass[static_cast<size_t>(row)]));
      });
      nats += infer::sum_in_order(
          found(model, hidden_of(model, replaced.packed, batch_of(replaced.packed), {}),
                replaced.is_other_N, ops::ProductType::float32, &sum));
      tokens += std::ssize(packed.ids);
      asked += packed.n_targets;
    }
    const auto share = [](double part, double all) { return all > 0 ? part / all : 0; };
    Evaluation out;
    out.tokens = tokens;
    out.loss = share(nats, static_cast<double>(tokens));
    out.accuracy = share(sum.right, static_cast<double>(tokens));
    out.losses[kGenerator] = share(of_generator, static_cast<double>(asked));
    out.scores = {{"accuracy", out.accuracy},
                  {"precision", share(sum.hits, sum.predicted)},
                  {"recall", share(sum.hits, sum.truth)}};
    return out;
  }

 private:
  /// Embedding tables with "disentangled".
  struct Table {
    Tensor own, of_generator, difference;
  };
  void derive() const {
    const at::NoGradGuard values;
    for (const Table& table : tables_) {
      Tensor own = table.own;
      at::add_out(own, table.of_generator, table.difference);
    }
  }

  /// The generator's samples for all its targets, unchanged tokens included.
  template <class Key>
  Replaced replace(const PackedBatch& packed, const Tensor& hidden_ND, Key key) const {
    const at::NoGradGuard no_gradients;
    const Tensor targets_N = targets_of(packed), rows_M = infer::rows_with_targets(targets_N);
    std::vector<int64_t> rows(packed.ids.size()), places(packed.ids.size());
    int64_t row = -1, begin = 0;
    for (const PackedDocument& piece : packed.pieces) {
      if (piece.row != row) row = piece.row, begin = piece.begin;
      for (int64_t i = piece.begin; i < piece.begin + piece.length; ++i) {
        rows[static_cast<size_t>(i)] = row;
        places[static_cast<size_t>(i)] = i - begin;
      }
    }
    std::vector<int64_t> drawn;
    const int64_t vocab = spec_.vocab, chunk = loss_chunk(vocab);
    for (int64_t first = 0; first < rows_M.size(0); first += chunk) {
      const Tensor some = rows_M.narrow(0, first, std::min(chunk, rows_M.size(0) - first));
      const Tensor logits =
          generator_->logits(hidden_ND.detach().index_select(0, some.to(hidden_ND.device())));
      Tensor u = at::empty({some.size(0), vocab}, at::kDouble);
      for (int64_t m = 0; m < some.size(0); ++m) {
        const auto token = static_cast<size_t>(some[m].item<int64_t>());
        const RandomKey own =
            key(rows[token]).fold("draw").fold(static_cast<uint64_t>(places[token]));
        auto* to = u.mutable_data_ptr<double>() + m * vocab;
        // strictly between 0 and 1
        for (int64_t c = 0; c < vocab; c += 4) {
          const auto four = own.block(static_cast<uint64_t>(c / 4));
          for (int64_t i = 0; i < std::min<int64_t>(4, vocab - c); ++i)
            to[c + i] = (static_cast<double>(four[static_cast<size_t>(i)]) + 0.5) * 0x1p-32;
        }
      }
      // the next model reads them as ids, from the host
      const Tensor of_some = drawn_classes(logits, u.to(logits.device())).cpu();
      drawn.insert(drawn.end(), of_some.const_data_ptr<int64_t>(),
                   of_some.const_data_ptr<int64_t>() + some.size(0));
    }
    return replaced_by(packed, drawn);
  }

  /// The discriminator's loss of every token.
  static Tensor found(const model::Model& model,
                      const Tensor& hidden_ND,
                      const Tensor& others_N,
                      ops::ProductType products,
                      DetectionCounts* count) {
    const Tensor z_N = model.logits(hidden_ND, {.type = products}).squeeze(-1).to(at::kDouble),
                 is_other_N = others_N.to(z_N.device());
    if (count != nullptr) {
      const Tensor predicted = (z_N.detach() > 0).to(at::kDouble);
      count->hits += (predicted * is_other_N).sum().item<double>();
      count->predicted += predicted.sum().item<double>();
      count->truth += is_other_N.sum().item<double>();
      count->right += (predicted == is_other_N).sum().item<double>();
    }
    return nats_of_found(z_N, is_other_N);
  }

  ReplacedTokenRecipe how_;
  model::ModelSpec spec_;
  uint64_t seed_;
  std::unique_ptr<model::Model> generator_;
  std::vector<Table> tables_;
};

}  // namespace

Tensor drawn_classes(const Tensor& logits_MC, const Tensor& u_MC) {
  const Tensor noise = -at::log(-at::log(u_MC));
  return (logits_MC.to(noise.scalar_type()) + noise).argmax(-1);
}

Replaced replaced_by(const PackedBatch& packed, const std::vector<int64_t>& drawn) {
  Replaced out{packed, at::zeros({std::ssize(packed.ids)}, at::kDouble)};
  size_t next = 0;
  for (size_t i = 0; i < packed.ids.size(); ++i) {
    if (packed.targets[i] < 0) continue;
    const int64_t id = drawn.at(next++);
    out.packed.ids[i] = id;
    if (id != packed.targets[i]) out.is_other_N[static_cast<int64_t>(i)] = 1;
  }
  out.packed.targets.assign(packed.ids.size(), -1);
  out.packed.n_targets = 0;
  return out;
}

Tensor nats_of_found(const Tensor& z_N, const Tensor& is_other_N) {
  const Tensor z = z_N.to(at::kDouble);
  return -(is_other_N * at::log_sigmoid(z) + (1 - is_other_N) * at::log_sigmoid(-z));
}

std::unique_ptr<Objective> replaced_token(const ModelPlan& plan,
                                          const ObjectivePtr& objective,
                                          std::unique_ptr<Dataset> source,
                                          const ObjectiveOptions&) {
  return std::make_unique<ReplacedToken>(*objective, static_cast<uint64_t>(plan.train.seed),
                                         std::move(source));
}

}  // namespace tessera::train
