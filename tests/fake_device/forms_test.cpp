// Every operation of the table (ops/operations.def) by every form: it asks the table, and its
// result is that of the plain form in float64 within the type's rounding, where its input is.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fake_device/tested_device.h"
#include "tessera/cuda/emulation_testing.h"
#include "tessera/kernels/weights/blocks_testing.h"
#include "tessera/nn/mixer/mixer_testing.h"
#include "tessera/ops/attention/compressed_attention.h"
#include "tessera/ops/attention/indexer.h"
#include "tessera/ops/attention/key_weights.h"
#include "tessera/ops/attention/listed_attention.h"
#include "tessera/ops/attention/lsh_attention.h"
#include "tessera/ops/attention/relative_products.h"
#include "tessera/ops/attention/unit_attention.h"
#include "tessera/ops/basic/elementwise.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/over_rows.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/basic/rope.h"
#include "tessera/ops/basic/sinkhorn.h"
#include "tessera/ops/basic/weighted_sum.h"
#include "tessera/ops/basic/xielu.h"
#include "tessera/ops/convolution/long_conv.h"
#include "tessera/ops/convolution/short_conv.h"
#include "tessera/ops/cuda_kernels.h"
#include "tessera/ops/form.h"
#include "tessera/ops/linear/linear_recurrence.h"
#include "tessera/ops/linear/mlstm.h"
#include "tessera/ops/linear/performer.h"
#include "tessera/ops/linear/retention.h"
#include "tessera/ops/scan/channel_scan.h"
#include "tessera/ops/scan/lti_scan.h"
#include "tessera/ops/scan/mamba2.h"
#include "tessera/ops/scan/rg_lru.h"
#include "tessera/ops/scan/rwkv4.h"
#include "tessera/ops/scan/selective_scan.h"
#include "tessera/ops/scan/slstm.h"
#include "tessera/ops/transform/dft.h"
#include "tessera/ops/weights/head_linear.h"
#include "tessera/ops/weights/to_device.h"

namespace tessera::ops {
namespace {

using Tensors = std::vector<Tensor>;

/// A small call of an operation. Its inputs are in float64; `run` gets them in the type and on the
/// device under test, whole numbers and complex ones in their own type.
struct Call {
  Tensors in;
  std::function<Tensor(const Tensors&)> run;
  bool learns = true;    // gradients reach the first input
  bool narrow = true;    // takes float32
  bool half = true;      // and 16-bit floats
  double rounding = 32;  // of the largest value, in units of the type's rounding

  Call still() const {
    return with([](Call& c) { c.learns = false; });
  }
  /// Of an operation that takes float32 and float64 alone: mixers give it those.
  Call no_half() const {
    return with([](Call& c) { c.half = false; });
  }
  Call only_float64() const {
    return with([](Call& c) { c.narrow = c.half = false; });
  }
  Call within(double units) const {
    return with([units](Call& c) { c.rounding = units; });
  }

