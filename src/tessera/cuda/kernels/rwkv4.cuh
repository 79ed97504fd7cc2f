// The weighted key-value average of RWKV-4 in chunks of tokens, one channel a lane:
//   y_t = (sum_{i<t} e^{(t-1-i) w + k_i} v_i + e^{u+k_t} v_t) / (the same with v = 1)
// Peng et al. 2023, arXiv:2305.13048. Sums are kept as (num, den, top): num e^top and den e^top, so
// that no exponent is positive. Wkv4Chunks: the sums of each chunk alone; then Wkv4Carry: those
// before each chunk; then Wkv4Output. The adjoint has sums of the same kind, from the last token to
// the first: alpha and beta, the gradients of num e^top and den e^top, with an exponent of their
// own:
//   dv = e^{u+k} h + e^k alpha;  dk = e^{u+k} h (v - y) + e^k (v alpha + beta);  h = dy /
//   denominator du = e^{u+k} h (v - y);      dw = e^w (num alpha + den beta) alpha <- h + e^w
//   alpha;      beta <- -h y + e^w beta
#pragma once

#include "tessera/cuda/block.h"

namespace tessera::cuda {

/// Tokens of a chunk at most.
inline constexpr int kWkv4Tokens = 32;
/// Below every key, and finite: the difference of two such is 0, not NaN.
inline constexpr float kWkv4Nothing = -1e38f;

struct Wkv4Sums {
  float num = 0, den = 0, top = kWkv4Nothing;

  /// this, its exponent raised by `shift`, + other.
  TESSERA_DEVICE Wkv4Sums plus(float shift, const Wkv4Sums& other) const {
    const float high = larger(top + shift, other.top);
    const float a = exp(top + shift - high), b = exp(other.top - high);
    return {a * num + b * other.num, a * den + b * other.den, high};
  }
  TESSERA_DEVICE static Wkv4Sums load(const float* rows, int64_t row, int64_t channel, int64_t C) {
    const float* at = rows + row * 3 * C + channel;
    return {at[0], at[C], at[2 * C]};
  }
  TESSERA_DEVICE void store(float* rows, int64_t row, int64_t channel, int64_t C) const {
    float* at = rows + row * 3 * C + channel;
    at[0] = num, at[C] = den, at[2 * C] = top;
  }
};

struct Wkv4Inputs {
  const float* w = nullptr;         // [C]
  const float* u = nullptr;         // [C]
  const float* k = nullptr;         // [T, C]
  const float* v = nullptr;         // [T, C]
  const int64_t* starts = nullptr;  // [chunks + 1]: the first token of each chunk, and T
  int64_t C = 0;
};

struct Wkv4Chunks {
  static constexpr int kThreads = 128;
  static constexpr int kRegisters = 48;
  struct Arguments {
    Wkv4Inputs in;
    float* sums = nullptr;  // [chunks, 3, C]
  };
  struct Shared {};

  /// Grid: chunks, blocks of kThreads channels.
  template <class Block>
  TESSERA_DEVICE static void run(Block& block, Shared&, const Arguments& a) {
    block.each([&](int thread) {
      const Wkv4Inputs& in = a.in;
      const int64_t chunk = block.x(), c = block.y() * kThreads + thread;
      if (c >= in.C) return;
      const float w = in.w[c];
      Wkv4Sums sums;
      for (int64_t t = in.starts[chunk]; t < in.starts[chunk + 1]; ++t)
        sums = sums.plus(w, {in.v[t * in.C + c], 1, in.k[t * in.C + c]});
      sums.store(a.sums, chunk, c, in.C);
    });
  }
};

struct Wkv4Carry {
  static constexpr int kThreads = 128;
  static constexpr int kRegisters = 64;
  struct Arguments {
    const float* w = nullptr;         // [C]
    const int64_t* starts = nullptr;  // [chunks + 1]
    const int64_t* chunks = nullptr;  // [documents + 1]: the first chunk of each document
    float* sums = nullptr;            // [chunks, 3, C]; replaced by the sums before each chunk
    const float* first = nullptr;     // [documents, 3, C]: sums before the documents; null = none
    float* last = nullptr;            // [documents, 3, C]: sums after them
    int64_t C = 0;
    bool reverse = false;
  };
  struct Shared {};

