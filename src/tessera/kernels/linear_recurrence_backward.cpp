#include "tessera/kernels/linear_recurrence_backward.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/linear_recurrence_backward.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/linear_recurrence_chunk_inl.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// One head, from the last chunk to the first. Chunks between two checkpoints are computed again, in
// order, before their gradients are. With G the gradient of the state after a chunk, dread that of
// what a reader got and dvalue that of a value:
//   dvalue_j = G^T (k_j until the end) + sum_{i > j} A_ij dread_i,      dA_ij = dread_i . value_j
//   dx_i = (S dread_i) decayed from the start + sum_{j < i} dA_ij (w_ij o k_j)
//   dk_j = (G value_j) decayed until the end + sum_{i > j} dA_ij (w_ij o x_i)
//   G before = decay o G + sum_i (x_i from the start) dread_i^T
// The gradient of ln d_t is the sum of x o dx over later readers and of k o dk over earlier
// writers, for those are the products that d_t is a factor of.
template <Rule rule>
class HeadBackward {
 public:
  using C = Chunk<rule>;

  HeadBackward(const LinearRecurrence& r, const LinearRecurrenceGradients& g)
      : r_(r),
        g_(g),
        s_(r.K, r.V),
        chunks_(static_cast<size_t>((std::min(g.interval, r.T) + kChunk - 1) / kChunk)) {
    const int64_t rows = kChunk * s_.keys, values = kChunk * s_.values, pairs = kChunk * kChunk,
                  count = static_cast<int64_t>(chunks_.size());
    const int64_t work = ChunkForward<rule>::work_floats(s_);
    const int64_t floats = count * (C::floats(s_) + s_.state()) + s_.state() + work +
                           (kReaders + kWriters) * (rows + values) + std::max(rows, values) * 2 +
                           kReaders * kWriters * pairs + 2 * s_.keys;
    float* memory = scratch<32>(floats);
    const auto take = [&](int64_t n) {
      float* p = memory;
      memory += n;
      return p;
    };
    for (C& c : chunks_) c.state = take(s_.state()), c.place(s_, take(C::floats(s_)));
    work_ = take(work);
    dstate_ = take(s_.state());
    for (float*& p : dread_) p = take(values);
    for (float*& p : dvalue_) p = take(values);
    for (float*& p : dx_) p = take(rows);
    for (float*& p : dkey_) p = take(rows);
    for (auto& of_reader : dscores_)
      for (float*& p : of_reader) p = take(pairs);
    turned_ = take(std::max(rows, values));
    product_ = take(std::max(rows, values));
    total_ = take(s_.keys);
    dbonus_ = take(s_.keys);
  }

  void run(int64_t h) {
    h_ = h;
    load_state(g_.dstate + h * r_.K * r_.V, dstate_);
    std::fill_n(dbonus_, s_.keys, 0.0f);
    for (int64_t block = (r_.T + g_.interval - 1) / g_.interval - 1; block >= 0; --block) {
      const auto count = static_cast<size_t>(prepare(block));
      for (size_t i = count; i-- > 0;) step_back(chunks_[i]);
    }
    for (int64_t c = 0; c < r_.K; ++c)
      std::copy_n(dstate_ + c * s_.state_row, r_.V, g_.dstate + (h * r_.K + c) * r_.V);
    if constexpr (rule == Rule::bonus) std::copy_n(dbonus_, r_.K, g_.dbonus + h * r_.K);
  }

 private:
  static constexpr int kReaders = C::kReaders, kWriters = C::kWriters;

  void load_state(const float* from, float* to) const {
    for (int64_t c = 0; c < s_.keys; ++c, to += s_.state_row) {
      const int64_t n = c < r_.K ? r_.V : 0;
      std::copy_n(from + c * r_.V, n, to);
      std::fill(to + n, to + s_.state_row, 0.0f);
    }
  }

