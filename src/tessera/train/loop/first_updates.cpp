#include "tessera/train/loop/first_updates.h"

#include <algorithm>
#include <cmath>

#include <fmt/ranges.h>

namespace tessera::train {
namespace {

// Newly initialized decoders have gradient norms of 0.5 to 5, and a loss at least a hundredth of a
// nat from ln(vocab).
constexpr double kNoGradient = 1e-5, kSmallGradient = 0.1, kEven = 1e-3, kNoChange = 1e-4;
constexpr int64_t kSample = 256;  // weights of each parameter

/// The first values of a parameter, on the host.
std::vector<float> sample_of(const ParameterSet::Entry& entry) {
  const int64_t n = std::min(kSample, entry.decl.elements());
  const Tensor values = entry.tensor.detach().flatten().narrow(0, 0, n).cpu();
  return {values.const_data_ptr<float>(), values.const_data_ptr<float>() + n};
}

/// "a", "b" and 3 more.
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 4;
  const std::vector<std::string> shown(
      names.begin(), names.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, names.size())));
  return fmt::format(
      "{}{}", fmt::join(shown, ", "),
      names.size() > kShown ? fmt::format(" and {} more", names.size() - kShown) : "");
}

/// Parameters whose gradient is missing or all zeros.
std::vector<std::string> unreached(const ParameterSet& parameters) {
  const std::vector<Gradient> gradients = parameters.host_gradients();
  std::vector<std::string> names;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Gradient& one = gradients[i];
    if (one.data == nullptr ||
        std::all_of(one.data, one.data + one.elements, [](float g) { return g == 0; }))
      names.push_back(parameters.trained()[i].decl.name);
  }
  return names;
}

}  // namespace

FirstUpdates::FirstUpdates(const Schedule& schedule, double lr, int64_t steps) : lr_(lr) {
  while (moving_ + 1 < steps && rate_factor(schedule, moving_, steps) <= 0) ++moving_;
  const double first = rate_factor(schedule, moving_, steps);
  for (int64_t t = moving_; t < steps; ++t)
    factors_ += first > 0 ? rate_factor(schedule, t, steps) / first : 0;
}

std::vector<std::string> FirstUpdates::before(int64_t step,
                                              const ParameterSet& parameters,
                                              double gradient_norm,
                                              double loss,
                                              int64_t vocab) {
  std::vector<std::string> out;
  const bool even = vocab > 1 && std::abs(loss - std::log(static_cast<double>(vocab))) < kEven;
  if (step == 0 && (gradient_norm < kNoGradient || (even && gradient_norm < kSmallGradient)))
    out.push_back(fmt::format(
        "the gradient's norm is {:.3g}: the loss {:.4f}{} {}; expected another init, norm or scale "
        "of the stream",
        gradient_norm, loss, even ? ", which is ln(vocab) of logits without variance," : "",
        gradient_norm < kNoGradient ? "cannot move" : "hardly moves"));
  // after one update, gradients pass gates that are initialized with 0
  if (step == moving_ + 1)
    if (const auto names = unreached(parameters); !names.empty())
      out.push_back(fmt::format("no gradient reaches {} of {} parameters, which do not learn: {}",
                                names.size(), parameters.trained().size(), listed(names)));
  samples_.clear();
  if (step != moving_) return out;
  for (const ParameterSet::Entry& entry : parameters.trained())
    samples_.push_back(sample_of(entry));
  return out;
}

std::vector<std::string> FirstUpdates::after(int64_t step, const ParameterSet& parameters) {
  if (step != moving_ || samples_.size() != parameters.trained().size()) return {};
  double size = 0, change = 0;
  for (size_t i = 0; i < samples_.size(); ++i) {
    const std::vector<float> now = sample_of(parameters.trained()[i]);
    for (size_t k = 0; k < samples_[i].size(); ++k) {
      const double before = samples_[i][k], moved = now[k] - before;
      size += before * before;
      change += moved * moved;
    }
  }
  samples_.clear();
  if (size == 0) return {};
  const double relative = std::sqrt(change / size), whole = relative * factors_;
  if (whole >= kNoChange) return {};
  return {fmt::format(
      "the update moves the weights by {:.2g} of their size, over the whole run by at most {:.2g}: "
      "nothing is learned; raise optimizer.lr ({:.3g}) or train.steps",
      relative, whole, lr_)};
}

}  // namespace tessera::train
