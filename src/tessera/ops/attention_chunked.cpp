#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>

#include "tessera/ops/attention.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using kernels::KeyRange;

struct Work final : torch::CustomClassHolder {
  int64_t start = 0, chunk = 0;
  std::vector<KeyRange> held;
  ScoreOptions options;
};

// hidden keys between two ranges cost less than another range
constexpr int64_t kSmallGap = 32;

/// Positions that hold every key the queries of [begin, end) see, ascending and disjoint.
std::vector<KeyRange> keys_of(const Work& work, int64_t heads, int64_t begin, int64_t end) {
  const ScoreOptions& o = work.options;
  const KeyRange all{work.held.front().begin, work.held.back().end};
  if (!o.visibility) {
    if (o.causal) return {{o.window > 0 ? begin - o.window + 1 : all.begin, end}};
    if (o.window > 0) return {{begin - o.window / 2, end + o.window / 2}};
    return {all};
  }
  std::vector<KeyRange> seen;
  for (int64_t h = 0; h < (o.visibility->same_for_heads() ? 1 : heads); ++h) {
    const auto own = o.visibility->ranges(h, begin, end);
    seen.insert(seen.end(), own.begin(), own.end());
  }
  std::sort(seen.begin(), seen.end(),
            [](const KeyRange& a, const KeyRange& b) { return a.begin < b.begin; });
  std::vector<KeyRange> joined;
  for (const KeyRange& range : seen) {
    if (!joined.empty() && range.begin <= joined.back().end + kSmallGap)
      joined.back().end = std::max(joined.back().end, range.end);
    else
      joined.push_back(range);
  }
  return joined;
}

/// inputs: q, k, v, then sinks, bias and far queries where defined, then the term's inputs.
ScoreOptions with_inputs(const Work& work, const variable_list& inputs) {
  ScoreOptions options = work.options;
  size_t at = 3;
  if (options.sinks_H.defined()) options.sinks_H = inputs[at++];
  if (options.term.bias_HR.defined()) options.term.bias_HR = inputs[at++];
  if (options.far_q.defined()) options.far_q = inputs[at++];
  options.term.inputs.assign(inputs.begin() + static_cast<std::ptrdiff_t>(at), inputs.end());
  return options;
}

/// Number of the far queries among the inputs, or none.
size_t far_input(const ScoreOptions& options) {
  if (!options.far_q.defined()) return std::numeric_limits<size_t>::max();
  return 3 + (options.sinks_H.defined() ? 1 : 0) + (options.term.bias_HR.defined() ? 1 : 0);
}

struct Block {
  int64_t query = 0, queries = 0;   // rows of q
  std::vector<KeyRange> positions;  // of its keys
  std::vector<int64_t> rows;        // of k and v, where each range begins
};

std::vector<Block> blocks_of(const Work& work, int64_t heads, int64_t t) {
  std::vector<Block> blocks;
  for (int64_t i = 0; i < t; i += work.chunk) {
    Block block{i, std::min(work.chunk, t - i), {}, {}};
    const int64_t begin = work.start + i;
    for (const KeyRange& seen : keys_of(work, heads, begin, begin + block.queries)) {
      int64_t row = 0;
      for (const KeyRange& held : work.held) {
        const KeyRange both{std::max(seen.begin, held.begin), std::min(seen.end, held.end)};
        if (both.begin < both.end) {
          block.positions.push_back(both);
          block.rows.push_back(row + both.begin - held.begin);
        }
        row += held.end - held.begin;
      }
    }
    // a block that sees nothing still runs, on a key that is hidden from it
    if (block.rows.empty()) {
      block.positions.push_back({work.held.front().begin, work.held.front().begin + 1});
      block.rows.push_back(0);
    }
    blocks.push_back(std::move(block));
  }
  return blocks;
}

Tensor keys_of_block(const Tensor& x, const Block& b) {
  std::vector<Tensor> parts;
  for (size_t i = 0; i < b.rows.size(); ++i)
    parts.push_back(x.narrow(2, b.rows[i], b.positions[i].end - b.positions[i].begin));
  return parts.size() == 1 ? parts[0] : at::cat(parts, 2);
}

