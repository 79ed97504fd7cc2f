#include "tessera/ops/attention/listed_attention.h"
#include "tessera/ops/basic/ordered_sum.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>

#include "tessera/ops/basic/softmax.h"
#include "tessera/ops/form.h"
#include "tessera/ops/weights/product.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Which part of its memory a listed key lies in.
class Parts {
 public:
  explicit Parts(const std::vector<KeyMemory>& memories) {
    int32_t first = 0;
    for (const KeyMemory& memory : memories) {
      memories_.push_back({first, {0}});
      auto& ends = memories_.back().ends;
      for (const Tensor& k : memory.k) ends.push_back(ends.back() + k.size(0));
      first += static_cast<int32_t>(memory.k.size());
      many_ = many_ || memory.k.size() > 1;
    }
  }

  /// One entry per memory from one per part.
  std::vector<KeyMemory> grouped(const std::vector<KeyMemory>& parts) const {
    std::vector<KeyMemory> memories;
    for (const Memory& memory : memories_) {
      KeyMemory& group = memories.emplace_back(std::vector<Tensor>(), std::vector<Tensor>());
      for (size_t i = 0; i + 1 < memory.ends.size(); ++i) {
        const KeyMemory& part = parts[static_cast<size_t>(memory.first) + i];
        group.k.push_back(part.k[0]);
        group.v.push_back(part.v[0]);
      }
    }
    return memories;
  }

  /// The same lists with one source for every part.
  KeyLists located(KeyLists lists) const {
    if (!many_) return lists;
    for (ListedKey& key : lists.keys) {
      const auto& [first, ends] = memories_[static_cast<size_t>(key.source)];
      const auto part = std::upper_bound(ends.begin(), ends.end(), key.index) - ends.begin() - 1;
      key.source = first + static_cast<int32_t>(part);
      key.index -= static_cast<int32_t>(ends[static_cast<size_t>(part)]);
    }
    return lists;
  }

 private:
  struct Memory {
    int32_t first;              // its first source
    std::vector<int64_t> ends;  // 0, then where each part ends
  };
  std::vector<Memory> memories_;
  bool many_ = false;
};

/// Keys and values whose rows the kernels can read; nothing is copied that is dense already.
std::vector<KeyMemory> readable(const std::vector<KeyMemory>& memories) {
  std::vector<KeyMemory> result = memories;
  for (KeyMemory& memory : result)
    for (auto* parts : {&memory.k, &memory.v})
      for (Tensor& x : *parts)
        if (x.stride(2) != 1) x = x.contiguous();
  return result;
}

std::vector<kernels::KeySource> sources_of(const std::vector<KeyMemory>& memories) {
  std::vector<kernels::KeySource> sources;
  for (const KeyMemory& memory : memories)
    for (size_t i = 0; i < memory.k.size(); ++i) {
      const Tensor &k = memory.k[i], &v = memory.v[i];
      sources.push_back({k.const_data_ptr<float>(), v.const_data_ptr<float>(), k.stride(0),
                         k.stride(1), v.stride(0), v.stride(1)});
    }
  return sources;
}

/// The arguments of the kernels; `lists` name the sources.
kernels::ListedAttention described(const Tensor& q_THK,
                                   const KeyMemory& any,
                                   const std::vector<kernels::KeySource>& sources,
                                   const KeyLists& lists,
                                   double scale,
                                   const Attended& result) {
  kernels::ListedAttention a;
  a.T = q_THK.size(0), a.H = q_THK.size(1), a.G = any.k[0].size(1);
  a.K = q_THK.size(2), a.V = any.v[0].size(2);
  a.q = q_THK.const_data_ptr<float>();
  a.sources = sources.data();
  a.keys = lists.keys.data();
  a.ends = lists.ends.data();
  a.L = lists.per_query;
  a.scale = static_cast<float>(scale);
  a.out = result.out.data_ptr<float>();
  a.lse = result.lse.data_ptr<float>();
  return a;
}

