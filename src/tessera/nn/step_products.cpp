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

/// Calls body(matrix, tiles of its columns) for the matrices of a target that meet rows.
template <class Body>
void for_matrices(const StepTarget& target, const StepInput& x, Body body) {
  if (target.product == nullptr) return;
  const int64_t tiles = (target.product->rows() + kStepTile - 1) / kStepTile;
  for (int64_t m = 0; m < x.matrices(); ++m)
    if (const Team::Share rows = x.rows_of(m); rows.begin < rows.end) body(m, tiles);
}

}  // namespace

StepNumbers::StepNumbers(WeightPtr weight) : weight_(std::move(weight)) {
  // without numbers on the meta device, where no step is taken (ops/planned_memory.h)
  if (weight_ && !holds_floats(*weight_) && !weight_->device().is_meta())
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
  const ops::Weight& w = *linear.weight;
  StepProduct out{linear.weight, numbers(linear.bias), ops::arithmetic_of(w, products_.arithmetic)};
  const size_t axes = w.shape().size();
  serve_ = serve_ && w.parts() == nullptr && (axes == 2 || axes == 3) && w.readable_by_kernels() &&
           !products_.whole_texts && kernels::can_dequantize(w.dtype());
  if (axes == 3) out.matrices = w.size(0);
  return out;
}

StepProduct StepWeights::heads(const WeightPtr& weight, int64_t heads) {
  Linear linear;
  linear.weight = weight;
  StepProduct out = product(linear);
  serve_ = serve_ && weight->shape().size() == 2;
  out.matrices = heads;
  return out;
}

void StepWeights::alike(std::initializer_list<const StepProduct*> products) {
  const ops::Weight& first = *(*products.begin())->weight;
  std::optional<kernels::Arithmetic> rounded;
  for (const StepProduct* product : products) {
    if (product == nullptr) continue;
    const ops::Weight& w = *product->weight;
    // experts have orders of their own
    const int64_t orders = first.shape().size() == 3 ? first.size(0) : 1;
    if (!serve_ || !ops::same_order(first.columns(), w.columns(), orders * first.shape().back())) {
      serve_ = false;
      return;
    }
    if (product->arithmetic == kernels::Arithmetic::float32) continue;
    serve_ = product->arithmetic == rounded.value_or(product->arithmetic);
    rounded = product->arithmetic;
  }
}

int64_t StepInput::floats(int64_t rows, int64_t width) {
  if (width == 0) return 0;
  StepMemory memory;
  memory.take(rows * width);
  memory.take((kernels::rounded_bytes(rows, width) + 3) / 4);
  return memory.floats();
}

StepInput::StepInput(
    const float* x, int64_t rows, int64_t width, float* memory, std::span<const int64_t> offsets)
    : x_(x), rows_(rows), width_(width), memory_(memory), offsets_(offsets) {}

bool StepInput::prepare(const Team& team, std::initializer_list<const StepProduct*> products) {
  StepMemory pieces;
  float* ordered = memory_ + pieces.take(rows_ * width_);
  float* digits = memory_ + pieces.take(0);
  const Team::Share mine = team.share(rows_);
  const int64_t own = mine.end - mine.begin;
  const StepProduct& any = **products.begin();
  const bool reorders = any.weight->columns() != nullptr;
  for (int64_t m = 0; reorders && m < matrices(); ++m) {
    const Team::Share rows = rows_of(m);
    const int64_t first = std::max(rows.begin, mine.begin), end = std::min(rows.end, mine.end);
    if (first < end)
      ops::in_order(x_ + first * width_, end - first, width_, width_, any.columns(m),
                    ordered + first * width_);
  }
  if (reorders) x_ = ordered;
  for (const StepProduct* product : products) {
    if (product == nullptr) continue;
    if (product->arithmetic == kernels::Arithmetic::float32) continue;
    digits_ = kernels::rows_to_round(x_, rows_, width_, width_, product->arithmetic, digits);
    if (own > 0) kernels::round(digits_->some(mine.begin, own));
    return true;
  }
  return reorders;
}

void StepInput::times(const StepProduct& product,
                      int64_t matrix,
                      int64_t begin,
                      int64_t end,
                      float* y,
                      int64_t stride) const {
  const ops::Weight& w = *product.weight;
  const int64_t row = matrix * product.rows() + begin;  // of all matrices
  const auto* data = static_cast<const char*>(w.data()) + row * storage_bytes(w.dtype(), width_);
  const float* bias = product.bias.data();
  if (bias != nullptr) bias += row;
  const Team::Share rows = rows_of(matrix);
  const int64_t count = rows.end - rows.begin;
  y += rows.begin * stride + begin;
  if (digits_ && product.arithmetic != kernels::Arithmetic::float32)
    kernels::digit_matmul(digits_->some(rows.begin, count), w.dtype(), data, end - begin, bias, y,
                          stride);
  else
    kernels::matmul(x_ + rows.begin * width_, count, width_, width_, w.dtype(), data, end - begin,
                    bias, y, stride);
}

void multiply(const Team& team, const StepInput& x, std::initializer_list<StepTarget> targets) {
  const auto read_by = [&](const StepTarget& t) -> const StepInput& {
    return t.x != nullptr ? *t.x : x;
  };
  int64_t tiles = 0;
  for (const StepTarget& t : targets)
    for_matrices(t, read_by(t), [&](int64_t, int64_t n) { tiles += n; });
  const Team::Share mine = team.share(tiles);
  int64_t first = 0;
  for (const StepTarget& t : targets)
    for_matrices(t, read_by(t), [&](int64_t matrix, int64_t n) {
      const int64_t begin = std::clamp<int64_t>(mine.begin - first, 0, n),
                    end = std::clamp<int64_t>(mine.end - first, 0, n);
      if (begin < end)
        read_by(t).times(*t.product, matrix, begin * kStepTile,
                         std::min(end * kStepTile, t.product->rows()), t.y,
                         t.stride > 0 ? t.stride : t.product->rows());
      first += n;
    });
}

}  // namespace tessera::nn
