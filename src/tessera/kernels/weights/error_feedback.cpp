#include "tessera/kernels/weights/error_feedback.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/weights/error_feedback.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/simd_inl.h"
#include "tessera/kernels/targets.h"
#include "tessera/kernels/weights/block_codes.h"
#include "tessera/kernels/weights/blocks.h"
#include "tessera/kernels/weights/matmul.h"
#include "tessera/kernels/weights/quantize.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

/// y += a x
void add_scaled(float a, const float* x, int64_t n, float* y) {
  const V32 by = all(a);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(hn::MulAdd(by, load(x + i), load(y + i)), y + i);
  if (i < n)
    store_part(hn::MulAdd(by, load_part(x + i, n - i), load_part(y + i, n - i)), y + i, n - i);
}

/// y -= sum over i of a[i] times row i of x, four rows at a time; `row` numbers apart.
void subtract_rows(
    const double* a, const double* x, int64_t rows, int64_t row, int64_t n, double* y) {
  const F64 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + 4 <= rows; i += 4) {
    const double* from = x + i * row;
    const V64 a0 = hn::Set(d, a[i]), a1 = hn::Set(d, a[i + 1]), a2 = hn::Set(d, a[i + 2]),
              a3 = hn::Set(d, a[i + 3]);
    int64_t c = 0;
    for (; c + lanes <= n; c += lanes) {
      V64 v = hn::LoadU(d, y + c);
      v = hn::NegMulAdd(a0, hn::LoadU(d, from + c), v);
      v = hn::NegMulAdd(a1, hn::LoadU(d, from + row + c), v);
      v = hn::NegMulAdd(a2, hn::LoadU(d, from + 2 * row + c), v);
      hn::StoreU(hn::NegMulAdd(a3, hn::LoadU(d, from + 3 * row + c), v), d, y + c);
    }
    for (; c < n; ++c)
      for (int64_t r = 0; r < 4; ++r) y[c] -= a[i + r] * from[r * row + c];
  }
  for (; i < rows; ++i)
    for (int64_t c = 0; c < n; ++c) y[c] -= a[i] * x[i * row + c];
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(add_scaled);
HWY_EXPORT(subtract_rows);

namespace {

constexpr int64_t kPanel = 64;           // columns that are factored at a time
constexpr int64_t kRowsAtOnce = 512;     // that are rounded together
constexpr int64_t kColumnsAtOnce = 128;  // in the order of activity

/// M = L D L^T in place: the lower triangle becomes L, without its unit diagonal, which holds D.
/// Returns whether all of D is positive.
bool factor(std::vector<double>& m, int64_t k) {
  std::vector<double> turned(static_cast<size_t>(kPanel * k));
  for (int64_t begin = 0; begin < k; begin += kPanel) {
    const int64_t end = std::min(k, begin + kPanel), width = end - begin;
    const double* pivots = m.data();
    const auto d = [&](int64_t j) { return pivots[j * k + j]; };
    // columns of the panel in one row, from those before them in it: L_ij D_j
    const auto solve = [&](int64_t i) {
      double* row = m.data() + i * k;
      for (int64_t j = begin; j < std::min(i, end); ++j)
        for (int64_t p = begin; p < j; ++p) row[j] -= row[p] * m[static_cast<size_t>(j * k + p)];
      for (int64_t j = begin; j < std::min(i, end); ++j) {
        const double scaled = row[j];
        row[j] /= d(j);
        if (i < end) row[i] -= row[j] * scaled;
      }
    };
    for (int64_t i = begin; i < end; ++i) {
      solve(i);
      if (!(d(i) > 0)) return false;
    }
    parallel_for(k - end, 8, [&](int64_t from, int64_t to) {
      for (int64_t i = end + from; i < end + to; ++i) {
        solve(i);
        for (int64_t p = 0; p < width; ++p)
          turned[static_cast<size_t>(p * k + i)] = m[static_cast<size_t>(i * k + begin + p)];
      }
    });
    // what lies below and to the right
    parallel_in_turn(k - end, 4, [&](int64_t from, int64_t to) {
      double scaled[kPanel];
      for (int64_t i = end + from; i < end + to; ++i) {
        double* row = m.data() + i * k;
        for (int64_t p = 0; p < width; ++p) scaled[p] = row[begin + p] * d(begin + p);
        HWY_DYNAMIC_DISPATCH(subtract_rows)
        (scaled, turned.data() + end, width, k, i - end + 1, row + end);
      }
    });
  }
  return true;
}

/// What the codes of an element stand for: origin + step code, or step times a level.
struct Grid {
  float origin, step;
};

/// Of all elements of `count` blocks.
void read_grids(DType type, const uint8_t* blocks, int64_t count, Grid* grids) {
  const int64_t elements = layout_of(type).block_elements, size = layout_of(type).block_bytes;
  const bool even = has_even_codes(type);
  const int last = even ? code_count(type) - 1 : type == DType::mxfp4 ? 1 : 8;  // whose level is 1
  uint8_t block[256], codes[256];
  float first[256], second[256];
  for (int64_t b = 0; b < count; ++b) {
    std::memcpy(block, blocks + b * size, static_cast<size_t>(size));
    const auto values = [&](int code, float* to) {
      std::fill_n(codes, elements, static_cast<uint8_t>(code));
      put_codes(type, codes, block);
      dequantize(type, block, elements, to);
    };
    values(0, first);
    values(last, second);
    for (int64_t i = 0; i < elements; ++i)
      *grids++ = even ? Grid{first[i], (second[i] - first[i]) / static_cast<float>(last)}
                      : Grid{0, second[i]};
  }
}

/// The code whose value is nearest to v, and that value.
class Nearest {
 public:
  explicit Nearest(DType type)
      : levels_(has_even_codes(type)   ? nullptr
                : type == DType::mxfp4 ? kTwiceE2m1
                                       : kLevels),
        most_(static_cast<float>(code_count(type) - 1)) {}
  uint8_t operator()(float v, const Grid& grid, float& value) const {
    if (levels_ != nullptr) return level(v, grid.step, value);
    const float code =
        grid.step == 0 ? 0 : std::clamp(std::nearbyint((v - grid.origin) / grid.step), 0.0F, most_);
    value = grid.origin + grid.step * code;
    return static_cast<uint8_t>(code);
  }