/// The definition on gathered keys of memories in one part, differentiable: q_THK -> [T, H, V]; not
/// all lists are empty. `gain`: what entries gain, or undefined.
Tensor gathered(const Tensor& q_THK,
                const std::vector<KeyMemory>& memories,
                const KeyLists& lists,
                double scale,
                const Tensor& gain) {
  const int64_t t = q_THK.size(0), h = q_THK.size(1), g = memories.at(0).k[0].size(1),
                n = lists.per_query;
  std::vector<Tensor> keys, values;
  std::vector<int64_t> offsets{0};
  for (const KeyMemory& memory : memories) {
    keys.push_back(memory.k[0]);
    values.push_back(memory.v[0]);
    offsets.push_back(offsets.back() + memory.k[0].size(0));
  }
  const Tensor k_SGK = at::cat(keys), v_SGV = at::cat(values);
  int64_t longest = 0, first = 0;
  for (const int64_t end : lists.ends) {
    longest = std::max(longest, end - first);
    first = end;
  }
  // the lists as a table, hidden where a list is shorter
  Tensor index = at::zeros({t * n, longest}, at::kLong),
         bias = at::full({t * n, longest}, -kInfinity, at::kDouble),
         cells = at::empty({static_cast<int64_t>(lists.keys.size())}, at::kLong);
  auto* indices = index.data_ptr<int64_t>();
  auto* biases = bias.data_ptr<double>();
  auto* places = cells.data_ptr<int64_t>();
  int64_t j = 0;
  for (size_t row = 0; row < lists.ends.size(); ++row)
    for (int64_t cell = static_cast<int64_t>(row) * longest; j < lists.ends[row]; ++j, ++cell) {
      const ListedKey& key = lists.keys[static_cast<size_t>(j)];
      indices[cell] = offsets[static_cast<size_t>(key.source)] + key.index;
      biases[cell] = key.bias;
      places[j] = cell;
    }
  index = index.to(q_THK.device()).view({t, n, longest});
  bias = bias.to(q_THK.device(), q_THK.scalar_type());
  if (gain.defined())
    bias = bias.flatten().index_add(0, cells.to(q_THK.device()), gain.to(q_THK.scalar_type()));
  bias = bias.view({t, n, 1, longest});
  std::vector<Tensor> out;
  // heads that share keys and a list
  const int64_t runs = n == h ? h : g, heads = h / runs;
  for (int64_t run = 0; run < runs; ++run) {
    const int64_t list = n == 1 ? 0 : run;
    const Tensor rows = index.select(1, list).reshape({-1}), b_T1M = bias.select(1, list);
    const auto pick = [&](const Tensor& x) {
      return x.select(1, run * heads / (h / g)).index_select(0, rows).unflatten(0, {t, longest});
    };
    const Tensor scores =
        ops::product(q_THK.narrow(1, run * heads, heads), pick(k_SGK).transpose(1, 2)) * scale +
        b_T1M;
    const Tensor empty = b_T1M.detach().amax(-1, true).eq(-kInfinity);
    const Tensor weights = ops::softmax(scores.masked_fill(empty, 0)).masked_fill(empty, 0);
    out.push_back(ops::product(weights, pick(v_SGV)));
  }
  return at::cat(out, 1);
}

/// inputs of a call: q, then keys and values of every part, then what the bias is made of
struct ListedWork final : torch::CustomClassHolder {
  explicit ListedWork(const std::vector<KeyMemory>& memories) : parts(memories) {}

  ListsOf lists;  // they name memories
  Parts parts;
  size_t n_parts = 0;
  decltype(ListBias::of) bias;
  double scale = 1;
  int64_t block = 1;
  bool kernels = false;

  size_t first_of_bias() const { return 1 + 2 * n_parts; }
  std::vector<KeyMemory> memories(const variable_list& inputs) const {
    std::vector<KeyMemory> memories;
    for (size_t i = 1; i < first_of_bias(); i += 2) memories.push_back({inputs[i], inputs[i + 1]});
    return memories;
  }
  /// What the entries of a block gain; inputs[0] holds its queries alone. Undefined without a bias.
  Tensor gain(const KeyLists& of_block, int64_t first, const variable_list& inputs) const {
    if (!bias || of_block.keys.empty()) return {};
    return bias(of_block, first, inputs[0], parts.grouped(memories(inputs)),
                {inputs.begin() + static_cast<std::ptrdiff_t>(first_of_bias()), inputs.end()});
  }
};

/// The inputs with the queries of one block.
variable_list cut(const variable_list& inputs, int64_t first, int64_t n) {
  variable_list cuts = inputs;
  cuts[0] = inputs[0].narrow(0, first, n);
  return cuts;
}

/// The same as leaves of a graph of their own.
variable_list leaves_of(const variable_list& inputs, int64_t first, int64_t n) {
  variable_list leaves = cut(inputs, first, n);
  for (Tensor& x : leaves) x = x.detach().requires_grad_(x.requires_grad());
  return leaves;
}

