#include "tessera/serve/mixing.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::serve {

MixingMap::MixingMap(const model::Model& model, std::vector<int64_t> ids, std::string name)
    : model_(model), ids_(std::move(ids)), name_(std::move(name)) {
  const auto n = static_cast<int64_t>(ids_.size());
  if (n == 0) fail(ErrorKind::input, "mixing", "the text has no token; expected at least one");
  const model::ModelSpec& spec = model_.spec();
  const model::ModelSpec& reader = spec.encoder ? *spec.encoder : spec;
  for (size_t i = 0; i < reader.layers.size(); ++i)
    for (const model::GroupSpec& group : reader.layers[i].groups)
      for (const model::BranchSpec& branch : group.branches)
        if (name_ == reader.under(fmt::format("layers.{}.{}", i, branch.name)))
          layers_ = static_cast<int64_t>(i) + 1;
  if (layers_ == 0)
    fail(ErrorKind::input, "mixing", "there is no branch \"{}\"; expected one as \"{}\"", name_,
         reader.under("layers.0.mixer"));
  values_.assign(ids_.size(), std::vector<double>(ids_.size(), 0));
}

Tensor MixingMap::outputs(const std::vector<int64_t>& without) const {
  const at::NoGradGuard constants;
  const auto n = static_cast<int64_t>(ids_.size());
  const auto copies = static_cast<int64_t>(without.size());
  const nn::Batch batch = nn::Batch::of(std::vector<std::vector<int64_t>>(without.size(), ids_));
  Tensor out;
  model::ForwardOptions options;
  options.replace = [&](const std::string& name, const Tensor& x_ND) {
    if (name != name_ + ".in" || x_ND.size(0) != copies * n) return x_ND;
    Tensor x = x_ND.clone();
    for (int64_t i = 0; i < copies; ++i)
      if (const int64_t j = without[static_cast<size_t>(i)]; j >= 0)
        x.select(0, i * n + j).copy_(x_ND.narrow(0, i * n, n).mean(0));
    return x;
  };
  options.probe = [&](const std::string& name, const Tensor& y) {
    if (name == name_ + ".out") out = y.to(at::kCPU, at::kFloat).clone();
  };
  run(batch, std::move(options));
  if (!out.defined() || out.size(0) != copies * n)
    fail(ErrorKind::input, "mixing", "{} does not compute every token of a text separately", name_);
  return out.view({copies, n, -1});
}

void MixingMap::run(const nn::Batch& batch, model::ForwardOptions options) const {
  const model::ModelSpec& spec = model_.spec();
  if (spec.encoder) {
    model_.encode(batch, options);
    return;
  }
  // later layers have no effect on it
  if (spec.no_exit_reason(layers_).empty()) options.layers = layers_;
  model_.hidden(batch, options);
}

std::vector<std::vector<std::vector<double>>> MixingMap::weights() const {
  const at::NoGradGuard constants;
  Tensor shown_HTT;
  model::ForwardOptions options;
  options.probe = nn::Probe(
      [&](const std::string&, const Tensor& w) { shown_HTT = w.to(at::kCPU, at::kDouble); },
      [&](const std::string& name) { return name == name_ + ".weights"; });
  run(nn::Batch::of(std::vector<std::vector<int64_t>>{ids_}), std::move(options));
  std::vector<std::vector<std::vector<double>>> out;
  if (!shown_HTT.defined()) return out;
  shown_HTT = shown_HTT.contiguous();
  const double* next = shown_HTT.const_data_ptr<double>();
  for (int64_t h = 0; h < shown_HTT.size(0); ++h) {
    out.emplace_back();
    for (int64_t i = 0; i < shown_HTT.size(1); ++i, next += shown_HTT.size(2))
      out.back().emplace_back(next, next + shown_HTT.size(2));
  }
  return out;
}

bool MixingMap::step(int64_t tokens) {
  const auto n = static_cast<int64_t>(ids_.size());
  if (!whole_TD_.defined()) whole_TD_ = outputs({-1})[0];
  std::vector<int64_t> without;
  for (; next_ < n && static_cast<int64_t>(without.size()) < std::max<int64_t>(1, tokens / n);
       ++next_)
    without.push_back(next_);
  if (without.empty()) return true;
  const at::NoGradGuard constants;
  const Tensor change_CT = (outputs(without) - whole_TD_).norm(2, {-1});
  const Tensor share_CT = change_CT / whole_TD_.norm(2, {-1}).clamp_min(1e-12);
  for (size_t c = 0; c < without.size(); ++c)
    for (int64_t i = 0; i < n; ++i)
      values_[static_cast<size_t>(i)][static_cast<size_t>(without[c])] =
          share_CT[static_cast<int64_t>(c)][i].item<double>();
  return next_ == n;
}

}  // namespace tessera::serve
