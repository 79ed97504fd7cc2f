#include "tessera/kernels/attention/flash_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/attention/flash_backward.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/base/threads.h"
#include "tessera/kernels/attention/flash_inl.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/targets.h"

#ifndef TESSERA_KERNELS_FLASH_BACKWARD_ONCE
#define TESSERA_KERNELS_FLASH_BACKWARD_ONCE
namespace tessera::kernels {

// Key blocks of a group are divided into enough parts for all threads to have work.
struct FlashBackwardItem {
  int64_t b, g;
  int64_t part, parts;  // this item takes key blocks part, part + parts, ...
  const FlashGradients* gradients;
  const BiasByDistance* bias;
  // of the group, where it has more parts than one: rows, and block after block of keys
  float *packed_rows, *packed_keys;
  float* dq;      // [flash_dq_floats] of this part, likewise
  float* d_bias;  // [n, distances with a margin], or null
};

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

// --- packed inputs of a sequence and group -------------------------------------------------------

// All rows: queries times the scale and output gradients in panels of columns, a tile of kRows rows
// after another; two numbers a row. Where each begins.
struct PackedRows {
  int64_t q = 0, d_out, lse, delta, end;

  explicit PackedRows(const FlashAttention& a) {
    const int64_t rows = round_up(FlashShape(a).rows, kRows);
    d_out = q + rows * round_up(a.K, kPanel);
    lse = d_out + rows * round_up(a.V, kPanel);
    delta = lse + rows;
    end = delta + rows;
  }
};

// A block of keys: keys and values transposed, and keys in panels of columns.
struct PackedKeys {
  int64_t kt = 0, k_columns, vt, end;