  // the chunks of a block of tokens, in order; returns how many
  int64_t prepare(int64_t block) {
    const int64_t begin = block * g_.interval, end = std::min(begin + g_.interval, r_.T);
    const ChunkForward<rule> forward(r_, s_, work_);
    load_state(g_.checkpoints + (block * r_.H + h_) * r_.K * r_.V, chunks_[0].state);
    size_t i = 0;
    for (int64_t t = begin; t < end; t += kChunk, ++i) {
      C& c = chunks_[i];
      c.begin = t, c.count = std::min(kChunk, end - t);
      forward.prepare(c, h_);
      if (t + kChunk < end) forward.next_state(c, chunks_[i + 1].state);
    }
    return static_cast<int64_t>(i);
  }

  void step_back(const C& c) {
    load_rows({g_.dy + head(c, 0) * r_.V, r_.H * r_.V, c.count, r_.V}, s_.values, dread_[0]);
    value_gradients(c);
    for (int w = 0; w < kWriters; ++w) through_state(dstate_, c.value[w], c.after, dkey_[w]);
    if (g_.dlog_decay != nullptr) start_decays(c);
    for (int r = 0; r < kReaders; ++r) through_state(c.state, dread_[r], c.seen(s_, r, 0), dx_[r]);
    for (int r = 0; r < kReaders; ++r)
      for (int w = 0; w < kWriters; ++w)
        for (int64_t i = 0; i < kChunk; ++i)
          for (int64_t j = 0; j <= i; j += 4)
            hn::StoreU(four_dots(dread_[r] + i * s_.values, c.value[w] + j * s_.values, s_.values,
                                 s_.values),
                       F32x4(), dscores_[r][w] + i * kChunk + j);
    const bool fours = s_.keys % (4 * kLanes) == 0;
    for (int w = 0; w < kWriters; ++w) {
      if (r_.decay != DecayPer::channel) {
        shared_pair_gradients(c, w);
        continue;
      }
      for (int64_t e = 0; e < s_.keys; e += fours ? 4 * kLanes : kPanel)
        fours ? pair_gradients<4>(c, w, e) : pair_gradients<2>(c, w, e);
    }
    if (g_.dlog_decay != nullptr) store_decays(c);
    diagonal(c);
    for (int r = 0; r < kReaders; ++r) {
      const Product p{s_.keys, s_.values, kChunk,    c.from_start[r], 1,
                      s_.keys, dread_[r], s_.values, dstate_,         s_.state_row};
      if (r == 0)
        multiply<Start::decayed>(p, {c.whole(s_), dstate_});
      else
        multiply<Start::add>(p);
    }
    store_rows(c);
  }

  // of all values, and with them of what the second reader got: from the last token to the first
  void value_gradients(const C& c) {
    const int64_t values = s_.values;
    for (int w = 0; w < kWriters; ++w) {
      multiply<Start::zero>({kChunk, values, s_.keys, c.to_end[w], s_.keys, 1, dstate_,
                             s_.state_row, dvalue_[w], values});
      // no query before token j reads it
      for (int64_t j = 0; j < kChunk; j += 4)
        multiply<Start::add>({4, values, kChunk - j, c.scores[0][w] + j * kChunk + j, 1, kChunk,
                              dread_[0] + j * values, values, dvalue_[w] + j * values, values});
    }
    if constexpr (kReaders == 2)
      for (int64_t j = kChunk - 1; j >= 0; --j) {
        for (int w = 0; w < kWriters; ++w)
          add_rows(c.scores[1][w] + (j + 1) * kChunk + j, kChunk, dread_[1] + (j + 1) * values,
                   kChunk - 1 - j, values, dvalue_[w] + j * values);
        const float* from = dvalue_[kWriters - 1] + j * values;
        for (int64_t e = 0; e < values; e += kLanes) {
          const V32 d = load(from + e);
          store(rule == Rule::delta ? hn::Neg(d) : d, dread_[1] + j * values + e);
        }
      }
  }

