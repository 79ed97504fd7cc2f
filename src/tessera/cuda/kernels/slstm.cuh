// The sLSTM cell of xLSTM, a block for each head of a document, token after token:
//   g = pre_g + R_g h_{t-1} for g in i, f, z, o;  m_t = max(log sigmoid(f) + m_{t-1}, i)
//   c_t = f' c_{t-1} + i' tanh(z), n_t = f' n_{t-1} + i', h_t = sigmoid(o) c_t / n_t
// with f' = e^{log sigmoid(f) + m_{t-1} - m_t}, i' = e^{i - m_t}; at a document's first token m =
// i. Beck et al. 2024, arXiv:2405.04517. The recurrence runs through the gates, so that nothing is
// parallel over tokens. m counts as a constant in the adjoint, for h does not depend on it.
#pragma once

#include "tessera/cuda/block.h"

namespace tessera::cuda {

/// Channels of a head at most.
inline constexpr int kSlstmWidest = 1024;

/// What the cell's state is multiplied by and its input, at a token.
struct SlstmDecays {
  float forget, input, m;
  TESSERA_DEVICE SlstmDecays(float i, float f, float m_before, bool first) {
    const float log_forget = -larger(-f, 0) - log1p(exp(-larger(f, -f)));
    m = first ? i : larger(log_forget + m_before, i);
    forget = first ? 0.0f : exp(log_forget + m_before - m);
    input = exp(i - m);
  }
};

struct SlstmForward {
  static constexpr int kThreads = 256;
  static constexpr int kRegisters = 128;
  static constexpr int kOwn = kSlstmWidest / kThreads;  // channels of a thread at most
  struct Arguments {
    const float* pre = nullptr;        // [T, 4, D], D = H P
    const float* columns = nullptr;    // [4, H, P, P]: R transposed, inputs before outputs
    const int64_t* offsets = nullptr;  // [documents + 1]: the first token of each document, and T
    float* states = nullptr;           // [documents, 4, D]: h, c, n, m; read unless fresh
    float* y = nullptr;                // [T, D]
    float* gates = nullptr;            // [T, 4, D]: arguments of the activations
    float* cells = nullptr;            // [T, 3, D]: c, n, m after each token
    int64_t H = 0, P = 0;
    bool fresh = false;  // documents begin
  };
  struct Shared {
    float h[kSlstmWidest];
  };
  struct Own {
    float h[kOwn], c[kOwn], n[kOwn], m[kOwn];
  };

  /// Grid: heads, documents.
  template <class Block>
  TESSERA_DEVICE static void run(Block& block, Shared& shared, const Arguments& in) {
    const int64_t head = block.x(), document = block.y(), d = in.H * in.P, base = head * in.P;
    const int64_t begin = in.offsets[document], end = in.offsets[document + 1];
    float* state = in.states + document * 4 * d + base;
    typename Block::template PerThread<Own> own;
    block.each([&](int thread) {
      Own& of = own[thread];
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        const int o = thread + j * kThreads;
        const bool read = o < in.P && !in.fresh;
        of.h[j] = read ? state[o] : 0.0f;
        of.c[j] = read ? state[d + o] : 0.0f;
        of.n[j] = read ? state[2 * d + o] : 0.0f;
        of.m[j] = read ? state[3 * d + o] : 0.0f;
        if (o < in.P) shared.h[o] = of.h[j];
      }
    });
    for (int64_t t = begin; t < end; ++t) {
      block.each([&](int thread) {
        Own& of = own[thread];
#pragma unroll
        for (int j = 0; j < kOwn; ++j) {
          const int o = thread + j * kThreads;
          if (o >= in.P) continue;
          float gate[4];
#pragma unroll
          for (int k = 0; k < 4; ++k) gate[k] = in.pre[(t * 4 + k) * d + base + o];
          for (int64_t i = 0; i < in.P; ++i) {
            const float h = shared.h[i];
#pragma unroll
            for (int k = 0; k < 4; ++k)
              gate[k] += in.columns[((k * in.H + head) * in.P + i) * in.P + o] * h;
          }
          const SlstmDecays e(gate[0], gate[1], of.m[j], in.fresh && t == begin);
          of.c[j] = e.forget * of.c[j] + e.input * tanh(gate[2]);
          of.n[j] = e.forget * of.n[j] + e.input;
          of.m[j] = e.m;
          of.h[j] = sigmoid(gate[3]) * of.c[j] / of.n[j];
          float* cells = in.cells + t * 3 * d + base + o;
          cells[0] = of.c[j], cells[d] = of.n[j], cells[2 * d] = of.m[j];
          in.y[t * d + base + o] = of.h[j];
#pragma unroll
          for (int k = 0; k < 4; ++k) in.gates[(t * 4 + k) * d + base + o] = gate[k];
        }
      });
      block.each([&](int thread) {
#pragma unroll
        for (int j = 0; j < kOwn; ++j)
          if (thread + j * kThreads < in.P) shared.h[thread + j * kThreads] = own[thread].h[j];
      });
    }
    block.each([&](int thread) {
      const Own& of = own[thread];
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        const int o = thread + j * kThreads;
        if (o >= in.P) continue;
        state[o] = of.h[j], state[d + o] = of.c[j];
        state[2 * d + o] = of.n[j], state[3 * d + o] = of.m[j];
      }
    });
  }
};

