#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "tessera/ops/attention.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Work {
  int64_t start = 0, first = 0, chunk = 0;
  ScoreOptions options;
};

/// Positions [begin, end) that hold every key the queries of [begin, end) see.
kernels::KeyRange keys_of(const Work& work, int64_t heads, int64_t begin, int64_t end, int64_t s) {
  const ScoreOptions& o = work.options;
  const kernels::KeyRange all{work.first, work.first + s};
  kernels::KeyRange seen = all;
  if (o.visibility) {
    seen = {all.end, all.begin};
    for (int64_t h = 0; h < (o.visibility->same_for_heads() ? 1 : heads); ++h)
      for (const kernels::KeyRange& range : o.visibility->ranges(h, begin, end))
        seen = {std::min(seen.begin, range.begin), std::max(seen.end, range.end)};
  } else if (o.causal) {
    seen = {o.window > 0 ? begin - o.window + 1 : all.begin, end};
  } else if (o.window > 0) {
    seen = {begin - o.window / 2, end + o.window / 2};
  }
  seen = {std::max(seen.begin, all.begin), std::min(seen.end, all.end)};
  return seen.begin < seen.end ? seen
                               : kernels::KeyRange{all.begin, std::min(all.begin + 1, all.end)};
}

/// inputs: q, k, v, then sinks and bias where defined, then the term's inputs.
ScoreOptions with_inputs(const Work& work, const variable_list& inputs) {
  ScoreOptions options = work.options;
  size_t at = 3;
  if (options.sinks_H.defined()) options.sinks_H = inputs[at++];
  if (options.term.bias_HR.defined()) options.term.bias_HR = inputs[at++];
  options.term.inputs.assign(inputs.begin() + static_cast<std::ptrdiff_t>(at), inputs.end());
  return options;
}

struct Block {
  int64_t query, queries;  // rows of q
  int64_t key, keys;       // rows of k and v
};

std::vector<Block> blocks_of(const Work& work, int64_t heads, int64_t t, int64_t s) {
  std::vector<Block> blocks;
  for (int64_t i = 0; i < t; i += work.chunk) {
    const int64_t n = std::min(work.chunk, t - i);
    const auto keys = keys_of(work, heads, work.start + i, work.start + i + n, s);
    blocks.push_back({i, n, keys.begin - work.first, keys.end - keys.begin});
  }
  return blocks;
}

Tensor one_block(const Work& work, const Block& b, const variable_list& inputs) {
  return attention_plain(inputs[0].narrow(2, b.query, b.queries),
                         inputs[1].narrow(2, b.key, b.keys), inputs[2].narrow(2, b.key, b.keys),
                         work.start + b.query, work.first + b.key, with_inputs(work, inputs));
}

struct Chunked : torch::autograd::Function<Chunked> {
  static Tensor forward(AutogradContext* context,
                        const std::shared_ptr<const Work>& work,
                        at::TensorList list) {
    const variable_list inputs = list.vec();
    std::vector<Tensor> out;
    for (const Block& b : blocks_of(*work, inputs[0].size(1), inputs[0].size(2), inputs[1].size(2)))
      out.push_back(one_block(*work, b, inputs));
    context->save_for_backward(inputs);
    context->saved_data["work"] = c10::IValue::make_capsule(c10::make_intrusive<Holder>(work));
    return at::cat(out, 2);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto holder = context->saved_data["work"].toCapsule();
    const Work& work = *static_cast<Holder*>(holder.get())->work;
    variable_list sums(saved.size());
    for (const Block& b : blocks_of(work, saved[0].size(1), saved[0].size(2), saved[1].size(2))) {
      const at::AutoGradMode record(true);
      // leaves of this block alone; queries, keys and values cut to what the block reads
      variable_list leaves, wanted;
      std::vector<size_t> which;
      for (size_t i = 0; i < saved.size(); ++i) {
        Tensor leaf = saved[i].detach();
        if (i == 0) leaf = leaf.narrow(2, b.query, b.queries);
        if (i == 1 || i == 2) leaf = leaf.narrow(2, b.key, b.keys);
        leaf = leaf.detach();
        if (context->needs_input_grad(i)) {
          leaf.requires_grad_(true);
          wanted.push_back(leaf);
          which.push_back(i);
        }
        leaves.push_back(leaf);
      }
      if (wanted.empty()) break;
      const Tensor out = attention_plain(leaves[0], leaves[1], leaves[2], work.start + b.query,
                                         work.first + b.key, with_inputs(work, leaves));
      const variable_list parts = torch::autograd::grad(
          {out}, wanted, {gradients[0].narrow(2, b.query, b.queries)}, false, false, true);
      const at::NoGradGuard still;
      for (size_t w = 0; w < wanted.size(); ++w) {
        if (!parts[w].defined()) continue;
        const size_t i = which[w];
        if (!sums[i].defined()) sums[i] = at::zeros_like(saved[i]);
        Tensor target = sums[i];
        if (i == 0) target = target.narrow(2, b.query, b.queries);
        if (i == 1 || i == 2) target = target.narrow(2, b.key, b.keys);
        target.add_(parts[w]);
      }
    }
    variable_list out{Tensor()};  // of `work`
    out.insert(out.end(), sums.begin(), sums.end());
    return out;
  }

  struct Holder final : torch::CustomClassHolder {
    explicit Holder(std::shared_ptr<const Work> w) : work(std::move(w)) {}
    std::shared_ptr<const Work> work;
  };
};

}  // namespace

Tensor attention_chunked(const Tensor& q_BHTD,
                         const Tensor& k_BGSD,
                         const Tensor& v_BGSD,
                         int64_t start,
                         int64_t first,
                         const ScoreOptions& options,
                         int64_t chunk) {
  const auto work = std::make_shared<const Work>(Work{start, first, chunk, options});
  variable_list inputs{q_BHTD, k_BGSD, v_BGSD};
  if (options.sinks_H.defined()) inputs.push_back(options.sinks_H);
  if (options.term.bias_HR.defined()) inputs.push_back(options.term.bias_HR);
  inputs.insert(inputs.end(), options.term.inputs.begin(), options.term.inputs.end());
  return Chunked::apply(work, at::TensorList(inputs));
}

}  // namespace tessera::ops
