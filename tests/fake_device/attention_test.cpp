// Attention of documents of any lengths by the operator that CUDA has for them, with one of the
// test device in its place, which computes what libtorch documents of it.
#include <gtest/gtest.h>
#include <torch/library.h>

#include "fake_device/fake_device.h"
#include "tessera/ops/attention/fused_attention.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::attention_on_device_test {
namespace {

using ops::ScoreOptions;

/// aten::_flash_attention_forward for packed documents, of whose arguments later versions have
/// more. Causality and windows are counted from the last query and the last key; a window of -1 has
/// no end.
void flash(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  std::vector<at::IValue> in(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  stack->resize(stack->size() - count);
  const Tensor q = in[0].toTensor(), k = in[1].toTensor(), v = in[2].toTensor();
  const auto sums_q = in[3].toOptional<Tensor>(), sums_k = in[4].toOptional<Tensor>();
  const int64_t longest_q = in[5].toInt(), longest_k = in[6].toInt();
  const double dropout = in[7].toDouble();
  const bool causal = in[8].toBool();
  const auto scale = in[10].toOptional<double>();
  const auto left = in[11].toOptional<int64_t>(), right = in[12].toOptional<int64_t>();
  EXPECT_TRUE(q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf);
  EXPECT_TRUE(q.is_contiguous() && k.is_contiguous() && v.is_contiguous());
  EXPECT_EQ(q.size(2), v.size(2));
  EXPECT_EQ(dropout, 0);
  const Tensor of_q = sums_q->cpu(), of_k = sums_k->cpu();
  EXPECT_EQ(of_q.scalar_type(), at::kInt);
  std::vector<Tensor> out;
  int64_t most_q = 0, most_k = 0;
  for (int64_t i = 0; i + 1 < of_q.numel(); ++i) {
    const auto piece = [i](const Tensor& x, const Tensor& sums) {
      const int64_t begin = sums[i].item<int>(), end = sums[i + 1].item<int>();
      return x.narrow(0, begin, end - begin).to(at::kCPU, at::kFloat).transpose(0, 1);
    };
    const Tensor a = piece(q, of_q), heads = piece(k, of_k), values = piece(v, of_k);
    const int64_t groups = a.size(0) / heads.size(0), t = a.size(1), s = heads.size(1);
    most_q = std::max(most_q, t);
    most_k = std::max(most_k, s);
    const Tensor b = heads.repeat_interleave(groups, 0), c = values.repeat_interleave(groups, 0);
    const Tensor behind = at::arange(s - t, s).unsqueeze(1) - at::arange(s);
    Tensor hidden = at::zeros({t, s}, at::kBool);
    if (causal) hidden = hidden.logical_or(behind < 0);
    if (left && *left >= 0) hidden = hidden.logical_or(behind > *left);
    if (right && *right >= 0) hidden = hidden.logical_or(-behind > *right);
    const Tensor scores = at::matmul(a, b.transpose(1, 2)) * *scale;
    out.push_back(at::matmul(scores.masked_fill(hidden, -INFINITY).softmax(-1), c).transpose(0, 1));
  }
  EXPECT_EQ(longest_q, most_q);
  EXPECT_EQ(longest_k, most_k);
  const Tensor all = at::cat(out).to(q.scalar_type()).to(q.device());
  for (const Tensor& out_of : {all, Tensor(), Tensor(), Tensor(), Tensor()})
    stack->emplace_back(out_of);
}

TEST(AttentionOnDevice, DocumentsOfAnyLengthInOneCall) {
  fake_device::install();
  torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__,
                         __LINE__);
  library.impl("_flash_attention_forward", torch::CppFunction::makeFromBoxedFunction<&flash>());
  const at::NoGradGuard no_gradients;
  const std::vector<int64_t> lengths{5, 1, 8};
  const auto there = [](const Tensor& x) { return x.to(at::kFloat).to(fake_device::device()); };
  for (const auto& [causal, window] :
       {std::pair<bool, int64_t>(true, 0), {true, 3}, {false, 0}, {false, 4}})
    for (const int64_t width : {8, 6}) {
      SCOPED_TRACE(fmt::format("causal {}, window {}, values of {}", causal, window, width));
      const Tensor q = ops::gen({14, 4, 8}, 0.7371, 0.11), k = ops::gen({14, 2, 8}, 1.5313, 0.29),
                   v = ops::gen({14, 2, width}, 2.7117, 0.05);
      const ScoreOptions options{
          .scale = 0.6, .causal = causal, .window = window, .products = kernels::ProductType::bf16};
      const Tensor got =
          ops::fused_documents(there(q), there(k), there(v), lengths, lengths, options);
      EXPECT_EQ(got.scalar_type(), at::kFloat);
      EXPECT_EQ(got.device(), fake_device::device());
      std::vector<Tensor> want;
      int64_t at = 0;
      for (const int64_t n : lengths) {
        const auto own = [&](const Tensor& x) {
          return x.narrow(0, at, n).transpose(0, 1).unsqueeze(0);
        };
        want.push_back(
            ops::attention_plain(own(q), own(k), own(v), 0, 0, options).squeeze(0).transpose(0, 1));
        at += n;
      }
      ops::expect_near(got.cpu(), at::cat(want), 3e-2);
    }
}

}  // namespace
}  // namespace tessera::attention_on_device_test
