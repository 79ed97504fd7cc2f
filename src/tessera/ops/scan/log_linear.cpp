#include "tessera/ops/scan/log_linear.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "tessera/base/threads.h"
#include "tessera/kernels/scan/mamba2.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/weights/product.h"

namespace tessera::ops {
namespace {

int64_t level_of(int64_t s, int64_t t) {
  return std::bit_width(static_cast<uint64_t>(s ^ t));
}

/// First token of the block of bit b after `tokens` tokens, of which the bit is set.
int64_t block_begin(int64_t tokens, int64_t b) {
  return tokens >> (b + 1) << (b + 1);
}

/// The weights of every token for the level that token s has for it, [B, T, H].
Tensor weights_for(const Tensor& weights_BTHL, int64_t start, int64_t s) {
  const int64_t t = weights_BTHL.size(1);
  std::vector<int64_t> levels;
  for (int64_t i = 0; i < t; ++i) levels.push_back(level_of(s, start + i));
  const Tensor index =
      at::tensor(levels, at::kLong).to(weights_BTHL.device()).reshape({1, t, 1, 1});
  auto sizes = weights_BTHL.sizes().vec();
  sizes.back() = 1;
  return weights_BTHL.gather(3, index.expand(sizes)).squeeze(3);
}

/// Tokens in chunks that begin at multiples of their length, tokens of no effect around them.
class Chunks {
 public:
  Chunks(int64_t start, int64_t tokens, int64_t length)
      : front_(start % length),
        tokens_(tokens),
        length_(length),
        first_(start / length),
        count_((front_ + tokens + length - 1) / length) {}

  int64_t length() const { return length_; }
  int64_t first() const { return first_; }  // number of the first one in its document
  int64_t count() const { return count_; }

  /// x [B, T, ...] as [B, chunks, length, ...].
  Tensor of(const Tensor& x) const {
    const auto axes = static_cast<size_t>(x.dim());
    std::vector<int64_t> padding(2 * (axes - 1), 0);
    padding[2 * (axes - 2)] = front_;
    padding.back() = count_ * length_ - front_ - tokens_;
    auto sizes = x.sizes().vec();
    sizes[1] = length_;
    sizes.insert(sizes.begin() + 1, count_);
    return at::constant_pad_nd(x, padding).reshape(sizes);
  }
  /// Their tokens again, [B, T, ...].
  Tensor tokens(const Tensor& x) const { return x.flatten(1, 2).narrow(1, front_, tokens_); }

