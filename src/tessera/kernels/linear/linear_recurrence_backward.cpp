#include "tessera/kernels/linear/linear_recurrence_backward.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/linear/linear_recurrence_backward.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/linear/linear_recurrence_chunk_inl.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// Heads, from the last block of chunks to the first: neighbouring heads read and write memory
// that lies together. Chunks between two checkpoints are computed again, in order, before their
// gradients are. With G the gradient of the state after a chunk, dread that of what a reader got
// and dvalue that of a value:
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

  HeadBackward(const LinearRecurrence& r, const LinearRecurrenceGradients& g, int64_t heads)
      : r_(r),
        g_(g),
        s_(r.K, r.V, r.decay, kReaders),
        tokens_(s_.tokens),
        dstates_(static_cast<size_t>(heads)),
        dbonuses_(static_cast<size_t>(heads)),
        chunks_(static_cast<size_t>((std::min(g.interval, r.T) + tokens_ - 1) / tokens_)) {
    const int64_t rows = tokens_ * s_.keys, values = tokens_ * s_.values, pairs = tokens_ * tokens_,
                  count = static_cast<int64_t>(chunks_.size());
    const int64_t work = ChunkForward<rule>::work_floats(s_);
    const int64_t floats =
        count * (C::floats(s_) + s_.state()) + work + heads * (s_.state() + s_.keys) +
        (kReaders + kWriters) * (rows + values) + kReaders * values + std::max(rows, values) * 2 +
        kReaders * kWriters * pairs + s_.keys + (kMerges && s_.shared ? count * pairs : 0);
    float* memory = scratch<32>(floats);
    const auto take = [&](int64_t n) {
      float* p = memory;
      memory += n;
      return p;
    };
    for (C& c : chunks_) c.state = take(s_.state()), c.place(s_, take(C::floats(s_)));
    work_ = take(work);
    for (float*& p : dstates_) p = take(s_.state());
    for (float*& p : dbonuses_) p = take(s_.keys);
    for (float*& p : dread_) p = take(values);
    for (int r = 0; r < kReaders; ++r) dread_start_[r] = s_.shared ? take(values) : dread_[r];
    for (float*& p : dvalue_) p = take(values);
    for (float*& p : dx_) p = take(rows);
    for (float*& p : dkey_) p = take(rows);
    for (auto& of_reader : dscores_)
      for (float*& p : of_reader) p = take(pairs);
    turned_ = take(std::max(rows, values));
    product_ = take(std::max(rows, values));
    total_ = take(s_.keys);
    pair_sums_ = kMerges && s_.shared ? take(count * pairs) : nullptr;
  }

  // from the first head on
  void run(int64_t first) {
    const auto heads = static_cast<int64_t>(dstates_.size());
    for (int64_t n = 0; n < heads; ++n) {
      take_head(first, n);
      load_state(g_.dstate + h_ * r_.K * r_.V, dstate_);
      std::fill_n(dbonus_, s_.keys, 0.0f);
    }
    for (int64_t block = (r_.T + g_.interval - 1) / g_.interval - 1; block >= 0; --block)
      for (int64_t n = 0; n < heads; ++n) {
        take_head(first, n);
        const bool again = n > 0 && r_.shared_row(0, h_) == r_.shared_row(0, h_ - 1);
        const auto count = static_cast<size_t>(prepare(block, again));
        for (size_t i = count; i-- > 0;) step_back(chunks_[i]);
      }
    for (int64_t n = 0; n < heads; ++n) {
      take_head(first, n);
      for (int64_t c = 0; c < r_.K; ++c)
        store_row(dstate_ + c * s_.state_row, r_.V, g_.dstate + (h_ * r_.K + c) * r_.V);
      if constexpr (rule == Rule::bonus) std::copy_n(dbonus_, r_.K, g_.dbonus + h_ * r_.K);
    }
  }

 private:
  static constexpr int kReaders = C::kReaders, kWriters = C::kWriters;
  // Whether heads that share queries, keys and a decay for all channels add up their weighted
  // gradients of the scores, for one product with the keys instead of each its own.
  static constexpr bool kMerges = rule == Rule::plain;

  void take_head(int64_t first, int64_t n) {
    h_ = first + n;
    dstate_ = dstates_[static_cast<size_t>(n)];
    dbonus_ = dbonuses_[static_cast<size_t>(n)];
  }

  void load_state(const float* from, float* to) const {
    for (int64_t c = 0; c < s_.keys; ++c, to += s_.state_row)
      load_row(from + c * r_.V, c < r_.K ? r_.V : 0, s_.state_row, to);
  }

  // the chunks of a block of tokens, in order, perhaps again with the same queries and keys;
  // returns how many
  int64_t prepare(int64_t block, bool again) {
    const int64_t begin = block * g_.interval, end = std::min(begin + g_.interval, r_.T);
    const ChunkForward<rule> forward(r_, s_, work_, soon_);
    load_state(g_.checkpoints + (block * r_.H + h_) * r_.K * r_.V, chunks_[0].state);
    size_t i = 0;
    for (int64_t t = begin; t < end; t += tokens_, ++i) {
      C& c = chunks_[i];
      c.begin = t, c.count = std::min(tokens_, end - t);
      soon_.clear();
      const int64_t next = t + tokens_;
      if (next < end)
        forward.expect(next, std::min(tokens_, end - next), h_, again);
      else
        soon_.read({g_.dy + head(c, 0) * r_.V, r_.H * r_.V, c.count, r_.V});
      forward.prepare(c, h_, again);
      if (t + tokens_ < end) forward.next_state(c, chunks_[i + 1].state);
    }
    return static_cast<int64_t>(i);
  }

  void step_back(const C& c) {
    expect_rows(c);
    load_rows({g_.dy + head(c, 0) * r_.V, r_.H * r_.V, c.count, r_.V}, tokens_, s_.values,
              dread_[0]);
    value_gradients(c);
    for (int r = 0; r < kReaders && s_.shared; ++r)
      decay_rows(s_, dread_[r], c.seen(s_, r, 0), s_.values, dread_start_[r]);
    for (int w = 0; w < kWriters; ++w) {
      turn(c.value[w]);
      through_state(dstate_, c.after, dkey_[w]);
      if (s_.shared) decay_rows(s_, dkey_[w], c.after, s_.keys, dkey_[w]);
      for (int r = 0; r < kReaders; ++r)
        multiply<Start::zero>({tokens_, tokens_, s_.values, dread_[r], s_.values, 1, turned_,
                               tokens_, dscores_[r][w], tokens_},
                              soon_);
    }
    if (g_.dlog_decay != nullptr) s_.shared ? start_shared_decays(c) : start_decays(c);
    for (int r = 0; r < kReaders; ++r) {
      turn(dread_start_[r]);
      through_state(c.state, c.seen(s_, r, 0), dx_[r]);
    }
    if (kMerges && s_.shared)
      merged_pair_gradients(c);
    else
      pairs_of_head(c);
    if constexpr (rule != Rule::plain) diagonal(c);
    for (int r = 0; r < kReaders; ++r) {
      const Product p{s_.keys, s_.values,       tokens_,   c.from_start[r], 1,
                      s_.keys, dread_start_[r], s_.values, dstate_,         s_.state_row};
      if (r == 0)
        multiply<Start::decayed>(p, soon_, {c.whole, dstate_});
      else
        multiply<Start::add>(p, soon_);
    }
    store_rows(c);
  }

  // what goes through the scores, and the gradient of the decays
  void pairs_of_head(const C& c) {
    const bool fours = s_.keys % (4 * kLanes) == 0;
    for (int w = 0; w < kWriters; ++w) {
      if (s_.shared) {
        shared_pair_gradients(c, w);
        continue;
      }
      for (int64_t e = 0; e < s_.keys; e += fours ? 4 * kLanes : kPanel)
        fours ? pair_gradients<4>(c, w, e) : pair_gradients<2>(c, w, e);
    }
    if (g_.dlog_decay != nullptr) s_.shared ? store_shared_decays(c) : store_decays(c);
  }

  // rows that the chunk will write, and those that the next one, the chunk before, will read
  void expect_rows(const C& c) {
    const int64_t sums = r_.H / g_.summed * r_.K, sum = (c.begin * r_.H + h_) / g_.summed * r_.K;
    soon_.clear();
    soon_.write({g_.dv + head(c, 0) * r_.V, r_.H * r_.V, c.count, r_.V});
    if (h_ % g_.summed == 0) {
      soon_.write({g_.dq + sum, sums, c.count, r_.K});
      soon_.write({g_.dk + sum, sums, c.count, r_.K});
    }
    if (c.begin % g_.interval != 0)
      soon_.read({g_.dy + head(c, -tokens_) * r_.V, r_.H * r_.V, tokens_, r_.V});
  }

  // of all values, and with them of what the second reader got: from the last token to the first
  void value_gradients(const C& c) {
    const int64_t values = s_.values;
    for (int w = 0; w < kWriters; ++w) {
      multiply<Start::zero>({tokens_, values, s_.keys, c.to_end[w], s_.keys, 1, dstate_,
                             s_.state_row, dvalue_[w], values},
                            soon_);
      if (s_.shared) decay_rows(s_, dvalue_[w], c.after, values, dvalue_[w]);
      // no query before token j reads it
      for (int64_t j = 0; j < tokens_; j += 4)
        multiply<Start::add>({4, values, tokens_ - j, c.scores[0][w] + j * tokens_ + j, 1, tokens_,
                              dread_[0] + j * values, values, dvalue_[w] + j * values, values},
                             soon_);
    }
    if constexpr (kReaders == 2)
      for (int64_t j = tokens_ - 1; j >= 0; --j) {
        for (int w = 0; w < kWriters; ++w)
          add_rows(c.scores[1][w] + (j + 1) * tokens_ + j, tokens_, dread_[1] + (j + 1) * values,
                   tokens_ - 1 - j, values, dvalue_[w] + j * values);
        const float* from = dvalue_[kWriters - 1] + j * values;
        for (int64_t e = 0; e < values; e += kLanes) {
          const V32 d = load(from + e);
          store(rule == Rule::delta ? hn::Neg(d) : d, dread_[1] + j * values + e);
        }
      }
  }

  // rows of values, for products that sum over them
  void turn(const float* rows) { transpose(rows, s_.values, tokens_, s_.values, turned_, tokens_); }

  // to[i] = weight[i] o (state rows[i]) of the rows that were turned; where channels share their
  // decays, the rows bear them
  void through_state(const float* state, const float* weight, float* to) {
    multiply<Start::zero>(
        {s_.keys, tokens_, s_.values, state, s_.state_row, 1, turned_, tokens_, product_, tokens_},
        soon_);
    transpose(product_, tokens_, s_.keys, tokens_, to, s_.keys);
    if (!s_.shared) decay_rows(s_, to, weight, s_.keys, to);
  }

  // channels [e, e + vectors kLanes) of the gradients through the scores of writer w
  template <int vectors>
  HWY_INLINE void pair_gradients(const C& c, int w, int64_t e) {
    constexpr int64_t width = vectors * kLanes;
    const int64_t keys = s_.keys;
    HWY_ALIGN float row[kMostTokens * width];
    V32 decay[vectors];
    // the keys decay along with the reader
    for (int64_t i = 1; i < tokens_; ++i) {
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
        for (int r = 0; r < kReaders; ++r) ds[r] = all(dscores_[r][w][i * tokens_ + j]);
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
    std::fill_n(row, tokens_ * width, 0.0f);
    for (int64_t i = tokens_ - 1; i > 0; --i) {
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
        for (int r = 0; r < kReaders; ++r) ds[r] = all(dscores_[r][w][i * tokens_ + j]);
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
    for (int64_t j = 0; j < tokens_; ++j)
      for (int v = 0; v < vectors; ++v) {
        float* to = dkey_[w] + j * keys + e + v * kLanes;
        store(hn::Add(load(to), load(row + j * width + v * kLanes)), to);
      }
  }

  // the same where channels share their decay: products with weighted gradients of the scores
  void shared_pair_gradients(const C& c, int w) {
    const int64_t keys = s_.keys;
    RowWeights weights;
    HWY_ALIGN float weighted[kReaders][kMostTokens * kMostTokens];  // zeros from the diagonal on
    for (int64_t i = 0; i < tokens_; ++i) {
      if (i > 0) weights.advance(i, c.decay[i * s_.decay_row]);
      for (int r = 0; r < kReaders; ++r)
        multiply_rows(dscores_[r][w] + i * tokens_,
                      reads_before(rule, r) ? weights.before : weights.after, i, tokens_,
                      weighted[r] + i * tokens_);
    }
    for (int r = 0; r < kReaders; ++r)
      for (int64_t m = 0; m < tokens_; m += 4) {
        const float *row = weighted[r] + m * tokens_, *column = weighted[r] + (m + 1) * tokens_ + m;
        multiply<Start::add>(
            {4, keys, m + 3, row, tokens_, 1, c.key[w], keys, dx_[r] + m * keys, keys}, soon_);
        multiply<Start::add>({4, keys, tokens_ - m - 1, column, 1, tokens_, c.x[r] + (m + 1) * keys,
                              keys, dkey_[w] + m * keys, keys},
                             soon_);
      }
  }

  // The same for all heads of a sum, with each query's own token, by the last of them. The decays
  // between a reader and a writer have the gradient dA o A: no product with rows is needed for it.
  void merged_pair_gradients(const C& c) {
    const int64_t keys = s_.keys;
    const bool first = h_ % g_.summed == 0, last = (h_ + 1) % g_.summed == 0;
    float* sums = pair_sums_ + c.begin % g_.interval * tokens_;
    // in double, for most of one is taken back by the other
    HWY_ALIGN double columns[kMostTokens] = {};
    double rows[kMostTokens];
    const F64 d64;
    RowWeights weights;
    for (int64_t i = 0; i < tokens_; ++i) {
      if (i > 0) weights.advance(i, c.decay[i * s_.decay_row]);
      weights.after[i] = 1.0f;
      V64 row = hn::Zero(d64);
      for (int64_t j = 0; j < tokens_; j += kLanes) {
        const int64_t at = i * tokens_ + j;
        const auto upto = [&](int64_t n) HWY_ATTR {
          return hn::FirstN(F32(), static_cast<size_t>(std::clamp<int64_t>(n - j, 0, kLanes)));
        };
        const V32 ds = hn::IfThenElseZero(upto(i + 1), load(dscores_[0][0] + at));
        const V32 weighted = hn::Mul(ds, load(weights.after + j));
        store(first ? weighted : hn::Add(load(sums + at), weighted), sums + at);
        const V32 along = hn::IfThenElseZero(upto(i), hn::Mul(ds, load(c.scores[0][0] + at)));
        const V64 lower = lower_doubles(along), upper = upper_doubles(along);
        row = hn::Add(row, hn::Add(lower, upper));
        double* column = columns + j;
        hn::Store(hn::Add(hn::Load(d64, column), lower), d64, column);
        column += kLanes / 2;
        hn::Store(hn::Add(hn::Load(d64, column), upper), d64, column);
      }
      rows[i] = hn::GetLane(hn::SumOfLanes(d64, row));
    }
    if (g_.dlog_decay != nullptr)
      for (int64_t i = tokens_ - 1; i >= 0; --i) {
        const int64_t at = i * keys;
        shared_total_ += keys_dot(c.x[0] + at, dx_[0] + at) + rows[i];
        shared_total_ -= written_[i] + columns[i];
        if (i < c.count) g_.dlog_decay[head(c, i)] = static_cast<float>(shared_total_);
      }
    if (!last) return;
    for (int64_t m = 0; m < tokens_; m += 4) {
      multiply<Start::add>(
          {4, keys, m + 4, sums + m * tokens_, tokens_, 1, c.key[0], keys, dx_[0] + m * keys, keys},
          soon_);
      multiply<Start::add>({4, keys, tokens_ - m, sums + m * tokens_ + m, 1, tokens_,
                            c.x[0] + m * keys, keys, dkey_[0] + m * keys, keys},
                           soon_);
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
      V32 sum = hn::Mul(load(total_ + e), load(c.whole + e));
      for (int w = 0; w < kWriters; ++w)
        for (int64_t i = 0; i < tokens_; ++i)
          sum = hn::MulAdd(load(c.key[w] + i * keys + e), load(dkey_[w] + i * keys + e), sum);
      store(sum, total_ + e);
    }
  }

  // before the queries' own tokens are added: no decay is between them and themselves
  void store_decays(const C& c) {
    const int64_t keys = s_.keys;
    for (int64_t i = tokens_ - 1; i >= 0; --i)
      for (int64_t e = 0; e < keys; e += kLanes) {
        const int64_t at = i * keys + e;
        V32 sum = load(total_ + e);
        for (int r = 0; r < kReaders; ++r)
          if (!reads_before(rule, r)) sum = hn::MulAdd(load(c.x[r] + at), load(dx_[r] + at), sum);
        for (int w = 0; w < kWriters; ++w)
          sum = hn::NegMulAdd(load(c.key[w] + at), load(dkey_[w] + at), sum);
        if (i < c.count && e < r_.K)
          store_upto(sum, g_.dlog_decay + head(c, i) * r_.K + e, r_.K - e);
        for (int r = 0; r < kReaders; ++r)
          if (reads_before(rule, r)) sum = hn::MulAdd(load(c.x[r] + at), load(dx_[r] + at), sum);
        store(sum, total_ + e);
      }
  }

  // The same where channels share their decay: one number, in double.
  void start_shared_decays(const C& c) {
    constexpr int64_t kRows = 16;  // of the state that are summed in float32
    double kept = 0;
    for (int64_t row = 0; row < s_.keys; row += kRows) {
      V32 low = zero(), high = zero();
      for (int64_t e = row; e < std::min(row + kRows, s_.keys); ++e)
        for (int64_t at = e * s_.state_row; at < e * s_.state_row + s_.values; at += kPanel) {
          low = hn::MulAdd(load(dstate_ + at), load(c.state + at), low);
          high = hn::MulAdd(load(dstate_ + at + kLanes), load(c.state + at + kLanes), high);
        }
      kept += static_cast<double>(sum_of(hn::Add(low, high)));
    }
    shared_total_ = kept * static_cast<double>(*c.whole);
    for (int w = 0; w < kWriters; ++w)
      for (int64_t i = 0; i < tokens_; ++i) {
        written_[i] = keys_dot(c.key[w] + i * s_.keys, dkey_[w] + i * s_.keys);
        shared_total_ += written_[i];
      }
  }

  void store_shared_decays(const C& c) {
    for (int64_t i = tokens_ - 1; i >= 0; --i) {
      const int64_t at = i * s_.keys;
      for (int r = 0; r < kReaders; ++r)
        if (!reads_before(rule, r)) shared_total_ += keys_dot(c.x[r] + at, dx_[r] + at);
      for (int w = 0; w < kWriters; ++w) shared_total_ -= keys_dot(c.key[w] + at, dkey_[w] + at);
      if (i < c.count) g_.dlog_decay[head(c, i)] = static_cast<float>(shared_total_);
      for (int r = 0; r < kReaders; ++r)
        if (reads_before(rule, r)) shared_total_ += keys_dot(c.x[r] + at, dx_[r] + at);
    }
  }

  double keys_dot(const float* a, const float* b) const {
    return static_cast<double>(dot(a, b, s_.keys));
  }

  void diagonal(const C& c) {
    for (int w = 0; w < kWriters; ++w)
      for (int64_t i = 0; i < c.count; ++i) {
        const V32 ds = all(dscores_[0][w][i * tokens_ + i]);
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
      if constexpr (rule == Rule::plain) {
        store_plain_row(c, i, g_.dq + sum, g_.dk + sum);
        store_value(c, i);
        continue;
      }
      if (h_ % g_.summed == 0) {
        store_row(dx_[0] + at, r_.K, g_.dq + sum);
        store_row(dkey_[0] + at, r_.K, g_.dk + sum);
      } else {
        add_row(dx_[0] + at, g_.dq + sum);
        add_row(dkey_[0] + at, g_.dk + sum);
      }
      if constexpr (rule == Rule::rank_one) {
        store_row(dx_[1] + at, r_.K, g_.da + to);
        store_row(dkey_[1] + at, r_.K, g_.db + to);
      }
      store_value(c, i);
    }
  }

  // with what the query reads of its own key, on the way out, where that is not there yet
  void store_plain_row(const C& c, int64_t i, float* dq, float* dk) const {
    const V32 ds = all(s_.shared ? 0.0f : dscores_[0][0][i * tokens_ + i]);
    const bool first = h_ % g_.summed == 0;
    for (int64_t e = 0; e < r_.K; e += kLanes) {
      const int64_t at = i * s_.keys + e, n = r_.K - e;
      V32 q = hn::MulAdd(ds, load(c.key[0] + at), load(dx_[0] + at)),
          k = hn::MulAdd(ds, load(c.x[0] + at), load(dkey_[0] + at));
      if (!first) q = hn::Add(q, load_upto(dq + e, n)), k = hn::Add(k, load_upto(dk + e, n));
      store_upto(q, dq + e, n);
      store_upto(k, dk + e, n);
    }
  }

  // the value that the recurrence takes in is rate v, and skip v is added to y
  void store_value(const C& c, int64_t i) const {
    const int64_t row = head(c, i);
    const V32 rate = all(r_.rate != nullptr ? r_.rate[row] : 1.0f),
              skip = all(r_.skip != nullptr ? r_.skip[h_] : 0.0f);
    V32 drate = zero(), dskip = zero();
    for (int64_t e = 0; e < r_.V; e += kLanes) {
      const int64_t n = std::min<int64_t>(kLanes, r_.V - e);
      const V32 d = load(dvalue_[0] + i * s_.values + e), dy = load(dread_[0] + i * s_.values + e);
      if (g_.drate != nullptr || g_.dskip != nullptr) {
        const V32 v = load_upto(r_.v + row * r_.V + e, n);
        drate = hn::MulAdd(d, v, drate);
        dskip = hn::MulAdd(dy, v, dskip);
      }
      store_upto(r_.skip != nullptr ? hn::MulAdd(rate, d, hn::Mul(skip, dy)) : hn::Mul(rate, d),
                 g_.dv + row * r_.V + e, n);
    }
    if (g_.drate != nullptr) g_.drate[row] = sum_of(drate);
    if (g_.dskip != nullptr) g_.dskip[row] = sum_of(dskip);
  }

  void add_row(const float* x, float* to) const {
    int64_t e = 0;
    for (; e + kLanes <= r_.K; e += kLanes) store(hn::Add(load(to + e), load(x + e)), to + e);
    if (e < r_.K) store_part(hn::Add(load_part(to + e, r_.K - e), load(x + e)), to + e, r_.K - e);
  }

  int64_t head(const C& c, int64_t i) const {
    return (c.begin + i) * r_.H + h_;
  }

  const LinearRecurrence& r_;
  const LinearRecurrenceGradients& g_;
  HeadShape s_;
  const int64_t tokens_;                    // of a chunk
  std::vector<float*> dstates_, dbonuses_;  // of each head
  std::vector<C> chunks_;                   // of the block between two checkpoints
  int64_t h_ = 0;                           // the head at work, and what is its own
  float *dstate_ = nullptr, *dbonus_ = nullptr;
  float* work_;
  // [tokens, values]; dread_start_: where channels share their decays, decayed from the start
  float *dread_[kReaders], *dread_start_[kReaders], *dvalue_[kWriters];
  float *dx_[kReaders], *dkey_[kWriters];  // [tokens, keys]
  float* dscores_[kReaders][kWriters];     // [tokens, tokens]
  float *turned_, *product_, *total_;
  float* pair_sums_;  // [chunks of a block, tokens, tokens]
  double shared_total_ = 0;
  double written_[kMostTokens];  // key . dkey of each token of the last writer, through the state
  Expected soon_;
};

template <Rule rule>
void backward_with(const LinearRecurrence& r,
                   const LinearRecurrenceGradients& g,
                   int64_t begin,
                   int64_t end) {
  HeadBackward<rule>(r, g, end - begin).run(begin);
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