 private:
  uint8_t level(float v, float step, float& value) const {
    uint8_t best = 0;
    value = step * levels_[0];
    for (uint8_t code = 1; code < 16; ++code) {
      const float own = step * levels_[code];
      if (std::abs(own - v) >= std::abs(value - v)) continue;
      value = own;
      best = code;
    }
    return best;
  }
  const int8_t* levels_;
  float most_;
};

}  // namespace

bool can_round_with_feedback(DType type) {
  return can_quantize(type) && code_count(type) > 0;
}

ErrorFeedback::ErrorFeedback(const float* products, int64_t k, const FeedbackOptions& options)
    : products_(products),
      k_(k),
      by_activity_(options.by_activity),
      order_(static_cast<size_t>(k)),
      diagonal_(static_cast<size_t>(k)),
      taken_over_(static_cast<size_t>(k * k)) {
  cap_targets();
  double mean = 0;
  for (int64_t c = 0; c < k; ++c) {
    diagonal_[static_cast<size_t>(c)] = products[c * k + c];
    mean += products[c * k + c] / static_cast<double>(k);
  }
  if (!std::isfinite(mean) || mean <= 0 ||
      *std::min_element(diagonal_.begin(), diagonal_.end()) < 0)
    fail(ErrorKind::usage, "quantize",
         "inputs have a mean square of {}; expected finite inputs that are not all 0", mean);
  std::iota(order_.begin(), order_.end(), 0);
  if (by_activity_)
    std::stable_sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
      return diagonal_[static_cast<size_t>(a)] > diagonal_[static_cast<size_t>(b)];
    });
  // U D U^T is L D L^T of the matrix read from its end
  std::vector<double> m(static_cast<size_t>(k * k));
  const auto column = [&](int64_t i) {
    return static_cast<int64_t>(order_[static_cast<size_t>(k - 1 - i)]);
  };
  parallel_for(k, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j <= i; ++j)
        m[static_cast<size_t>(i * k + j)] = products[column(i) * k + column(j)];
      m[static_cast<size_t>(i * k + i)] += options.damping * mean;
    }
  });
  if (!factor(m, k))
    fail(ErrorKind::usage, "quantize",
         "the inputs' products are not positive with a damping of {}; expected a larger one",
         options.damping);
  parallel_for(k, 16, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c)
      for (int64_t j = 0; j < c; ++j)
        taken_over_[static_cast<size_t>(c * k + j)] =
            static_cast<float>(m[static_cast<size_t>((k - 1 - j) * k + k - 1 - c)]);
  });
}