/// Adds the gradients of a block's leaves to those of the inputs.
void add_gradients(const Tensor& of,
                   const Tensor& gradient,
                   const variable_list& leaves,
                   int64_t first,
                   variable_list& sums) {
  variable_list from;
  for (const Tensor& x : leaves)
    if (x.requires_grad()) from.push_back(x);
  const variable_list parts = torch::autograd::grad({of}, from, {gradient}, /*retain_graph=*/false,
                                                    /*create_graph=*/false, /*allow_unused=*/true);
  const at::NoGradGuard still;
  size_t part = 0;
  for (size_t x = 0; x < leaves.size(); ++x) {
    if (!leaves[x].requires_grad()) continue;
    const Tensor& own = parts[part++];
    if (own.defined()) (x == 0 ? sums[0].narrow(0, first, own.size(0)) : sums[x]).add_(own);
  }
}

struct Listed : torch::autograd::Function<Listed> {
  static Tensor forward(AutogradContext* context,
                        const c10::intrusive_ptr<ListedWork>& work,
                        at::TensorList list) {
    variable_list inputs = list.vec();
    const Tensor q = inputs[0];
    const std::vector<KeyMemory> memories = work->memories(inputs);
    const int64_t t = q.size(0);
    Attended all{at::zeros({t, q.size(1), memories.at(0).v[0].size(2)}, q.options()), {}};
    if (work->kernels) all.lse = at::empty({t, q.size(1)}, q.options());
    const auto sources = work->kernels ? sources_of(memories) : std::vector<kernels::KeySource>();
    for (int64_t i = 0; i < t; i += work->block) {
      const int64_t n = std::min(work->block, t - i);
      KeyLists lists = work->lists(i, n);
      const Tensor gain = work->gain(lists, i, cut(inputs, i, n));
      lists = work->parts.located(std::move(lists));
      if (work->kernels && gain.defined()) lists.add_biases(gain);
      if (work->kernels)
        kernels::listed_attention(described(q.narrow(0, i, n), memories[0], sources, lists,
                                            work->scale,
                                            {all.out.narrow(0, i, n), all.lse.narrow(0, i, n)}));
      else if (!lists.keys.empty())
        all.out.narrow(0, i, n).copy_(
            gathered(q.narrow(0, i, n), memories, lists, work->scale, gain));
    }
    inputs.push_back(all.out);
    inputs.push_back(all.lse);
    context->save_for_backward(inputs);
    context->saved_data["work"] = c10::IValue::make_capsule(work);
    return all.out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    variable_list saved = context->get_saved_variables();
    const Attended all{saved[saved.size() - 2], saved.back()};
    saved.resize(saved.size() - 2);
    const auto holder = context->saved_data["work"].toCapsule();
    const ListedWork& work = *static_cast<ListedWork*>(holder.get());
    const Tensor q = saved[0], dout = gradients[0].contiguous();
    const std::vector<KeyMemory> memories = work.memories(saved);
    variable_list sums;
    for (const Tensor& x : saved) sums.push_back(at::zeros(x.sizes(), x.options()));
    std::vector<float*> dk, dv;
    std::vector<kernels::KeySource> sources;
    if (work.kernels) {
      sources = sources_of(memories);
      for (size_t i = 1; i < work.first_of_bias(); i += 2) {
        dk.push_back(sums[i].data_ptr<float>());
        dv.push_back(sums[i + 1].data_ptr<float>());
      }
    }
    for (int64_t i = 0; i < q.size(0); i += work.block) {
      const int64_t n = std::min(work.block, q.size(0) - i);
      KeyLists lists = work.lists(i, n);
      if (lists.keys.empty()) continue;
      variable_list leaves;
      Tensor gain;
      if (work.bias || !work.kernels) {
        const at::AutoGradMode record(true);
        leaves = leaves_of(saved, i, n);
        gain = work.gain(lists, i, leaves);
      }
      lists = work.parts.located(std::move(lists));
      if (work.kernels) {
        if (gain.defined()) lists.add_biases(gain);
        Tensor dbias;
        kernels::ListedAttentionGradient g;
        g.of = described(q.narrow(0, i, n), memories[0], sources, lists, work.scale,
                         {all.out.narrow(0, i, n), all.lse.narrow(0, i, n)});
        g.dout = dout.narrow(0, i, n).const_data_ptr<float>();
        g.dq = sums[0].narrow(0, i, n).data_ptr<float>();
        g.dk = dk.data();
        g.dv = dv.data();
        if (gain.defined() && gain.requires_grad()) {
          dbias = at::empty({gain.size(0)}, q.options());
          g.dbias = dbias.data_ptr<float>();
        }
        kernels::listed_attention_backward(g);
        if (dbias.defined()) add_gradients(gain, dbias.to(gain.scalar_type()), leaves, i, sums);
        continue;
      }
      const at::AutoGradMode record(true);
      add_gradients(gathered(leaves[0], work.memories(leaves), lists, work.scale, gain),
                    dout.narrow(0, i, n), leaves, i, sums);
    }
    variable_list out{Tensor()};  // of `work`
    out.insert(out.end(), sums.begin(), sums.end());
    return out;
  }
};

}  // namespace

