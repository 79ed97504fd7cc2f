#include "tessera/kernels/flash_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/flash_backward.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/base/threads.h"
#include "tessera/kernels/flash_inl.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/targets.h"

#ifndef TESSERA_KERNELS_FLASH_BACKWARD_ONCE
#define TESSERA_KERNELS_FLASH_BACKWARD_ONCE
namespace tessera::kernels {

// Key blocks of a group are shared out in so many parts that all threads have work.
struct FlashBackwardItem {
  int64_t b, g;
  int64_t part, parts;  // this item takes key blocks part, part + parts, ...
  const FlashGradients* gradients;
  const BiasByDistance* bias;
  const float* packed;  // of the group, or null: this item packs for itself
  float* dq;            // [flash_dq_floats] of this part, or null: straight to the gradient
  float* d_bias;        // [n, distances with a margin], or null
};

constexpr int64_t kPackJobs = 5;

}  // namespace tessera::kernels
#endif  // TESSERA_KERNELS_FLASH_BACKWARD_ONCE

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// Deep products for dK and dV; weights and their gradient lie in the first cache level, and with
// keys, values, queries and all gradients of a tile in the second one, at heads of 128 too.
constexpr int64_t kRows = 96;
constexpr int64_t kKeys = HWY_MAX_BYTES == 64 ? 96 : 48;
constexpr int64_t kStride = tile_stride(kKeys);
static_assert(kRows <= kMaxTileRows && kKeys <= kMaxTileKeys);
static_assert(kRows % kGroup == 0 && kKeys % kGroup == 0 && kKeys % kPanel == 0);

// --- packed inputs of a sequence and group
// ---------------------------------------------------------

// Keys and values transposed, keys by columns; queries times the scale and output gradients in
// panels of columns, a tile of kRows rows after another; two numbers a row.
struct BackwardInputs {
  int64_t kt, k_columns, vt, q, d_out, lse, delta, end;  // where each begins

  explicit BackwardInputs(const FlashAttention& a) {
    const int64_t rows = round_up(FlashShape(a).rows, kRows);
    kt = 0;
    k_columns = kt + transposed_floats(a.S, a.K);
    vt = k_columns + round_up(column_floats(a.S, a.K), 16);
    q = vt + transposed_floats(a.S, a.V);
    d_out = q + rows * round_up(a.K, kPanel);
    lse = d_out + rows * round_up(a.V, kPanel);
    delta = lse + rows;
    end = round_up(delta + rows, 16);
  }
};

int64_t flash_packed_floats(const FlashAttention& a) {
  return BackwardInputs(a).end;
}
int64_t flash_dq_floats(const FlashAttention& a) {
  return round_up(FlashShape(a).rows, kRows) * row_stride(a.K);
}
int64_t flash_dq_stride(const FlashAttention& a) {
  return row_stride(a.K);
}

// to[tile][c / kPanel][row of the tile][c % kPanel]; the last tile is filled with zeros
HWY_INLINE void pack_row_panels(const FlashAttention& a,
                                const ConstHeads& from,
                                int64_t width,
                                float factor,
                                float* to,
                                int64_t b,
                                int64_t g) {
  const FlashShape shape(a);
  for (int64_t first = 0; first < shape.rows; first += kRows)
    for (int64_t c = 0; c < width; c += kPanel)
      for (int64_t r = first; r < first + kRows; ++r, to += kPanel) {
        if (r >= shape.rows)
          std::fill(to, to + kPanel, 0.0f);
        else
          pack_panel_row(from.row(b, r / shape.n, g * shape.n + r % shape.n) + c,
                         std::min(kPanel, width - c), factor, to);
      }
}

HWY_INLINE float row_dot(const float* a, const float* b, int64_t n) {
  V32 sum = zero();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sum = hn::MulAdd(load(a + i), load(b + i), sum);
  if (i < n) sum = hn::MulAdd(load_part(a + i, n - i), load_part(b + i, n - i), sum);
  return sum_of(sum);
}

