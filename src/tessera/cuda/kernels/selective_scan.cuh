// The selective scan (Mamba-1) in chunks of tokens; states are independent lanes (n, e):
//   delta_t = softplus(dt_t + dt_bias);  h_t = exp(delta_t A) h_{t-1} + delta_t x_t B_t
//   y_t = sum_n C_t[n] h_t[n] + D x_t
// Gu, Dao 2023, arXiv:2312.00752. SelectiveScanChunks: what each chunk makes of zeros; then
// ScanCarry (width N E): the state before each chunk; then SelectiveScanOutput. The adjoint, with
// g_t = C_t dy_t + u_{t+1} and u_t = exp(delta_t A) g_t, in the same three steps from the last
// token to the first. Sums over channels and chunks are partial sums, which the caller adds.
#pragma once

#include "tessera/cuda/block.h"

namespace tessera::cuda {

/// Tokens of a chunk at most.
inline constexpr int kSelectiveScanTokens = 32;
/// States that a thread holds.
inline constexpr int kSelectiveScanStates = 16;

struct SelectiveScanInputs {
  const float* x = nullptr;         // [T, E]
  const float* dt = nullptr;        // [T, E]
  const float* dt_bias = nullptr;   // [E]
  const float* A = nullptr;         // [N, E]
  const float* B = nullptr;         // [T, N]
  const float* C = nullptr;         // [T, N]
  const float* D = nullptr;         // [E]
  const int64_t* starts = nullptr;  // [chunks + 1]: the first token of each chunk, and T
  int64_t E = 0, N = 0;
};

/// Rows of B or C for a chunk's tokens and a thread's states, zeros beyond N.
struct SelectiveScanRows {
  float values[kSelectiveScanTokens][kSelectiveScanStates];

  TESSERA_DEVICE void load(
      const float* rows, int64_t begin, int64_t end, int64_t first, int64_t n, int at, int step) {
    for (int i = at; i < kSelectiveScanTokens * kSelectiveScanStates; i += step) {
      const int t = i / kSelectiveScanStates, state = i % kSelectiveScanStates;
      values[t][state] =
          begin + t < end && first + state < n ? rows[(begin + t) * n + first + state] : 0.0f;
    }
  }
};

struct SelectiveScanChunks {
  static constexpr int kThreads = 128;
  static constexpr int kRegisters = 96;
  struct Arguments {
    SelectiveScanInputs in;
    float* product = nullptr;  // [chunks, N, E]
    float* carried = nullptr;  // [chunks, N, E]
  };
  struct Shared {
    SelectiveScanRows B;
  };

  /// Grid: chunks, blocks of kThreads channels.
  template <class Block>
  TESSERA_DEVICE static void run(Block& block, Shared& shared, const Arguments& a) {
    constexpr int kStates = kSelectiveScanStates;
    const SelectiveScanInputs& in = a.in;
    const int64_t chunk = block.x(), begin = in.starts[chunk], end = in.starts[chunk + 1];
    for (int64_t first = 0; first < in.N; first += kStates) {
      block.each(
          [&](int thread) { shared.B.load(in.B, begin, end, first, in.N, thread, kThreads); });
      block.each([&](int thread) {
        const int64_t e = block.y() * kThreads + thread;
        if (e >= in.E) return;
        float h[kStates], A[kStates], total = 0;
#pragma unroll
        for (int n = 0; n < kStates; ++n) {
          h[n] = 0;
          A[n] = first + n < in.N ? in.A[(first + n) * in.E + e] : 0.0f;
        }
        const float bias = in.dt_bias[e];
        for (int64_t t = begin; t < end; ++t) {
          const float delta = softplus(in.dt[t * in.E + e] + bias);
          const float input = delta * in.x[t * in.E + e];
          total += delta;
#pragma unroll
          for (int n = 0; n < kStates; ++n)
            h[n] = exp(delta * A[n]) * h[n] + input * shared.B.values[t - begin][n];
        }
#pragma unroll
        for (int n = 0; n < kStates; ++n)
          if (first + n < in.N) {
            const int64_t at = (chunk * in.N + first + n) * in.E + e;
            a.product[at] = exp(total * A[n]);
            a.carried[at] = h[n];
          }
      });
    }
  }
};

struct SelectiveScanOutput {
  static constexpr int kThreads = 128;
  static constexpr int kRegisters = 112;
  struct Arguments {
    SelectiveScanInputs in;
    const float* before = nullptr;  // [chunks, N, E]: the state before each chunk
    float* y = nullptr;             // [T, E]
  };
  struct Shared {
    SelectiveScanRows B, C;
  };

