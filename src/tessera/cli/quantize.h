// `quantize`, mostly without tensors. Torch-free.
#pragma once

#include <functional>
#include <string>

#include <CLI/CLI.hpp>

#include "tessera/convert/input_scaling.h"

namespace tessera::cli {

/// Inputs of importance measurement.
struct ImportanceArgs {
  std::string model, text;
  convert::LoadOptions loading;
  int64_t tokens = 0;  // max. tokens of the text
};
struct MeasuredImportance {
  convert::Importance by_name;
  int64_t tokens = 0;  // tokens used
  /// Further passes over the text: input products of the given tensors in this order, at most
  /// `bytes` bytes of them at a time.
  std::function<convert::InputProductsOf(std::vector<std::string> order, int64_t bytes)> products;
};
/// Measures importance by running the model, which needs tensors.
using ImportanceMeter = std::function<MeasuredImportance(const ImportanceArgs& args)>;

/// The implementation in the program with tensors.
ImportanceMeter importance_meter();

/// Calibration of quantization with the inputs of matrices on a text (--calibrate).
struct Calibration {
  std::string method;  // "", "gptq", "awq", "awq+gptq"
  kernels::FeedbackOptions feedback;
  int64_t bytes = int64_t{2} << 30;  // of input products at a time

  bool has(std::string_view name) const { return method.find(name) != std::string::npos; }
};
const std::vector<std::string>& calibration_methods();

/// Prepares the model and the options with the measured importance, and stores it in `importance`.
/// Returns notes.
std::vector<std::string> calibrate(const Calibration& how,
                                   const MeasuredImportance& measured,
                                   convert::GgufModel& model,
                                   convert::Importance& importance,
                                   convert::QuantizeOptions& options);

std::function<int()> add_quantize(CLI::App& app, ImportanceMeter meter);

/// The option of `quantize` that needs tensors.
inline constexpr const char* kImportance = "--importance";

}  // namespace tessera::cli