 private:
  template <class F>
  Call with(F f) const {
    Call out = *this;
    f(out);
    return out;
  }
};

Tensor zeros_like_wide(const Tensor& x, const std::vector<int64_t>& sizes) {
  return at::zeros(sizes, x.options().dtype(wide(x)).requires_grad(false));
}
Tensor widened(const Tensor& x) {
  return x.to(wide(x));
}
/// The tensors as one.
Tensor joined(const Tensors& parts) {
  Tensors flat;
  for (const Tensor& part : parts) flat.push_back(part.reshape({-1}));
  return at::cat(flat);
}

/// Tokens of one document through a mixer, whose weights go where x is.
Tensor mixed(const char* json, const Tensor& x_TD) {
  nn::MixerUnderTest mixer(json, x_TD.size(1));
  mixer.fill();
  for (auto& [name, value] : mixer.values) value = value.to(x_TD.device());
  nn::Batch batch;
  batch.segments = {{0, 0, x_TD.size(0), 0}};
  batch.number();
  batch.positions_N = batch.positions_N.to(x_TD.device());
  return mixer.forward(x_TD, batch, x_TD.scalar_type());
}
Call of_mixer(const char* json) {
  const Call call{{gen({9, 4}, 0.9, 0.2)}, [json](const Tensors& t) { return mixed(json, t[0]); }};
  return call.within(64);
}

Tensor positive(const std::vector<int64_t>& shape, double a, double b) {
  return gen(shape, a, b) * 0.4 + 0.6;
}

const std::map<Op, Call>& calls() {
  const auto x = [](std::vector<int64_t> shape) { return gen(shape, 0.91, 0.3); };
  const auto y = [](std::vector<int64_t> shape) { return gen(shape, 0.57, 0.1); };
  const auto z = [](std::vector<int64_t> shape) { return gen(shape, 0.37, 0.7); };
  static const std::map<Op, Call> kCalls{
      {Op::documents,
       Call{{x({5, 2, 4}), y({5, 2, 4}), z({5, 2, 4})},
        [](const Tensors& t) {
          std::vector<AttentionCall> calls;
          for (const auto& [first, n] : std::vector<std::pair<int64_t, int64_t>>{{0, 2}, {2, 3}}) {
            const auto part = [&, at = first, of = n](size_t i) { return t[i].narrow(0, at, of); };
            calls.push_back({part(0), {{part(1), part(2), 0}}, 0, {.scale = 0.5}});
          }
          return attention(calls);
        }}},
      // basic
      {Op::rms_norm,
       Call{{x({3, 8}), y({8})}, [](const Tensors& t) { return rms_norm(t[0], t[1], 0.5, 1e-6); }}},
      {Op::layer_norm,
       Call{{x({3, 8}), y({8}), z({8})},
        [](const Tensors& t) { return layer_norm(t[0], t[1], t[2], 0, 1e-6); }}},
      {Op::activate,
       Call{{x({3, 8})}, [](const Tensors& t) { return activate(t[0], Activation::gelu); }}},
      {Op::elementwise,
       Call{{x({3, 8})}, [](const Tensors& t) { return elementwise(Elementwise::silu, t[0]); }}},
      {Op::gated,
       Call{{x({3, 8}), y({3, 8})},
        [](const Tensors& t) { return gated(t[0], t[1], Activation::silu); }}},
      {Op::softcap, Call{{x({3, 8})}, [](const Tensors& t) { return softcap(t[0], 3); }}},
      {Op::softplus, Call{{x({3, 8})}, [](const Tensors& t) { return ops::softplus(t[0]); }}},
      {Op::xielu,
       Call{{x({3, 8}), y({1}), z({1})},
        [](const Tensors& t) { return xielu(t[0], t[1], t[2], 0.5, -1e-6); }}},
      {Op::rotary_table,
       Call{{x({1}), at::arange(5)},
        [](const Tensors& t) {
          const RotaryTable table = rotary_table(t[1], {1, 0.3}, 1.5, wide(t[0]));
          return joined({table.cos_NR, table.sin_NR});
        }}.still()},
      {Op::rope,
       Call{{x({3, 2, 8}), y({3, 3}), z({3, 3})},
        [](const Tensors& t) {
          return rope(t[0], {widened(t[1]), widened(t[2])}, false);
        }}},
      {Op::weighted_sum,
       Call{{x({3, 4}), y({4, 5})}, [](const Tensors& t) { return weighted_sum(t[0], t[1]); }}},
      {Op::ordered_sum, Call{{x({3, 4})}, [](const Tensors& t) { return ordered_sum(t[0], {0}); }}},
      {Op::over_rows,
       Call{{x({4}), y({3, 4})}, [](const Tensors& t) { return t[1] * over_rows(t[0], t[1]); }}},
      {Op::sum_of_rows,
       Call{{x({3, 4})}, [](const Tensors& t) { return sum_of_rows(t[0].detach()); }}.still()},
      {Op::doubly_stochastic,
       Call{{x({2, 3, 3})}, [](const Tensors& t) { return doubly_stochastic(t[0], 3, 1e-6); }}},
      // 16-bit floats are widened before they ask
      {Op::product,
       Call{{x({3, 4}), y({5, 4})},
            [](const Tensors& t) { return linear(t[0], Weight::dense("w", t[1])); }}},
      {Op::grouped_product,
       Call{{x({5, 4}), y({2, 3, 4})},
            [](const Tensors& t) {
              return grouped_linear(t[0], Weight::dense("w", t[1]), {0, 2, 5});
            }}},
      {Op::transposed_product,
       Call{{x({3, 5}), y({5, 4})},
            [](const Tensors& t) {
              return transposed_product(t[0].detach(), Weight::dense("w", t[1]));
            }}
           .still()},
      {Op::head_product,
       Call{{x({3, 2, 4}), y({6, 4})},
        [](const Tensors& t) { return head_linear(t[0], Weight::dense("w", t[1])); }}},
      // convolution, transforms
      {Op::short_conv,
       Call{{x({6, 4}), y({4, 3}), z({4})},
        [](const Tensors& t) {
          Tensor tail = zeros_like_wide(t[0], {2, 4});
          return kernel_serves(Op::short_conv, t[0])
                     ? causal_conv_kernel(t[0], t[1], t[2], tail, Activation::silu)
                     : short_conv(t[0], t[1], t[2], Activation::silu, {6});
        }}},
      {Op::long_conv,
       Call{{x({6, 4}), y({6, 4})}, [](const Tensors& t) { return long_conv({t[0]}, t[1], 6); }}},
      {Op::grouped_conv, of_mixer(R"({"type": "convolution", "kernel": 3, "groups": 2})")},
      {Op::real_dft, Call{{x({4, 6})}, [](const Tensors& t) { return real_dft(t[0]); }}.no_half()},
      // linear attention
      {Op::linear_recurrence,
       Call{{x({1, 6, 2, 4}), y({1, 6, 2, 4}), z({1, 6, 2, 3}), -positive({1, 6, 2}, 0.7, 0.1)},
        [](const Tensors& t) {
          const LinearRecurrence in{t[0], t[1], t[2], widened(t[3])};
          Tensor state = zeros_like_wide(t[0], {2, 4, 3});
          return kernel_serves(Op::linear_recurrence, t[2]) ? linear_recurrence_scan(in, state)
                                                            : linear_recurrence(in, 4).first;
        }}},
      {Op::linear_recurrence_whole,
       Call{{x({1, 6, 2, 4}), y({1, 6, 2, 4}), z({1, 6, 2, 3})},
        [](const Tensors& t) {
          return linear_recurrence_whole({t[0], t[1], t[2]});
        }}},
      {Op::row_dots,
       Call{{x({3, 4}), y({3, 4})}, [](const Tensors& t) { return row_dots(t[0], t[1]); }}},
      {Op::log_sigmoid, Call{{x({3, 4})}, [](const Tensors& t) { return ops::log_sigmoid(t[0]); }}},
      {Op::minus_exp, Call{{x({3, 4})}, [](const Tensors& t) { return minus_exp(t[0]); }}},
      {Op::retention_magnitudes,
       Call{{x({6, 2, 4}), y({6, 2, 4}), -positive({2}, 0.7, 0.1)},
        [](const Tensors& t) { return retention_magnitudes(t[0], t[1], t[2]); }}.still()},
      {Op::mlstm_gates,
       Call{{x({1, 6, 2}), -positive({1, 6, 2}, 0.7, 0.1)},
        [](const Tensors& t) {
          const MlstmGates gates = mlstm_gates(t[1], t[0]);
          return joined({gates.log_decay_BTH, gates.write_BTH, gates.m_BTH, gates.last_BH});
        }}},
      {Op::favor,
       Call{{x({1, 6, 2, 4}), y({1, 6, 2, 4}), z({1, 6, 2, 3}), gen({8, 4}, 1.3, 0.2)},
        [](const Tensors& t) {
          const Favor in{t[0], t[1], t[2], widened(t[3])};
          const FavorState state{zeros_like_wide(t[0], {1, 2, 8, 4}),
                                 zeros_like_wide(t[0], {1, 2, 4}), zeros_like_wide(t[0], {1, 2})};
          return kernel_serves(Op::favor, t[0]) ? favor_scan(in, true, state)
                                                : favor_chunked(in, 4).first;
        }}.within(64)},
      // scans
      {Op::selective_scan,
       Call{{x({6, 4}), y({6, 4}), z({4}), -positive({3, 4}, 0.7, 0.1), y({6, 3}), z({6, 3}), x({4})},
        [](const Tensors& t) {
          const SelectiveScan in{t[0], t[1], widened(t[2]), widened(t[3]),
                                 t[4], t[5], widened(t[6])};
          Tensor state = zeros_like_wide(t[0], {3, 4});
          return kernel_serves(Op::selective_scan, t[0]) ? selective_scan_kernel(in, state)
                                                         : selective_scan(in, {6}, 4);
        }}},
      {Op::ssd,
       Call{{x({1, 6, 2, 3}), positive({1, 6, 2}, 0.5, 0.2), -positive({2}, 0.7, 0.1), y({1, 6, 1, 4}),
         z({1, 6, 1, 4}), z({2})},
        [](const Tensors& t) {
          return ssd({t[0], t[1], widened(t[2]), t[3], t[4], widened(t[5])}, 4).first;
        }}},
      {Op::channel_scan,
       Call{{positive({6, 4}, 0.5, 0.2), y({6, 4})},
        [](const Tensors& t) {
          Tensor state = zeros_like_wide(t[0], {4});
          return kernel_serves(Op::channel_scan, t[0]) ? channel_scan_kernel(t[0], t[1], state)
                                                       : channel_scan(t[0], t[1], {6}, 4);
        }}.no_half()},
      {Op::rg_lru,
       Call{{x({6, 4}), y({6, 4}), z({6, 4}), positive({4}, 0.5, 0.2)},
        [](const Tensors& t) {
          const RgLru in{t[0], t[1], t[2], widened(t[3])};
          Tensor state = zeros_like_wide(t[0], {4});
          return kernel_serves(Op::rg_lru, t[0]) ? rg_lru_kernel(in, state, true)
                                                 : rg_lru(in, {6}, 4);
        }}},
      {Op::wkv4,
       Call{{x({6, 4}), y({6, 4}), -positive({4}, 0.5, 0.2), z({4})},
        [](const Tensors& t) {
          const Wkv4 in{t[0], t[1], widened(t[2]), widened(t[3])};
          Tensor state = zeros_like_wide(t[0], {3, 4});
          return kernel_serves(Op::wkv4, t[0]) ? wkv4_kernel(in, state, true) : wkv4(in, {6});
        }}},
      {Op::slstm,
       Call{{x({6, 4, 4}), y({4, 4, 2}) * 0.5},
        [](const Tensors& t) {
          const Slstm in{t[0], widened(t[1])};
          Tensor state = zeros_like_wide(t[0], {4, 4});
          return kernel_serves(Op::slstm, t[0]) ? slstm_kernel(in, state, true) : slstm(in, {6});
        }}},
      {Op::lti_scan,
       Call{{x({6, 3}), y({3}) - 2, z({3, 2}), x({3, 2}), y({3, 2, 2}), z({3})},
        [](const Tensors& t) {
          const auto exact = [&](size_t i) { return t[i].to(at::kDouble); };
          const LtiSystem system =
              discretised(DiagonalSystem{exact(1), exact(2), exact(3), exact(4), exact(5)});
          Tensor state = zeros_like_wide(t[0], {2, 2, 3});
          return kernel_serves(Op::lti_scan, t[0])
                     ? lti_kernel(constants_of(system), t[0], state)
                     : lti_chunked(system, chunk_of(system), t[0], state).first;
        }}},
      {Op::cauchy,
       Call{{at::complex(-positive({2, 3}, 0.7, 0.1), x({2, 3})),
         at::complex(y({2, 4, 3}), z({2, 4, 3})),
         at::complex(positive({2, 5}, 0.5, 0.2), y({2, 5}))},
        [](const Tensors& t) { return at::view_as_real(cauchy(t[0], t[1], t[2])); }}.only_float64()},
      // attention
      {Op::attention_with_weights,
       Call{{x({5, 2, 4}), y({5, 2, 4}), z({5, 2, 4})},
        [](const Tensors& t) {
          Tensor weights = at::zeros({2, 5}, t[0].options().dtype(at::kFloat).requires_grad(false));
          return attention_with_weights(t[0], {{t[1], t[2], 0}}, 0, {.scale = 0.5}, weights);
        }}},
      {Op::row_products,
       Call{{x({2, 3, 4}), y({2, 5, 4})}, [](const Tensors& t) { return row_products(t[0], t[1]); }}},
      {Op::products_at,
       Call{{x({1, 2, 3, 4}), y({7, 4}), at::arange(9).reshape({3, 3}) % 7},
        [](const Tensors& t) { return products_at(t[0], t[1], t[2]); }}},
      {Op::unit_attention,
       Call{{x({6, 4}), y({6, 4}), z({6, 3})},
        [](const Tensors& t) {
          const UnitScores how{at::full({6}, 2, t[0].options().dtype(wide(t[0]))), ScoreAct::relu2};
          if (kernel_serves(Op::unit_attention, t[0]))
            return unit_attention_kernel(t[0], {t[1]}, {t[2]}, how);
          const auto one = [&](size_t i) { return t[i].unsqueeze(0); };
          return unit_attention(one(0), one(1), one(2), how).squeeze(0);
        }}},
      {Op::listed_attention,
       Call{{x({4, 2, 4}), y({6, 2, 4}), z({6, 2, 4})},
        [](const Tensors& t) {
          const auto lists = [](int64_t first, int64_t n) {
            KeyLists lists;
            for (int64_t i = first; i < first + n; ++i) {
              for (int64_t j = i % 2; j < 6; j += 2) lists.add(0, j);
              lists.end_list();
            }
            return lists;
          };
          return listed_attention(t[0], {KeyMemory(t[1], t[2])}, lists, 0.5, 2);
        }}},
      {Op::retrieved_attention, of_mixer(R"({"type": "memorizing", "n_heads": 2, "segment": 4,
          "mem_len": 0, "memory": 8, "top_k": 8, "combine": "gate"})")},
      {Op::top_keys,
       Call{{x({6, 2, 4}), y({6, 4}), positive({6, 2}, 0.7, 0.1)},
        [](const Tensors& t) {
          return top_keys({t[0], widened(t[2]), {t[1]}, 0.5, 0}, 3);
        }}.still()},
      {Op::top_entries,
       Call{{x({6, 2, 4}), y({3, 4}), positive({6, 2}, 0.7, 0.1)},
        [](const Tensors& t) {
          return top_entries({t[0], t[2], {t[1]}, 0.5, 0, 2}, 2);
        }}.still()},
      {Op::lsh_buckets,
       Call{{x({6, 2, 4}), gen({1, 2, 4, 2}, 1.7, 0.4)},
        [](const Tensors& t) { return lsh_buckets(t[0], {.chunk = 4, .rotations = {t[1]}}); }}.still()},
      {Op::lsh_attention,
       Call{{x({6, 2, 4}), y({6, 2, 4}), gen({1, 2, 4, 2}, 1.7, 0.4)},
        [](const Tensors& t) {
          return lsh_attention(t[0], t[1], {.chunk = 4, .rotations = {t[2]}});
        }}},
      {Op::cope, of_mixer(R"({"type": "attention", "n_heads": 2,
                              "position": {"type": "cope", "n_positions": 4}})")},
      {Op::fire, of_mixer(R"({"type": "attention", "n_heads": 2,
                              "position": {"type": "fire", "d_hidden": 3}})")},
      {Op::kerple, of_mixer(R"({"type": "attention", "n_heads": 2,
                                "position": {"type": "kerple"}})")},
  };
  return kCalls;
}

/// What form_of answered since clear().
struct Asked {
  static void clear() {
    for (auto& of_op : counts)
      for (auto& count : of_op) count = 0;
  }
  static void observe(Op op, const Setting&, Form form) {
    ++counts[static_cast<size_t>(op)][static_cast<size_t>(form)];
  }
  static int64_t times(Op op, Form form) {
    return counts[static_cast<size_t>(op)][static_cast<size_t>(form)];
  }
  static constexpr size_t kMost = 256;
  static inline std::atomic<int64_t> counts[kMost][4];
};

struct Place {
  at::Device device;
  at::ScalarType type;
  bool gradients;
};

class Forms : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_LT(operations().size(), Asked::kMost);
    observe_forms(&Asked::observe);
  }
  void TearDown() override { observe_forms(nullptr); }

