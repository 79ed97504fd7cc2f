// A chunk of tokens of the linear recurrence as products of small matrices, for training.
//
// Readers x ask the state (the queries; what the delta rule or rank one corrects along), writers
// add outer products of keys and values to it. With S before the chunk, G the gradient of the state
// after it, and w_ij the decays between a writer j and a later reader i:
//
//   A_ij   = x_i . (w_ij o k_j)
//   read_i = (x_i decayed from the start)^T S + sum_{j < i} A_ij value_j
//   S'     = decay o S + sum_j (k_j decayed until the end) value_j^T
//
// Weights are products of decays within the chunk, never quotients: none overflows.
#if defined(TESSERA_KERNELS_LINEAR_RECURRENCE_CHUNK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_LINEAR_RECURRENCE_CHUNK_INL_H_
#undef TESSERA_KERNELS_LINEAR_RECURRENCE_CHUNK_INL_H_
#else
#define TESSERA_KERNELS_LINEAR_RECURRENCE_CHUNK_INL_H_
#endif

#include <hwy/cache_control.h>

#include <algorithm>

#include "tessera/kernels/linear_recurrence.h"
#include "tessera/kernels/math_inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

constexpr int64_t kPanel = 2 * kLanes;  // columns of a register tile
// Tokens of a chunk. Products with the state cost K V a token whatever its length, those within a
// chunk grow with it; shorter chunks read and write the state more often.
constexpr int64_t kChunk = kPanel > 16 ? kPanel : 16;

// --- products ------------------------------------------------------------------------------------

/// c[m][0 .. n) = start + sum over d of a[m a_row + d a_depth] b[d b_row ...]; m in fours, n in
/// panels.
struct Product {
  int64_t m, n, depth;
  const float* a;
  int64_t a_row, a_depth;
  const float* b;
  int64_t b_row;
  float* c;
  int64_t c_row;
};
enum class Start { zero, add, decayed };  // 0, c, or keep[m] times before[m]
/// What a product of Start::decayed starts from; the rows of before, c_row floats apart, may be c.
struct Decayed {
  const float *keep, *before;
};

