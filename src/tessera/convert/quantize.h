// A model's matrices in fewer bits, as a GGUF file: which type each tensor gets, and the file.
// Torch-free.
//
// Recipes have the names, numbers and choices of llama.cpp's mixtures (llama-quant.cpp of
// llama-cpp-python 0.3.36): "Q4_K_M" puts most matrices into q4_k, and those that suffer most,
// attention's values and the way down of a part of the layers, into q6_k. Bytes are equal to what
// llama_model_quantize writes of the same GGUF file.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/convert/gguf_model.h"
#include "tessera/kernels/weights/error_feedback.h"

namespace tessera::convert {

/// Throws Error(file) for a number of a tensor of this name that blocks cannot hold.
void check_finite(const std::string& name, std::span<const float> numbers);

/// Names of recipes: "Q4_K_M", "Q8_0", "F16", ...
std::vector<std::string> quantize_recipes();

/// A type for every tensor whose GGUF name the glob matches ("blk.*.attn_v.weight").
struct TypeRule {
  std::string glob;
  DType type;
};
/// "GLOB=TYPE"; throws Error(usage) with what is wrong in it.
TypeRule parse_type_rule(const std::string& text);

/// How much the columns of a matrix matter: mean squares of what they multiplied, by GGUF name; of
/// several matrices (experts) one row after the other.
using Importance = std::map<std::string, std::vector<float>, std::less<>>;

/// A file of llama.cpp's imatrix in its GGUF form. Throws Error(file) for what is none.
Importance read_importance(const std::filesystem::path& path);
void write_importance(const std::filesystem::path& path,
                      const Importance& importance,
                      int64_t tokens,
                      const std::string& text);

/// Mean products X^T X, [k, k], of what matrix `index` of a tensor multiplied; null where nothing
/// did. They hold until the next call. Asked in the order of the model's tensors.
using InputProductsOf = std::function<const float*(const std::string& name, int64_t index)>;

struct QuantizeOptions {
  std::string recipe;
  std::vector<TypeRule> rules;  // the first that matches, before the recipe
  bool pure = false;            // the recipe's main type alone
  bool requantize = false;      // take matrices that are in blocks already, at a loss
  const Importance* importance = nullptr;
  /// Where given, values of calibrated() tensors are rounded with error feedback (GPTQ).
  InputProductsOf products;
  kernels::FeedbackOptions feedback;
  int64_t part_bytes = 0;  // of files in parts; 0 = one
  /// After each tensor.
  std::function<void(size_t done, size_t total, const std::string& name, DType type)> progress;
};

struct QuantizeReport {
  std::vector<std::filesystem::path> files;
  int64_t bytes = 0, bytes_before = 0, elements = 0;
  std::map<DType, int64_t> elements_of;
  std::vector<std::string> notes;  // tensors whose rows are no whole blocks of their type
  std::vector<DType> types;        // of the tensors, in their order
};

/// What would be written, without files. Throws Error(usage) for an unknown recipe, a rule that
/// matches nothing, blocks that would be rounded again, importance of another size, or a recipe
/// that needs it.
QuantizeReport report_of(const GgufModel& model, const QuantizeOptions& options);

/// The tensors that are rounded to what their inputs say where these are known: matrices in blocks
/// but embeddings, whose rows are looked up as well, in the order in which they are written.
std::vector<std::string> calibrated(const GgufModel& model, const QuantizeReport& report);

QuantizeReport write_quantized(GgufModel model,
                               const std::filesystem::path& out,
                               const QuantizeOptions& options);

}  // namespace tessera::convert