  /// Grid: documents, blocks of kThreads channels.
  template <class Block>
  TESSERA_DEVICE static void run(Block& block, Shared&, const Arguments& in) {
    block.each([&](int thread) {
      const int64_t document = block.x(), c = block.y() * kThreads + thread;
      if (c >= in.C) return;
      const int64_t begin = in.chunks[document], end = in.chunks[document + 1];
      const float w = in.w[c];
      Wkv4Sums state;
      if (in.first != nullptr) state = Wkv4Sums::load(in.first, document, c, in.C);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t chunk = in.reverse ? end - 1 - (i - begin) : i;
        const Wkv4Sums own = Wkv4Sums::load(in.sums, chunk, c, in.C);
        const auto tokens = static_cast<float>(in.starts[chunk + 1] - in.starts[chunk]);
        state.store(in.sums, chunk, c, in.C);
        state = state.plus(w * tokens, own);
      }
      state.store(in.last, document, c, in.C);
    });
  }
};

struct Wkv4Output {
  static constexpr int kThreads = 128;
  static constexpr int kRegisters = 48;
  struct Arguments {
    Wkv4Inputs in;
    const float* before = nullptr;  // [chunks, 3, C]
    float* y = nullptr;             // [T, C]
  };
  struct Shared {};

  /// Grid: chunks, blocks of kThreads channels.
  template <class Block>
  TESSERA_DEVICE static void run(Block& block, Shared&, const Arguments& a) {
    block.each([&](int thread) {
      const Wkv4Inputs& in = a.in;
      const int64_t chunk = block.x(), c = block.y() * kThreads + thread;
      if (c >= in.C) return;
      const float w = in.w[c], u = in.u[c];
      Wkv4Sums sums = Wkv4Sums::load(a.before, chunk, c, in.C);
      for (int64_t t = in.starts[chunk]; t < in.starts[chunk + 1]; ++t) {
        const float k = in.k[t * in.C + c], v = in.v[t * in.C + c];
        const Wkv4Sums now = sums.plus(0, {v, 1, u + k});
        a.y[t * in.C + c] = now.num / now.den;
        sums = sums.plus(w, {v, 1, k});
      }
    });
  }
};

/// The sums before each token of a chunk, for the threads of a block.
template <int kThreads>
struct Wkv4Past {
  float num[kWkv4Tokens][kThreads], den[kWkv4Tokens][kThreads], top[kWkv4Tokens][kThreads];

  TESSERA_DEVICE Wkv4Sums at(int t, int thread) const {
    return {num[t][thread], den[t][thread], top[t][thread]};
  }
  TESSERA_DEVICE void replay(
      const Wkv4Inputs& in, const float* before, int64_t chunk, int64_t c, int thread) {
    const int64_t begin = in.starts[chunk];
    Wkv4Sums sums = Wkv4Sums::load(before, chunk, c, in.C);
    for (int64_t t = begin; t < in.starts[chunk + 1]; ++t) {
      const auto i = static_cast<int>(t - begin);
      num[i][thread] = sums.num, den[i][thread] = sums.den, top[i][thread] = sums.top;
      sums = sums.plus(in.w[c], {in.v[t * in.C + c], 1, in.k[t * in.C + c]});
    }
  }
};

/// The denominator of y with its exponent, and e^{u+k} in its scale.
struct Wkv4Now {
  float den, top, present;
  TESSERA_DEVICE Wkv4Now(const Wkv4Sums& past, float bonus) {
    top = larger(past.top, bonus);
    present = exp(bonus - top);
    den = exp(past.top - top) * past.den + present;
  }
};