template <Start start, int rows>
HWY_INLINE void multiply_tile(const Product& p, const Decayed& first, int64_t m, int64_t n) {
  V32 low[rows], high[rows];
  float* c = p.c + m * p.c_row + n;
  const float* from = start == Start::decayed ? first.before + m * p.c_row + n : c;
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
    low[r] = start == Start::zero ? zero() : load(from + r * p.c_row);
    high[r] = start == Start::zero ? zero() : load(from + r * p.c_row + kLanes);
    if constexpr (start == Start::decayed) {
      low[r] = hn::Mul(low[r], all(first.keep[m + r]));
      high[r] = hn::Mul(high[r], all(first.keep[m + r]));
    }
  }
  const float *a = p.a + m * p.a_row, *b = p.b + n;
  for (int64_t d = 0; d < p.depth; ++d, a += p.a_depth, b += p.b_row) {
    const V32 b0 = load(b), b1 = load(b + kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      const V32 x = all(a[r * p.a_row]);
      low[r] = hn::MulAdd(x, b0, low[r]);
      high[r] = hn::MulAdd(x, b1, high[r]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
    store(low[r], c + r * p.c_row);
    store(high[r], c + r * p.c_row + kLanes);
  }
}

// tiles of six rows fill the registers best; what is left over is a four or two of them
template <Start start>
HWY_INLINE void multiply(const Product& p, const Decayed& first = {}) {
  for (int64_t n = 0; n < p.n; n += kPanel)
    for (int64_t m = 0; m < p.m;) {
      const int64_t left = p.m - m;
      if (left < 6 || left == 8) {
        multiply_tile<start, 4>(p, first, m, n);
        m += 4;
      } else {
        multiply_tile<start, 6>(p, first, m, n);
        m += 6;
      }
    }
}

/// to[c][r] = from[r][c]; rows and columns in fours.
HWY_INLINE void transpose(
    const float* from, int64_t from_row, int64_t rows, int64_t columns, float* to, int64_t to_row) {
  for (int64_t r = 0; r < rows; r += 4)
    for (int64_t c = 0; c < columns; c += 4)
      transpose_4x4(from + r * from_row + c, from_row, to + c * to_row + r, to_row);
}

// x . y[0 .. 4)
HWY_INLINE hn::Vec<F32x4> four_dots(const float* x, const float* y, int64_t y_row, int64_t n) {
  V32 s0 = zero(), s1 = zero(), s2 = zero(), s3 = zero();
  for (int64_t c = 0; c < n; c += kLanes) {
    const V32 xs = load(x + c);
    s0 = hn::MulAdd(xs, load(y + c), s0);
    s1 = hn::MulAdd(xs, load(y + y_row + c), s1);
    s2 = hn::MulAdd(xs, load(y + 2 * y_row + c), s2);
    s3 = hn::MulAdd(xs, load(y + 3 * y_row + c), s3);
  }
  return sums_of_4(s0, s1, s2, s3);
}

// y[0 .. n) += sum over i in [0, count) of a[i a_row] x[i n ...]; n in panels
HWY_INLINE void add_rows(
    const float* a, int64_t a_row, const float* x, int64_t count, int64_t n, float* y) {
  for (int64_t c = 0; c < n; c += kPanel) {
    V32 low = load(y + c), high = load(y + c + kLanes);
    for (int64_t i = 0; i < count; ++i) {
      const V32 factor = all(a[i * a_row]);
      low = hn::MulAdd(factor, load(x + i * n + c), low);
      high = hn::MulAdd(factor, load(x + i * n + c + kLanes), high);
    }
    store(low, y + c);
    store(high, y + c + kLanes);
  }
}

// --- rules ---------------------------------------------------------------------------------------

enum class Rule { plain, bonus, delta, rank_one };

constexpr int readers_of(Rule rule) {
  return rule == Rule::delta || rule == Rule::rank_one ? 2 : 1;
}
constexpr int writers_of(Rule rule) {
  return rule == Rule::rank_one ? 2 : 1;
}
/// Whether the reader asks before the token's decay: S_{t-1} itself.
constexpr bool reads_before(Rule rule, int reader) {
  return rule == (reader == 0 ? Rule::bonus : Rule::rank_one);
}

/// The decays between a reader and the writers before it where all channels share them, token after
/// token.
struct RowWeights {
  float before[kChunk], after[kChunk];  // without and with that of the reader's token

  /// To reader i, from reader i - 1; i > 0.
  HWY_INLINE void advance(int64_t i, float decay) {
    for (int64_t j = 0; j < i; ++j) {
      before[j] = j == i - 1 ? 1.0f : after[j];
      after[j] = before[j] * decay;
    }
  }
};

/// The sizes of a head, padded: channels beyond K and V are zeros.
struct HeadShape {
  int64_t keys, values, state_row;
  bool shared;        // whether channels share their decays
  int64_t decay_row;  // of a token's decays: one vector stands for all that share them
  HeadShape(int64_t K, int64_t V, DecayPer decay)
      : keys((K + kPanel - 1) / kPanel * kPanel),
        values((V + kPanel - 1) / kPanel * kPanel),
        // an odd number of lines, so that a column does not fall into a few cache sets
        state_row(values + (values / 16 % 2 == 0 ? 16 : 0)),
        shared(decay != DecayPer::channel),
        decay_row(shared ? kLanes : keys) {}
  int64_t state() const { return keys * state_row; }
  /// Where channel e stands in a row of decays.
  int64_t decay_at(int64_t e) const { return shared ? 0 : e; }
};

/// What a chunk computes from its inputs and the state before it. Rows are tokens, those beyond the
/// sequence zeros with a decay of 1.
template <Rule rule>
struct Chunk {
  static constexpr int kReaders = readers_of(rule), kWriters = writers_of(rule);

  int64_t begin = 0, count = 0;  // tokens
  float* state = nullptr;        // before the chunk [keys, state_row]
  float *decay, *until, *after;  // [kChunk, decay_row]; until has one row more, of ones
  float* whole;                  // [keys]: the decay of the whole chunk
  // readers and those decayed from the chunk's start, writers and those decayed until its end;
  // where channels share their decays, it is the shorter rows of values that decay
  float *x[kReaders], *from_start[kReaders], *key[kWriters], *to_end[kWriters];
  float *value[kWriters], *value_end[kWriters];  // [kChunk, values]
  float* scores[kReaders][kWriters];             // A [kChunk, kChunk], zeros above the diagonal
  float* dots;  // [kChunk, kChunk]: x[0] . key[0] below the diagonal, where channels share decays
  float* k;     // delta: the keys, without beta

  /// Floats of the arrays above but the state.
  static int64_t floats(const HeadShape& s) {
    return kChunk * (s.decay_row * 3 + s.keys * (2 * kReaders + 2 * kWriters) +
                     s.values * 2 * kWriters + kChunk * (kReaders * kWriters + 1)) +
           s.decay_row + s.keys;
  }
  void place(const HeadShape& s, float* memory) {
    const auto take = [&](float*& p, int64_t n) {
      p = memory;
      memory += n;
    };
    for (float** p : {&decay, &after}) take(*p, kChunk * s.decay_row);
    take(until, (kChunk + 1) * s.decay_row);
    take(whole, s.keys);
    take(dots, kChunk * kChunk);
    const auto decayed = [&](float*& p, float* plain, bool decays, int64_t n) {
      p = plain;
      if (decays) take(p, n);
    };
    for (int r = 0; r < kReaders; ++r) {
      take(x[r], kChunk * s.keys);
      decayed(from_start[r], x[r], !s.shared, kChunk * s.keys);
    }
    for (int w = 0; w < kWriters; ++w) {
      take(key[w], kChunk * s.keys);
      decayed(to_end[w], key[w], !s.shared, kChunk * s.keys);
      take(value[w], kChunk * s.values);
      decayed(value_end[w], value[w], s.shared, kChunk * s.values);
      for (int r = 0; r < kReaders; ++r) take(scores[r][w], kChunk * kChunk);
    }
    k = rule == Rule::delta ? x[1] : key[0];
  }
  /// The decay that reader r has seen at token i.
  const float* seen(const HeadShape& s, int r, int64_t i) const {
    return until + (reads_before(rule, r) ? i : i + 1) * s.decay_row;
  }
};

/// to[i] = from[i] o decays[i]; from and to [kChunk, width], where width is that of the keys or all
/// channels share their decays.
HWY_INLINE void decay_rows(
    const HeadShape& s, const float* from, const float* decays, int64_t width, float* to) {
  for (int64_t i = 0; i < kChunk; ++i, decays += s.decay_row, from += width, to += width)
    for (int64_t e = 0; e < width; e += kLanes)
      store(hn::Mul(load(from + e), load(decays + s.decay_at(e))), to + e);
}

/// `count` rows of `width` floats, `stride` floats apart.
struct InputRows {
  const float* first;
  int64_t stride, count, width;

  /// They lie too far apart for the processor to see them coming.
  HWY_INLINE void prefetch() const {
    for (int64_t i = 0; i < count; ++i)
      for (int64_t e = 0; e < width; e += 16) hwy::Prefetch(first + i * stride + e);
  }
};

/// n floats, then zeros up to `padded`, a number of whole vectors. Rows are short: a call for each
/// would cost as much as its floats.
HWY_INLINE void load_row(const float* from, int64_t n, int64_t padded, float* to) {
  int64_t e = 0;
  for (; e + kLanes <= n; e += kLanes) store(load(from + e), to + e);
  if (e < n) store(load_part(from + e, n - e), to + e), e += kLanes;
  for (; e < padded; e += kLanes) store(zero(), to + e);
}
HWY_INLINE void store_row(const float* from, int64_t n, float* to) {
  int64_t e = 0;
  for (; e + kLanes <= n; e += kLanes) store(load(from + e), to + e);
  if (e < n) store_part(load(from + e), to + e, n - e);
}

/// To [kChunk, padded], zeros elsewhere.
HWY_INLINE void load_rows(const InputRows& rows, int64_t padded, float* to) {
  for (int64_t i = 0; i < kChunk; ++i, to += padded)
    load_row(rows.first + i * rows.stride, i < rows.count ? rows.width : 0, padded, to);
}

template <Rule rule>
class ChunkForward {
 public:
  using C = Chunk<rule>;

  ChunkForward(const LinearRecurrence& r, const HeadShape& s, float* work)
      : r_(r), s_(s), work_(work) {}
  static int64_t work_floats(const HeadShape& s) { return kChunk * std::max(s.keys, s.values); }

  /// Everything of the chunk but the state after it. `again`: the last head that was prepared
  /// shares its queries and keys with this one.
  void prepare(C& c, int64_t h, bool again) const {
    load_inputs(c, h, again);
    load_decays(c, h);
    if (!s_.shared) {
      for (int r = 0; r < C::kReaders; ++r)
        decay_rows(s_, c.x[r], c.seen(s_, r, 0), s_.keys, c.from_start[r]);
      for (int w = 0; w < C::kWriters; ++w) decay_rows(s_, c.key[w], c.after, s_.keys, c.to_end[w]);
    }
    for (int w = 0; w < C::kWriters; ++w) s_.shared ? score_shared(c, w, again) : score(c, w);
    diagonal(c, h);
    if constexpr (C::kReaders == 2) correct(c);
    for (int w = 0; w < C::kWriters && s_.shared; ++w)
      decay_rows(s_, c.value[w], c.after, s_.values, c.value_end[w]);
  }

  void next_state(const C& c, float* next) const {
    for (int w = 0; w < C::kWriters; ++w) {
      const Product p{s_.keys, s_.values,      kChunk,    c.to_end[w], 1,
                      s_.keys, c.value_end[w], s_.values, next,        s_.state_row};
      if (w == 0)
        multiply<Start::decayed>(p, {c.whole, c.state});
      else
        multiply<Start::add>(p);
    }
  }

 private:
  void load_inputs(C& c, int64_t h, bool again) const {
    const int64_t head = c.begin * r_.H + h, shared = r_.shared_row(c.begin, h);
    const int64_t row = r_.H * r_.K, shared_row = r_.shared_row(1, 0) * r_.K;
    if (!again) {
      load_rows({r_.q + shared * r_.K, shared_row, c.count, r_.K}, s_.keys, c.x[0]);
      load_rows({r_.k + shared * r_.K, shared_row, c.count, r_.K}, s_.keys, c.k);
    }
    load_rows({r_.v + head * r_.V, r_.H * r_.V, c.count, r_.V}, s_.values, c.value[0]);
    for (int64_t i = 0; r_.rate != nullptr && i < c.count; ++i) {
      const V32 rate = all(r_.rate[head + i * r_.H]);
      float* value = c.value[0] + i * s_.values;
      for (int64_t e = 0; e < s_.values; e += kLanes)
        store(hn::Mul(rate, load(value + e)), value + e);
    }
    if constexpr (rule == Rule::rank_one) {
      load_rows({r_.a + head * r_.K, row, c.count, r_.K}, s_.keys, c.x[1]);
      load_rows({r_.b + head * r_.K, row, c.count, r_.K}, s_.keys, c.key[1]);
    }
    if constexpr (rule == Rule::delta)
      for (int64_t i = 0; i < kChunk; ++i) {
        const V32 rate = all(i < c.count ? r_.beta[(c.begin + i) * r_.H + h] : 0.0f);
        for (int64_t e = i * s_.keys; e < (i + 1) * s_.keys; e += kLanes)
          store(hn::Mul(rate, load(c.k + e)), c.key[0] + e);
      }
  }

  void load_decays(C& c, int64_t h) const {
    const int64_t row = s_.decay_row;
    const V32 of_head = r_.decay == DecayPer::head ? exp_negative(all(r_.log_decay[h])) : all(1.0f);
    for (int64_t i = 0; i < kChunk; ++i) {
      const int64_t head = (c.begin + i) * r_.H + h;
      V32 of_token = i < c.count ? of_head : all(1.0f);
      if (r_.decay == DecayPer::token && i < c.count)
        of_token = exp_negative(all(r_.log_decay[head]));
      for (int64_t e = 0; e < row; e += kLanes) {
        V32 d = of_token;
        if (r_.decay == DecayPer::channel && i < c.count)
          d = e < r_.K ? exp_negative(load_upto(r_.log_decay + head * r_.K + e, r_.K - e))
                       : all(1.0f);
        store(d, c.decay + i * row + e);
      }
    }
    for (int64_t e = 0; e < row; e += kLanes) {
      V32 product = all(1.0f);
      store(product, c.until + e);
      for (int64_t i = 0; i < kChunk; ++i) {
        product = hn::Mul(product, load(c.decay + i * row + e));
        store(product, c.until + (i + 1) * row + e);
      }
      product = all(1.0f);
      for (int64_t i = kChunk - 1; i >= 0; --i) {
        store(product, c.after + i * row + e);
        product = hn::Mul(product, load(c.decay + i * row + e));
      }
    }
    for (int64_t e = 0; e < s_.keys; e += kLanes)
      store(load(c.until + kChunk * row + s_.decay_at(e)), c.whole + e);
  }

  // below the diagonal, row by row: the keys before the row's token decay along with it in work_
  void score(C& c, int w) const {
    const int64_t keys = s_.keys;
    std::fill_n(work_, kChunk * keys, 0.0f);
    for (int r = 0; r < C::kReaders; ++r) std::fill_n(c.scores[r][w], kChunk, 0.0f);
    for (int64_t i = 1; i < kChunk; ++i) {
      std::copy_n(c.key[w] + (i - 1) * keys, keys, work_ + (i - 1) * keys);
      for (int r = 0; r < C::kReaders; ++r) std::fill_n(c.scores[r][w] + i * kChunk, kChunk, 0.0f);
      for (int64_t j = 0; j < i; j += 4) score_four(c, w, i, j);
    }
  }

  HWY_INLINE void score_four(C& c, int w, int64_t i, int64_t j) const {
    const int64_t keys = s_.keys;
    V32 sum[C::kReaders][4];
    for (int r = 0; r < C::kReaders; ++r)
      for (int n = 0; n < 4; ++n) sum[r][n] = zero();
    for (int64_t e = 0; e < keys; e += kLanes) {
      const V32 decay = load(c.decay + i * keys + e);
      V32 x[C::kReaders];
      for (int r = 0; r < C::kReaders; ++r) x[r] = load(c.x[r] + i * keys + e);
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) {
        float* decayed = work_ + (j + n) * keys + e;
        const V32 before = load(decayed), after = hn::Mul(before, decay);
        store(after, decayed);
#pragma GCC unroll 2
        for (int r = 0; r < C::kReaders; ++r)
          sum[r][n] = hn::MulAdd(x[r], reads_before(rule, r) ? before : after, sum[r][n]);
      }
    }
    for (int r = 0; r < C::kReaders; ++r)
      hn::StoreU(sums_of_4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]), F32x4(),
                 c.scores[r][w] + i * kChunk + j);
  }

  // the same where channels share their decay: products of rows, then weights
  void score_shared(C& c, int w, bool again) const {
    const int64_t keys = s_.keys;
    RowWeights weights;
    for (int64_t i = 0; i < kChunk; ++i) {
      if (i > 0) weights.advance(i, c.decay[i * s_.decay_row]);
      for (int r = 0; r < C::kReaders; ++r) {
        const float* weight = reads_before(rule, r) ? weights.before : weights.after;
        float* row = c.scores[r][w] + i * kChunk;
        float* dots = r == 0 && w == 0 ? c.dots + i * kChunk : row;
        // keys of the delta rule are each head's own
        if (dots == row || !again || rule == Rule::delta)
          for (int64_t j = 0; j < i; j += 4)
            hn::StoreU(four_dots(c.x[r] + i * keys, c.key[w] + j * keys, keys, keys), F32x4(),
                       dots + j);
        for (int64_t j = 0; j < i; ++j) row[j] = dots[j] * weight[j];
        std::fill(row + i, row + kChunk, 0.0f);
      }
    }
  }

  // what the queries read of their own token
  void diagonal(C& c, int64_t h) const {
    for (int w = 0; w < C::kWriters; ++w)
      for (int64_t i = 0; i < kChunk; ++i) {
        const float *q = c.x[0] + i * s_.keys, *k = c.key[w] + i * s_.keys;
        V32 sum = zero();
        for (int64_t e = 0; e < r_.K; e += kLanes) {
          V32 product = hn::Mul(load(q + e), load(k + e));
          if constexpr (rule == Rule::bonus)
            product = hn::Mul(product, load_upto(r_.bonus + h * r_.K + e, r_.K - e));
          sum = hn::Add(sum, product);
        }
        c.scores[0][w][i * kChunk + i] = sum_of(sum);
      }
  }

  // what the second reader gets, token by token, and the values that follow from it
  void correct(C& c) const {
    constexpr bool delta = rule == Rule::delta;
    float* base = delta ? work_ : c.value[C::kWriters - 1];
    multiply<Start::zero>({kChunk, s_.values, s_.keys, c.from_start[1], s_.keys, 1, c.state,
                           s_.state_row, base, s_.values});
    if (s_.shared) decay_rows(s_, base, c.seen(s_, 1, 0), s_.values, base);
    for (int64_t i = 0; i < kChunk; ++i) {
      float* row = base + i * s_.values;
      for (int w = 0; w < C::kWriters; ++w)
        add_rows(c.scores[1][w] + i * kChunk, 1, c.value[w], i, s_.values, row);
      if constexpr (delta)
        for (int64_t e = 0; e < s_.values; e += kLanes) {
          float* value = c.value[0] + i * s_.values + e;
          store(hn::Sub(load(value), load(row + e)), value);
        }
    }
  }

  const LinearRecurrence& r_;
  const HeadShape& s_;
  float* work_;
};

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