void KeyLists::append(const KeyLists& more) {
  const auto before = static_cast<int64_t>(keys.size());
  keys.insert(keys.end(), more.keys.begin(), more.keys.end());
  for (const int64_t end : more.ends) ends.push_back(before + end);
}

void KeyLists::add_biases(const Tensor& numbers) {
  require(numbers.numel() == static_cast<int64_t>(keys.size()), "listed_attention",
          "{} numbers for {} entries", numbers.numel(), keys.size());
  const Tensor of_entries = numbers.detach().to(at::kCPU, at::kDouble).contiguous();
  const auto* number = of_entries.const_data_ptr<double>();
  for (ListedKey& key : keys) key.bias += *number++;
}

Attended listed_attention(const Tensor& q_THK,
                          const std::vector<KeyMemory>& memories,
                          const KeyLists& lists,
                          double scale) {
  const Tensor q = q_THK.contiguous();
  const std::vector<KeyMemory> dense = readable(memories);
  Attended result{at::empty({q.size(0), q.size(1), dense.at(0).v[0].size(2)}, q.options()),
                  at::empty({q.size(0), q.size(1)}, q.options())};
  const std::vector<kernels::KeySource> sources = sources_of(dense);
  const KeyLists located = Parts(dense).located(lists);
  kernels::listed_attention(described(q, dense[0], sources, located, scale, result));
  return result;
}

Tensor listed_attention(const Tensor& q_THK,
                        const std::vector<KeyMemory>& memories,
                        const ListsOf& lists,
                        double scale,
                        int64_t block,
                        const ListBias& bias) {
  const at::ScalarType type = wide(q_THK);
  const auto work = c10::make_intrusive<ListedWork>(memories);
  work->lists = lists;
  work->bias = bias.of;
  work->scale = scale;
  work->block = block;
  work->kernels = on_cpu(form_of(Op::listed_attention, q_THK));
  variable_list inputs{q_THK.to(type).contiguous()};
  for (const KeyMemory& memory : readable(memories))
    for (size_t i = 0; i < memory.k.size(); ++i) {
      inputs.push_back(memory.k[i].to(type));
      inputs.push_back(memory.v[i].to(type));
    }
  work->n_parts = inputs.size() / 2;
  inputs.insert(inputs.end(), bias.inputs.begin(), bias.inputs.end());
  return Listed::apply(work, at::TensorList(inputs)).to(q_THK.scalar_type());
}

Attended biased_attention(const Tensor& q_BHTK,
                          const Tensor& k_BGSK,
                          const Tensor& v_BGSV,
                          const Tensor& bias,
                          double scale) {
  const auto type = wide(q_BHTK);
  const int64_t per_group = q_BHTK.size(1) / k_BGSK.size(1);
  const Tensor k = repeat_each(k_BGSK.to(type), per_group, 1),
               v = repeat_each(v_BGSV.to(type), per_group, 1);
  const Tensor scores = ops::product(q_BHTK.to(type), k.transpose(-1, -2)) * scale + bias.to(type);
  // a row without keys would give exp(-inf - -inf) = NaN, here and in the gradient of lse
  const Tensor empty = scores.detach().amax(-1, true).eq(-kInfinity);
  const Tensor lse = at::logsumexp(scores.masked_fill(empty, 0), -1);
  const Tensor weights = (scores - lse.unsqueeze(-1)).exp();
  return {ops::product(weights, v).to(q_BHTK.scalar_type()),
          lse.masked_fill(empty.squeeze(-1), -kInfinity)};
}

}  // namespace tessera::ops
