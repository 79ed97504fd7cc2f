// The columns of the table of forms (ops/form.h) that `tessera doctor --forms` and a page of the
// documentation show.
#pragma once

#include <array>

#include "tessera/ops/form.h"

namespace tessera::cli {

struct FormColumn {
  const char *key, *device, *heading, *title;
  ops::Setting setting;
};

/// CUDA with its kernels: where they are missing, the plain form takes their place.
inline const std::array<FormColumn, 7>& form_columns() {
  static const std::array<FormColumn, 7> kColumns{
      {{"cpu_float32", "CPU", "float32", "float32", {at::kCPU, at::kFloat, false}},
       {"cpu_float32_gradients",
        "CPU",
        "gradients",
        "float32, gradients",
        {at::kCPU, at::kFloat, true}},
       {"cpu_16_bit", "CPU", "16-bit", "bf16, fp16", {at::kCPU, at::kBFloat16, false}},
       {"cpu_16_bit_gradients",
        "CPU",
        "gradients",
        "bf16, fp16, gradients",
        {at::kCPU, at::kBFloat16, true}},
       {"cpu_float64", "CPU", "float64", "float64", {at::kCPU, at::kDouble, false}},
       {"cuda_float32", "CUDA", "float32", "float32", {at::kCUDA, at::kFloat, false, true}},
       {"cuda_float32_gradients",
        "CUDA",
        "gradients",
        "float32, gradients",
        {at::kCUDA, at::kFloat, true, true}}}};
  return kColumns;
}

}  // namespace tessera::cli
