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

#include <algorithm>

#include "tessera/kernels/expected_inl.h"
#include "tessera/kernels/linear/linear_recurrence.h"
#include "tessera/kernels/math_inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

constexpr int64_t kPanel = 2 * kLanes;                      // columns of a register tile
constexpr int64_t kMostTokens = kPanel > 16 ? kPanel : 16;  // of a chunk

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

// rows times vectors of c, from c[m][n] on
template <Start start, int rows, int vectors>
HWY_INLINE void multiply_tile(const Product& p, const Decayed& first, int64_t m, int64_t n) {
  V32 sum[rows][vectors];
  float* c = p.c + m * p.c_row + n;
  const float* from = start == Start::decayed ? first.before + m * p.c_row + n : c;
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      sum[r][v] = start == Start::zero ? zero() : load(from + r * p.c_row + v * kLanes);
      if constexpr (start == Start::decayed) sum[r][v] = hn::Mul(sum[r][v], all(first.keep[m + r]));
    }
  const float *a = p.a + m * p.a_row, *b = p.b + n;
  for (int64_t d = 0; d < p.depth; ++d, a += p.a_depth, b += p.b_row) {
    V32 row[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) row[v] = load(b + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const V32 x = all(a[r * p.a_row]);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sum[r][v] = hn::MulAdd(x, row[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) store(sum[r][v], c + r * p.c_row + v * kLanes);
}

// Tiles that fill the registers, and what is left over in fours of rows: of thirty-two, eight rows
// of two vectors, or six of four where rows and depth are worth it; of sixteen, six rows of two.
template <Start start>
HWY_INLINE void multiply(const Product& p, Expected& soon, const Decayed& first = {}) {
  int64_t n = 0;
  if (p.n < kPanel) {
    int64_t m = 0;
    for (; m + 8 <= p.m; m += 8) soon.more(8), multiply_tile<start, 8, 1>(p, first, m, 0);
    for (; m < p.m; m += 4) multiply_tile<start, 4, 1>(p, first, m, 0);
    return;
  }
  if (kLanes == 16 && p.m >= 32 && p.depth >= 32) {
    const int64_t sixes = p.m - (p.m % 6 == 2 ? 8 : p.m % 6);
    for (; n + 2 * kPanel <= p.n; n += 2 * kPanel) {
      for (int64_t m = 0; m < sixes; m += 6)
        soon.more(16), multiply_tile<start, 6, 4>(p, first, m, n);
      for (int64_t m = sixes; m < p.m; m += 4) {
        multiply_tile<start, 4, 2>(p, first, m, n);
        multiply_tile<start, 4, 2>(p, first, m, n + kPanel);
      }
    }
  }
  for (; n < p.n; n += kPanel)
    for (int64_t m = 0; m < p.m;) {
      soon.more(8);
      const int64_t left = p.m - m;
      if (kLanes == 16 && left >= 8) {
        multiply_tile<start, 8, 2>(p, first, m, n);
        m += 8;
      } else if (left < 6 || left == 8) {
        multiply_tile<start, 4, 2>(p, first, m, n);
        m += 4;
      } else {
        multiply_tile<start, 6, 2>(p, first, m, n);
        m += 6;
      }
    }
}

/// to[c][r] = from[r][c]; rows and columns in fours.
HWY_INLINE void transpose(
    const float* from, int64_t from_row, int64_t rows, int64_t columns, float* to, int64_t to_row) {
  for (int64_t r = 0; r < rows; r += 4)
    transpose_four_rows(from + r * from_row, from_row, columns, to + r, to_row);
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
/// token; zeros for later writers.
struct RowWeights {
  HWY_ALIGN float before[kMostTokens] = {};  // without that of the reader's token
  HWY_ALIGN float after[kMostTokens] = {};

  /// To reader i, from reader i - 1; i > 0.
  HWY_INLINE void advance(int64_t i, float decay) {
    after[i - 1] = 1.0f;
    for (int64_t j = 0; j < i; j += kLanes) {
      const V32 past = load(after + j);
      store(past, before + j);
      store(hn::Mul(past, all(decay)), after + j);
    }
  }
};

/// to[j] = a[j] b[j] for j < n, zeros from there to `padded`, a number of whole vectors.
HWY_INLINE void multiply_rows(
    const float* a, const float* b, int64_t n, int64_t padded, float* to) {
  for (int64_t j = 0; j < padded; j += kLanes) {
    const auto within =
        hn::FirstN(F32(), static_cast<size_t>(std::clamp<int64_t>(n - j, 0, kLanes)));
    store(hn::IfThenElseZero(within, hn::Mul(load(a + j), load(b + j))), to + j);
  }
}

/// The sizes of a head, padded: channels beyond K and V are zeros.
struct HeadShape {
  int64_t keys, values, state_row;
  // of a chunk: products with the state cost K V a token whatever the length, those within a chunk
  // grow with it; shorter chunks read and write the state more often
  int64_t tokens;
  bool shared;        // whether channels share their decays
  int64_t decay_row;  // of a token's decays: one vector for all channels that share them
  HeadShape(int64_t K, int64_t V, DecayPer decay, int readers)
      : keys((K + kPanel - 1) / kPanel * kPanel),
        values((V + kPanel - 1) / kPanel * kPanel),
        // an odd number of lines, so that a column does not fall into a few cache sets
        state_row(values + (values / 16 % 2 == 0 ? 16 : 0)),
        tokens(decay == DecayPer::channel || readers > 1 ? 16 : kMostTokens),
        shared(decay != DecayPer::channel),
        decay_row(shared ? kLanes : keys) {}
  int64_t state() const { return keys * state_row; }
  /// Index of channel e in a row of decays.
  int64_t decay_at(int64_t e) const { return shared ? 0 : e; }
};

/// What a chunk computes from its inputs and the state before it. Rows are tokens, those beyond the
/// sequence zeros with a decay of 1.
template <Rule rule>
struct Chunk {
  static constexpr int kReaders = readers_of(rule), kWriters = writers_of(rule);

  int64_t begin = 0, count = 0;  // tokens
  float* state = nullptr;        // before the chunk [keys, state_row]
  float *decay, *until, *after;  // [tokens, decay_row]; until has one row more, of ones
  float* whole;                  // [keys]: the decay of the whole chunk
  // readers and those decayed from the chunk's start, writers and those decayed until its end;
  // where channels share their decays, it is the shorter rows of values that decay
  float *x[kReaders], *from_start[kReaders], *key[kWriters], *to_end[kWriters];
  float *value[kWriters], *value_end[kWriters];  // [tokens, values]
  float* scores[kReaders][kWriters];             // A [tokens, tokens], zeros above the diagonal
  float* dots;  // [tokens, tokens]: x[0] . key[0] below the diagonal, where channels share decays
  float* k;     // delta: the keys, without beta

  /// Floats of the arrays above but the state.
  static int64_t floats(const HeadShape& s) {
    return s.tokens * (s.decay_row * 3 + s.keys * (2 * kReaders + 2 * kWriters) +
                       s.values * 2 * kWriters + s.tokens * (kReaders * kWriters + 1)) +
           s.decay_row + s.keys;
  }
  void place(const HeadShape& s, float* memory) {
    const auto take = [&](float*& p, int64_t n) {
      p = memory;
      memory += n;
    };
    for (float** p : {&decay, &after}) take(*p, s.tokens * s.decay_row);
    take(until, (s.tokens + 1) * s.decay_row);
    take(whole, s.keys);
    take(dots, s.tokens * s.tokens);
    const auto decayed = [&](float*& p, float* plain, bool decays, int64_t n) {
      p = plain;
      if (decays) take(p, n);
    };
    for (int r = 0; r < kReaders; ++r) {
      take(x[r], s.tokens * s.keys);
      decayed(from_start[r], x[r], !s.shared, s.tokens * s.keys);
    }
    for (int w = 0; w < kWriters; ++w) {
      take(key[w], s.tokens * s.keys);
      decayed(to_end[w], key[w], !s.shared, s.tokens * s.keys);
      take(value[w], s.tokens * s.values);
      decayed(value_end[w], value[w], s.shared, s.tokens * s.values);
      for (int r = 0; r < kReaders; ++r) take(scores[r][w], s.tokens * s.tokens);
    }
    k = rule == Rule::delta ? x[1] : key[0];
  }
  /// The decay that reader r has seen at token i.
  const float* seen(const HeadShape& s, int r, int64_t i) const {
    return until + (reads_before(rule, r) ? i : i + 1) * s.decay_row;
  }
};

/// to[i] = from[i] o decays[i]; from and to [tokens, width], where width is that of the keys or all
/// channels share their decays.
HWY_INLINE void decay_rows(
    const HeadShape& s, const float* from, const float* decays, int64_t width, float* to) {
  for (int64_t i = 0; i < s.tokens; ++i, decays += s.decay_row, from += width, to += width)
    for (int64_t e = 0; e < width; e += kLanes)
      store(hn::Mul(load(from + e), load(decays + s.decay_at(e))), to + e);
}

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

/// To [tokens, padded], zeros elsewhere.
HWY_INLINE void load_rows(const StridedRows& rows, int64_t tokens, int64_t padded, float* to) {
  for (int64_t i = 0; i < tokens; ++i, to += padded)
    load_row(rows.first + i * rows.stride, i < rows.count ? rows.width : 0, padded, to);
}

template <Rule rule>
class ChunkForward {
 public:
  using C = Chunk<rule>;

  ChunkForward(const LinearRecurrence& r, const HeadShape& s, float* work, Expected& soon)
      : r_(r), s_(s), tokens_(s.tokens), work_(work), soon_(soon) {}
  static int64_t work_floats(const HeadShape& s) { return s.tokens * std::max(s.keys, s.values); }

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

  /// The inputs of `count` tokens of head h from `begin` on.
  void expect(int64_t begin, int64_t count, int64_t h, bool again) const {
    const int64_t head = begin * r_.H + h, shared = r_.shared_row(begin, h);
    const int64_t row = r_.H * r_.K, shared_row = r_.shared_row(1, 0) * r_.K;
    if (!again) {
      soon_.read({r_.q + shared * r_.K, shared_row, count, r_.K});
      soon_.read({r_.k + shared * r_.K, shared_row, count, r_.K});
    }
    soon_.read({r_.v + head * r_.V, r_.H * r_.V, count, r_.V});
    if (r_.decay == DecayPer::channel) soon_.read({r_.log_decay + head * r_.K, row, count, r_.K});
    if constexpr (rule == Rule::rank_one) {
      soon_.read({r_.a + head * r_.K, row, count, r_.K});
      soon_.read({r_.b + head * r_.K, row, count, r_.K});
    }
  }

  void next_state(const C& c, float* next) const {
    for (int w = 0; w < C::kWriters; ++w) {
      const Product p{s_.keys, s_.values,      tokens_,   c.to_end[w], 1,
                      s_.keys, c.value_end[w], s_.values, next,        s_.state_row};
      if (w == 0)
        multiply<Start::decayed>(p, soon_, {c.whole, c.state});
      else
        multiply<Start::add>(p, soon_);
    }
  }

 private:
  void load_inputs(C& c, int64_t h, bool again) const {
    const int64_t head = c.begin * r_.H + h, shared = r_.shared_row(c.begin, h);
    const int64_t row = r_.H * r_.K, shared_row = r_.shared_row(1, 0) * r_.K;
    if (!again) {
      load_rows({r_.q + shared * r_.K, shared_row, c.count, r_.K}, tokens_, s_.keys, c.x[0]);
      load_rows({r_.k + shared * r_.K, shared_row, c.count, r_.K}, tokens_, s_.keys, c.k);
    }
    load_rows({r_.v + head * r_.V, r_.H * r_.V, c.count, r_.V}, tokens_, s_.values, c.value[0]);
    for (int64_t i = 0; r_.rate != nullptr && i < c.count; ++i) {
      const V32 rate = all(r_.rate[head + i * r_.H]);
      float* value = c.value[0] + i * s_.values;
      for (int64_t e = 0; e < s_.values; e += kLanes)
        store(hn::Mul(rate, load(value + e)), value + e);
    }
    if constexpr (rule == Rule::rank_one) {
      load_rows({r_.a + head * r_.K, row, c.count, r_.K}, tokens_, s_.keys, c.x[1]);
      load_rows({r_.b + head * r_.K, row, c.count, r_.K}, tokens_, s_.keys, c.key[1]);
    }
    if constexpr (rule == Rule::delta)
      for (int64_t i = 0; i < tokens_; ++i) {
        const V32 rate = all(i < c.count ? r_.beta[(c.begin + i) * r_.H + h] : 0.0f);
        for (int64_t e = i * s_.keys; e < (i + 1) * s_.keys; e += kLanes)
          store(hn::Mul(rate, load(c.k + e)), c.key[0] + e);
      }
  }

  void load_decays(C& c, int64_t h) const {
    const int64_t row = s_.decay_row;
    const V32 of_head = r_.decay == DecayPer::head ? exp_negative(all(r_.log_decay[h])) : all(1.0f);
    for (int64_t i = 0; i < tokens_; ++i) {
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
      for (int64_t i = 0; i < tokens_; ++i) {
        product = hn::Mul(product, load(c.decay + i * row + e));
        store(product, c.until + (i + 1) * row + e);
      }
      product = all(1.0f);
      for (int64_t i = tokens_ - 1; i >= 0; --i) {
        store(product, c.after + i * row + e);
        product = hn::Mul(product, load(c.decay + i * row + e));
      }
    }
    for (int64_t e = 0; e < s_.keys; e += kLanes)
      store(load(c.until + tokens_ * row + s_.decay_at(e)), c.whole + e);
  }

  // below the diagonal, row by row: the keys before the row's token decay along with it in work_
  void score(C& c, int w) const {
    const int64_t keys = s_.keys;
    std::fill_n(work_, tokens_ * keys, 0.0f);
    for (int r = 0; r < C::kReaders; ++r) std::fill_n(c.scores[r][w], tokens_, 0.0f);
    for (int64_t i = 1; i < tokens_; ++i) {
      soon_.more(8);
      std::copy_n(c.key[w] + (i - 1) * keys, keys, work_ + (i - 1) * keys);
      for (int r = 0; r < C::kReaders; ++r)
        std::fill_n(c.scores[r][w] + i * tokens_, tokens_, 0.0f);
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
                 c.scores[r][w] + i * tokens_ + j);
  }

  // the same where channels share their decay: products of rows, then weights
  void score_shared(C& c, int w, bool again) const {
    const int64_t keys = s_.keys;
    RowWeights weights;
    for (int64_t i = 0; i < tokens_; ++i) {
      soon_.more(8);
      if (i > 0) weights.advance(i, c.decay[i * s_.decay_row]);
      for (int r = 0; r < C::kReaders; ++r) {
        const float* weight = reads_before(rule, r) ? weights.before : weights.after;
        float* row = c.scores[r][w] + i * tokens_;
        float* dots = r == 0 && w == 0 ? c.dots + i * tokens_ : row;
        // keys of the delta rule are each head's own
        if (dots == row || !again || rule == Rule::delta)
          for (int64_t j = 0; j < i; j += 4)
            hn::StoreU(four_dots(c.x[r] + i * keys, c.key[w] + j * keys, keys, keys), F32x4(),
                       dots + j);
        multiply_rows(dots, weight, i, tokens_, row);
      }
    }
  }

  // what the queries read of their own token
  void diagonal(C& c, int64_t h) const {
    for (int w = 0; w < C::kWriters; ++w)
      for (int64_t i = 0; i < tokens_; ++i) {
        const float *q = c.x[0] + i * s_.keys, *k = c.key[w] + i * s_.keys;
        V32 sum = zero();
        for (int64_t e = 0; e < r_.K; e += kLanes) {
          V32 product = hn::Mul(load(q + e), load(k + e));
          if constexpr (rule == Rule::bonus)
            product = hn::Mul(product, load_upto(r_.bonus + h * r_.K + e, r_.K - e));
          sum = hn::Add(sum, product);
        }
        c.scores[0][w][i * tokens_ + i] = sum_of(sum);
      }
  }

  // what the second reader gets, token by token, and the values that follow from it
  void correct(C& c) const {
    constexpr bool delta = rule == Rule::delta;
    float* base = delta ? work_ : c.value[C::kWriters - 1];
    multiply<Start::zero>({tokens_, s_.values, s_.keys, c.from_start[1], s_.keys, 1, c.state,
                           s_.state_row, base, s_.values},
                          soon_);
    if (s_.shared) decay_rows(s_, base, c.seen(s_, 1, 0), s_.values, base);
    for (int64_t i = 0; i < tokens_; ++i) {
      float* row = base + i * s_.values;
      for (int w = 0; w < C::kWriters; ++w)
        add_rows(c.scores[1][w] + i * tokens_, 1, c.value[w], i, s_.values, row);
      if constexpr (delta)
        for (int64_t e = 0; e < s_.values; e += kLanes) {
          float* value = c.value[0] + i * s_.values + e;
          store(hn::Sub(load(value), load(row + e)), value);
        }
    }
  }

  const LinearRecurrence& r_;
  const HeadShape& s_;
  const int64_t tokens_;
  float* work_;
  Expected& soon_;
};

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
