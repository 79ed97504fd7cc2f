#include "tessera/train/objective/preference/preference_loss.h"

#include <cmath>

namespace tessera::train {
namespace {

struct Value {
  double loss = 0, slope = 0;
};

/// -ln s(x), without overflow at either end.
Value log_loss(double x) {
  const double loss = std::max(0.0, -x) + std::log1p(std::exp(-std::abs(x)));
  return {loss, -1 / (1 + std::exp(x))};
}

/// For a share of wrongly labelled pairs (label smoothing).
Value smoothed(double x, double share) {
  const Value right = log_loss(x), wrong = log_loss(-x);
  return {(1 - share) * right.loss + share * wrong.loss,
          (1 - share) * right.slope - share * wrong.slope};
}

/// Log-odds of a mean log-probability, which must be below 0.
Value log_odds(double x) {
  constexpr double kCertain = -1e-12;  // beyond it the odds are infinite
  x = std::min(x, kCertain);
  const double rest = -std::expm1(x);
  return {x - std::log(rest), 1 / rest};
}

}  // namespace

PairLoss pair_loss(const AnswerScore& chosen,
                   const AnswerScore& rejected,
                   const PreferenceRecipe& how) {
  const double beta = how.strength();
  const auto length = [&](const AnswerScore& answer) {
    return how.means() ? static_cast<double>(answer.tokens) : 1.0;
  };
  const auto ahead = [&](const AnswerScore& answer) {
    const double reference = how.has_reference() ? answer.reference : 0;
    return (answer.log_p - reference) / length(answer);
  };
  PairLoss out;
  const double of_chosen = ahead(chosen), of_rejected = ahead(rejected);
  out.reward_chosen = beta * of_chosen;
  out.reward_rejected = beta * of_rejected;
  const double z = of_chosen - of_rejected;
  const auto take = [&](double loss, double by_chosen, double by_rejected) {
    out.loss = loss;
    out.d_chosen = by_chosen / length(chosen);
    out.d_rejected = by_rejected / length(rejected);
  };
  switch (how.loss) {
    case PreferenceLoss::dpo:
    case PreferenceLoss::simpo: {
      const double behind = how.loss == PreferenceLoss::simpo ? beta * how.margin : 0;
      const Value v = smoothed(beta * z - behind, how.smoothing);
      take(v.loss, beta * v.slope, -beta * v.slope);
      break;
    }
    case PreferenceLoss::ipo: {
      const double off = z - 1 / (2 * beta);
      take(off * off, 2 * off, -2 * off);
      break;
    }
    case PreferenceLoss::hinge: {
      const double off = 1 - beta * z;
      take(std::max(0.0, off), off > 0 ? -beta : 0, off > 0 ? beta : 0);
      break;
    }
    case PreferenceLoss::orpo: {
      const Value c = log_odds(of_chosen), r = log_odds(of_rejected), v = log_loss(c.loss - r.loss);
      take(beta * v.loss, beta * v.slope * c.slope, -beta * v.slope * r.slope);
      break;
    }
  }
  const double per_token = how.nll() / static_cast<double>(chosen.tokens);
  out.loss -= per_token * chosen.log_p;
  out.d_chosen -= per_token;
  return out;
}

}  // namespace tessera::train