// lse, infinite where a row sees nothing, and delta = o . do of every row
HWY_INLINE void pack_numbers(
    const FlashAttention& a, const FlashGradients& gradients, int64_t b, int64_t g, float* packed) {
  const FlashShape shape(a);
  const BackwardInputs at(a);
  for (int64_t r = 0; r < shape.rows; ++r) {
    const int64_t query = r / shape.n, head = g * shape.n + r % shape.n;
    const float lse = gradients.lse[(b * a.H + head) * a.T + query];
    packed[at.lse + r] = lse == kMinusInf ? -kMinusInf : lse;
    packed[at.delta + r] =
        row_dot(gradients.out.row(b, query, head), gradients.d_out.row(b, query, head), a.V);
  }
}

// one of kPackJobs jobs
void flash_pack_backward(const FlashAttention& a,
                         const FlashGradients& gradients,
                         int64_t group,
                         int64_t job,
                         float* packed) {
  const BackwardInputs at(a);
  const int64_t b = group / a.G, g = group % a.G;
  const float *k = a.k.row(b, 0, g), *v = a.v.row(b, 0, g);
  switch (job) {
    case 0:
      return pack_transposed(k, a.k.token, a.S, a.K, packed + at.kt);
    case 1:
      return pack_columns(k, a.k.token, a.S, a.K, packed + at.k_columns);
    case 2:
      return pack_transposed(v, a.v.token, a.S, a.V, packed + at.vt);
    case 3:
      return pack_row_panels(a, a.q, a.K, a.scale, packed + at.q, b, g);
    default:
      pack_row_panels(a, gradients.d_out, a.V, 1.0f, packed + at.d_out, b, g);
      return pack_numbers(a, gradients, b, g, packed);
  }
}

// --- a tile --------------------------------------------------------------------------------------

// products[r][j] = x[r] . y[j] for the keys that the row's group sees, whole panels: x the rows of
// a tile in panels of columns, y keys or values, transposed
HWY_INLINE void row_products(const float* x,
                             const float* yt,
                             int64_t width,
                             const Tile& tile,
                             const GroupSpans& seen,
                             float* products) {
  const float* panels = yt + tile.first * width;
  for_seen_panels(seen, tile, [&](int64_t r, int64_t j) HWY_ATTR {
    TileSums sums;
    start_tile<false>(nullptr, 0, sums);
    for (int64_t c = 0; c < width; c += kPanel)
      multiply(x + c * kRows + r * kPanel, kPanel, 1, panels + j * width + c * kPanel,
               std::min(kPanel, width - c), sums);
    store_tile(sums, products + r * kStride + j, kStride);
  });
}

// scores -> weights and d_weights -> d_scores of one row; d_bias: where its part of the bias's
// gradient is added up, or null
HWY_INLINE void backward_row(Span whole,
                             float lse,
                             float delta,
                             const float* slope,
                             float* d_bias,
                             float* weights,
                             float* gradient) {
  for (int64_t j = whole.begin; j < whole.end; j += kLanes) {
    const V32 p = exp_fast(hn::Sub(load(weights + j), all(lse)));
    V32 d = hn::Mul(p, hn::Sub(load(gradient + j), all(delta)));
    store(p, weights + j);
    if (d_bias != nullptr) store(hn::Add(load(d_bias + j), d), d_bias + j);
    if (slope != nullptr) d = hn::Mul(d, load(slope + j));
    store(d, gradient + j);
  }
}

HWY_INLINE float* bias_gradient_row(const FlashAttention& a,
                                    const FlashBackwardItem& item,
                                    int64_t number,
                                    int64_t first) {
  if (item.d_bias == nullptr) return nullptr;
  const FlashShape shape(a);
  return item.d_bias + number % shape.n * (shape.distances + 2 * kMaxTileKeys) + kMaxTileKeys +
         a.T - 1 + first - number / shape.n;
}