  /// Grid: chunks, blocks of kThreads channels.
  template <class Block>
  TESSERA_DEVICE static void run(Block& block, Shared& shared, const Arguments& a) {
    constexpr int kStates = kSelectiveScanStates;
    const SelectiveScanInputs& in = a.in;
    const int64_t chunk = block.x(), begin = in.starts[chunk], end = in.starts[chunk + 1];
    for (int64_t first = 0; first < in.N; first += kStates) {
      block.each([&](int thread) {
        shared.B.load(in.B, begin, end, first, in.N, thread, kThreads);
        shared.C.load(in.C, begin, end, first, in.N, thread, kThreads);
      });
      block.each([&](int thread) {
        const int64_t e = block.y() * kThreads + thread;
        if (e >= in.E) return;
        float h[kStates], A[kStates];
#pragma unroll
        for (int n = 0; n < kStates; ++n) {
          const bool held = first + n < in.N;
          h[n] = held ? a.before[(chunk * in.N + first + n) * in.E + e] : 0.0f;
          A[n] = held ? in.A[(first + n) * in.E + e] : 0.0f;
        }
        const float bias = in.dt_bias[e], D = in.D[e];
        for (int64_t t = begin; t < end; ++t) {
          const float x = in.x[t * in.E + e];
          const float delta = softplus(in.dt[t * in.E + e] + bias);
          float y = first == 0 ? D * x : a.y[t * in.E + e];
#pragma unroll
          for (int n = 0; n < kStates; ++n) {
            h[n] = exp(delta * A[n]) * h[n] + delta * x * shared.B.values[t - begin][n];
            y += h[n] * shared.C.values[t - begin][n];
          }
          a.y[t * in.E + e] = y;
        }
      });
    }
  }
};

struct SelectiveScanAdjointChunks {
  static constexpr int kThreads = 128;
  static constexpr int kRegisters = 96;
  struct Arguments {
    SelectiveScanInputs in;
    const float* dy = nullptr;  // [T, E]
    float* product = nullptr;   // [chunks, N, E]
    float* carried = nullptr;   // [chunks, N, E]: u of the chunk's first token
  };
  struct Shared {
    SelectiveScanRows C;
  };

  /// Grid: chunks, blocks of kThreads channels.
  template <class Block>
  TESSERA_DEVICE static void run(Block& block, Shared& shared, const Arguments& a) {
    constexpr int kStates = kSelectiveScanStates;
    const SelectiveScanInputs& in = a.in;
    const int64_t chunk = block.x(), begin = in.starts[chunk], end = in.starts[chunk + 1];
    for (int64_t first = 0; first < in.N; first += kStates) {
      block.each(
          [&](int thread) { shared.C.load(in.C, begin, end, first, in.N, thread, kThreads); });
      block.each([&](int thread) {
        const int64_t e = block.y() * kThreads + thread;
        if (e >= in.E) return;
        float u[kStates], A[kStates], total = 0;
#pragma unroll
        for (int n = 0; n < kStates; ++n) {
          u[n] = 0;
          A[n] = first + n < in.N ? in.A[(first + n) * in.E + e] : 0.0f;
        }
        const float bias = in.dt_bias[e];
        for (int64_t t = end - 1; t >= begin; --t) {
          const float delta = softplus(in.dt[t * in.E + e] + bias), dy = a.dy[t * in.E + e];
          total += delta;
#pragma unroll
          for (int n = 0; n < kStates; ++n)
            u[n] = exp(delta * A[n]) * (shared.C.values[t - begin][n] * dy + u[n]);
        }
#pragma unroll
        for (int n = 0; n < kStates; ++n)
          if (first + n < in.N) {
            const int64_t at = (chunk * in.N + first + n) * in.E + e;
            a.product[at] = exp(total * A[n]);
            a.carried[at] = u[n];
          }
      });
    }
  }
};

struct SelectiveScanAdjoint {
  static constexpr int kThreads = 64;
  static constexpr int kRegisters = 96;
  struct Arguments {
    SelectiveScanInputs in;
    const float* dy = nullptr;      // [T, E]
    const float* before = nullptr;  // [chunks, N, E]: the state before each chunk
    const float* after = nullptr;   // [chunks, N, E]: u after each chunk
    float* dx = nullptr;            // [T, E]
    float* ddt = nullptr;           // [T, E]
    // of each chunk
    float* dbias = nullptr;  // [chunks, E]
    float* dA = nullptr;     // [chunks, N, E]
    float* dD = nullptr;     // [chunks, E]
    // of each block of channels
    float* dB = nullptr;  // [blocks, T, N]
    float* dC = nullptr;  // [blocks, T, N]
    int64_t T = 0;
  };
  // rows of tokens; a column more than threads, so that threads that read a column each meet all
  // banks
  struct Shared {
    float delta[kSelectiveScanTokens][kThreads + 1];
    float dx[kSelectiveScanTokens][kThreads + 1];
    float ddelta[kSelectiveScanTokens][kThreads + 1];
    float h[kSelectiveScanTokens][kThreads + 1];   // then the terms of dC
    float dB[kSelectiveScanTokens][kThreads + 1];  // terms
  };
  static_assert(2 * kSelectiveScanTokens == kThreads);

