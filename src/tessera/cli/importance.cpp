// What `quantize` does with tensors: what matrices multiply, from runs over a text.
#include <algorithm>

#include <unistd.h>

#include "tessera/base/text_input.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/model_source.h"
#include "tessera/cli/quantize.h"
#include "tessera/convert/gguf_model.h"
#include "tessera/infer/evaluation/evaluate.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/ops/weights/input_products.h"
#include "tessera/ops/weights/input_squares.h"

namespace tessera::cli {
namespace {

/// First bytes of a weight's matrices, of which there are several where it holds experts.
std::vector<const void*> matrices_of(const ops::Weight& weight) {
  if (weight.shape().size() != 3) return {weight.data()};
  std::vector<const void*> out;
  for (int64_t i = 0; i < weight.size(0); ++i) out.push_back(weight.slice(i).data());
  return out;
}

/// Mean squares by column, of several matrices one after the other; empty where nothing multiplied
/// them. A matrix without rows among others that have some counts all its columns alike.
std::vector<float> means_of(const ops::Weight& weight, const ops::InputSquares& squares) {
  const int64_t k = weight.shape().back();
  std::vector<float> means;
  bool any = false;
  for (const void* matrix : matrices_of(weight)) {
    const ops::InputSquares::Sums* sums = squares.of(matrix);
    any = any || sums != nullptr;
    for (int64_t i = 0; i < k; ++i)
      means.push_back(sums == nullptr ? 1
                                      : static_cast<float>(sums->squares[static_cast<size_t>(i)] /
                                                           static_cast<double>(sums->rows)));
  }
  return any ? means : std::vector<float>();
}

/// A model and the text that it reads, once for every pass over it.
class Reading {
 public:
  explicit Reading(const ImportanceArgs& args)
      : loaded_(infer::load_model(args.model, args.loading)), families_(args.loading.families) {
    say_differences(loaded_.source);
    if (!loaded_.tokenizer)
      fail(ErrorKind::usage, "quantize", "{} has no tokenizer, and --importance reads text",
           args.model);
    const auto ids = loaded_.tokenizer->encode(read_text_input(args.text, &cancel_token()),
                                               {.add_special = true});
    ids_.assign(ids.begin(), ids.end());
    options_.window = 512;
    options_.max_tokens = args.tokens;
    options_.cancel = &cancel_token();
    if (const int64_t limit = loaded_.model.spec().max_positions(); limit > 0)
      options_.window = std::min(options_.window, limit);
  }

  /// Reads the text; returns how many of its tokens.
  int64_t pass(const std::string& what) {
    const bool terminal = isatty(STDERR_FILENO) != 0;
    options_.progress = [&](int64_t done, int64_t total) {
      if (terminal) fmt::print(stderr, "\r\x1b[K{}: {} of {} tokens", what, done, total);
    };
    const infer::EvalResult result = infer::evaluate(loaded_.model, ids_, options_);
    if (terminal) fmt::print(stderr, "\r\x1b[K");
    return result.targets;
  }

  /// The weights that a tensor of the GGUF file is made of, by its name.
  std::map<std::string, std::vector<model::WeightPtr>> weights() const {
    std::map<std::string, std::vector<model::WeightPtr>> out;
    for (const auto& [foreign, ours] : convert::gguf_names(loaded_.source, {families_, {}, {}}))
      for (const std::string& name : ours)
        out[foreign].push_back(loaded_.model.weights().asked(name));
    return out;
  }

 private:
  infer::LoadedModel loaded_;
  std::filesystem::path families_;
  std::vector<int64_t> ids_;
  infer::EvalOptions options_;
};

/// X^T X of tensors that are asked for in an order known before: as many at a time as the memory
/// limit allows, with a pass over the text each time.
class GatheredProducts {
 public:
  GatheredProducts(std::shared_ptr<Reading> reading, std::vector<std::string> order, int64_t bytes)
      : reading_(std::move(reading)),
        weights_(reading_->weights()),
        order_(std::move(order)),
        bytes_(bytes) {}

  const float* operator()(const std::string& name, int64_t index) {
    if (!gathered_.contains(name)) gather(name);
    const auto& of_matrices = gathered_.at(name);
    if (of_matrices.empty()) return nullptr;
    const std::vector<float>& own = of_matrices.at(static_cast<size_t>(index));
    return own.empty() ? nullptr : own.data();
  }

 private:
  /// The weight whose inputs are a tensor's: of several fused ones the first.
  const ops::Weight* weight_of(const std::string& name) const {
    const auto found = weights_.find(name);
    return found == weights_.end() || found->second.empty() ? nullptr : found->second.front().get();
  }
  static int64_t bytes_of(const ops::Weight& weight) {
    const int64_t k = weight.shape().back();
    return 4 * k * k * (weight.shape().size() == 3 ? weight.size(0) : 1);
  }

  void gather(const std::string& name) {
    gathered_.clear();
    const auto begin = std::find(order_.begin() + next_, order_.end(), name);
    require(begin != order_.end(), "quantize", "inputs of {} are asked for out of order", name);
    auto end = begin;
    std::vector<const void*> matrices;
    for (int64_t bytes = 0; end != order_.end(); ++end) {
      const ops::Weight* weight = weight_of(*end);
      if (weight == nullptr) continue;
      bytes += bytes_of(*weight);
      if (end != begin && bytes > bytes_) break;
      for (const void* matrix : matrices_of(*weight)) matrices.push_back(matrix);
    }
    ops::InputProducts products(matrices);
    reading_->pass(fmt::format("inputs of tensors {} to {} of {}", begin - order_.begin() + 1,
                               end - order_.begin(), order_.size()));
    for (auto at = begin; at != end; ++at) {
      auto& to = gathered_[*at];
      if (const ops::Weight* weight = weight_of(*at); weight != nullptr && to.empty())
        for (const void* matrix : matrices_of(*weight)) to.push_back(products.take(matrix));
    }
    next_ = end - order_.begin();
  }

  std::shared_ptr<Reading> reading_;
  std::map<std::string, std::vector<model::WeightPtr>> weights_;
  std::vector<std::string> order_;
  int64_t bytes_;
  std::ptrdiff_t next_ = 0;
  std::map<std::string, std::vector<std::vector<float>>> gathered_;
};

MeasuredImportance importance_from_text(const ImportanceArgs& args) {
  const auto reading = std::make_shared<Reading>(args);
  MeasuredImportance out;
  {
    const ops::InputSquares squares;
    out.tokens = reading->pass("reading");
    for (const auto& [foreign, ours] : reading->weights())
      for (const model::WeightPtr& weight : ours) {
        const auto means = means_of(*weight, squares);
        if (means.empty()) continue;
        out.by_name.emplace(foreign, means);
        break;
      }
  }
  if (out.by_name.empty())
    fail(ErrorKind::internal, "quantize", "no product of the model was seen");
  out.products = [reading](std::vector<std::string> order, int64_t bytes) {
    const auto gathered = std::make_shared<GatheredProducts>(reading, std::move(order), bytes);
    return [gathered](const std::string& name, int64_t index) { return (*gathered)(name, index); };
  };
  return out;
}

}  // namespace

std::function<int()> add_measuring_quantize(CLI::App& app) {
  return add_quantize(app, importance_from_text);
}

ImportanceMeter importance_meter() {
  return importance_from_text;
}

}  // namespace tessera::cli
