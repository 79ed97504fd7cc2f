#include "tessera/ops/weights/head_linear.h"

#include "tessera/ops/weights/quantized_operands.h"

namespace tessera::ops {

Tensor head_linear(const Tensor& x_NHI,
                   const Weight& w,
                   const Weight* bias,
                   const ProductSettings& settings) {
  const int64_t heads = x_NHI.size(1), in = x_NHI.size(2);
  require(w.size(1) == in && w.size(0) % heads == 0, "head_linear",
          "{}: {} heads of {} channels meet a weight [{}, {}]", w.name(), heads, in, w.size(0),
          w.size(1));
  check_reads_no_rows(w);
  if (w.parts() != nullptr)
    return head_linear(x_NHI, Weight::dense(w.name(), w.tensor(settings)), bias, settings);
  if (w.rounding()) return head_linear(x_NHI, without_rounding(w), bias, settings);
  return w.storage()->heads(x_NHI, bias != nullptr ? bias->tensor() : Tensor(), settings);
}

}  // namespace tessera::ops