  /// The result; its gradient by the first input, where it has one, in `gradient`.
  static Tensor run(const Call& call, const Place& place, Tensor* gradient_out = nullptr) {
    const at::AutoGradMode mode(place.gradients);
    Tensors in;
    for (const Tensor& t : call.in) {
      Tensor one = t.to(place.device);
      if (one.is_floating_point()) one = one.to(place.type);
      in.push_back(one.detach());
    }
    if (place.gradients && call.learns) in[0].requires_grad_(true);
    Asked::clear();
    const Tensor out = call.run(in);
    EXPECT_EQ(out.requires_grad(), place.gradients && call.learns);
    if (out.requires_grad()) {
      const auto gradient = torch::autograd::grad({out.sum()}, {in[0]});
      EXPECT_EQ(gradient[0].device(), place.device);
      EXPECT_TRUE(at::isfinite(gradient[0]).all().item<bool>());
      if (gradient_out != nullptr) *gradient_out = gradient[0].cpu().to(at::kDouble);
    }
    return out.detach();
  }
};

TEST_F(Forms, EveryOperationHasACall) {
  for (const Operation& operation : operations())
    EXPECT_TRUE(calls().contains(operation.op)) << operation.name << " has no call in this test";
}

TEST_F(Forms, EveryFormComputesThePlainOneInFloat64) {
  const at::Device there = test::tested_device();
  for (const Operation& operation : operations()) {
    const Call& call = calls().at(operation.op);
    // no row of the table serves float64 on another device
    const Tensor want = run(call, {there, at::kDouble, false}).cpu().to(at::kDouble);
    EXPECT_GT(Asked::times(operation.op, Form::plain), 0) << operation.name;
    const double largest = want.abs().max().item<double>();
    for (const Place& place : std::vector<Place>{{at::kCPU, at::kDouble, false},
                                                 {at::kCPU, at::kDouble, true},
                                                 {at::kCPU, at::kFloat, false},
                                                 {at::kCPU, at::kFloat, true},
                                                 {at::kCPU, at::kBFloat16, false},
                                                 {at::kCPU, at::kBFloat16, true},
                                                 {there, at::kDouble, true},
                                                 {there, at::kFloat, false},
                                                 {there, at::kFloat, true}}) {
      if (place.type != at::kDouble && !call.narrow) continue;
      if (place.type == at::kBFloat16 && !call.half) continue;
      SCOPED_TRACE(std::string(operation.name) + " on " + place.device.str() + ", " +
                   c10::toString(place.type) + (place.gradients ? ", with gradients" : ""));
      const Tensor got = run(call, place);
      // lists of keys lie in this machine's memory
      if (at::isFloatingType(got.scalar_type())) {
        EXPECT_EQ(got.device(), place.device);
      }
      const double rounding = place.type == at::kDouble     ? 0x1p-50
                              : place.type == at::kBFloat16 ? 0x1p-9
                                                            : 0x1p-23;
      ASSERT_EQ(got.sizes(), want.sizes());
      const double off = (got.cpu().to(at::kDouble) - want).abs().max().item<double>();
      EXPECT_LE(off, call.rounding * rounding * largest);
      // an operation may stop gradients before it asks, or ask for what it computes in, float32
      int64_t asked = 0;
      std::set<Form> forms;
      for (const auto type : {place.type, place.type == at::kDouble ? at::kDouble : at::kFloat})
        for (const bool gradients : {place.gradients, place.gradients && call.learns})
          forms.insert(form_of(operation.op, Setting{place.device.type(), type, gradients,
                                                     cuda_kernels() && place.device == there}));
      for (const Form form : forms) asked += Asked::times(operation.op, form);
      EXPECT_GT(asked, 0);
    }
  }
}