// scores -> weights and d_weights -> d_scores of a tile: zeros where a row does not see
HWY_INLINE void backward_rows(const FlashAttention& a,
                              const FlashBackwardItem& item,
                              const Tile& tile,
                              const TileMask& mask,
                              const GroupSpans& seen_by,
                              const float* packed,
                              float* weights,
                              float* gradient) {
  const BackwardInputs at(a);
  float* slope = a.softcap > 0 ? scratch<29>(kStride) : nullptr;
  for (int64_t first = 0; first < tile.count; first += kGroup) {
    const Span whole = whole_panels(seen_by.of_row(first));
    for (int64_t r = first; r < first + kGroup; ++r) {
      float *p = weights + r * kStride, *d = gradient + r * kStride;
      const Span seen = r < tile.count ? mask.row[r] : Span{0, 0};
      if (!seen.empty()) {
        const int64_t number = tile.row + r;
        adjust_scores(a, item.bias->row(item.g, number, tile.first),
                      mask.counted ? mask.counts[r] : nullptr, seen, p, slope);
        set_outside(p, whole, seen, kMinusInf);
        if (a.softcap > 0) set_outside(slope, whole, seen, 0.0f);
        // a hidden key's product may be anything: its weight is 0, but 0 times infinity is not
        set_outside(d, whole, seen, 0.0f);
        backward_row(whole, packed[at.lse + number], packed[at.delta + number], slope,
                     bias_gradient_row(a, item, number, tile.first), p, d);
      }
      // whole rows of the tile are read below
      const Span kept = seen.empty() ? Span{0, 0} : whole;
      set_outside(p, {0, kKeys}, kept, 0.0f);
      set_outside(d, {0, kKeys}, kept, 0.0f);
    }
  }
}

// rows of the tile that see some key of [begin, begin + kGroup)
HWY_INLINE Span rows_that_see(const TileMask& mask,
                              const GroupSpans& seen,
                              const Tile& tile,
                              int64_t begin) {
  Span rows{0, tile.count};
  if (mask.seen == Seen::all) return rows;
  const auto sees = [&](Span s) { return s.begin < begin + kGroup && s.end > begin && !s.empty(); };
  // groups of rows, then rows
  while (!rows.empty() && !sees(seen.of_row(rows.begin))) rows.begin += kGroup;
  while (!rows.empty() && !sees(mask.row[rows.begin])) ++rows.begin;
  while (!rows.empty() && !sees(seen.of_row(rows.end - 1)))
    rows.end = (rows.end - 1) / kGroup * kGroup;
  while (!rows.empty() && !sees(mask.row[rows.end - 1])) --rows.end;
  return rows;
}

// sum[j] += sum_r tile[r][j] x[r]: x the rows of the tile in panels, each of which stays in the
// first cache level for all keys
HWY_INLINE void add_to_keys(const float* tile,
                            const float* x,
                            int64_t width,
                            const Span* rows_of,
                            float* sum,
                            int64_t stride) {
  for (int64_t c = 0; c < width; c += kPanel)
    for (int64_t j = 0; j < kKeys; j += kGroup) {
      const Span r = rows_of[j / kGroup];
      if (r.empty()) continue;
      add_product(tile + r.begin * kStride + j, 1, kStride, x + c * kRows + r.begin * kPanel,
                  r.end - r.begin, sum + j * stride + c, stride);
    }
}

// What a block of keys collects, and the queries' gradients of the whole group.
struct BackwardSums {
  float *dk, *dv, *dq;
  int64_t k_stride, v_stride;
};

HWY_INLINE void backward_tile(const FlashAttention& a,
                              const FlashBackwardItem& item,
                              const Tile& tile,
                              const TileMask& mask,
                              const float* packed,
                              const BackwardSums& sums) {
  const BackwardInputs at(a);
  float* weights = scratch<27>(kRows * kStride);
  float* gradient = scratch<28>(kRows * kStride);
  const float* q = packed + at.q + tile.row * round_up(a.K, kPanel);
  const float* d_out = packed + at.d_out + tile.row * round_up(a.V, kPanel);
  const GroupSpans seen(mask, tile);
  row_products(q, packed + at.kt, a.K, tile, seen, weights);
  row_products(d_out, packed + at.vt, a.V, tile, seen, gradient);
  backward_rows(a, item, tile, mask, seen, packed, weights, gradient);
  // dV += P^T dO, dK += dS^T Q
  Span rows_of[kKeys / kGroup];
  for (int64_t j = 0; j < kKeys; j += kGroup)
    rows_of[j / kGroup] = rows_that_see(mask, seen, tile, j);
  add_to_keys(weights, d_out, a.V, rows_of, sums.dv, sums.v_stride);
  add_to_keys(gradient, q, a.K, rows_of, sums.dk, sums.k_stride);
  // dQ += dS K
  add_keys(gradient, kStride, seen, tile, packed + at.k_columns, a.S, a.K,
           sums.dq + tile.row * sums.k_stride, sums.k_stride);
}

// --- an item -------------------------------------------------------------------------------------

