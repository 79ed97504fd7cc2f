// The gates of the mLSTM as those of a linear recurrence, and its read-out.
// Beck et al. 2024, arXiv:2405.04517.
#pragma once

#include "tessera/ops/tensor.h"

namespace tessera::ops {

struct MlstmGates {
  Tensor log_decay_BTH;  // log f_t + m_{t-1} - m_t, at most 0
  Tensor write_BTH;      // e^{i_t - m_t}, at most 1: the factor on k_t v_t^T
  Tensor m_BTH;          // m_t = max(log f_t + m_{t-1}, i_t)
  Tensor last_BH;        // m of the last token
};

/// Float32 or double gates. m_BH is the maximum before the first token, undefined for 0.
MlstmGates mlstm_gates(const Tensor& log_f_BTH, const Tensor& i_BTH, const Tensor& m_BH = {});

/// y_BTHV holds the values' columns and, last, that of the normaliser: the former divided by
/// max(|normaliser|, e^{-m}) + eps.
Tensor mlstm_read(const Tensor& y_BTHV, const Tensor& m_BTH, double eps);

}  // namespace tessera::ops