/// Kernels of CUDA on the device under test: emulated on the test device, run on a GPU.
class CudaForms : public Forms {
 protected:
  void SetUp() override {
    Forms::SetUp();
    there_ = test::tested_device();
    if (test::is_test_device()) {
      emulator_ = std::make_unique<cuda::Emulator>(cuda::Order::forwards, [](const auto& run) {
        const fake_device::Opened opened;
        run();
      });
      count_as_cuda(at::kPrivateUse1);
      set_cuda_kernels(true);
    } else if (!cuda_kernels()) {
      GTEST_SKIP() << "kernels of CUDA cannot be launched on " << there_.str();
    }
  }
  void TearDown() override {
    if (emulator_) {
      set_cuda_kernels(false);
      count_as_cuda(at::kCUDA);
    }
    Forms::TearDown();
  }

  at::Device there_{at::kCPU};
  std::unique_ptr<cuda::Emulator> emulator_;
};

TEST_F(CudaForms, ComputeThePlainOnesInFloat64) {
  int tested = 0;
  for (const Operation& operation : operations()) {
    const Setting setting{at::kCUDA, at::kFloat, true, true};
    if (form_of(operation.op, setting) != Form::cuda) continue;
    const Call& call = calls().at(operation.op);
    Tensor gradient;
    const Tensor want = run(call, {there_, at::kDouble, true}, &gradient).cpu().to(at::kDouble);
    for (const bool gradients : {false, true}) {
      SCOPED_TRACE(std::string(operation.name) + (gradients ? ", with gradients" : ""));
      Tensor got_gradient;
      const Tensor got = run(call, {there_, at::kFloat, gradients}, &got_gradient);
      EXPECT_GT(Asked::times(operation.op, Form::cuda), 0);
      EXPECT_EQ(got.device(), there_);
      const auto expect_close = [&](const Tensor& x, const Tensor& y) {
        ASSERT_EQ(x.sizes(), y.sizes());
        EXPECT_LE((x.cpu().to(at::kDouble) - y).abs().max().item<double>(),
                  4 * call.rounding * 0x1p-23 * std::max(1.0, y.abs().max().item<double>()));
      };
      expect_close(got, want);
      if (got_gradient.defined()) expect_close(got_gradient, gradient);
      ++tested;
    }
  }
  EXPECT_GE(tested, 10);
  if (emulator_) {
    EXPECT_GE(emulator_->launches().size(), 10u);
  }
}

