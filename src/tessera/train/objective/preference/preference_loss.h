// The loss of one preference pair and its derivatives. Torch-free.
//   z = (lp_c - lp_r) - (ref_c - ref_r), log-probabilities as sums over an answer's tokens or means
//   dpo    -(1 - e) ln s(b z) - e ln s(-b z)      Rafailov et al. 2023, arXiv:2305.18290, eq. 7
//   ipo    (z - 1 / (2 b))^2                      Azar et al. 2023, arXiv:2310.12036, eq. 17
//   hinge  max(0, 1 - b z)                        Zhao et al. 2023, arXiv:2305.10425
//   simpo  dpo of b z - b m, without ref          Meng et al. 2024, arXiv:2405.14734, eq. 6
//   orpo   -b ln s(o(lp_c) - o(lp_r)), o(x) = x - ln(1 - e^x), without ref
//                                                 Hong et al. 2024, arXiv:2403.07691, eq. 6, 7
// and w times the mean nats of the chosen answer's tokens.
#pragma once

#include <cstdint>

#include "tessera/train/objective/preference/preference_recipe.h"

namespace tessera::train {

/// Of one answer.
struct AnswerScore {
  double log_p = 0;      // sum over its tokens
  double reference = 0;  // the same by the reference model
  int64_t tokens = 1;
};

struct PairLoss {
  double loss = 0;
  double d_chosen = 0, d_rejected = 0;            // by AnswerScore::log_p
  double reward_chosen = 0, reward_rejected = 0;  // beta times (log_p - reference)
};

PairLoss pair_loss(const AnswerScore& chosen,
                   const AnswerScore& rejected,
                   const PreferenceRecipe& how);

}  // namespace tessera::train