/// What the block reads of input i.
Tensor cut(const Work& work, const Block& b, size_t i, const Tensor& x) {
  if (i == 1 || i == 2) return keys_of_block(x, b);
  return i == 0 || i == far_input(work.options) ? x.narrow(2, b.query, b.queries) : x;
}

void add_to(const Work& work, const Block& b, size_t i, const Tensor& part, Tensor& sum) {
  if (i != 1 && i != 2) {
    cut(work, b, i, sum).add_(part);
    return;
  }
  int64_t at = 0;
  for (size_t r = 0; r < b.rows.size(); ++r) {
    const int64_t n = b.positions[r].end - b.positions[r].begin;
    sum.narrow(2, b.rows[r], n).add_(part.narrow(2, at, n));
    at += n;
  }
}

Tensor one_block(const Work& work, const Block& b, const variable_list& cuts) {
  return attention_plain(cuts[0], cuts[1], cuts[2], work.start + b.query, b.positions,
                         with_inputs(work, cuts));
}

struct Chunked : torch::autograd::Function<Chunked> {
  static Tensor forward(AutogradContext* context,
                        const c10::intrusive_ptr<Work>& work,
                        at::TensorList list) {
    const variable_list inputs = list.vec();
    std::vector<Tensor> out;
    for (const Block& b : blocks_of(*work, inputs[0].size(1), inputs[0].size(2))) {
      variable_list cuts;
      for (size_t i = 0; i < inputs.size(); ++i) cuts.push_back(cut(*work, b, i, inputs[i]));
      out.push_back(one_block(*work, b, cuts));
    }
    context->save_for_backward(inputs);
    context->saved_data["work"] = c10::IValue::make_capsule(work);
    return at::cat(out, 2);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto holder = context->saved_data["work"].toCapsule();
    const Work& work = *static_cast<Work*>(holder.get());
    variable_list sums(saved.size());
    for (const Block& b : blocks_of(work, saved[0].size(1), saved[0].size(2))) {
      const at::AutoGradMode record(true);
      // leaves of this block alone, cut to what the block reads
      variable_list leaves, wanted;
      std::vector<size_t> which;
      for (size_t i = 0; i < saved.size(); ++i) {
        const Tensor leaf = cut(work, b, i, saved[i].detach()).detach();
        if (context->needs_input_grad(i)) {
          leaf.requires_grad_(true);
          wanted.push_back(leaf);
          which.push_back(i);
        }
        leaves.push_back(leaf);
      }
      if (wanted.empty()) break;
      const variable_list parts =
          torch::autograd::grad({one_block(work, b, leaves)}, wanted,
                                {gradients[0].narrow(2, b.query, b.queries)}, false, false, true);
      const at::NoGradGuard still;
      for (size_t w = 0; w < wanted.size(); ++w) {
        if (!parts[w].defined()) continue;
        const size_t i = which[w];
        if (!sums[i].defined()) sums[i] = at::zeros_like(saved[i]);
        add_to(work, b, i, parts[w], sums[i]);
      }
    }
    variable_list out{Tensor()};  // of `work`
    out.insert(out.end(), sums.begin(), sums.end());
    return out;
  }
};

}  // namespace

Tensor attention_chunked(const Tensor& q_BHTD,
                         const Tensor& k_BGSD,
                         const Tensor& v_BGSD,
                         int64_t start,
                         const std::vector<KeyRange>& held,
                         const ScoreOptions& options,
                         int64_t chunk) {
  const auto work = c10::make_intrusive<Work>();
  work->start = start;
  work->chunk = chunk;
  work->held = held;
  work->options = options;
  variable_list inputs{q_BHTD, k_BGSD, v_BGSD};
  if (options.sinks_H.defined()) inputs.push_back(options.sinks_H);
  if (options.term.bias_HR.defined()) inputs.push_back(options.term.bias_HR);
  if (options.far_q.defined()) inputs.push_back(options.far_q);
  inputs.insert(inputs.end(), options.term.inputs.begin(), options.term.inputs.end());
  return Chunked::apply(work, at::TensorList(inputs));
}

}  // namespace tessera::ops
