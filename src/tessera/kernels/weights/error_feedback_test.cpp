#include "tessera/kernels/weights/error_feedback.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/testing.h"
#include "tessera/kernels/kernels_testing.h"
#include "tessera/kernels/weights/block_codes.h"
#include "tessera/kernels/weights/blocks.h"
#include "tessera/kernels/weights/quantize.h"

namespace tessera::kernels::error_feedback_test {
namespace {

using Matrix = std::vector<double>;

constexpr DType kTypes[] = {DType::q8_0,  DType::q4_0,   DType::q4_1,   DType::q5_0,  DType::q5_1,
                            DType::q2_k,  DType::q3_k,   DType::q4_k,   DType::q5_k,  DType::q6_k,
                            DType::mxfp4, DType::iq4_nl, DType::iq4_xs, DType::tq1_0, DType::tq2_0};

/// X^T X of inputs whose columns go together, of sizes 1 to 8.
std::vector<float> products_of(int64_t k, int64_t n = 96) {
  const Values noise(n * k, 3), shared(n, 4);
  std::vector<double> x(at(n * k));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t c = 0; c < k; ++c)
      x[at(i * k + c)] = (1 + static_cast<double>(c * 5 % 8)) *
                         (noise[i * k + c] + (c % 3 == 0 ? 2.0 : -1.0) * shared[i] +
                          (c > 0 ? noise[i * k + c - 1] : 0));
  std::vector<float> h(at(k * k));
  for (int64_t a = 0; a < k; ++a)
    for (int64_t b = 0; b <= a; ++b) {
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += x[at(i * k + a)] * x[at(i * k + b)];
      h[at(a * k + b)] = h[at(b * k + a)] = static_cast<float>(sum / static_cast<double>(n));
    }
  return h;
}

Matrix inverse_of(Matrix m, int64_t k) {
  Matrix out(at(k * k));
  for (int64_t i = 0; i < k; ++i) out[at(i * k + i)] = 1;
  for (int64_t p = 0; p < k; ++p) {
    const double pivot = m[at(p * k + p)];
    for (int64_t c = 0; c < k; ++c) {
      m[at(p * k + c)] /= pivot;
      out[at(p * k + c)] /= pivot;
    }
    for (int64_t i = 0; i < k; ++i) {
      const double by = m[at(i * k + p)];
      if (i == p || by == 0) continue;
      for (int64_t c = 0; c < k; ++c) {
        m[at(i * k + c)] -= by * m[at(p * k + c)];
        out[at(i * k + c)] -= by * out[at(p * k + c)];
      }
    }
  }
  return out;
}

/// R, upper, with R^T R = m.
Matrix cholesky_of(const Matrix& m, int64_t k) {
  Matrix r(at(k * k));
  for (int64_t i = 0; i < k; ++i)
    for (int64_t j = i; j < k; ++j) {
      double sum = m[at(i * k + j)];
      for (int64_t p = 0; p < i; ++p) sum -= r[at(p * k + i)] * r[at(p * k + j)];
      r[at(i * k + j)] = i == j ? std::sqrt(sum) : sum / r[at(i * k + i)];
    }
  return r;
}

double loss_of(const std::vector<float>& h, int64_t k, const float* w, const float* back) {
  double loss = 0;
  for (int64_t a = 0; a < k; ++a)
    for (int64_t b = 0; b < k; ++b)
      loss += (static_cast<double>(back[a]) - w[a]) * h[at(a * k + b)] *
              (static_cast<double>(back[b]) - w[b]);
  return loss;
}

std::vector<float> values_of(DType type, const uint8_t* bytes, int64_t n) {
  std::vector<float> out(at(n));
  dequantize(type, bytes, n, out.data());
  return out;
}

/// What each code of a block's elements stands for: [code][element].
std::vector<std::vector<float>> tables_of(DType type, std::vector<uint8_t> block) {
  const auto n = layout_of(type).block_elements;
  std::vector<std::vector<float>> out;
  for (int code = 0; code < code_count(type); ++code) {
    const std::vector<uint8_t> codes(at(n), static_cast<uint8_t>(code));
    put_codes(type, codes.data(), block.data());
    out.push_back(values_of(type, block.data(), n));
  }
  return out;
}

struct Case {
  DType type;
  int64_t k;
  bool by_activity;
};

/// The factor of the inverse of the damped products, whose columns are in `order`.
struct Inverse {
  std::vector<int64_t> order;
  std::vector<float> diagonal;  // of the products, by column
  Matrix r;

