#include "tessera/train/experts/distill_experts.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tessera/convert/tensor_ops.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/nn/parts.h"
#include "tessera/train/optimizer/adamw.h"

namespace tessera::train {
namespace {

constexpr const char* kWhere = "distill";
constexpr int64_t kFewest = 128;  // tokens: sixteen to measure by

/// The branches that one set of experts computes: one, or those of the layers that share it.
struct Site {
  std::vector<std::string> names;  // "layers.3.ffn"
  int64_t layer = 0;               // the last of them
  const model::BranchSpec* branch = nullptr;
};

/// By the prefix of their parameters, those of `mixtures`, in the order of the layers.
std::vector<std::pair<std::string, Site>> sites_of(
    const model::ModelSpec& spec, const std::map<std::string, convert::Mixture>& mixtures) {
  std::vector<std::pair<std::string, Site>> out;
  for (int64_t i = 0; i < std::ssize(spec.layers); ++i)
    for (const model::GroupSpec& group : spec.layers[static_cast<size_t>(i)].groups)
      for (const model::BranchSpec& branch : group.branches) {
        const std::string prefix = spec.prefix(i, branch);
        if (branch.slot != spec::Slot::ffn || !mixtures.contains(prefix)) continue;
        auto at = std::find_if(out.begin(), out.end(),
                               [&](const auto& site) { return site.first == prefix; });
        if (at == out.end()) at = out.insert(out.end(), {prefix, {}});
        at->second.names.push_back(spec.under(fmt::format("layers.{}.{}", i, branch.name)));
        at->second.layer = i;
        at->second.branch = &branch;
      }
  return out;
}

/// Rows of what a branch reads and makes.
struct Rows {
  Tensor x_ND, y_ND;
};

class Text {
 public:
  Text(const model::Model& model, std::span<const int64_t> ids, const DistillOptions& options)
      : model_(model), cancel_(options.cancel) {
    const auto n = std::ssize(ids);
    if (n < kFewest)
      fail(ErrorKind::usage, kWhere, "a text of {} tokens; expected at least {}", n, kFewest);
    int64_t window = std::min(options.window, n / 8);
    if (const int64_t limit = model.spec().longest_sequence(); limit > 0)
      window = std::min(window, limit);
    for (int64_t begin = 0; begin + window <= n; begin += window)
      windows_.emplace_back(ids.begin() + begin, ids.begin() + begin + window);
  }

  /// The last eighth is to measure by.
  size_t learned() const { return windows_.size() - std::max<size_t>(1, windows_.size() / 8); }
  size_t size() const { return windows_.size(); }

  convert::ExpertLoads use() const {
    constexpr std::string_view kLoad = ".load";
    convert::ExpertLoads out;
    model::ForwardOptions options;
    options.add_statistic = [&](const std::string& name, const Tensor& value) {
      if (!name.ends_with(kLoad)) return;
      const Tensor load = value.to(at::kCPU, at::kDouble).contiguous();
      std::vector<double>& sum = out[name.substr(0, name.size() - kLoad.size())];
      sum.resize(static_cast<size_t>(load.numel()), 0.0);
      for (size_t e = 0; e < sum.size(); ++e) sum[e] += load.const_data_ptr<double>()[e];
    };
    run(0, learned(), options);
    return out;
  }

  Rows rows(const Site& site, size_t begin, size_t end) const {
    std::vector<Tensor> x, y;
    model::ForwardOptions options;
    options.probe = [&](const std::string& name, const Tensor& value) {
      for (const std::string& branch : site.names) {
        if (name == branch + ".in") x.push_back(value.to(at::kFloat).clone());
        if (name == branch + ".out") y.push_back(value.to(at::kFloat).clone());
      }
    };
    // later layers need not be computed
    if (model_.spec().no_exit_reason(site.layer + 1).empty()) options.layers = site.layer + 1;
    run(begin, end, options);
    return {at::cat(x), at::cat(y)};
  }

 private:
  void run(size_t begin, size_t end, const model::ForwardOptions& options) const {
    constexpr size_t kAtOnce = 4;  // windows
    const at::NoGradGuard no_gradients;
    for (size_t i = begin; i < end; i += kAtOnce) {
      if (cancel_ != nullptr) cancel_->check(kWhere);
      const std::vector<std::vector<int64_t>> some(
          windows_.begin() + static_cast<std::ptrdiff_t>(i),
          windows_.begin() + static_cast<std::ptrdiff_t>(std::min(i + kAtOnce, end)));
      model_.hidden(nn::Batch::of(some), options);
    }
  }

  const model::Model& model_;
  const CancelToken* cancel_;
  std::vector<std::vector<int64_t>> windows_;
};

/// A dense layer that learns.
class Student {
 public:
  /// Its parameters are copies of those of `checkpoint` below `prefix`.
  Student(const convert::Checkpoint& checkpoint, const std::string& prefix, const Site& site) {
    for (const TensorView& view : checkpoint.tensors) {
      if (!view.name.starts_with(prefix + ".")) continue;
      const ops::Weight stored = ops::Weight::stored(view);
      parameters_.push_back(stored.tensor().to(at::kFloat).clone().requires_grad_(true));
      names_.push_back(view.name);
      weights_[view.name] =
          std::make_shared<const ops::Weight>(ops::Weight::dense(view.name, parameters_.back()));
    }
    const auto find = [this](const std::string& name) -> nn::WeightPtr {
      const auto found = weights_.find(name);
      return found == weights_.end() ? nullptr : found->second;
    };
    ffn_ =
        nn::build_ffn(site.branch->part,
                      nn::Builder(find, prefix, checkpoint.spec.scope(site.layer, *site.branch)));
  }