  // to[i] = weight[i] o (state rows[i])
  void through_state(const float* state, const float* rows, const float* weight, float* to) {
    transpose(rows, s_.values, kChunk, s_.values, turned_, kChunk);
    multiply<Start::zero>(
        {s_.keys, kChunk, s_.values, state, s_.state_row, 1, turned_, kChunk, product_, kChunk});
    transpose(product_, kChunk, s_.keys, kChunk, to, s_.keys);
    for (int64_t e = 0; e < kChunk * s_.keys; e += kLanes)
      store(hn::Mul(load(to + e), load(weight + e)), to + e);
  }

  // channels [e, e + vectors kLanes) of the gradients through the scores of writer w
  template <int vectors>
  HWY_INLINE void pair_gradients(const C& c, int w, int64_t e) {
    constexpr int64_t width = vectors * kLanes;
    const int64_t keys = s_.keys;
    HWY_ALIGN float row[kChunk * width];
    V32 decay[vectors];
    // the keys decay along with the reader
    for (int64_t i = 1; i < kChunk; ++i) {
      V32 sum[kReaders][vectors];
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        const int64_t at = i * keys + e + v * kLanes;
        store(load(c.key[w] + at - keys), row + (i - 1) * width + v * kLanes);
        decay[v] = load(c.decay + at);
#pragma GCC unroll 2
        for (int r = 0; r < kReaders; ++r) sum[r][v] = load(dx_[r] + at);
      }
      for (int64_t j = 0; j < i; ++j) {
        V32 ds[kReaders];
        for (int r = 0; r < kReaders; ++r) ds[r] = all(dscores_[r][w][i * kChunk + j]);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
          float* p = row + j * width + v * kLanes;
          const V32 before = load(p), after = hn::Mul(before, decay[v]);
          store(after, p);
#pragma GCC unroll 2
          for (int r = 0; r < kReaders; ++r)
            sum[r][v] = hn::MulAdd(ds[r], reads_before(rule, r) ? before : after, sum[r][v]);
        }
      }
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v)
        for (int r = 0; r < kReaders; ++r) store(sum[r][v], dx_[r] + i * keys + e + v * kLanes);
    }
    // the readers decay on the way back to the key
    std::fill_n(row, kChunk * width, 0.0f);
    for (int64_t i = kChunk - 1; i > 0; --i) {
      V32 x[kReaders][vectors];
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        const int64_t at = i * keys + e + v * kLanes;
        decay[v] = load(c.decay + at);
#pragma GCC unroll 2
        for (int r = 0; r < kReaders; ++r) x[r][v] = load(c.x[r] + at);
      }
      for (int64_t j = 0; j < i; ++j) {
        V32 ds[kReaders];
        for (int r = 0; r < kReaders; ++r) ds[r] = all(dscores_[r][w][i * kChunk + j]);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
          float* p = row + j * width + v * kLanes;
          V32 sum = load(p);
#pragma GCC unroll 2
          for (int r = 0; r < kReaders; ++r)
            if (!reads_before(rule, r)) sum = hn::MulAdd(ds[r], x[r][v], sum);
          sum = hn::Mul(sum, decay[v]);
#pragma GCC unroll 2
          for (int r = 0; r < kReaders; ++r)
            if (reads_before(rule, r)) sum = hn::MulAdd(ds[r], x[r][v], sum);
          store(sum, p);
        }
      }
    }
    for (int64_t j = 0; j < kChunk; ++j)
      for (int v = 0; v < vectors; ++v) {
        float* to = dkey_[w] + j * keys + e + v * kLanes;
        store(hn::Add(load(to), load(row + j * width + v * kLanes)), to);
      }
  }

  // the same where channels share their decay: products with weighted gradients of the scores
  void shared_pair_gradients(const C& c, int w) {
    const int64_t keys = s_.keys;
    RowWeights weights;
    HWY_ALIGN float weighted[kReaders][kChunk * kChunk] = {};  // zeros from the diagonal on
    for (int64_t i = 1; i < kChunk; ++i) {
      weights.advance(i, c.decay[i * keys]);
      for (int r = 0; r < kReaders; ++r)
        for (int64_t j = 0, at = i * kChunk; j < i; ++j, ++at)
          weighted[r][at] =
              dscores_[r][w][at] * (reads_before(rule, r) ? weights.before : weights.after)[j];
    }
    for (int r = 0; r < kReaders; ++r)
      for (int64_t m = 0; m < kChunk; m += 4) {
        const float *row = weighted[r] + m * kChunk, *column = weighted[r] + (m + 1) * kChunk + m;
        multiply<Start::add>(
            {4, keys, m + 3, row, kChunk, 1, c.key[w], keys, dx_[r] + m * keys, keys});
        multiply<Start::add>({4, keys, kChunk - m - 1, column, 1, kChunk, c.x[r] + (m + 1) * keys,
                              keys, dkey_[w] + m * keys, keys});
      }
  }

  // total_: the gradient of the logarithm of a decay that acts on the whole chunk, by what the
  // state keeps and what the chunk writes to its end; dkey_ is that part alone
  void start_decays(const C& c) {
    const int64_t keys = s_.keys;
    for (int64_t e = 0; e < keys; e += 4) {
      V32 sum[4];
      for (int n = 0; n < 4; ++n) {
        const int64_t at = (e + n) * s_.state_row;
        sum[n] = zero();
        for (int64_t v = 0; v < s_.values; v += kLanes)
          sum[n] = hn::MulAdd(load(dstate_ + at + v), load(c.state + at + v), sum[n]);
      }
      hn::StoreU(sums_of_4(sum[0], sum[1], sum[2], sum[3]), F32x4(), total_ + e);
    }
    for (int64_t e = 0; e < keys; e += kLanes) {
      V32 sum = hn::Mul(load(total_ + e), load(c.whole(s_) + e));
      for (int w = 0; w < kWriters; ++w)
        for (int64_t i = 0; i < kChunk; ++i)
          sum = hn::MulAdd(load(c.key[w] + i * keys + e), load(dkey_[w] + i * keys + e), sum);
      store(sum, total_ + e);
    }
  }

  // before the queries' own tokens are added: no decay stands between them and themselves
  void store_decays(const C& c) {
    const int64_t keys = s_.keys;
    for (int64_t i = kChunk - 1; i >= 0; --i) {
      V32 of_token = zero();
      for (int64_t e = 0; e < keys; e += kLanes) {
        const int64_t at = i * keys + e;
        V32 sum = load(total_ + e);
        for (int r = 0; r < kReaders; ++r)
          if (!reads_before(rule, r)) sum = hn::MulAdd(load(c.x[r] + at), load(dx_[r] + at), sum);
        for (int w = 0; w < kWriters; ++w)
          sum = hn::NegMulAdd(load(c.key[w] + at), load(dkey_[w] + at), sum);
        if (i < c.count && r_.decay == DecayPer::channel && e < r_.K)
          store_upto(sum, g_.dlog_decay + head(c, i) * r_.K + e, r_.K - e);
        of_token = hn::Add(of_token, sum);
        for (int r = 0; r < kReaders; ++r)
          if (reads_before(rule, r)) sum = hn::MulAdd(load(c.x[r] + at), load(dx_[r] + at), sum);
        store(sum, total_ + e);
      }
      if (i < c.count && r_.decay == DecayPer::token) g_.dlog_decay[head(c, i)] = sum_of(of_token);
    }
  }

  void diagonal(const C& c) {
    for (int w = 0; w < kWriters; ++w)
      for (int64_t i = 0; i < c.count; ++i) {
        const V32 ds = all(dscores_[0][w][i * kChunk + i]);
        for (int64_t e = 0; e < s_.keys; e += kLanes) {
          const int64_t at = i * s_.keys + e;
          V32 q = hn::Mul(ds, load(c.x[0] + at)), k = hn::Mul(ds, load(c.key[w] + at));
          if constexpr (rule == Rule::bonus) {
            if (e >= r_.K) break;
            const V32 u = load_upto(r_.bonus + h_ * r_.K + e, r_.K - e);
            store(hn::MulAdd(q, load(c.key[w] + at), load(dbonus_ + e)), dbonus_ + e);
            q = hn::Mul(q, u), k = hn::Mul(k, u);
          }
          store(hn::Add(load(dx_[0] + at), k), dx_[0] + at);
          store(hn::Add(load(dkey_[w] + at), q), dkey_[w] + at);
        }
      }
  }

  void store_rows(const C& c) const {
    for (int64_t i = 0; i < c.count; ++i) {
      const int64_t at = i * s_.keys, to = head(c, i) * r_.K;
      if constexpr (rule == Rule::delta) {
        // the writer is beta k, the second reader k
        const V32 rate = all(r_.beta[head(c, i)]);
        V32 dbeta = zero();
        for (int64_t e = 0; e < s_.keys; e += kLanes) {
          const V32 dkey = load(dkey_[0] + at + e);
          dbeta = hn::MulAdd(load(c.k + at + e), dkey, dbeta);
          store(hn::MulAdd(rate, dkey, load(dx_[1] + at + e)), dkey_[0] + at + e);
        }
        g_.dbeta[head(c, i)] = sum_of(dbeta);
      }
      const int64_t sum = ((c.begin + i) * (r_.H / g_.summed) + h_ / g_.summed) * r_.K;
      if (h_ % g_.summed == 0) {
        std::copy_n(dx_[0] + at, r_.K, g_.dq + sum);
        std::copy_n(dkey_[0] + at, r_.K, g_.dk + sum);
      } else {
        add_row(dx_[0] + at, g_.dq + sum);
        add_row(dkey_[0] + at, g_.dk + sum);
      }
      if constexpr (rule == Rule::rank_one) {
        std::copy_n(dx_[1] + at, r_.K, g_.da + to);
        std::copy_n(dkey_[1] + at, r_.K, g_.db + to);
      }
      std::copy_n(dvalue_[0] + i * s_.values, r_.V, g_.dv + head(c, i) * r_.V);
    }
  }

  void add_row(const float* x, float* to) const {
    for (int64_t e = 0; e < r_.K; e += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, r_.K - e);
      store_upto(hn::Add(load_upto(to + e, count), load(x + e)), to + e, count);
    }
  }

  int64_t head(const C& c, int64_t i) const {
    return (c.begin + i) * r_.H + h_;
  }

  const LinearRecurrence& r_;
  const LinearRecurrenceGradients& g_;
  HeadShape s_;
  std::vector<C> chunks_;  // of the block between two checkpoints
  int64_t h_ = 0;
  float *work_, *dstate_;
  float *dread_[kReaders], *dvalue_[kWriters];  // [kChunk, values]
  float *dx_[kReaders], *dkey_[kWriters];       // [kChunk, keys]
  float* dscores_[kReaders][kWriters];          // [kChunk, kChunk]
  float *turned_, *product_, *total_, *dbonus_;
};