  Inverse(const Case& c, const std::vector<float>& h) : order(at(c.k)), diagonal(at(c.k)) {
    const int64_t k = c.k;
    std::iota(order.begin(), order.end(), 0);
    for (int64_t i = 0; i < k; ++i) diagonal[at(i)] = h[at(i * k + i)];
    if (c.by_activity)
      std::stable_sort(order.begin(), order.end(),
                       [&](int64_t a, int64_t b) { return diagonal[at(a)] > diagonal[at(b)]; });
    const double damp =
        0.01 * std::accumulate(diagonal.begin(), diagonal.end(), 0.0) / static_cast<double>(k);
    Matrix damped(at(k * k));
    for (int64_t a = 0; a < k; ++a)
      for (int64_t b = 0; b < k; ++b)
        damped[at(a * k + b)] = h[at(order[at(a)] * k + order[at(b)])] + (a == b ? damp : 0);
    r = cholesky_of(inverse_of(damped, k), k);
  }
};

/// The recursion of Frantar et al. 2022 on the inverse, in double: one row.
std::vector<uint8_t> by_inverse(const Case& c, const Inverse& inverse, const float* w) {
  const int64_t k = c.k, elements = layout_of(c.type).block_elements,
                size = layout_of(c.type).block_bytes;
  const auto& [order, diagonal, r] = inverse;
  std::vector<double> now(at(k));
  for (int64_t p = 0; p < k; ++p) now[at(p)] = w[order[at(p)]];
  std::vector<uint8_t> bytes(at(k / elements * size)), codes(at(k));
  if (c.by_activity) quantize_rows(c.type, w, 1, k, diagonal.data(), bytes.data());
  std::vector<std::vector<std::vector<float>>> tables(at(k / elements));
  for (int64_t p = 0; p < k; ++p) {
    const int64_t column = order[at(p)], block = column / elements;
    uint8_t* own = bytes.data() + block * size;
    if (!c.by_activity && column % elements == 0) {
      const std::vector<float> left(now.begin() + p, now.begin() + p + elements);
      quantize_rows(c.type, left.data(), 1, elements, diagonal.data() + p, own);
    }
    if (tables[at(block)].empty()) tables[at(block)] = tables_of(c.type, {own, own + size});
    uint8_t best = 0;
    const auto value = [&](int code) {
      return static_cast<double>(tables[at(block)][at(code)][at(column % elements)]);
    };
    for (int code = 1; code < code_count(c.type); ++code)
      if (std::abs(value(code) - now[at(p)]) < std::abs(value(best) - now[at(p)]))
        best = static_cast<uint8_t>(code);
    codes[at(column)] = best;
    const double error = (now[at(p)] - value(best)) / r[at(p * k + p)];
    for (int64_t q = p; q < k; ++q) now[at(q)] -= error * r[at(p * k + q)];
  }
  for (int64_t b = 0; b < k / elements; ++b)
    put_codes(c.type, codes.data() + b * elements, bytes.data() + b * size);
  return bytes;
}

TEST(ErrorFeedback, IsTheRecursionOnTheInverse) {
  constexpr int64_t kRows = 3;
  int fed = 0;
  for (const Case& c :
       {Case{DType::q8_0, 96, false}, Case{DType::q4_0, 160, false}, Case{DType::q4_0, 160, true},
        Case{DType::q5_1, 96, false}, Case{DType::iq4_nl, 96, true}, Case{DType::mxfp4, 96, false},
        Case{DType::q3_k, 256, false}, Case{DType::q4_k, 256, true},
        Case{DType::q2_k, 512, false}}) {
    SCOPED_TRACE(std::string(name_of(c.type)) + (c.by_activity ? " by activity" : ""));
    const std::vector<float> h = products_of(c.k, 2 * c.k);
    const Values w(kRows * c.k, 9, 0.05);
    const Inverse inverse(c, h);
    std::vector<std::vector<uint8_t>> wanted;
    for (int64_t row = 0; row < kRows; ++row) {
      const float* x = w.data() + row * c.k;
      std::vector<uint8_t> best = by_inverse(c, inverse, x);
      double least = loss_of(h, c.k, x, values_of(c.type, best.data(), c.k).data());
      ++fed;
      for (const float* importance : {static_cast<const float*>(nullptr),
                                      static_cast<const float*>(inverse.diagonal.data())}) {
        std::vector<uint8_t> own(best.size());
        quantize_rows(c.type, x, 1, c.k, importance, own.data());
        const double loss = loss_of(h, c.k, x, values_of(c.type, own.data(), c.k).data());
        if (loss >= least) continue;
        least = loss;
        best = own;
        --fed;
      }
      wanted.push_back(best);
    }
    on_every_target([&] {
      const ErrorFeedback feedback(h.data(), c.k, {.by_activity = c.by_activity});
      std::vector<uint8_t> got(wanted[0].size() * kRows);
      feedback.round_rows(c.type, w.data(), kRows, got.data());
      for (size_t row = 0; row < at(kRows); ++row)
        for (size_t i = 0; i < wanted[row].size(); ++i)
          ASSERT_EQ(got[row * wanted[row].size() + i], wanted[row][i]) << row << " byte " << i;
    });
  }
  EXPECT_GT(fed, 22);  // rows of 27 that are better off by the recursion
}

TEST(ErrorFeedback, LeavesNoRowWorseOff) {
  constexpr int64_t kK = 256, kRows = 24;
  const std::vector<float> h = products_of(kK);  // of fewer rows than columns
  const Values w(kRows * kK, 5, 0.1);
  std::vector<float> diagonal(at(kK));
  for (int64_t i = 0; i < kK; ++i) diagonal[at(i)] = h[at(i * kK + i)];
  for (const bool by_activity : {false, true}) {
    const ErrorFeedback feedback(h.data(), kK, {.by_activity = by_activity});
    for (const DType type : kTypes) {
      SCOPED_TRACE(name_of(type));
      ASSERT_TRUE(can_round_with_feedback(type));
      const auto size = at(storage_bytes(type, kRows * kK));
      std::vector<uint8_t> bytes(size), plain(size);
      feedback.round_rows(type, w.data(), kRows, bytes.data());
      const auto back = values_of(type, bytes.data(), kRows * kK);
      for (const float* importance :
           {static_cast<const float*>(nullptr), static_cast<const float*>(diagonal.data())}) {
        quantize_rows(type, w.data(), kRows, kK, importance, plain.data());
        const auto nearest = values_of(type, plain.data(), kRows * kK);
        double own = 0, other = 0;
        for (int64_t row = 0; row < kRows; ++row) {
          const double mine = loss_of(h, kK, w.data() + row * kK, back.data() + row * kK),
                       theirs = loss_of(h, kK, w.data() + row * kK, nearest.data() + row * kK);
          EXPECT_LE(mine, theirs * (1 + 1e-5)) << row;
          own += mine;
          other += theirs;
        }
        EXPECT_LT(own, 0.6 * other);
      }
    }
  }
}

TEST(ErrorFeedback, BytesDoNotTurnOnTheThreads) {
  constexpr int64_t kK = 256, kRows = 33;
  const std::vector<float> h = products_of(kK);
  const Values w(kRows * kK, 6);
  for (const DType type : {DType::q4_0, DType::q3_k})
    for (const bool by_activity : {false, true}) {
      std::vector<uint8_t> bytes[3];
      for (const int threads : {1, 2, 3}) {
        const Threads scope(threads);
        auto& to = bytes[threads - 1];
        to.resize(at(storage_bytes(type, kRows * kK)));
        ErrorFeedback(h.data(), kK, {.by_activity = by_activity})
            .round_rows(type, w.data(), kRows, to.data());
      }
      EXPECT_EQ(bytes[0], bytes[1]);
      EXPECT_EQ(bytes[0], bytes[2]);
    }
}

TEST(ErrorFeedback, RefusesInputsWithoutMeasure) {
  std::vector<float> h(64 * 64);
  const auto made = [&] { const ErrorFeedback feedback(h.data(), 64, {}); };
  tessera::test::expect_error(ErrorKind::usage, "mean square of 0", made);
  h[0] = std::nanf("");
  tessera::test::expect_error(ErrorKind::usage, "expected finite inputs", made);
  h[0] = 1;
  h[1] = h[64] = 5;  // no sum of squares
  h[65] = 1;
  tessera::test::expect_error(ErrorKind::usage, "not positive with a damping of 0.01", made);
}

}  // namespace
}  // namespace tessera::kernels::error_feedback_test