  Tensor operator()(const Tensor& x_ND) const {
    const nn::Batch batch = nn::Batch::of(at::zeros({1, x_ND.size(0)}, at::kLong));
    nn::Context context;
    context.batch = &batch;
    return ffn_->forward(x_ND, context);
  }
  /// The root of the share of y that it misses.
  double error(const Rows& rows) const {
    const at::NoGradGuard no_gradients;
    const Tensor y = rows.y_ND.to(at::kDouble);
    return ((*this)(rows.x_ND).to(at::kDouble) - y).norm().item<double>() /
           std::max(y.norm().item<double>(), 1e-30);
  }

  void learn(const Rows& rows, const Rows& measure, const DistillOptions& options) {
    const double size = rows.y_ND.square().sum(1).mean().item<double>();
    std::vector<ParameterInfo> slots;
    for (const Tensor& parameter : parameters_) {
      const double rms = parameter.detach().square().mean().sqrt().item<double>();
      slots.push_back({.shape = {parameter.numel()}, .lr_factor = std::max(rms, 1e-6)});
    }
    AdamW adamw(std::move(slots), {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8});
    const RandomKey key = RandomKey(options.seed).fold("distill").fold(names_.front());
    double best = error(measure);
    std::vector<Tensor> kept = copies();
    const int64_t look = std::max<int64_t>(1, options.steps / 10);
    for (int64_t step = 0; step < options.steps; ++step) {
      if (options.cancel != nullptr) options.cancel->check(kWhere);
      const Tensor at_R =
          drawn(key.fold(static_cast<uint64_t>(step)), options.rows, rows.x_ND.size(0));
      for (Tensor& parameter : parameters_) parameter.mutable_grad() = Tensor();
      const Tensor missed =
          (*this)(rows.x_ND.index_select(0, at_R)) - rows.y_ND.index_select(0, at_R);
      (missed.square().sum() / (static_cast<double>(at_R.numel()) * std::max(size, 1e-30)))
          .backward();
      std::vector<Parameter> memory;
      for (Tensor& parameter : parameters_) {
        const Tensor& gradient = parameter.grad();
        memory.push_back({parameter.mutable_data_ptr<float>(),
                          gradient.defined() ? gradient.const_data_ptr<float>() : nullptr});
      }
      const double done = static_cast<double>(step) / static_cast<double>(options.steps);
      adamw.update(memory,
                   {.t = step + 1,
                    .lr = options.rate * (0.1 + 0.45 * (1 + std::cos(std::numbers::pi * done)))});
      if ((step + 1) % look != 0 && step + 1 != options.steps) continue;
      if (const double now = error(measure); now < best) best = now, kept = copies();
    }
    const at::NoGradGuard no_gradients;
    for (size_t i = 0; i < kept.size(); ++i) parameters_[i].copy_(kept[i]);
  }

  /// Puts what it has learned into the tensors of a checkpoint, in their storage types.
  void store(convert::Checkpoint& checkpoint) const {
    for (size_t i = 0; i < names_.size(); ++i) {
      const auto found =
          std::find_if(checkpoint.tensors.begin(), checkpoint.tensors.end(),
                       [&](const TensorView& view) { return view.name == names_[i]; });
      const Tensor values = parameters_[i].detach().to(at::kDouble).contiguous();
      *found = convert::from_doubles(
          names_[i], found->dtype, found->shape,
          {values.const_data_ptr<double>(), static_cast<size_t>(values.numel())});
    }
  }

 private:
  using TensorView = format::TensorView;

  static Tensor drawn(const RandomKey& key, int64_t rows, int64_t n) {
    Tensor out = at::empty({rows}, at::kLong);
    auto* to = out.data_ptr<int64_t>();
    for (int64_t i = 0; i < rows; ++i)
      to[i] = std::min(n - 1, static_cast<int64_t>(key.uniform(static_cast<uint64_t>(i)) *
                                                   static_cast<double>(n)));
    return out;
  }
  std::vector<Tensor> copies() const {
    std::vector<Tensor> out;
    for (const Tensor& parameter : parameters_) out.push_back(parameter.detach().clone());
    return out;
  }

  std::vector<std::string> names_;
  std::vector<Tensor> parameters_;
  std::map<std::string, nn::WeightPtr> weights_;
  std::unique_ptr<nn::Ffn> ffn_;
};

}  // namespace

convert::Checkpoint distilled_experts(const convert::Checkpoint& checkpoint,
                                      convert::ExpertLoads use,
                                      std::span<const int64_t> ids,
                                      const DistillOptions& options,
                                      const std::function<void(const DistilledLayer&)>& report) {
  if (checkpoint.spec.encoder)
    fail(ErrorKind::usage, kWhere,
         "an encoder_decoder, which reads pairs; expected a model of one stack");
  // what cannot be merged fails before anything is computed
  convert::merged_experts(checkpoint, {});
  const model::Model teacher(checkpoint.spec, infer::weights_of(checkpoint));
  const Text text(teacher, ids, options);
  if (use.empty()) use = text.use();
  convert::Checkpoint dense = convert::merged_experts(checkpoint, use);
  const auto mixtures = convert::mixtures(checkpoint.spec);
  const auto before = sites_of(checkpoint.spec, mixtures), after = sites_of(dense.spec, mixtures);
  for (size_t i = 0; i < before.size(); ++i) {
    const auto& [mixture, site] = before[i];
    const Rows learned = text.rows(site, 0, text.learned()),
               measure = text.rows(site, text.learned(), text.size());
    Student student(dense, mixture, after[i].second);
    DistilledLayer line{mixture, learned.x_ND.size(0), measure.x_ND.size(0),
                        student.error(measure)};
    student.learn(learned, measure, options);
    line.after = student.error(measure);
    student.store(dense);
    if (report) report(line);
  }
  return dense;
}

}  // namespace tessera::train