struct SlstmAdjoint {
  static constexpr int kThreads = 256;
  static constexpr int kRegisters = 128;
  static constexpr int kOwn = kSlstmWidest / kThreads;
  struct Arguments {
    const float* r = nullptr;          // [4, D, P]
    const int64_t* offsets = nullptr;  // [documents + 1]
    const float* gates = nullptr;      // [T, 4, D]
    const float* cells = nullptr;      // [T, 3, D]
    const float* start = nullptr;      // [4, D]: the state before the only document; null = none
    const float* dy = nullptr;         // [T, D]
    float* dgates = nullptr;           // [T, 4, D]: also the gradient of pre
    float* dstates = nullptr;          // [documents, 4, D]: of the last states, replaced by those
                                       // of the first ones
    int64_t H = 0, P = 0;
  };
  struct Shared {
    float dgates[4][kSlstmWidest];
  };
  struct Own {
    float dh[kOwn], dc[kOwn], dn[kOwn];
  };

  /// Grid: heads, documents.
  template <class Block>
  TESSERA_DEVICE static void run(Block& block, Shared& shared, const Arguments& in) {
    const int64_t head = block.x(), document = block.y(), d = in.H * in.P, base = head * in.P;
    const int64_t begin = in.offsets[document], end = in.offsets[document + 1];
    float* dstate = in.dstates + document * 4 * d + base;
    typename Block::template PerThread<Own> own;
    block.each([&](int thread) {
      Own& of = own[thread];
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        const int o = thread + j * kThreads;
        of.dh[j] = o < in.P ? dstate[o] : 0.0f;
        of.dc[j] = o < in.P ? dstate[d + o] : 0.0f;
        of.dn[j] = o < in.P ? dstate[2 * d + o] : 0.0f;
      }
    });
    for (int64_t t = end - 1; t >= begin; --t) {
      block.each([&](int thread) {
        Own& of = own[thread];
#pragma unroll
        for (int j = 0; j < kOwn; ++j) {
          const int o = thread + j * kThreads;
          if (o >= in.P) continue;
          const float* cells = in.cells + t * 3 * d + base + o;
          float gate[4], before[3] = {0, 0, 0};  // c, n, m
#pragma unroll
          for (int k = 0; k < 4; ++k) gate[k] = in.gates[(t * 4 + k) * d + base + o];
#pragma unroll
          for (int k = 0; k < 3; ++k) {
            if (t > begin)
              before[k] = cells[(k - 3) * d];
            else if (in.start != nullptr)
              before[k] = in.start[(k + 1) * d + base + o];
          }
          const SlstmDecays e(gate[0], gate[1], before[2], in.start == nullptr && t == begin);
          const float ratio = cells[0] / cells[d], open = sigmoid(gate[3]), z = tanh(gate[2]);
          const float grad = in.dy[t * d + base + o] + of.dh[j], along = grad * open / cells[d];
          const float dc = along + of.dc[j], dn = of.dn[j] - along * ratio;
          const float df = dc * before[0] + dn * before[1];
          const float out[4] = {e.input * (dc * z + dn), df * e.forget * sigmoid(-gate[1]),
                                dc * e.input * (1 - z * z), grad * ratio * open * (1 - open)};
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            shared.dgates[k][o] = out[k];
            in.dgates[(t * 4 + k) * d + base + o] = out[k];
          }
          of.dc[j] = dc * e.forget;
          of.dn[j] = dn * e.forget;
        }
      });
      block.each([&](int thread) {
#pragma unroll
        for (int j = 0; j < kOwn; ++j) {
          const int i = thread + j * kThreads;
          if (i >= in.P) continue;
          float sum = 0;
#pragma unroll
          for (int k = 0; k < 4; ++k)
            for (int64_t o = 0; o < in.P; ++o)
              sum += in.r[(k * d + base + o) * in.P + i] * shared.dgates[k][o];
          own[thread].dh[j] = sum;
        }
      });
    }
    block.each([&](int thread) {
      const Own& of = own[thread];
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        const int o = thread + j * kThreads;
        if (o >= in.P) continue;
        dstate[o] = of.dh[j], dstate[d + o] = of.dc[j];
        dstate[2 * d + o] = of.dn[j], dstate[3 * d + o] = 0;
      }
    });
  }
};

}  // namespace tessera::cuda