/// Random blocks [shape] of a type in this machine's memory.
WeightPtr in_blocks(DType type, const std::vector<int64_t>& shape) {
  const int64_t blocks = c10::multiply_integers(shape) / layout_of(type).block_elements;
  const auto bytes =
      std::make_shared<const std::vector<uint8_t>>(kernels::test::random_blocks(type, blocks, 11));
  return std::make_shared<const Weight>(Weight::stored("w", type, shape, bytes->data(), bytes));
}

void expect_rounded(const Tensor& got, const Tensor& want, double tolerance = 1e-5) {
  ASSERT_EQ(got.sizes(), want.sizes());
  EXPECT_LE((got.detach().cpu().to(at::kDouble) - want.detach()).abs().max().item<double>(),
            tolerance * std::max(1.0, want.detach().abs().max().item<double>()));
}

/// Every block type on a device: its bytes stay packed, and each operation is that of the numbers
/// that kernels::dequantize gives, in float64.
void expect_packed_operations(DType type, at::Device there) {
  const int64_t width = 512, outputs = 19;
  const WeightPtr here = in_blocks(type, {outputs, width}), weight = to_device(here, there);
  ASSERT_EQ(weight->dtype(), type);
  ASSERT_EQ(weight->bytes(), here->bytes());
  ASSERT_EQ(weight->device(), there);
  EXPECT_TRUE(at::equal(weight->tensor().cpu(), here->tensor()));
  EXPECT_TRUE(at::equal(to_device(weight, at::kCPU)->tensor(), here->tensor()));
  const Tensor numbers = here->tensor().to(at::kDouble);
  for (const int64_t rows : {1, 8, 9})
    for (const bool gradients : {false, true}) {
      SCOPED_TRACE(fmt::format("{} rows{}", rows, gradients ? ", with gradients" : ""));
      const at::AutoGradMode mode(gradients);
      const Tensor x = gen({rows, width}, 0.3, 0.2).to(at::kFloat);
      const Tensor own = x.to(there).requires_grad_(gradients);
      const Tensor y = linear(own, *weight);
      EXPECT_EQ(y.device(), there);
      expect_rounded(y, at::linear(x.to(at::kDouble), numbers));
      if (gradients)
        expect_rounded(torch::autograd::grad({y.sum()}, {own})[0],
                       numbers.sum(0).expand({rows, width}));
    }
  const Tensor y = gen({3, outputs}, 0.5, 0.4).to(at::kFloat);
  expect_rounded(transposed_product(y.to(there), *weight), y.to(at::kDouble).mm(numbers));
  const Tensor ids = at::tensor({5, 0, 18, 5}, at::kLong);
  EXPECT_TRUE(
      at::equal(rows(*weight, ids.to(there)).cpu().to(at::kDouble), numbers.index_select(0, ids)));

  // experts: 1, no, 8 and 9 rows
  const WeightPtr experts_here = in_blocks(type, {4, 6, 256}),
                  experts = to_device(experts_here, there);
  const Tensor all = experts_here->tensor().to(at::kDouble);
  const std::vector<int64_t> offsets{0, 1, 1, 9, 18};
  for (const bool gradients : {false, true}) {
    SCOPED_TRACE(gradients ? "experts, with gradients" : "experts");
    const at::AutoGradMode mode(gradients);
    const Tensor x = gen({18, 256}, 0.3, 0.2).to(at::kFloat);
    const Tensor own = x.to(there).requires_grad_(gradients);
    const Tensor got = grouped_linear(own, *experts, offsets);
    Tensors want, back;
    for (int64_t e = 0; e < 4; ++e) {
      const int64_t first = offsets[static_cast<size_t>(e)],
                    n = offsets[static_cast<size_t>(e) + 1] - first;
      want.push_back(at::linear(x.narrow(0, first, n).to(at::kDouble), all[e]));
      back.push_back(all[e].sum(0).expand({n, 256}));
    }
    expect_rounded(got, at::cat(want));
    if (gradients) expect_rounded(torch::autograd::grad({got.sum()}, {own})[0], at::cat(back));
  }
  const Weight slice = experts->slice(2);
  EXPECT_EQ(slice.dtype(), type);
  EXPECT_TRUE(at::equal(slice.tensor().cpu(), experts_here->tensor()[2]));
}