template <Rule rule>
void backward_with(const LinearRecurrence& r,
                   const LinearRecurrenceGradients& g,
                   int64_t begin,
                   int64_t end) {
  HeadBackward<rule> backward(r, g);
  for (int64_t h = begin; h < end; ++h) backward.run(h);
}

void backward_heads(const LinearRecurrence& r,
                    const LinearRecurrenceGradients& g,
                    int64_t begin,
                    int64_t end) {
  if (r.beta != nullptr) return backward_with<Rule::delta>(r, g, begin, end);
  if (r.a != nullptr) return backward_with<Rule::rank_one>(r, g, begin, end);
  if (r.bonus != nullptr) return backward_with<Rule::bonus>(r, g, begin, end);
  backward_with<Rule::plain>(r, g, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(backward_heads);

void linear_recurrence_backward(const LinearRecurrence& r, const LinearRecurrenceGradients& g) {
  const int64_t sharing = r.G == 0 ? 1 : r.H / r.G;
  require(g.interval > 0 && g.summed > 0 && sharing % g.summed == 0, "linear_recurrence_backward",
          "interval = {}, {} heads summed of {} that share", g.interval, g.summed, sharing);
  cap_targets();
  parallel_for(r.H / g.summed, 1, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(backward_heads)(r, g, begin * g.summed, end * g.summed);
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