void flash_backward_item(const FlashAttention& a, const FlashBackwardItem& item) {
  const FlashShape shape(a);
  const FlashGradients& out = *item.gradients;
  const float* packed = item.packed;
  if (packed == nullptr) {
    float* own = scratch<20>(flash_packed_floats(a));
    for (int64_t job = 0; job < kPackJobs; ++job)
      flash_pack_backward(a, out, item.b * a.G + item.g, job, own);
    packed = own;
  }
  BackwardSums sums;
  sums.k_stride = row_stride(a.K), sums.v_stride = row_stride(a.V);
  sums.dk = scratch<30>(kKeys * sums.k_stride);
  sums.dv = scratch<31>(kKeys * sums.v_stride);
  sums.dq = item.dq != nullptr ? item.dq : scratch<26>(flash_dq_floats(a));
  std::fill(sums.dq, sums.dq + flash_dq_floats(a), 0.0f);
  // which tiles of rows look at each block
  const int64_t blocks = (a.S + kKeys - 1) / kKeys;
  std::vector<std::vector<int64_t>> lookers(static_cast<size_t>(blocks));
  for (int64_t row = 0; row < shape.rows; row += kRows)
    for (const int64_t block :
         blocks_of_rows(a, item.g, row, std::min(kRows, shape.rows - row), kKeys))
      lookers[static_cast<size_t>(block)].push_back(row);
  TileMask mask;
  for (int64_t block = item.part; block < blocks; block += item.parts) {
    const int64_t first = block * kKeys;
    std::fill(sums.dk, sums.dk + kKeys * sums.k_stride, 0.0f);
    std::fill(sums.dv, sums.dv + kKeys * sums.v_stride, 0.0f);
    for (const int64_t row : lookers[static_cast<size_t>(block)]) {
      const Tile tile{item.g, row, std::min(kRows, shape.rows - row), first, kKeys};
      mask_tile(a, tile, mask);
      if (mask.seen != Seen::none) backward_tile(a, item, tile, mask, packed, sums);
    }
    for (int64_t j = 0; j < std::min(kKeys, a.S - first); ++j) {
      std::copy_n(sums.dk + j * sums.k_stride, a.K, out.dk.row(item.b, first + j, item.g));
      std::copy_n(sums.dv + j * sums.v_stride, a.V, out.dv.row(item.b, first + j, item.g));
    }
  }
  if (item.dq != nullptr) return;
  // the keys' gradient used queries that held the scale; the queries' own still lacks it
  for (int64_t r = 0; r < shape.rows; ++r) {
    float* to = out.dq.row(item.b, r / shape.n, item.g * shape.n + r % shape.n);
    for (int64_t c = 0; c < a.K; c += kLanes)
      store_upto(hn::Mul(load(sums.dq + r * sums.k_stride + c), all(a.scale)), to + c,
                 std::min(kLanes, a.K - c));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(flash_packed_floats);
HWY_EXPORT(flash_dq_floats);
HWY_EXPORT(flash_dq_stride);
HWY_EXPORT(flash_pack_backward);
HWY_EXPORT(flash_backward_item);

namespace {

// Parts of a group's key blocks, so that few groups still give all threads work: a function of the
// shape alone, so that the sums of the parts do not depend on the threads.
int64_t backward_parts(const FlashAttention& a) {
  constexpr int64_t kItems = 8;
  return std::clamp<int64_t>((kItems + a.B * a.G - 1) / (a.B * a.G), 1,
                             std::max<int64_t>(1, (a.S + kMaxTileKeys - 1) / kMaxTileKeys));
}

// dsink_h = - sum over b, i of e^(sink_h - lse_i) delta_i
void sink_gradients(const FlashAttention& a, const FlashGradients& out) {
  for (int64_t h = 0; h < a.H; ++h) {
    double sum = 0;
    for (int64_t b = 0; b < a.B; ++b)
      for (int64_t t = 0; t < a.T; ++t) {
        const float lse = out.lse[(b * a.H + h) * a.T + t];
        if (lse == kMinusInf) continue;
        const float *o = out.out.row(b, t, h), *d = out.d_out.row(b, t, h);
        double delta = 0;
        for (int64_t c = 0; c < a.V; ++c)
          delta += static_cast<double>(o[c]) * static_cast<double>(d[c]);
        sum -= std::exp(static_cast<double>(a.sinks[h]) - static_cast<double>(lse)) * delta;
      }
    out.d_sinks[h] = static_cast<float>(sum);
  }
}

// sums over sequences and parts, and over the distances that share an entry of the table
void bias_gradients(const FlashAttention& a,
                    int64_t parts,
                    const std::vector<float>& partial,
                    float* d_bias) {
  const FlashShape shape(a);
  const int64_t width = shape.distances + 2 * kMaxTileKeys;
  parallel_for(a.H, 1, [&](int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h) {
      std::vector<double> sum(static_cast<size_t>(a.bias_size));
      for (int64_t b = 0; b < a.B; ++b)
        for (int64_t p = 0; p < parts; ++p) {
          const int64_t item = (b * a.G + h / shape.n) * parts + p;
          const float* from =
              partial.data() + (item * shape.n + h % shape.n) * width + kMaxTileKeys;
          for (int64_t d = 0; d < shape.distances; ++d) {
            const int64_t distance = d - (a.T - 1) + a.first_key - a.first_query;
            sum[static_cast<size_t>(std::clamp<int64_t>(
                a.bias_zero + distance, 0, a.bias_size - 1))] += static_cast<double>(from[d]);
          }
        }
      for (int64_t i = 0; i < a.bias_size; ++i)
        d_bias[h * a.bias_size + i] = static_cast<float>(sum[static_cast<size_t>(i)]);
    }
  });
}

// the queries' gradients: the sums of the parts, times the scale that the keys did not hold
void add_parts(const FlashAttention& a, int64_t parts, const float* dq, MutableHeads out) {
  const FlashShape shape(a);
  const int64_t floats = HWY_DYNAMIC_DISPATCH(flash_dq_floats)(a),
                stride = HWY_DYNAMIC_DISPATCH(flash_dq_stride)(a);
  parallel_for(a.B * a.G * shape.rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t group = i / shape.rows, r = i % shape.rows;
      float* to = out.row(group / a.G, r / shape.n, group % a.G * shape.n + r % shape.n);
      const float* from = dq + group * parts * floats + r * stride;
      for (int64_t c = 0; c < a.K; ++c) {
        float sum = from[c];
        for (int64_t p = 1; p < parts; ++p) sum += from[p * floats + c];
        to[c] = sum * a.scale;
      }
    }
  });
}

}  // namespace