  /// Grid: chunks, blocks of kThreads channels.
  template <class Block>
  TESSERA_DEVICE static void run(Block& block, Shared& shared, const Arguments& a) {
    const SelectiveScanInputs& in = a.in;
    const int64_t chunk = block.x(), begin = in.starts[chunk];
    const int tokens = static_cast<int>(in.starts[chunk + 1] - begin);
    block.each([&](int thread) {
      const int64_t e = block.y() * kThreads + thread;
      for (int t = 0; t < tokens; ++t) {
        const int64_t at = (begin + t) * in.E + e;
        shared.delta[t][thread] = e < in.E ? softplus(in.dt[at] + in.dt_bias[e]) : 0.0f;
        shared.dx[t][thread] = e < in.E ? in.D[e] * a.dy[at] : 0.0f;
        shared.ddelta[t][thread] = 0;
      }
    });
    for (int64_t n = 0; n < in.N; ++n) {
      block.each([&](int thread) {
        const int64_t e = block.y() * kThreads + thread;
        if (e >= in.E) {
          for (int t = 0; t < tokens; ++t) shared.h[t][thread] = shared.dB[t][thread] = 0;
          return;
        }
        const int64_t lane = (chunk * in.N + n) * in.E + e;
        const float A = in.A[n * in.E + e], before = a.before[lane];
        float h = before;
        for (int t = 0; t < tokens; ++t) {
          const float delta = shared.delta[t][thread];
          h = exp(delta * A) * h +
              delta * in.x[(begin + t) * in.E + e] * in.B[(begin + t) * in.N + n];
          shared.h[t][thread] = h;
        }
        float u = a.after[lane], dA = 0;
        for (int t = tokens - 1; t >= 0; --t) {
          const int64_t token = begin + t;
          const float delta = shared.delta[t][thread], x = in.x[token * in.E + e],
                      dy = a.dy[token * in.E + e], B = in.B[token * in.N + n];
          const float g = in.C[token * in.N + n] * dy + u, decay = exp(delta * A);
          const float previous = t > 0 ? shared.h[t - 1][thread] : before;
          const float slope = g * previous * decay;  // of delta A
          shared.h[t][thread] *= dy;
          shared.dB[t][thread] = g * delta * x;
          shared.dx[t][thread] += g * delta * B;
          shared.ddelta[t][thread] += slope * A + g * x * B;
          dA += slope * delta;
          u = decay * g;
        }
        a.dA[lane] = dA;
      });
      // a thread adds a row
      block.each([&](int thread) {
        const int t = thread % kSelectiveScanTokens;
        if (t >= tokens) return;
        const bool of_B = thread < kSelectiveScanTokens;
        const float* row = of_B ? shared.dB[t] : shared.h[t];
        float sum = 0;
        for (int i = 0; i < kThreads; ++i) sum += row[i];
        (of_B ? a.dB : a.dC)[(block.y() * a.T + begin + t) * in.N + n] = sum;
      });
    }
    block.each([&](int thread) {
      const int64_t e = block.y() * kThreads + thread;
      if (e >= in.E) return;
      float dbias = 0, dD = 0;
      for (int t = 0; t < tokens; ++t) {
        const int64_t at = (begin + t) * in.E + e;
        const float ddt = shared.ddelta[t][thread] * sigmoid(in.dt[at] + in.dt_bias[e]);
        a.dx[at] = shared.dx[t][thread];
        a.ddt[at] = ddt;
        dbias += ddt;
        dD += a.dy[at] * in.x[at];
      }
      a.dbias[chunk * in.E + e] = dbias;
      a.dD[chunk * in.E + e] = dD;
    });
  }
};

}  // namespace tessera::cuda