 private:
  int64_t front_, tokens_, length_, first_, count_;
};

/// [.., G, N] as [.., H, N].
Tensor by_heads(const Tensor& x, int64_t heads) {
  return repeat_each(x, heads / x.size(-2), -2);
}

/// x times a factor for every row, [B, T, H] of [B, T, H, N].
Tensor times(const Tensor& x, const Tensor& factors) {
  return x * spread(factors.unsqueeze(-1), x);
}

/// Logarithms of the tokens' decays, [B, T, H].
Tensor log_decays(const Tensor& dt, const Tensor& a_H) {
  return dt * spread(a_H.to(dt.scalar_type()), dt);
}

Tensor inside(const Chunks& chunks,
              const Tensor& weights,
              const Tensor& s,
              const Tensor& c,
              const Tensor& b,
              const Tensor& x) {
  const int64_t q = chunks.length();
  std::vector<int64_t> levels;
  for (int64_t i = 0; i < q; ++i)
    for (int64_t j = 0; j < q; ++j) levels.push_back(j > i ? 0 : level_of(j, i));
  const Tensor index = at::tensor(levels, at::kLong).to(s.device()).reshape({1, 1, q, 1, q});
  auto sizes = weights.sizes().vec();
  sizes.back() = q;
  const Tensor w = weights.gather(4, index.expand(sizes)).transpose(3, 4);  // [B, c, i, j, H]
  // masked before exp, so that no inf arises
  const Tensor above = at::ones({q, q}, at::TensorOptions().dtype(at::kBool).device(s.device()))
                           .triu(1)
                           .unsqueeze(-1);
  const auto pairs = w.sizes();
  const Tensor l = (spread(s.unsqueeze(3), pairs) - spread(s.unsqueeze(2), pairs))
                       .masked_fill(above, -std::numeric_limits<double>::infinity())
                       .exp();
  return einsum("bcijh,bcjhp->bcihp", einsum("bcihn,bcjhn->bcijh", c, b) * l * w, x);
}

/// What tokens read from whole chunks before theirs, level after level: blocks of two chunks come
/// from those of one, and so on.
Tensor across(const Chunks& chunks,
              const Tensor& weights,
              const Tensor& s,
              const Tensor& c,
              const Tensor& b,
              const Tensor& x) {
  const int64_t n = chunks.count(), first = chunks.first(), q = chunks.length();
  const Tensor end = s.select(2, q - 1);  // [B, c, H], logarithms of decays
  Tensor blocks =
      einsum("bcjhn,bcjhp->bchpn", times(b, (spread(end.unsqueeze(2), s) - s).exp()), x);
  Tensor decays = end, since = at::zeros_like(end);  // since: from a chunk's block to the chunk
  Tensor y = at::zeros_like(x);
  const int64_t inner = std::bit_width(static_cast<uint64_t>(q)) - 1;
  for (int64_t m = 0, begin = first; blocks.size(1) > 1; ++m) {
    // whole pairs: an even block before, an odd one after
    if (begin % 2 == 1) {
      blocks = at::cat({at::zeros_like(blocks.narrow(1, 0, 1)), blocks}, 1);
      decays = at::cat({at::zeros_like(decays.narrow(1, 0, 1)), decays}, 1);
      --begin;
    }
    if (blocks.size(1) % 2 == 1) {
      blocks = at::cat({blocks, at::zeros_like(blocks.narrow(1, 0, 1))}, 1);
      decays = at::cat({decays, at::zeros_like(decays.narrow(1, 0, 1))}, 1);
    }
    const Tensor even = blocks.slice(1, 0, blocks.size(1), 2),
                 even_decays = decays.slice(1, 0, decays.size(1), 2);
    std::vector<int64_t> readers, pairs;
    for (int64_t i = 0; i < n; ++i)
      if (const int64_t block = (first + i) >> m; block % 2 == 1) {
        readers.push_back(i);
        pairs.push_back((block - begin) / 2);
      }
    const auto index = [&](const std::vector<int64_t>& places) {
      return at::tensor(places, at::kLong).to(x.device());
    };
    const Tensor of = index(readers), from = index(pairs);
    const auto rows = [&](const Tensor& t) { return t.index_select(1, of); };
    const Tensor reach = (spread(rows(since).unsqueeze(2), rows(s)) + rows(s)).exp() *
                         rows(weights.select(4, inner + m + 1));
    const Tensor read =
        einsum("bcihn,bchpn->bcihp", times(rows(c), reach), even.index_select(1, from));
    y = y + at::zeros_like(y).index_copy(1, of, read);
    since = since + at::zeros_like(since).index_copy(1, of, even_decays.index_select(1, from));
    const Tensor odd_decays = decays.slice(1, 1, decays.size(1), 2);
    blocks = blocks.slice(1, 1, blocks.size(1), 2) + times(even, odd_decays.exp().unsqueeze(-1));
    decays = even_decays + odd_decays;
    begin /= 2;
  }
  return y;
}

}  // namespace

Tensor log_linear_y(const LogLinear& in, int64_t chunk) {
  const Ssd& of = in.of;
  if (!of.documents.empty()) {
    const auto pieces = [&](const Tensor& x) { return x.split_with_sizes(of.documents, 1); };
    const auto x = pieces(of.x_BTHP), dt = pieces(of.dt_BTH), b = pieces(of.b_BTGN),
               c = pieces(of.c_BTGN), w = pieces(in.weights_BTHL);
    std::vector<Tensor> out;
    for (size_t i = 0; i < x.size(); ++i)
      out.push_back(log_linear_y({{x[i], dt[i], of.a_H, b[i], c[i], of.d_H}, w[i]}, chunk));
    return at::cat(out, 1);
  }
  const auto type = wide(of.x_BTHP);
  const int64_t t = of.x_BTHP.size(1), h = of.x_BTHP.size(2), levels = in.weights_BTHL.size(3);
  if (t == 0) return of.x_BTHP;
  require(in.start + t <= int64_t{1} << (levels - 1), "log_linear", "{} tokens in {} levels",
          in.start + t, levels);
  const auto most = static_cast<uint64_t>(std::max<int64_t>(1, chunk));
  const int64_t length =
      static_cast<int64_t>(std::min(std::bit_floor(most), std::bit_ceil(static_cast<uint64_t>(t))));
  const Chunks chunks(in.start, t, std::min(length, int64_t{1} << (levels - 1)));
  const Tensor dt = chunks.of(of.dt_BTH.to(type)), weights = chunks.of(in.weights_BTHL.to(type));
  const Tensor x = times(chunks.of(of.x_BTHP.to(type)), dt);
  const Tensor b = chunks.of(by_heads(of.b_BTGN.to(type), h)),
               c = chunks.of(by_heads(of.c_BTGN.to(type), h));
  const Tensor s = log_decays(dt, of.a_H).cumsum(2);  // log of the decay since the chunk's start
  Tensor y =
      chunks.tokens(inside(chunks, weights, s, c, b, x) + across(chunks, weights, s, c, b, x));
  if (in.state_BLHPN.defined()) {
    const Tensor since = log_decays(of.dt_BTH.to(type), of.a_H).cumsum(1);
    const Tensor queries = by_heads(of.c_BTGN.to(type), h);
    for (int64_t bit = 0; bit < levels - 1; ++bit)
      if (in.start >> bit & 1) {
        const Tensor w =
            weights_for(in.weights_BTHL.to(type), in.start, block_begin(in.start, bit));
        y = y + einsum("bthn,bhpn->bthp", times(queries, since.exp() * w),
                       in.state_BLHPN.select(1, bit).to(type));
      }
  }
  if (of.d_H.defined()) y = y + times(of.x_BTHP.to(type), of.d_H.to(type));
  return y.to(of.x_BTHP.scalar_type());
}

Tensor log_linear_state(const LogLinear& in) {
  const Ssd& of = in.of;
  const auto type = wide(of.x_BTHP);
  const int64_t t = of.x_BTHP.size(1), h = of.x_BTHP.size(2), end = in.start + t;
  const Tensor x = times(of.x_BTHP.to(type), of.dt_BTH.to(type));
  const Tensor b = by_heads(of.b_BTGN.to(type), h);
  const Tensor a = log_decays(of.dt_BTH.to(type), of.a_H);
  // log of the decay from after each token to the end, and of all
  const Tensor later = at::constant_pad_nd(a.narrow(1, 1, t - 1), {0, 0, 0, 1});
  const Tensor left = later.flip(1).cumsum(1).flip(1);
  const Tensor all = (left.select(1, 0) + a.select(1, 0)).exp().unsqueeze(-1);
  std::vector<Tensor> blocks;
  for (int64_t bit = 0; bit < in.weights_BTHL.size(3) - 1; ++bit) {
    Tensor block = at::zeros({x.size(0), h, x.size(3), b.size(3)}, x.options());
    if (end >> bit & 1) {
      const int64_t begin = block_begin(end, bit), stop = begin + (int64_t{1} << bit);
      const int64_t from = std::max(begin, in.start) - in.start, n = stop - in.start - from;
      if (n > 0)
        block =
            einsum("bthn,bthp->bhpn", times(b.narrow(1, from, n), left.narrow(1, from, n).exp()),
                   x.narrow(1, from, n));
      for (int64_t old = 0; in.state_BLHPN.defined() && old < in.state_BLHPN.size(1); ++old)
        if (in.start >> old & 1)
          if (const int64_t first = block_begin(in.start, old); first >= begin && first < stop)
            block = block + times(in.state_BLHPN.select(1, old).to(type), all);
    }
    blocks.push_back(block);
  }
  return at::stack(blocks, 1);
}

void log_linear_token(const LogLinearToken& t) {
  thread_local std::vector<float> nothing, read, made;
  const auto p = static_cast<size_t>(t.P), block = static_cast<size_t>(t.P * t.N);
  nothing.assign(p, 0.0F), read.resize(p);
  kernels::SsdScan step;
  step.T = step.H = step.G = 1, step.P = t.P, step.N = t.N;
  step.dt = t.dt, step.A = t.A, step.B = t.B, step.C = t.C;
  step.y = read.data();
  // the token alone, then its past, which fades
  made.assign(block, 0.0F);
  step.x = t.x, step.state = made.data();
  kernels::ssd_scan(step);
  for (size_t r = 0; r < p; ++r)
    t.y[r] = (t.D != nullptr ? *t.D * t.x[r] : 0.0F) + t.weights[0] * read[r];
  step.x = nothing.data();
  for (int64_t bit = 0; bit < t.levels - 1; ++bit) {
    if ((t.place >> bit & 1) == 0) continue;
    step.state = t.state + bit * t.block_stride;
    kernels::ssd_scan(step);
    for (size_t r = 0; r < p; ++r) t.y[r] += t.weights[bit + 1] * read[r];
  }
  // blocks that are now whole become one, at the first bit that was not set
  int64_t bit = 0;
  for (; (t.place >> bit & 1) == 1; ++bit) {
    float* whole = t.state + bit * t.block_stride;
    for (size_t r = 0; r < block; ++r) made[r] += whole[r];
    std::fill(whole, whole + block, 0.0F);
  }
  if (bit < t.levels - 1) std::copy(made.begin(), made.end(), t.state + bit * t.block_stride);
}

Tensor log_linear_scan(const LogLinear& in, Tensor& state_LHPN) {
  const Ssd& of = in.of;
  const Tensor x = of.x_BTHP.contiguous(), dt = of.dt_BTH.contiguous(), a = of.a_H.contiguous(),
               b = of.b_BTGN.contiguous(), c = of.c_BTGN.contiguous(),
               weights = in.weights_BTHL.contiguous();
  const Tensor d = of.d_H.defined() ? of.d_H.contiguous() : Tensor();
  const int64_t t = x.size(1), h = x.size(2), p = x.size(3), g = b.size(2), n = b.size(3),
                levels = weights.size(3);
  Tensor y = at::empty_like(x);
  float *y_at = y.data_ptr<float>(), *state = state_LHPN.data_ptr<float>();
  parallel_for(h, 1, [&](int64_t first, int64_t last) {
    for (int64_t head = first; head < last; ++head)
      for (int64_t i = 0; i < t; ++i) {
        const int64_t at = i * h + head, group = (i * g + head / (h / g)) * n;
        log_linear_token({.P = p,
                          .N = n,
                          .levels = levels,
                          .place = in.start + i,
                          .x = x.const_data_ptr<float>() + at * p,
                          .dt = dt.const_data_ptr<float>() + at,
                          .A = a.const_data_ptr<float>() + head,
                          .D = d.defined() ? d.const_data_ptr<float>() + head : nullptr,
                          .B = b.const_data_ptr<float>() + group,
                          .C = c.const_data_ptr<float>() + group,
                          .weights = weights.const_data_ptr<float>() + at * levels,
                          .state = state + head * p * n,
                          .block_stride = h * p * n,
                          .y = y_at + at * p});
      }
  });
  return y;
}

}  // namespace tessera::ops