void flash_backward(const FlashAttention& a, const FlashGradients& out) {
  check_flash(a);
  cap_targets();
  const FlashShape shape(a);
  const BiasByDistance bias(a);
  const int64_t groups = a.B * a.G, parts = backward_parts(a), items = groups * parts;
  // the parts of a group share what is packed, and add their gradients of the queries afterwards
  float *packed = nullptr, *dq = nullptr;
  const int64_t packed_floats = HWY_DYNAMIC_DISPATCH(flash_packed_floats)(a),
                dq_floats = HWY_DYNAMIC_DISPATCH(flash_dq_floats)(a);
  if (parts > 1) {
    packed = scratch<21>(groups * packed_floats);
    dq = scratch<22>(items * dq_floats);
    parallel_for(groups * kPackJobs, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) HWY_DYNAMIC_DISPATCH(flash_pack_backward)
      (a, out, i / kPackJobs, i % kPackJobs, packed + i / kPackJobs * packed_floats);
    });
  }
  // rows of the table's gradient have a margin: a tile adds whole vectors
  const int64_t bias_floats =
      out.d_bias != nullptr ? shape.n * (shape.distances + 2 * kMaxTileKeys) : 0;
  std::vector<float> d_bias(static_cast<size_t>(items * bias_floats));
  parallel_for(items, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t group = i / parts;
      HWY_DYNAMIC_DISPATCH(flash_backward_item)
      (a, {group / a.G, group % a.G, i % parts, parts, &out, &bias,
           packed == nullptr ? nullptr : packed + group * packed_floats,
           dq == nullptr ? nullptr : dq + i * dq_floats,
           d_bias.empty() ? nullptr : d_bias.data() + i * bias_floats});
    }
  });
  if (dq != nullptr) add_parts(a, parts, dq, out.dq);
  if (out.d_bias != nullptr) bias_gradients(a, parts, d_bias, out.d_bias);
  if (out.d_sinks != nullptr) sink_gradients(a, out);
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
