#include "tessera/ops/attention/fused_attention.h"

#include <algorithm>
#include <optional>

#include <torch/csrc/autograd/custom_function.h>

#include "tessera/ops/attention/attention_form.h"
#include "tessera/ops/planned_memory.h"

namespace tessera::ops {
namespace {

/// Numbers of a mask at most: 64 MiB of bytes.
constexpr int64_t kMostInMask = int64_t{1} << 26;

at::ScalarType factors_of(const Tensor& q, const ScoreOptions& options) {
  switch (options.products) {
    case kernels::ProductType::bf16:
      return at::kBFloat16;
    case kernels::ProductType::fp16:
      return at::kHalf;
    default:
      return q.scalar_type();
  }
}

/// Keys that queries at positions begin .. end - 1 see, as places in S.
kernels::KeyRange seen_keys(
    int64_t begin, int64_t end, int64_t first, int64_t s, const ScoreOptions& options) {
  const int64_t half = options.window / 2;
  kernels::KeyRange range{0, s};
  if (options.causal) range.end = end - first;
  if (options.window > 0) {
    range.begin = options.causal ? begin - options.window + 1 - first : begin - half - first;
    if (!options.causal) range.end = end + half - first;
  }
  return {std::clamp<int64_t>(range.begin, 0, s), std::clamp<int64_t>(range.end, 0, s)};
}

/// Whether a query at a position of begin .. end - 1 does not see one of these keys.
bool hides(int64_t begin, int64_t end, int64_t first, int64_t last, const ScoreOptions& options) {
  const int64_t half = options.window / 2;
  if (options.causal) return last > begin || (options.window > 0 && first < end - options.window);
  return options.window > 0 && (first < end - 1 - half || last > begin + half);
}

/// [T, S]: which keys queries see.
Tensor mask_of(int64_t begin,
               int64_t end,
               int64_t first,
               int64_t keys,
               const ScoreOptions& options,
               const at::TensorOptions& device) {
  const Tensor distance = at::arange(begin, end, device.dtype(at::kLong)).unsqueeze(1) -
                          at::arange(first, first + keys, device.dtype(at::kLong));
  if (!options.causal) return distance.abs() <= options.window / 2;
  const Tensor before = distance >= 0;
  return options.window > 0 ? before.logical_and(distance < options.window) : before;
}

/// What flash and memory-efficient attention keep for their backward pass: factors, output and a
/// number per query. Without numbers, to plan memory.
class PlannedAttention : public torch::autograd::Function<PlannedAttention> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* context,
                        const Tensor& q_BHTD,
                        const Tensor& k_BHSD,
                        const Tensor& v_BHSD) {
    std::vector<int64_t> shape = q_BHTD.sizes().vec();
    const Tensor sums =
        at::empty({shape[0], shape[1], shape[2]}, q_BHTD.options().dtype(at::kFloat));
    shape.back() = v_BHSD.size(3);
    const Tensor out = at::empty(shape, q_BHTD.options());
    context->save_for_backward({q_BHTD, k_BHSD, v_BHSD, out, sums});
    return out;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& /*given*/) {
    const auto saved = context->get_saved_variables();
    return {at::empty_like(saved[0]), at::empty_like(saved[1]), at::empty_like(saved[2])};
  }
};

/// Whether CUDA's fused kernels, which never hold the scores, serve what the meta device stands
/// for: shared keys in 16 bits only.
bool plans_fused(const Tensor& q, bool groups) {
  return q.is_meta() && planned_device() == at::kCUDA && (!groups || q.element_size() == 2);
}

}  // namespace

bool every_query_sees_a_key(
    int64_t start, int64_t queries, int64_t first, int64_t keys, bool causal, int64_t window) {
  if (queries == 0) return true;
  if (keys == 0) return false;
  const int64_t end = start + queries - 1, last = first + keys - 1, half = window / 2;
  if (causal) return first <= start && (window == 0 || end - window < last);
  return window == 0 || (start + half >= first && end - half <= last);
}