struct Wkv4AdjointChunks {
  static constexpr int kThreads = 64;
  static constexpr int kRegisters = 64;
  struct Arguments {
    Wkv4Inputs in;
    const float* before = nullptr;  // [chunks, 3, C]
    const float* y = nullptr;       // [T, C]
    const float* dy = nullptr;      // [T, C]
    float* sums = nullptr;          // [chunks, 3, C]: alpha, beta and their exponent
  };
  using Shared = Wkv4Past<kThreads>;

  /// Grid: chunks, blocks of kThreads channels.
  template <class Block>
  TESSERA_DEVICE static void run(Block& block, Shared& past, const Arguments& a) {
    block.each([&](int thread) {
      const Wkv4Inputs& in = a.in;
      const int64_t chunk = block.x(), c = block.y() * kThreads + thread;
      if (c >= in.C) return;
      past.replay(in, a.before, chunk, c, thread);
      const int64_t begin = in.starts[chunk];
      const float w = in.w[c], u = in.u[c];
      Wkv4Sums reach;
      for (int64_t t = in.starts[chunk + 1] - 1; t >= begin; --t) {
        const int64_t at = t * in.C + c;
        const Wkv4Now now(past.at(static_cast<int>(t - begin), thread), u + in.k[at]);
        const float h = a.dy[at] / now.den;
        reach = reach.plus(w, {h, -h * a.y[at], -now.top});
      }
      reach.store(a.sums, chunk, c, in.C);
    });
  }
};

struct Wkv4Adjoint {
  static constexpr int kThreads = 64;
  static constexpr int kRegisters = 64;
  struct Arguments {
    Wkv4Inputs in;
    const float* before = nullptr;  // [chunks, 3, C]
    const float* after = nullptr;   // [chunks, 3, C]: alpha, beta and their exponent
    const float* y = nullptr;       // [T, C]
    const float* dy = nullptr;      // [T, C]
    float* dk = nullptr;            // [T, C]
    float* dv = nullptr;            // [T, C]
    float* dw = nullptr;            // [chunks, C], of each chunk
    float* du = nullptr;            // [chunks, C], of each chunk
  };
  using Shared = Wkv4Past<kThreads>;

  /// Grid: chunks, blocks of kThreads channels.
  template <class Block>
  TESSERA_DEVICE static void run(Block& block, Shared& past, const Arguments& a) {
    block.each([&](int thread) {
      const Wkv4Inputs& in = a.in;
      const int64_t chunk = block.x(), c = block.y() * kThreads + thread;
      if (c >= in.C) return;
      past.replay(in, a.before, chunk, c, thread);
      const int64_t begin = in.starts[chunk];
      const float w = in.w[c], u = in.u[c];
      float dw = 0, du = 0;
      Wkv4Sums reach = Wkv4Sums::load(a.after, chunk, c, in.C);
      for (int64_t t = in.starts[chunk + 1] - 1; t >= begin; --t) {
        const int64_t at = t * in.C + c;
        const float k = in.k[at], v = in.v[at], y = a.y[at];
        const Wkv4Sums before = past.at(static_cast<int>(t - begin), thread);
        const Wkv4Now now(before, u + k);
        const float h = a.dy[at] / now.den, present = now.present * h;
        // exponents are at most 0: a later denominator holds the sums that it belongs to
        const float later = exp(-larger(-(k + reach.top), 0));
        const float bonus = present * (v - y);
        a.dv[at] = later * reach.num + present;
        a.dk[at] = later * (v * reach.num + reach.den) + bonus;
        du += bonus;
        dw += exp(-larger(-(before.top + w + reach.top), 0)) *
              (before.num * reach.num + before.den * reach.den);
        reach = reach.plus(w, {h, -h * y, -now.top});
      }
      a.dw[chunk * in.C + c] = dw;
      a.du[chunk * in.C + c] = du;
    });
  }
};

}  // namespace tessera::cuda