  explicit PackedKeys(const FlashAttention& a) {
    k_columns = kt + transposed_floats(kKeys, a.K, kKeys);
    vt = k_columns + column_floats(kKeys, a.K, kKeys);
    end = vt + transposed_floats(kKeys, a.V, kKeys);
  }
};

int64_t flash_backward_blocks(const FlashAttention& a) {
  return (a.S + kKeys - 1) / kKeys;
}
int64_t flash_backward_tiles(const FlashAttention& a) {
  return (FlashShape(a).rows + kRows - 1) / kRows;
}
int64_t flash_packed_rows(const FlashAttention& a) {
  return PackedRows(a).end;
}
int64_t flash_packed_keys(const FlashAttention& a) {
  return PackedKeys(a).end;
}
int64_t flash_dq_floats(const FlashAttention& a) {
  return round_up(FlashShape(a).rows, kRows) * row_stride(a.K);
}
int64_t flash_dq_stride(const FlashAttention& a) {
  return row_stride(a.K);
}

// a block of keys
void flash_pack_keys(const FlashAttention& a, int64_t b, int64_t g, int64_t block, float* packed) {
  const PackedKeys at(a);
  const int64_t first = block * kKeys, count = std::min(kKeys, a.S - first);
  const float *k = a.k.row(b, first, g), *v = a.v.row(b, first, g);
  pack_transposed(k, a.k.token, count, a.K, packed + at.kt);
  pack_columns(k, a.k.token, count, a.K, kKeys, packed + at.k_columns);
  pack_transposed(v, a.v.token, count, a.V, packed + at.vt);
}

// to[c / kPanel][row of the tile][c % kPanel]: the part of one row
HWY_INLINE void pack_row(const float* from, int64_t width, float factor, float* to) {
  for (int64_t c = 0; c < width; c += kPanel)
    pack_panel_row(from + c, std::min(kPanel, width - c), factor, to + c * kRows);
}

// a tile of rows, filled with zeros; lse, infinite where a row sees nothing, and delta = o . do
void flash_pack_rows(const FlashAttention& a,
                     const FlashGradients& gradients,
                     int64_t b,
                     int64_t g,
                     int64_t tile,
                     float* packed) {
  const FlashShape shape(a);
  const PackedRows at(a);
  const int64_t first = tile * kRows, count = std::min(kRows, shape.rows - first),
                k_floats = round_up(a.K, kPanel), v_floats = round_up(a.V, kPanel);
  float *q = packed + at.q + first * k_floats, *d_out = packed + at.d_out + first * v_floats;
  if (count < kRows) {
    std::fill(q, q + kRows * k_floats, 0.0f);
    std::fill(d_out, d_out + kRows * v_floats, 0.0f);
  }
  for (int64_t r = 0; r < count; ++r, q += kPanel, d_out += kPanel) {
    const int64_t query = (first + r) / shape.n, head = g * shape.n + (first + r) % shape.n;
    const float* d = gradients.d_out.row(b, query, head);
    pack_row(a.q.row(b, query, head), a.K, a.scale, q);
    pack_row(d, a.V, 1.0f, d_out);
    const float lse = gradients.lse[(b * a.H + head) * a.T + query];
    packed[at.lse + first + r] = lse == kMinusInf ? -kMinusInf : lse;
    packed[at.delta + first + r] = dot(gradients.out.row(b, query, head), d, a.V);
  }
}

// --- a tile --------------------------------------------------------------------------------------

// products[r][j] = x[r] . y[j] for the keys that the row's group sees, whole panels: x the rows of
// a tile in panels of columns, y the block's keys or values, transposed
HWY_INLINE void row_products(const float* x,
                             const float* yt,
                             int64_t width,
                             const Tile& tile,
                             const GroupSpans& seen,
                             Expected& soon,
                             float* products) {
  for_seen_panels(seen, tile, soon, [&](int64_t r, int64_t j) HWY_ATTR {
    TileSums sums;
    start_tile<false>(nullptr, 0, sums);
    for (int64_t c = 0; c < width; c += kPanel)
      multiply(x + c * kRows + r * kPanel, kPanel, 1, yt + j * width + c * kPanel,
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

// scores -> weights and d_weights -> d_scores of a tile: zeros where a row does not see, as far as
// the products after this read
HWY_INLINE void backward_rows(const FlashAttention& a,
                              const FlashBackwardItem& item,
                              const Tile& tile,
                              const TileMask& mask,
                              const GroupSpans& seen_by,
                              const float* packed_rows,
                              float* weights,
                              float* gradient) {
  const PackedRows at(a);
  float* slope = a.softcap > 0 ? scratch<29>(kStride) : nullptr;
  TileDropout dropout(a, item.b, item.g);
  for (int64_t first = 0; first < tile.count; first += kGroup) {
    const Span hull = seen_by.of_row(first), whole = whole_panels(hull);
    // in a band, rows that see some of kGroup keys lie together: no product reads the others
    const bool band = a.visible == nullptr;
    if (band && hull.empty()) continue;
    for (int64_t r = first; r < first + kGroup; ++r) {
      float *p = weights + r * kStride, *d = gradient + r * kStride;
      const Span seen = r < tile.count ? mask.row[r] : Span{0, 0};
      Span read = band ? hull : Span{0, kKeys};
      if (!seen.empty()) {
        const int64_t number = tile.row + r;
        adjust_scores(a, item.bias->row(item.g, number, tile.first),
                      mask.counted ? mask.counts[r] : nullptr, seen, p, slope);
        float* d_bias = bias_gradient_row(a, item, number, tile.first);
        if (d_bias != nullptr) {
          set_outside(p, whole, seen, kMinusInf);
          set_outside(d, whole, seen, 0.0f);
        }
        // a weight that is dropped gets no gradient and gives none to its value
        const float* factors = dropout.row(number, tile.first, whole);
        if (factors != nullptr) multiply_row(whole, factors, d);
        backward_row(whole, packed_rows[at.lse + number], packed_rows[at.delta + number], slope,
                     d_bias, p, d);
        if (factors != nullptr) multiply_row(whole, factors, p);
        read = {std::min(read.begin, seen.begin / kGroup * kGroup),
                std::max(read.end, round_up(seen.end, kGroup))};
      }
      // a hidden key's numbers may be anything so far
      set_outside(p, read, seen, 0.0f);
      set_outside(d, read, seen, 0.0f);
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
                            Expected& soon,
                            float* sum,
                            int64_t stride) {
  for (int64_t c = 0; c < width; c += kPanel)
    for (int64_t j = 0; j < kKeys; j += kGroup) {
      const Span r = rows_of[j / kGroup];
      if (r.empty()) continue;
      soon.more(kLinesPerTile);
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
                              const float* packed_rows,
                              const float* packed_keys,
                              Expected& soon,
                              const BackwardSums& sums) {
  const PackedRows rows(a);
  const PackedKeys keys(a);
  float* weights = scratch<27>(kRows * kStride);
  float* gradient = scratch<28>(kRows * kStride);
  const float* q = packed_rows + rows.q + tile.row * round_up(a.K, kPanel);
  const float* d_out = packed_rows + rows.d_out + tile.row * round_up(a.V, kPanel);
  const GroupSpans seen(mask, tile);
  row_products(q, packed_keys + keys.kt, a.K, tile, seen, soon, weights);
  row_products(d_out, packed_keys + keys.vt, a.V, tile, seen, soon, gradient);
  backward_rows(a, item, tile, mask, seen, packed_rows, weights, gradient);
  // dV += P^T dO, dK += dS^T Q
  Span rows_of[kKeys / kGroup];
  for (int64_t j = 0; j < kKeys; j += kGroup)
    rows_of[j / kGroup] = rows_that_see(mask, seen, tile, j);
  add_to_keys(weights, d_out, a.V, rows_of, soon, sums.dv, sums.v_stride);
  add_to_keys(gradient, q, a.K, rows_of, soon, sums.dk, sums.k_stride);
  // dQ += dS K
  add_keys(gradient, kStride, seen, tile, packed_keys + keys.k_columns, a.K,
           sums.dq + tile.row * sums.k_stride, sums.k_stride, soon);
}

// --- an item -------------------------------------------------------------------------------------

// Which tiles of rows look at each block of keys, ascending, and each tile's last block, -1 where
// there is none.
struct Lookers {
  std::vector<std::vector<int64_t>> of_block;
  std::vector<int64_t> last;

  Lookers(const FlashAttention& a, int64_t g)
      : of_block(static_cast<size_t>(flash_backward_blocks(a))) {
    const int64_t rows = FlashShape(a).rows;
    for (int64_t row = 0; row < rows; row += kRows) {
      last.push_back(-1);
      for (const int64_t block : blocks_of_rows(a, g, row, std::min(kRows, rows - row), kKeys)) {
        of_block[static_cast<size_t>(block)].push_back(row / kRows);
        last.back() = block;
      }
    }
  }
};

HWY_INLINE Span rows_of_tile(const FlashShape& shape, int64_t tile) {
  return {tile * kRows, std::min((tile + 1) * kRows, shape.rows)};
}
HWY_INLINE Span keys_of_block(const FlashAttention& a, int64_t block) {
  return {block * kKeys, std::min((block + 1) * kKeys, a.S)};
}

void expect_key_gradients(const FlashAttention& a,
                          const FlashBackwardItem& item,
                          Span keys,
                          Expected& soon) {
  expect_rows(item.gradients->dk, item.b, item.g, 1, keys, a.K, soon);
  expect_rows(item.gradients->dv, item.b, item.g, 1, keys, a.V, soon);
}
void expect_keys(const FlashAttention& a,
                 const FlashBackwardItem& item,
                 Span keys,
                 Expected& soon) {
  expect_rows(a.k, item.b, item.g, 1, keys, a.K, soon);
  expect_rows(a.v, item.b, item.g, 1, keys, a.V, soon);
}
void expect_inputs_of_rows(const FlashAttention& a,
                           const FlashBackwardItem& item,
                           Span rows,
                           Expected& soon) {
  const int64_t n = a.H / a.G;
  expect_rows(a.q, item.b, item.g, n, rows, a.K, soon);
  expect_rows(item.gradients->out, item.b, item.g, n, rows, a.V, soon);
  expect_rows(item.gradients->d_out, item.b, item.g, n, rows, a.V, soon);
}

// the keys' gradient used queries that held the scale; the queries' own still lacks it
HWY_INLINE void write_queries(const FlashAttention& a,
                              const FlashBackwardItem& item,
                              Span rows,
                              const BackwardSums& sums) {
  const int64_t n = a.H / a.G;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    float* to = item.gradients->dq.row(item.b, r / n, item.g * n + r % n);
    for (int64_t c = 0; c < a.K; c += kLanes)
      store_upto(hn::Mul(load(sums.dq + r * sums.k_stride + c), all(a.scale)), to + c,
                 std::min(kLanes, a.K - c));
  }
}

HWY_INLINE void write_keys(const FlashAttention& a,
                           const FlashBackwardItem& item,
                           Span keys,
                           const BackwardSums& sums) {
  const FlashGradients& out = *item.gradients;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    const int64_t at = j - keys.begin;
    std::copy_n(sums.dk + at * sums.k_stride, a.K, out.dk.row(item.b, j, item.g));
    std::copy_n(sums.dv + at * sums.v_stride, a.V, out.dv.row(item.b, j, item.g));
  }
}

// The only part of a group packs a block of keys when it comes to it, a tile of rows before its
// first block, and writes the rows' gradient after their last one, while a near cache still holds
// them. Others find everything packed, and leave their gradients of the queries to be added up.
void flash_backward_item(const FlashAttention& a, const FlashBackwardItem& item) {
  const FlashShape shape(a);
  const FlashGradients& out = *item.gradients;
  const bool alone = item.parts == 1;
  const int64_t key_floats = flash_packed_keys(a);
  float* packed_rows = alone ? scratch<20>(flash_packed_rows(a)) : item.packed_rows;
  float* own_keys = alone ? scratch<23>(key_floats) : nullptr;
  BackwardSums sums;
  sums.k_stride = row_stride(a.K), sums.v_stride = row_stride(a.V);
  sums.dk = scratch<30>(kKeys * sums.k_stride);
  sums.dv = scratch<31>(kKeys * sums.v_stride);
  sums.dq = alone ? scratch<26>(flash_dq_floats(a)) : item.dq;
  const Lookers lookers(a, item.g);
  const int64_t tiles = static_cast<int64_t>(lookers.last.size()),
                blocks = static_cast<int64_t>(lookers.of_block.size());
  std::vector<bool> started(static_cast<size_t>(tiles));
  const auto start = [&](int64_t t) {
    if (started[static_cast<size_t>(t)]) return;
    started[static_cast<size_t>(t)] = true;
    if (alone) flash_pack_rows(a, out, item.b, item.g, t, packed_rows);
    std::fill_n(sums.dq + t * kRows * sums.k_stride, kRows * sums.k_stride, 0.0f);
  };
  TileMask mask;
  Expected soon;
  for (int64_t block = item.part; block < blocks; block += item.parts) {
    const std::vector<int64_t>& tiles_of_block = lookers.of_block[static_cast<size_t>(block)];
    if (alone) flash_pack_keys(a, item.b, item.g, block, own_keys);
    const float* packed_keys = alone ? own_keys : item.packed_keys + block * key_floats;
    std::fill(sums.dk, sums.dk + kKeys * sums.k_stride, 0.0f);
    std::fill(sums.dv, sums.dv + kKeys * sums.v_stride, 0.0f);
    for (size_t i = 0; i < tiles_of_block.size(); ++i) {
      const int64_t t = tiles_of_block[i];
      const Span rows = rows_of_tile(shape, t);
      start(t);
      const bool complete = alone && lookers.last[static_cast<size_t>(t)] == block;
      const size_t after = tiles_of_block.size() - i - 1;  // tiles of the block
      if (alone && after > 0 && !started[static_cast<size_t>(tiles_of_block[i + 1])])
        expect_inputs_of_rows(a, item, rows_of_tile(shape, tiles_of_block[i + 1]), soon);
      if (alone && (after == 1 || tiles_of_block.size() == 1))
        expect_keys(a, item, keys_of_block(a, block + 1), soon);
      if (complete) expect_rows(out.dq, item.b, item.g, shape.n, rows, a.K, soon);
      if (after == 0) expect_key_gradients(a, item, keys_of_block(a, block), soon);
      const Tile tile{item.g, rows.begin, rows.end - rows.begin, block * kKeys, kKeys};
      mask_tile(a, tile, mask);
      if (mask.seen != Seen::none)
        backward_tile(a, item, tile, mask, packed_rows, packed_keys, soon, sums);
      if (complete) write_queries(a, item, rows, sums);
    }
    write_keys(a, item, keys_of_block(a, block), sums);
  }
  // of what no block of this part met
  for (int64_t t = 0; t < tiles; ++t) {
    if (started[static_cast<size_t>(t)]) continue;
    start(t);
    if (alone) write_queries(a, item, rows_of_tile(shape, t), sums);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(flash_packed_rows);
HWY_EXPORT(flash_packed_keys);
HWY_EXPORT(flash_dq_floats);
HWY_EXPORT(flash_dq_stride);
HWY_EXPORT(flash_pack_keys);
HWY_EXPORT(flash_pack_rows);
HWY_EXPORT(flash_backward_blocks);
HWY_EXPORT(flash_backward_tiles);
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
  float *packed_rows = nullptr, *packed_keys = nullptr, *dq = nullptr;
  const int64_t blocks = HWY_DYNAMIC_DISPATCH(flash_backward_blocks)(a),
                row_floats = HWY_DYNAMIC_DISPATCH(flash_packed_rows)(a),
                key_floats = HWY_DYNAMIC_DISPATCH(flash_packed_keys)(a),
                dq_floats = HWY_DYNAMIC_DISPATCH(flash_dq_floats)(a);
  if (parts > 1) {
    packed_rows = scratch<21>(groups * row_floats);
    packed_keys = scratch<24>(groups * blocks * key_floats);
    dq = scratch<22>(items * dq_floats);
    const int64_t jobs = blocks + HWY_DYNAMIC_DISPATCH(flash_backward_tiles)(a);
    parallel_for(groups * jobs, 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t group = i / jobs, b = group / a.G, g = group % a.G, job = i % jobs;
        if (job < blocks) {
          float* to = packed_keys + (group * blocks + job) * key_floats;
          HWY_DYNAMIC_DISPATCH(flash_pack_keys)(a, b, g, job, to);
        } else {
          float* to = packed_rows + group * row_floats;
          HWY_DYNAMIC_DISPATCH(flash_pack_rows)(a, out, b, g, job - blocks, to);
        }
      }
    });
  }
  // rows of the table's gradient have a margin: a tile adds whole vectors
  const int64_t bias_floats =
      out.d_bias != nullptr ? shape.n * (shape.distances + 2 * kMaxTileKeys) : 0;
  std::vector<float> d_bias(static_cast<size_t>(items * bias_floats));
  parallel_in_turn(items, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t group = i / parts;
      HWY_DYNAMIC_DISPATCH(flash_backward_item)
      (a, {group / a.G, group % a.G, i % parts, parts, &out, &bias,
           parts == 1 ? nullptr : packed_rows + group * row_floats,
           parts == 1 ? nullptr : packed_keys + group * blocks * key_floats,
           parts == 1 ? nullptr : dq + i * dq_floats,
           d_bias.empty() ? nullptr : d_bias.data() + i * bias_floats});
    }
  });
  if (dq != nullptr) add_parts(a, parts, dq, out.dq);
  if (out.d_bias != nullptr) bias_gradients(a, parts, d_bias, out.d_bias);
  if (out.d_sinks != nullptr) sink_gradients(a, out);
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
