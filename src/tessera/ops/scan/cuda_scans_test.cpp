// Scans by CUDA kernels, emulated on tensors of the CPU, against the definitions in double:
// outputs, last states, and the gradients of all inputs and of the state before.
#include "tessera/ops/scan/cuda_scans.h"

#include <gtest/gtest.h>

#include "tessera/cuda/emulation_testing.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::ops::cuda_scans_test {
namespace {

using Tensors = std::vector<Tensor>;
/// Output and last state, from inputs, of which the last is the state before where there is one.
using Scan = std::function<std::pair<Tensor, Tensor>(const Tensors&)>;

/// y, the first `rows` of the last state, and the gradients of all leaves.
Tensors with_gradients(const Tensors& leaves, const Scan& scan, at::ScalarType type, int64_t rows) {
  const at::AutoGradMode gradients(true);
  Tensors own;
  for (const Tensor& x : leaves) own.push_back(x.to(type).detach().requires_grad_(true));
  const auto [y, last] = scan(own);
  const Tensor read = last.narrow(0, 0, rows);
  const auto weights = [&](const Tensor& x, double step) {
    return gen(x.sizes().vec(), step, 0.4).to(type);
  };
  ((y * weights(y, 0.31)).sum() + (read * weights(read, 0.23)).sum()).backward();
  Tensors out{y.detach(), read.detach()};
  for (const Tensor& x : own) out.push_back(x.grad().defined() ? x.grad() : at::zeros_like(x));
  return out;
}

/// The kernels against the definition; `rows` of the last state are read.
void expect_same(const Tensors& leaves, const Scan& definition, const Scan& kernels, int64_t rows) {
  const Tensors want = with_gradients(leaves, definition, at::kDouble, rows);
  Tensors first;
  for (const cuda::Order order : {cuda::Order::forwards, cuda::Order::backwards}) {
    cuda::Emulator emulator(order);
    const Tensors got = with_gradients(leaves, kernels, at::kFloat, rows);
    EXPECT_FALSE(emulator.launches().empty());
    for (size_t i = 0; i < want.size(); ++i) {
      const double scale = std::max(1.0, want[i].abs().max().item<double>());
      expect_near(got[i], want[i], 2e-5 * scale, std::to_string(i).c_str());
      if (order == cuda::Order::backwards) {
        EXPECT_TRUE(at::equal(got[i], first[i])) << i << " depends on the order of threads";
      }
    }
    first = got;
  }
}

/// A definition of one document, document after document, from nothing.
Scan in_turn(const Lengths& lengths,
             size_t of_tokens,
             const std::function<std::pair<Tensor, Tensor>(const Tensors&)>& one) {
  return [=](const Tensors& in) {
    Tensors ys;
    Tensor last;
    int64_t token = 0;
    for (const int64_t length : lengths) {
      Tensors part = in;
      for (size_t i = 0; i < of_tokens; ++i) part[i] = in[i].narrow(0, token, length);
      const auto [y, state] = one(part);
      ys.push_back(y), last = state;
      token += length;
    }
    return std::pair{at::cat(ys), last};
  };
}

const std::vector<Lengths> kLengths{{1}, {7}, {5, 1, 70, 33}, {64, 65}, {129}};
int64_t sum_of(const Lengths& lengths) {
  return offsets_of(lengths).back();
}

std::pair<Tensor, Tensor> channel_definition(const Tensor& a, const Tensor& b, Tensor h) {
  Tensors rows;
  for (int64_t i = 0; i < a.size(0); ++i) {
    h = a[i] * h + b[i];
    rows.push_back(h);
  }
  return {at::stack(rows), h.unsqueeze(0)};
}

TEST(CudaScans, ChannelScan) {
  for (const Lengths& lengths : kLengths)
    for (const int64_t w : {1, 130}) {
      const int64_t t = sum_of(lengths);
      expect_same(
          {gen({t, w}, .7, .1), gen({t, w}, .31, 2)},
          in_turn(lengths, 2,
                  [&](const Tensors& x) {
                    return channel_definition(x[0], x[1], at::zeros({w}, x[0].options()));
                  }),
          [&](const Tensors& x) {
            const auto [h, last] = channel_scan_cuda(x[0], x[1], lengths);
            return std::pair{h, last.unsqueeze(0)};
          },
          1);
      if (lengths.size() == 1)
        expect_same(
            {gen({t, w}, .7, .1), gen({t, w}, .31, 2), gen({w}, .6, .2)},
            [&](const Tensors& x) { return channel_definition(x[0], x[1], x[2]); },
            [&](const Tensors& x) {
              const auto [h, last] = channel_scan_cuda(x[0], x[1], lengths, x[2]);
              return std::pair{h, last.unsqueeze(0)};
            },
            1);
    }
}

TEST(CudaScans, SelectiveScan) {
  const auto in = [](const Tensors& t) {
    return SelectiveScan{t[0], t[1], t[4], -t[5].exp(), t[2], t[3], t[6]};
  };
  for (const Lengths& lengths : kLengths)
    for (const auto& [e, n] : {std::pair<int64_t, int64_t>{1, 1}, {70, 3}, {19, 16}, {5, 35}}) {
      const int64_t t = sum_of(lengths);
      Tensors leaves{gen({t, e}, .3, .1), gen({t, e}, .7, .2), gen({t, n}, .4, .5),
                     gen({t, n}, .6, .6), gen({e}, .5, .3),    gen({n, e}, .9, .4),
                     gen({e}, .8, .7)};
      expect_same(
          leaves,
          in_turn(lengths, 4, [&](const Tensors& x) { return selective_scan_recurrent(in(x)); }),
          [&](const Tensors& x) { return selective_scan_cuda(in(x), lengths); }, n);
      if (lengths.size() > 1) continue;
      leaves.push_back(gen({n, e}, .37, .8));
      expect_same(
          leaves, [&](const Tensors& x) { return selective_scan_recurrent(in(x), x[7]); },
          [&](const Tensors& x) { return selective_scan_cuda(in(x), lengths, x[7]); }, n);
    }
}

TEST(CudaScans, Wkv4) {
  const auto in = [](const Tensors& t) { return Wkv4{t[0], t[1], -t[2].exp(), t[3]}; };
  for (const Lengths& lengths : kLengths)
    for (const int64_t c : {1, 70}) {
      const int64_t t = sum_of(lengths);
      Tensors leaves{gen({t, c}, .3, .1) * 3, gen({t, c}, .7, .2), gen({c}, .5, .3),
                     gen({c}, .9, .4)};
      expect_same(
          leaves, in_turn(lengths, 2, [&](const Tensors& x) { return wkv4_parallel(in(x)); }),
          [&](const Tensors& x) { return wkv4_cuda(in(x), lengths); }, 2);
      if (lengths.size() > 1) continue;
      Tensor state = gen({3, c}, .6, .2);
      state[1] = state[1].abs() + .5;  // a sum of exponentials
      leaves.push_back(state);
      // the exponent of a state has no gradient
      const auto fixed = [](const Tensors& x) {
        return at::cat({x[4].narrow(0, 0, 2), x[4].narrow(0, 2, 1).detach()});
      };
      expect_same(
          leaves, [&](const Tensors& x) { return wkv4_parallel(in(x), fixed(x)); },
          [&](const Tensors& x) { return wkv4_cuda(in(x), lengths, fixed(x)); }, 2);
    }
}

/// Keys far apart: no exponent overflows.
TEST(CudaScans, Wkv4OfLargeKeys) {
  const auto in = [](const Tensors& t) { return Wkv4{t[0], t[1], -t[2].exp(), t[3]}; };
  const Lengths lengths{40, 40};
  expect_same(
      {gen({80, 3}, .3, .1) * 60, gen({80, 3}, .7, .2), gen({3}, .5, .3), gen({3}, .9, .4)},
      in_turn(lengths, 2, [&](const Tensors& x) { return wkv4_parallel(in(x)); }),
      [&](const Tensors& x) { return wkv4_cuda(in(x), lengths); }, 2);
}

TEST(CudaScans, Slstm) {
  for (const Lengths& lengths : {Lengths{1}, Lengths{6}, Lengths{5, 1, 13}})
    for (const auto& [heads, p] : {std::pair<int64_t, int64_t>{2, 5}, {1, 1}, {1, 270}}) {
      const int64_t t = sum_of(lengths), d = heads * p;
      Tensors leaves{gen({t, 4, d}, .3, .1), gen({4, d, p}, .7, .2) * .2};
      expect_same(
          leaves,
          in_turn(lengths, 1,
                  [&](const Tensors& x) {
                    return slstm_recurrent({x[0], x[1]});
                  }),
          [&](const Tensors& x) {
            return slstm_cuda({x[0], x[1]}, lengths);
          },
          3);
      if (lengths.size() > 1) continue;
      Tensor state = gen({4, d}, .6, .2);
      state[2] = state[2].abs() + .5;  // the normalizer
      leaves.push_back(state);
      const auto fixed = [](const Tensors& x) {
        return at::cat({x[2].narrow(0, 0, 3), x[2].narrow(0, 3, 1).detach()});
      };
      expect_same(
          leaves,
          [&](const Tensors& x) {
            return slstm_recurrent({x[0], x[1]}, fixed(x));
          },
          [&](const Tensors& x) {
            return slstm_cuda({x[0], x[1]}, lengths, fixed(x));
          },
          3);
    }
}

}  // namespace
}  // namespace tessera::ops::cuda_scans_test