void ErrorFeedback::feed(DType type, const float* w, int64_t rows, uint8_t* dst) const {
  const int64_t k = k_, elements = layout_of(type).block_elements,
                size = layout_of(type).block_bytes, of_row = k / elements * size;
  const int64_t step = by_activity_ ? kColumnsAtOnce : elements;
  std::vector<float> errors(static_cast<size_t>(rows * k)), now(static_cast<size_t>(rows * step)),
      current(by_activity_ ? 0 : now.size()), panel, within(static_cast<size_t>(step * step));
  std::vector<uint8_t> codes(static_cast<size_t>(rows * k)),
      blocks(static_cast<size_t>(rows * size));
  std::vector<Grid> grids(static_cast<size_t>(rows * k));
  const Nearest nearest(type);
  if (by_activity_) {
    quantize_rows(type, w, rows, k, diagonal_.data(), dst);
    parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
      read_grids(type, dst + begin * of_row, (end - begin) * (k / elements),
                 grids.data() + begin * k);
    });
  }
  for (int64_t begin = 0; begin < k; begin += step) {
    const int64_t n = std::min(step, k - begin);
    // what the columns before leave to these
    if (begin > 0) {
      panel.resize(static_cast<size_t>(n * begin));
      for (int64_t c = 0; c < n; ++c)
        std::copy_n(taken_over_.data() + (begin + c) * k, begin, panel.data() + c * begin);
      matmul(errors.data(), rows, begin, k, DType::f32, panel.data(), n, nullptr, now.data(), n);
    } else {
      std::fill_n(now.begin(), rows * n, 0.0F);
    }
    for (int64_t j = 0; j < n; ++j)
      for (int64_t c = j + 1; c < n; ++c)
        within[static_cast<size_t>(j * n + c)] =
            taken_over_[static_cast<size_t>((begin + c) * k + begin + j)];
    const int32_t* columns = order_.data() + begin;
    parallel_for(rows, 16, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        float* x = now.data() + r * n;
        if (!by_activity_) {
          // what the paper has in a block that is reached: the best that all its columns can do
          // about the errors before, y U = x with the block of U
          float* y = current.data() + r * n;
          std::copy_n(x, n, y);
          for (int64_t c = 0; c < n; ++c) HWY_DYNAMIC_DISPATCH(add_scaled)
          (-y[c], within.data() + c * n + c + 1, n - c - 1, y + c + 1);
          for (int64_t c = 0; c < n; ++c) y[c] += w[r * k + columns[c]];
        }
        for (int64_t c = 0; c < n; ++c) x[c] += w[r * k + columns[c]];
      }
    });
    if (!by_activity_)
      quantize_rows(type, current.data(), rows, n, diagonal_.data() + begin, blocks.data());
    parallel_for(rows, 4, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        Grid* grid = grids.data() + r * k;
        if (!by_activity_) {
          const uint8_t* block = blocks.data() + r * size;
          read_grids(type, block, 1, grid + begin);
          std::memcpy(dst + r * of_row + begin / elements * size, block, static_cast<size_t>(size));
        }
        float* x = now.data() + r * n;
        for (int64_t c = 0; c < n; ++c) {
          const int64_t column = columns[c];
          float value;
          codes[static_cast<size_t>(r * k + column)] = nearest(x[c], grid[column], value);
          const float error = w[r * k + column] - value;
          errors[static_cast<size_t>(r * k + begin + c)] = error;
          HWY_DYNAMIC_DISPATCH(add_scaled)
          (error, within.data() + c * n + c + 1, n - c - 1, x + c + 1);
        }
      }
    });
  }
  parallel_for(rows, 16, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r)
      for (int64_t b = 0; b < k / elements; ++b)
        put_codes(type, codes.data() + r * k + b * elements, dst + r * of_row + b * size);
  });
}

std::vector<double> ErrorFeedback::loss(const float* errors, int64_t rows) const {
  std::vector<double> out(static_cast<size_t>(rows));
  std::vector<float> y(static_cast<size_t>(rows * k_));
  matmul(errors, rows, k_, k_, DType::f32, products_, k_, nullptr, y.data(), k_);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = r * k_; c < (r + 1) * k_; ++c)
      out[static_cast<size_t>(r)] +=
          static_cast<double>(errors[c]) * static_cast<double>(y[static_cast<size_t>(c)]);
  return out;
}

void ErrorFeedback::round_rows(DType type, const float* w, int64_t rows, void* dst) const {
  require(can_round_with_feedback(type) && k_ % layout_of(type).block_elements == 0, "quantize",
          "rows of {} numbers as {}, which feedback does not write", k_, name_of(type));
  const int64_t of_row = storage_bytes(type, k_);
  std::vector<uint8_t> other(static_cast<size_t>(std::min(rows, kRowsAtOnce) * of_row));
  std::vector<float> errors(static_cast<size_t>(std::min(rows, kRowsAtOnce) * k_));
  for (int64_t begin = 0; begin < rows; begin += kRowsAtOnce) {
    const int64_t n = std::min(kRowsAtOnce, rows - begin);
    const float* x = w + begin * k_;
    auto* to = static_cast<uint8_t*>(dst) + begin * of_row;
    const auto loss_of = [&](const uint8_t* blocks) {
      dequantize(type, blocks, n * k_, errors.data());
      for (int64_t i = 0; i < n * k_; ++i) errors[static_cast<size_t>(i)] -= x[i];
      return loss(errors.data(), n);
    };
    feed(type, x, n, to);
    std::vector<double> least = loss_of(to);
    // whole numbers one by one are no optimum: a row may be better off without
    for (const float* importance : {static_cast<const float*>(nullptr), diagonal_.data()}) {
      quantize_rows(type, x, n, k_, importance, other.data());
      const std::vector<double> own = loss_of(other.data());
      for (int64_t r = 0; r < n; ++r) {
        const auto i = static_cast<size_t>(r);
        if (!(own[i] < least[i])) continue;
        least[i] = own[i];
        std::memcpy(to + r * of_row, other.data() + r * of_row, static_cast<size_t>(of_row));
      }
    }
  }
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