Tensor fused_attention(const Tensor& q_BTHD,
                       const Tensor& k_BSGD,
                       const Tensor& v_BSGD,
                       int64_t start,
                       int64_t first,
                       const ScoreOptions& options) {
  const at::ScalarType type = factors_of(q_BTHD, options);
  const auto heads_first = [&](const Tensor& x) { return x.transpose(1, 2).to(type); };
  const Tensor q = heads_first(q_BTHD), k = heads_first(k_BSGD), v = heads_first(v_BSGD);
  const int64_t t = q.size(2), s = k.size(2);
  const bool groups = q.size(1) != k.size(1);
  const auto attend = [&](const Tensor& of, const kernels::KeyRange& seen,
                          const std::optional<Tensor>& mask, bool causal) {
    const int64_t n = seen.end - seen.begin;
    if (plans_fused(q, groups))
      return PlannedAttention::apply(of, k.narrow(2, seen.begin, n), v.narrow(2, seen.begin, n));
    return at::scaled_dot_product_attention(of, k.narrow(2, seen.begin, n),
                                            v.narrow(2, seen.begin, n), mask, 0, causal,
                                            options.scale, groups);
  };
  std::vector<Tensor> out;
  if (options.causal && options.window == 0 && start == first && t == s) {
    out.push_back(attend(q, {0, s}, std::nullopt, true));
  } else {
    // with a window, blocks of queries as long as it: keys of two windows each
    const int64_t fit = std::max<int64_t>(1, kMostInMask / std::max<int64_t>(1, s));
    const int64_t block =
        options.window > 0 ? std::min(fit, std::max<int64_t>(256, options.window)) : fit;
    for (int64_t at = 0; at < t; at += block) {
      const int64_t n = std::min(block, t - at), begin = start + at, end = begin + n;
      const kernels::KeyRange seen = seen_keys(begin, end, first, s, options);
      const int64_t from = first + seen.begin, keys = seen.end - seen.begin;
      std::optional<Tensor> mask;
      if (hides(begin, end, from, from + keys - 1, options))
        mask = mask_of(begin, end, from, keys, options, at::TensorOptions(q.device()));
      out.push_back(attend(q.narrow(2, at, n), seen, mask, false));
    }
  }
  const Tensor all = out.size() == 1 ? out[0] : at::cat(out, 2);
  return all.transpose(1, 2).to(q_BTHD.scalar_type());
}

bool fused_serves_packed(const Tensor& q_NHD, const ScoreOptions& options) {
  const at::ScalarType type = factors_of(q_NHD, options);
  return q_NHD.is_cuda() && (type == at::kBFloat16 || type == at::kHalf) && q_NHD.size(2) <= 256 &&
         attention_form(asks_of(q_NHD, options)) == AttentionForm::fused;
}

Tensor fused_documents(const Tensor& q_NHD,
                       const Tensor& k_SGD,
                       const Tensor& v_SGD,
                       const std::vector<int64_t>& lengths,
                       const std::vector<int64_t>& keys,
                       const ScoreOptions& options) {
  const at::ScalarType type = factors_of(q_NHD, options);
  const auto sums = [&](const std::vector<int64_t>& of) {
    std::vector<int32_t> out{0};
    for (const int64_t n : of) out.push_back(out.back() + static_cast<int32_t>(n));
    return at::tensor(out, at::kInt).to(q_NHD.device());
  };
  const auto longest = [](const std::vector<int64_t>& of) {
    return of.empty() ? 0 : *std::max_element(of.begin(), of.end());
  };
  std::optional<int64_t> left, right;
  if (options.window > 0) {
    left = options.causal ? options.window - 1 : options.window / 2;
    right = options.causal ? 0 : options.window / 2;
  }
  // heads of queries, keys and values are equally wide there
  const int64_t width = std::max(q_NHD.size(2), v_SGD.size(2));
  const auto factor = [&](const Tensor& x) {
    return at::constant_pad_nd(x.to(type), {0, width - x.size(2)}).contiguous();
  };
  const Tensor out = std::get<0>(at::_flash_attention_forward(
      factor(q_NHD), factor(k_SGD), factor(v_SGD), sums(lengths), sums(keys), longest(lengths),
      longest(keys), 0, options.causal, false, options.scale, left, right));
  return out.narrow(2, 0, v_SGD.size(2)).to(q_NHD.scalar_type());
}

}  // namespace tessera::ops
