#include "tessera/nn/step_products.h"

#include <algorithm>

#include "tessera/kernels/weights/blocks.h"
#include "tessera/kernels/weights/matmul.h"
#include "tessera/nn/decode_step.h"
#include "tessera/ops/weights/product_input.h"

namespace tessera::nn {
namespace {

/// Whether the memory of a weight holds its numbers as float32.
bool holds_floats(const ops::Weight& w) {
  return w.dtype() == DType::f32 && w.readable_by_kernels() && w.data() != nullptr &&
         reinterpret_cast<uintptr_t>(w.data()) % alignof(float) == 0;
}

/// Columns that fill the lanes of every target.
constexpr int64_t kStepTile = 32;

int64_t tiles_of(const StepTarget& target) {
  return target.product == nullptr ? 0 : (target.product->rows() + kStepTile - 1) / kStepTile;
}

}  // namespace

StepNumbers::StepNumbers(WeightPtr weight) : weight_(std::move(weight)) {
  if (weight_ && !holds_floats(*weight_))
    copy_ = weight_->tensor().detach().to(at::kCPU, at::kFloat).contiguous();
}

bool StepNumbers::stay(const WeightPtr& weight) {
  return weight == nullptr ||
         (weight->parts() == nullptr && (holds_floats(*weight) || !weight->trainable()));
}

StepNumbers StepWeights::numbers(const WeightPtr& weight) {
  if (StepNumbers::stay(weight)) return StepNumbers(weight);
  serve_ = false;
  return {};
}

std::shared_ptr<const NormStep> StepWeights::norm(const Norm& norm) {
  auto step = norm.step();
  serve_ = serve_ && step != nullptr;
  return step;
}

StepProduct StepWeights::product(const Linear& linear) {
  StepProduct out{linear.weight, numbers(linear.bias)};
  const ops::Weight& w = *out.weight;
  serve_ = serve_ && w.parts() == nullptr && w.shape().size() == 2 && w.readable_by_kernels() &&
           !w.is_of_whole_texts() && kernels::can_dequantize(w.dtype());
  return out;
}

void StepWeights::alike(std::initializer_list<const StepProduct*> products) {
  const ops::Weight& first = *(*products.begin())->weight;
  std::optional<kernels::Arithmetic> rounded;
  for (const StepProduct* product : products) {
    if (product == nullptr) continue;
    const ops::Weight& w = *product->weight;
    if (!serve_ || !ops::same_order(first.columns(), w.columns(), first.size(1))) {
      serve_ = false;
      return;
    }
    const kernels::Arithmetic arithmetic = ops::arithmetic_of(w);
    if (arithmetic == kernels::Arithmetic::float32) continue;
    serve_ = arithmetic == rounded.value_or(arithmetic);
    rounded = arithmetic;
  }
}

int64_t StepInput::floats(int64_t rows, int64_t width) {
  if (width == 0) return 0;
  StepMemory memory;
  memory.take(rows * width);
  memory.take((kernels::rounded_bytes(rows, width) + 3) / 4);
  return memory.floats();
}

StepInput::StepInput(const float* x, int64_t rows, int64_t width, float* memory)
    : x_(x), rows_(rows), width_(width), memory_(memory) {}

bool StepInput::prepare(const Team& team, std::initializer_list<const StepProduct*> products) {
  StepMemory pieces;
  float* ordered = memory_ + pieces.take(rows_ * width_);
  float* digits = memory_ + pieces.take(0);
  const Team::Share mine = team.share(rows_);
  const int64_t own = mine.end - mine.begin;
  const int32_t* columns = (*products.begin())->weight->columns();
  if (columns != nullptr) {
    const int64_t first = mine.begin * width_;
    ops::in_order(x_ + first, own, width_, width_, columns, ordered + first);
    x_ = ordered;
  }
  for (const StepProduct* product : products) {
    if (product == nullptr) continue;
    const kernels::Arithmetic arithmetic = ops::arithmetic_of(*product->weight);
    if (arithmetic == kernels::Arithmetic::float32) continue;
    digits_ = kernels::rows_to_round(x_, rows_, width_, width_, arithmetic, digits);
    if (own > 0) kernels::round(digits_->some(mine.begin, own));
    return true;
  }
  return columns != nullptr;
}

void StepInput::times(const StepProduct& product, int64_t begin, int64_t end, float* y) const {
  const ops::Weight& w = *product.weight;
  const auto* data = static_cast<const char*>(w.data()) + begin * storage_bytes(w.dtype(), width_);
  const float* bias = product.bias.data();
  if (bias != nullptr) bias += begin;
  if (digits_ && ops::arithmetic_of(w) != kernels::Arithmetic::float32)
    kernels::digit_matmul(*digits_, w.dtype(), data, end - begin, bias, y + begin, product.rows());
  else
    kernels::matmul(x_, rows_, width_, width_, w.dtype(), data, end - begin, bias, y + begin,
                    product.rows());
}

void multiply(const Team& team, const StepInput& x, std::initializer_list<StepTarget> targets) {
  int64_t tiles = 0;
  for (const StepTarget& t : targets) tiles += tiles_of(t);
  const Team::Share mine = team.share(tiles);
  int64_t first = 0;
  for (const StepTarget& t : targets) {
    const int64_t n = tiles_of(t);
    const int64_t begin = std::clamp<int64_t>(mine.begin - first, 0, n),
                  end = std::clamp<int64_t>(mine.end - first, 0, n);
    if (begin < end)
      x.times(*t.product, begin * kStepTile, std::min(end * kStepTile, t.product->rows()), t.y);
    first += n;
  }
}

}  // namespace tessera::nn