TEST_F(Forms, EveryBlockTypeStaysPackedOnADevice) {
  for (const DType type : kernels::test::block_types()) {
    SCOPED_TRACE(name_of(type));
    expect_packed_operations(type, test::tested_device());
  }
}

/// Few rows are multiplied with the packed bytes, more rows and gradients with decoded tiles.
TEST_F(CudaForms, ComputeProductsWithPackedWeights) {
  for (const DType type : kernels::test::block_types()) {
    SCOPED_TRACE(name_of(type));
    expect_packed_operations(type, there_);
  }
  if (!emulator_) return;
  const auto launches = emulator_->launches();
#define TESSERA_PACKED_FORMAT(type, Format)                                   \
  EXPECT_TRUE(launches.contains(cuda::Kernel::packed_product_of_one_##type)); \
  EXPECT_TRUE(launches.contains(cuda::Kernel::packed_product_of_few_##type)); \
  EXPECT_TRUE(launches.contains(cuda::Kernel::unpack_float_##type));
#include "tessera/cuda/packed_formats.def"
#undef TESSERA_PACKED_FORMAT
}

/// The experts that rows choose are read, and no others: few rows from their bytes.
TEST_F(CudaForms, ReadTheExpertsOfTheRowsFromTheirBytes) {
  if (!emulator_) GTEST_SKIP() << "launches are counted in the emulation";
  const at::NoGradGuard none;
  const WeightPtr experts = to_device(in_blocks(DType::mxfp4, {16, 8, 64}), there_);
  std::vector<int64_t> offsets(17, 5);
  std::fill_n(offsets.begin(), 4, 0);  // 1 row of expert 3, 4 of expert 9
  std::fill_n(offsets.begin() + 4, 6, 1);
  grouped_linear(gen({5, 64}, 0.3, 0.2).to(there_, at::kFloat), *experts, offsets);
  const std::map<cuda::Kernel, int64_t> want{{cuda::Kernel::packed_product_of_one_mxfp4, 1},
                                             {cuda::Kernel::packed_product_of_few_mxfp4, 1}};
  EXPECT_EQ(emulator_->launches(), want);
}

/// Without kernels too: an expert is decoded at a time, not all of them.
TEST_F(Forms, GroupedProductsDecodeAnExpertAtATime) {
  if (!test::is_test_device()) GTEST_SKIP() << "memory is counted on the test device";
  const at::Device there = test::tested_device();
  const int64_t e = 64, o = 32, i = 512;
  for (const DType type : {DType::mxfp4, DType::q3_k, DType::iq2_xs}) {
    const WeightPtr experts = to_device(in_blocks(type, {e, o, i}), there);
    std::vector<int64_t> offsets(static_cast<size_t>(e) + 1);
    for (int64_t n = 0; n <= e; ++n) offsets[static_cast<size_t>(n)] = n;
    const Tensor x = gen({e, i}, 0.3, 0.2).to(there, at::kFloat).requires_grad_(true);
    grouped_linear(x, *experts, offsets);  // tables are made
    fake_device::reset_counts();
    const size_t before = fake_device::counts().bytes_in_use;
    torch::autograd::grad({grouped_linear(x, *experts, offsets).sum()}, {x});
    const size_t most = fake_device::counts().bytes_at_most - before;
    EXPECT_LT(most, static_cast<size_t>(e * o * i * 4 / 2)) << name_of(type);
  }
}

TEST_F(Forms, FormsOfTheTable) {
  const auto form = [](Op op, at::DeviceType device, at::ScalarType type, bool gradients) {
    return form_of(op, Setting{device, type, gradients});
  };
  EXPECT_EQ(form(Op::rms_norm, at::kCPU, at::kFloat, false), Form::kernel);
  EXPECT_EQ(form(Op::rms_norm, at::kCPU, at::kFloat, true), Form::learning);
  EXPECT_EQ(form(Op::rms_norm, at::kCPU, at::kBFloat16, true), Form::plain);
  EXPECT_EQ(form(Op::selective_scan, at::kCPU, at::kBFloat16, false), Form::learning);
  EXPECT_EQ(form(Op::selective_scan, at::kCPU, at::kDouble, true), Form::plain);
  EXPECT_EQ(form(Op::ordered_sum, at::kCPU, at::kDouble, true), Form::learning);
  for (const Operation& operation : operations()) {
    EXPECT_FALSE(operation.what.empty()) << operation.name;
    EXPECT_EQ(&operation - operations().data(), static_cast<int64_t>(operation.op));
    // without the library of CUDA kernels no other device has a form of its own
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16})
      for (const bool gradients : {false, true})
        EXPECT_EQ(form(operation.op, at::kPrivateUse1, type, gradients), Form::plain);
  }
}

}  // namespace
}  // namespace tessera::ops
