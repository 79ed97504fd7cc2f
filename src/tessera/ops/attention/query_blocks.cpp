#include "tessera/ops/attention/query_blocks.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace tessera::ops {
namespace {

using kernels::KeyRange;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// hidden keys between two ranges cost less than another range
constexpr int64_t kSmallGap = 32;

struct QueryBlockWork final : torch::CustomClassHolder {
  ByQueryBlocks how;
};

Tensor rows_of_keys(const Tensor& x, const QueryBlock& b) {
  std::vector<Tensor> parts;
  for (size_t i = 0; i < b.rows.size(); ++i)
    parts.push_back(x.narrow(2, b.rows[i], b.positions[i].end - b.positions[i].begin));
  return parts.size() == 1 ? parts[0] : at::cat(parts, 2);
}

Tensor cut(const QueryBlock& b, BlockReads reads, const Tensor& x) {
  switch (reads) {
    case BlockReads::queries:
      return x.narrow(2, b.query, b.queries);
    case BlockReads::keys:
      return rows_of_keys(x, b);
    case BlockReads::all:
      break;
  }
  return x;
}

void add_to(const QueryBlock& b, BlockReads reads, const Tensor& part, Tensor& sum) {
  if (reads != BlockReads::keys) {
    cut(b, reads, sum).add_(part);
    return;
  }
  int64_t at = 0;
  for (size_t r = 0; r < b.rows.size(); ++r) {
    const int64_t n = b.positions[r].end - b.positions[r].begin;
    sum.narrow(2, b.rows[r], n).add_(part.narrow(2, at, n));
    at += n;
  }
}

struct Blocks : torch::autograd::Function<Blocks> {
  static Tensor forward(AutogradContext* context,
                        const c10::intrusive_ptr<QueryBlockWork>& work,
                        at::TensorList list) {
    const ByQueryBlocks& how = work->how;
    std::vector<Tensor> out;
    for (const QueryBlock& b : how.blocks) {
      variable_list cuts;
      for (size_t i = 0; i < list.size(); ++i) cuts.push_back(cut(b, how.reads[i], list[i]));
      out.push_back(how.run(b, cuts));
    }
    context->save_for_backward(list.vec());
    context->saved_data["work"] = c10::IValue::make_capsule(work);
    return out.size() == 1 ? out[0] : at::cat(out, 2);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto holder = context->saved_data["work"].toCapsule();
    const ByQueryBlocks& how = static_cast<const QueryBlockWork*>(holder.get())->how;
    variable_list sums(saved.size());
    for (const QueryBlock& b : how.blocks) {
      const at::AutoGradMode record(true);
      // leaves of this block alone, cut to what the block reads
      variable_list leaves, wanted;
      std::vector<size_t> which;
      for (size_t i = 0; i < saved.size(); ++i) {
        const Tensor leaf = cut(b, how.reads[i], saved[i].detach()).detach();
        if (context->needs_input_grad(i)) {
          leaf.requires_grad_(true);
          wanted.push_back(leaf);
          which.push_back(i);
        }
        leaves.push_back(leaf);
      }
      if (wanted.empty()) break;
      const variable_list parts =
          torch::autograd::grad({how.run(b, leaves)}, wanted,
                                {gradients[0].narrow(2, b.query, b.queries)}, false, false, true);
      const at::NoGradGuard still;
      for (size_t w = 0; w < wanted.size(); ++w) {
        if (!parts[w].defined()) continue;
        const size_t i = which[w];
        if (!sums[i].defined()) sums[i] = at::zeros_like(saved[i]);
        add_to(b, how.reads[i], parts[w], sums[i]);
      }
    }
    variable_list out{Tensor()};  // of `work`
    out.insert(out.end(), sums.begin(), sums.end());
    return out;
  }
};

}  // namespace

std::vector<KeyRange> key_ranges(
    const ScoreOptions& options, int64_t heads, KeyRange held, int64_t begin, int64_t end) {
  std::vector<KeyRange> seen;
  if (!options.visibility) {
    KeyRange range = held;
    if (options.causal) {
      range.end = end;
      if (options.window > 0) range.begin = begin - options.window + 1;
    } else if (options.window > 0) {
      range = {begin - options.window / 2, end + options.window / 2};
    }
    seen.push_back(range);
  } else {
    for (int64_t h = 0; h < (options.visibility->same_for_heads() ? 1 : heads); ++h) {
      const auto own = options.visibility->ranges(h, begin, end);
      seen.insert(seen.end(), own.begin(), own.end());
    }
    std::sort(seen.begin(), seen.end(),
              [](const KeyRange& a, const KeyRange& b) { return a.begin < b.begin; });
  }
  if (options.term.keys_between && !seen.empty()) {
    int64_t last = end;
    for (const KeyRange& range : seen) last = std::max(last, range.end);
    seen = {{seen.front().begin, last}};
  }
  std::vector<KeyRange> joined;
  for (const KeyRange& range : seen) {
    const KeyRange own{std::max(range.begin, held.begin), std::min(range.end, held.end)};
    if (own.begin >= own.end) continue;
    if (!joined.empty() && own.begin <= joined.back().end + kSmallGap)
      joined.back().end = std::max(joined.back().end, own.end);
    else
      joined.push_back(own);
  }
  return joined;
}

Tensor by_query_blocks(ByQueryBlocks how, const std::vector<Tensor>& inputs) {
  const auto work = c10::make_intrusive<QueryBlockWork>();
  work->how = std::move(how);
  return Blocks::apply(work, at::TensorList(inputs));
}

}  // namespace tessera::ops
