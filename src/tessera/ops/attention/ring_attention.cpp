#include "tessera/ops/attention/ring_attention.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>

#include "tessera/kernels/attention/flash_attention.h"
#include "tessera/ops/attention/attention_form.h"
#include "tessera/ops/attention/flash_attention.h"
#include "tessera/ops/basic/ordered_sum.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// --- what two pieces give each other ----------------------------------------------------------

Tensor cut(const Tensor& x_BNHD, const RingPiece& piece) {
  return x_BNHD.narrow(1, piece.row, piece.count);
}

kernels::ConstHeads heads(const Tensor& x) {
  return {x.const_data_ptr<float>(), x.stride(0), x.stride(1), x.stride(2)};
}
kernels::MutableHeads mutable_heads(const Tensor& x) {
  return {x.data_ptr<float>(), x.stride(0), x.stride(1), x.stride(2)};
}

/// Dense last axes and float32, as the kernel reads them.
Tensor dense(const Tensor& x) {
  return x.stride(-1) == 1 ? x : x.contiguous();
}

struct Pair {
  Tensor q, k, v;  // [B, n, heads, width]
  ScoreOptions options;
};

kernels::FlashAttention describe(const Pair& p, const Tensor& table) {
  kernels::FlashAttention a;
  a.B = p.q.size(0), a.T = p.q.size(1), a.H = p.q.size(2), a.K = p.q.size(3);
  a.S = p.k.size(1), a.G = p.k.size(2), a.V = p.v.size(3);
  a.q = heads(p.q), a.k = heads(p.k), a.v = heads(p.v);
  a.causal = false;
  a.visible = p.options.visibility.get();
  a.scale = static_cast<float>(p.options.scale);
  a.softcap = static_cast<float>(p.options.softcap);
  if (table.defined()) {
    a.bias = table.const_data_ptr<float>();
    a.bias_head_stride = table.size(0) == 1 ? 0 : table.size(1);
    a.bias_zero = p.options.term.zero, a.bias_size = table.size(1);
  }
  return a;
}

Tensor table_of(const Pair& p) {
  const Tensor& table = p.options.term.bias_HR;
  return table.defined() ? table.to(at::kFloat).contiguous() : Tensor();
}

PartialAttention heads_first_part(const Pair& p) {
  return attention_part(p.q.transpose(1, 2), p.k.transpose(1, 2), p.v.transpose(1, 2), 0, 0,
                        p.options);
}

/// out [B, H, n, V], lse [B, H, n].
PartialAttention met(const Pair& p, bool tiles) {
  if (!tiles) return heads_first_part(p);
  const Tensor table = table_of(p);
  const kernels::FlashAttention a = describe(p, table);
  const Tensor out = at::empty({a.B, a.T, a.H, a.V}, p.q.options()),
               lse = at::empty({a.B, a.H, a.T}, p.q.options());
  kernels::flash_forward(a, mutable_heads(out), lse.data_ptr<float>());
  return {out.transpose(1, 2), lse};
}

void add_to(Tensor& sum, const Tensor& part) {
  if (part.defined()) sum = sum.defined() ? sum + part : part;
}

/// Gradients of two pieces, from the result of all keys and its gradient, [B, H, n, ..].
struct Gradients {
  Tensor dq, dk, dv, d_table;
  std::vector<Tensor> d_inputs;
};

Gradients met_back(const Pair& p,
                   const PartialAttention& whole,
                   const PartialAttention& d,
                   bool tiles) {
  Gradients g;
  if (tiles) {
    const Tensor table = table_of(p), out = whole.out.transpose(1, 2).contiguous(),
                 d_out = d.out.transpose(1, 2).contiguous(), lse = whole.lse.contiguous();
    const kernels::FlashAttention a = describe(p, table);
    g.dq = at::empty({a.B, a.T, a.H, a.K}, p.q.options());
    g.dk = at::empty({a.B, a.S, a.G, a.K}, p.q.options());
    g.dv = at::empty({a.B, a.S, a.G, a.V}, p.q.options());
    kernels::FlashGradients to;
    to.out = heads(out), to.d_out = heads(d_out), to.lse = lse.const_data_ptr<float>();
    to.dq = mutable_heads(g.dq), to.dk = mutable_heads(g.dk), to.dv = mutable_heads(g.dv);
    if (table.defined()) {
      g.d_table = at::empty({a.H, a.bias_size}, p.q.options());
      to.d_bias = g.d_table.data_ptr<float>();
    }
    kernels::flash_backward(a, to);
    if (table.defined() && table.size(0) == 1) g.d_table = ordered_sum(g.d_table, {0}, true);
    return g;
  }
  // the definition, computed again; its part of the merged result is w = exp(lse - L):
  // dO_part = w dO,  dlse_part = w (dO . (O_part - O) + dL)
  const at::AutoGradMode record(true);
  Pair own = p;
  variable_list leaves;
  const auto leaf = [&](Tensor& x) {
    x = x.detach().requires_grad_(at::isFloatingType(x.scalar_type()));
    if (x.requires_grad()) leaves.push_back(x);
  };
  leaf(own.q), leaf(own.k), leaf(own.v);
  if (own.options.term.bias_HR.defined()) leaf(own.options.term.bias_HR);
  for (Tensor& input : own.options.term.inputs) leaf(input);
  const PartialAttention part = heads_first_part(own);
  variable_list parts;
  {
    const at::NoGradGuard still;
    const Tensor none = part.lse.detach().eq(-std::numeric_limits<double>::infinity());
    const Tensor w = (part.lse.detach() - whole.lse).exp().masked_fill(none, 0);
    Tensor of_lse = (d.out * (part.out.detach() - whole.out)).sum(-1);
    if (d.lse.defined()) of_lse = of_lse + d.lse;
    parts = {w.unsqueeze(-1) * d.out, w * of_lse};
  }
  variable_list found =
      torch::autograd::grad({part.out, part.lse}, leaves, parts, false, false, true);
  size_t at = 0;
  const auto next = [&](const Tensor& of) { return of.requires_grad() ? found[at++] : Tensor(); };
  g.dq = next(own.q), g.dk = next(own.k), g.dv = next(own.v);
  if (own.options.term.bias_HR.defined()) g.d_table = next(own.options.term.bias_HR);
  for (const Tensor& input : own.options.term.inputs) g.d_inputs.push_back(next(input));
  return g;
}

// --- the way round ----------------------------------------------------------------------------

void check(const ScoreOptions& options) {
  require(!options.far_q.defined() && !options.dropout, "ring_attention",
          "far queries and dropout are not distributed");
}

RingBlock own_block(const RingRank& rank) {
  return {rank.ring->rank(), rank.k_BNGK, rank.v_BNGV, {}, {}};
}

/// Every rank hands its block on.
void turn(const std::vector<RingRank>& ranks, std::vector<RingBlock>& held) {
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i].ring->send(held[i]);
  for (size_t i = 0; i < ranks.size(); ++i) held[i] = ranks[i].ring->receive();
}

/// f(meeting, pair, number of the query piece) for the pieces of a rank and a block that meet.
template <class F>
void for_meetings(const RingRank& rank,
                  const RingBlock& block,
                  const RingOrder& order,
                  const ScoreOptions& options,
                  const F& f) {
  const auto& own = order.pieces(rank.ring->rank());
  for (size_t i = 0; i < own.size(); ++i)
    for (const RingPiece& keys : order.pieces(block.owner)) {
      const Meeting m(own[i], keys, options);
      if (m.empty()) continue;
      f(m,
        Pair{dense(cut(rank.q_BNHK, own[i])), dense(cut(block.k_BNGK, keys)),
             dense(cut(block.v_BNGV, keys)), m.numbered(options)},
        i);
    }
}

/// Rows of x_BHN.. that hold a piece.
Tensor rows_of(const Tensor& x, const RingPiece& piece) {
  return x.narrow(2, piece.row, piece.count);
}

PartialAttention nothing(const RingRank& rank, int64_t rows) {
  const Tensor& q = rank.q_BNHK;
  const auto on = q.options().dtype(wide(q));
  return {at::zeros({q.size(0), q.size(2), rows, rank.v_BNGV.size(3)}, on),
          at::full({q.size(0), q.size(2), rows}, -std::numeric_limits<double>::infinity(), on)};
}

}  // namespace

// --- transport --------------------------------------------------------------------------------

LocalRing::LocalRing(int64_t ranks) : mail_(static_cast<size_t>(ranks)) {
  struct Link final : Ring {
    std::vector<std::deque<RingBlock>>& mail;
    size_t own;
    Link(std::vector<std::deque<RingBlock>>& all, size_t rank) : mail(all), own(rank) {}
    int64_t rank() const override { return static_cast<int64_t>(own); }
    void send(const RingBlock& block) override {
      const auto copy = [](const Tensor& x) { return x.defined() ? x.clone() : x; };
      mail[(own + 1) % mail.size()].push_back(
          {block.owner, copy(block.k_BNGK), copy(block.v_BNGV), copy(block.dk), copy(block.dv)});
    }
    RingBlock receive() override {
      require(!mail[own].empty(), "ring_attention", "rank {} receives before rank {} has sent", own,
              (own + mail.size() - 1) % mail.size());
      RingBlock block = std::move(mail[own].front());
      mail[own].pop_front();
      return block;
    }
  };
  for (size_t a = 0; a < mail_.size(); ++a) links_.push_back(std::make_unique<Link>(mail_, a));
}

// --- forward and back -------------------------------------------------------------------------

std::vector<PartialAttention> ring_forward(const std::vector<RingRank>& ranks,
                                           const RingOrder& order,
                                           const ScoreOptions& options) {
  check(options);
  const at::NoGradGuard still;
  const bool tiles = tiles_serve(ranks.at(0).q_BNHK, options);
  std::vector<RingBlock> held;
  std::vector<PartialAttention> sums;
  for (const RingRank& rank : ranks) {
    held.push_back(own_block(rank));
    sums.push_back(nothing(rank, order.rows()));
  }
  for (int64_t step = 0; step < order.ranks(); ++step) {
    if (step > 0) turn(ranks, held);
    for (size_t r = 0; r < ranks.size(); ++r) {
      const auto& own = order.pieces(ranks[r].ring->rank());
      for_meetings(ranks[r], held[r], order, options,
                   [&](const Meeting&, const Pair& pair, size_t piece) {
                     const Tensor out = rows_of(sums[r].out, own[piece]),
                                  lse = rows_of(sums[r].lse, own[piece]);
                     const PartialAttention sum = attention_merge({out, lse}, met(pair, tiles));
                     out.copy_(sum.out);
                     lse.copy_(sum.lse);
                   });
    }
  }
  if (options.sinks_H.defined())
    for (PartialAttention& sum : sums) {
      const Tensor sink =
          expanded(options.sinks_H.to(sum.lse.scalar_type()).reshape({1, -1, 1}), sum.lse.sizes());
      sum = attention_merge(sum, {at::zeros_like(sum.out), sink});
    }
  return sums;
}

std::vector<RingGradients> ring_backward(const std::vector<RingRank>& ranks,
                                         const RingOrder& order,
                                         const ScoreOptions& options,
                                         const std::vector<PartialAttention>& results,
                                         const std::vector<PartialAttention>& d) {
  check(options);
  const at::NoGradGuard still;
  // the kernel forms delta from O and dO alone
  const bool tiles = tiles_serve(ranks.at(0).q_BNHK, options) && !d.at(0).lse.defined();
  std::vector<RingBlock> held;
  std::vector<RingGradients> sums(ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    held.push_back(own_block(ranks[r]));
    held[r].dk = at::zeros_like(ranks[r].k_BNGK), held[r].dv = at::zeros_like(ranks[r].v_BNGV);
    sums[r].dq = at::zeros_like(ranks[r].q_BNHK);
    sums[r].d_inputs.resize(options.term.inputs.size());
    if (!options.sinks_H.defined()) continue;
    // a sink is a part with output 0: dsink = w (dL - dO . O)
    const Tensor w =
        (options.sinks_H.to(results[r].lse.scalar_type()).reshape({1, -1, 1}) - results[r].lse)
            .exp();
    Tensor of_lse = -(d[r].out * results[r].out).sum(-1);
    if (d[r].lse.defined()) of_lse = of_lse + d[r].lse;
    sums[r].d_sinks = ordered_sum(w * of_lse, {0, 2});
  }
  for (int64_t step = 0; step < order.ranks(); ++step) {
    if (step > 0) turn(ranks, held);
    for (size_t r = 0; r < ranks.size(); ++r) {
      const auto& own = order.pieces(ranks[r].ring->rank());
      const auto cut_part = [&](const PartialAttention& all, const RingPiece& piece) {
        return PartialAttention{rows_of(all.out, piece),
                                all.lse.defined() ? rows_of(all.lse, piece) : Tensor()};
      };
      for_meetings(
          ranks[r], held[r], order, options, [&](const Meeting& m, const Pair& pair, size_t piece) {
            const Gradients g =
                met_back(pair, cut_part(results[r], own[piece]), cut_part(d[r], own[piece]), tiles);
            cut(sums[r].dq, m.queries).add_(g.dq);
            cut(held[r].dk, m.keys).add_(g.dk);
            cut(held[r].dv, m.keys).add_(g.dv);
            if (g.d_table.defined())
              add_to(sums[r].d_bias, m.of_whole_table(g.d_table, options.term));
            for (size_t i = 0; i < g.d_inputs.size(); ++i)
              add_to(sums[r].d_inputs[i], g.d_inputs[i]);
          });
    }
  }
  // the last step leaves every block one rank before its owner
  turn(ranks, held);
  for (size_t r = 0; r < ranks.size(); ++r) sums[r].dk = held[r].dk, sums[r].dv = held[r].dv;
  return sums;
}

// --- all ranks in one process -----------------------------------------------------------------

namespace {

struct RingWork final : torch::CustomClassHolder {
  RingWork(RingOrder o, ScoreOptions s) : order(std::move(o)), options(std::move(s)) {}
  RingOrder order;
  ScoreOptions options;
};

/// inputs: q, k, v, then sinks and the table where defined, then the term's inputs.
ScoreOptions with_inputs(const RingWork& work, const variable_list& inputs) {
  ScoreOptions options = work.options;
  size_t at = 3;
  if (options.sinks_H.defined()) options.sinks_H = inputs[at++];
  if (options.term.bias_HR.defined()) options.term.bias_HR = inputs[at++];
  options.term.inputs.assign(inputs.begin() + static_cast<std::ptrdiff_t>(at), inputs.end());
  return options;
}

/// A sequence [B, T, ..] as the ranks hold it, and back from the rows of all of them.
class Shares {
 public:
  explicit Shares(const RingOrder& order) : order_(order) {}
  std::vector<Tensor> split(const Tensor& x, int64_t axis) const {
    const Tensor padded = at::cat({x, at::zeros_like(x.narrow(axis, 0, 1))}, axis);
    std::vector<int64_t> from = order_.positions();
    for (int64_t& position : from)
      if (position < 0) position = order_.tokens();
    return padded.index_select(axis, at::tensor(from, at::kLong).to(x.device()))
        .split(order_.rows(), axis);
  }
  Tensor join(const std::vector<Tensor>& rows, int64_t axis) const {
    const Tensor all = at::cat(rows, axis);
    return all.index_select(axis, at::tensor(order_.places(), at::kLong).to(all.device()));
  }

 private:
  const RingOrder& order_;
};

std::vector<RingRank> distributed(const Shares& shares, const variable_list& x, LocalRing& ring) {
  const auto q = shares.split(x[0], 1), k = shares.split(x[1], 1), v = shares.split(x[2], 1);
  std::vector<RingRank> ranks;
  for (size_t a = 0; a < q.size(); ++a)
    ranks.push_back({&ring.at(static_cast<int64_t>(a)), q[a], k[a], v[a]});
  return ranks;
}

template <class Part>
std::vector<Tensor> each(const std::vector<Part>& parts, Tensor Part::*member) {
  std::vector<Tensor> out;
  for (const Part& part : parts) out.push_back(part.*member);
  return out;
}

std::vector<PartialAttention> split_parts(const Shares& shares,
                                          const Tensor& out_BHTV,
                                          const Tensor& lse_BHT,
                                          size_t ranks) {
  std::vector<PartialAttention> parts(ranks);
  const auto outs = shares.split(out_BHTV, 2);
  const auto lses = lse_BHT.defined() ? shares.split(lse_BHT, 2) : std::vector<Tensor>(ranks);
  for (size_t a = 0; a < ranks; ++a) parts[a] = {outs[a], lses[a]};
  return parts;
}

struct RingFunction : torch::autograd::Function<RingFunction> {
  static variable_list forward(AutogradContext* context,
                               const c10::intrusive_ptr<RingWork>& work,
                               at::TensorList list) {
    const variable_list inputs = list.vec();
    const Shares shares(work->order);
    LocalRing ring(work->order.ranks());
    const auto parts =
        ring_forward(distributed(shares, inputs, ring), work->order, with_inputs(*work, inputs));
    const Tensor out = shares.join(each(parts, &PartialAttention::out), 2),
                 lse = shares.join(each(parts, &PartialAttention::lse), 2);
    variable_list saved = inputs;
    saved.push_back(out);
    saved.push_back(lse);
    context->save_for_backward(saved);
    context->saved_data["work"] = c10::IValue::make_capsule(work);
    context->set_materialize_grads(false);
    return {out, lse};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    variable_list saved = context->get_saved_variables();
    const auto holder = context->saved_data["work"].toCapsule();
    const RingWork& work = *static_cast<const RingWork*>(holder.get());
    const Tensor lse = saved.back(), out = saved[saved.size() - 2];
    saved.resize(saved.size() - 2);
    const ScoreOptions options = with_inputs(work, saved);
    const Shares shares(work.order);
    LocalRing ring(work.order.ranks());
    const auto ranks = distributed(shares, saved, ring);
    const Tensor d_out = gradients[0].defined() ? gradients[0] : at::zeros_like(out);
    const auto parts =
        ring_backward(ranks, work.order, options, split_parts(shares, out, lse, ranks.size()),
                      split_parts(shares, d_out, gradients[1], ranks.size()));
    // of `work`, then of the list
    variable_list results{Tensor(), shares.join(each(parts, &RingGradients::dq), 1),
                          shares.join(each(parts, &RingGradients::dk), 1),
                          shares.join(each(parts, &RingGradients::dv), 1)};
    const auto summed = [&](const auto& of) {
      Tensor sum;
      for (const RingGradients& part : parts) add_to(sum, of(part));
      results.push_back(sum);
    };
    if (options.sinks_H.defined()) summed([](const RingGradients& g) { return g.d_sinks; });
    if (options.term.bias_HR.defined()) summed([](const RingGradients& g) { return g.d_bias; });
    for (size_t i = 0; i < options.term.inputs.size(); ++i)
      summed([i](const RingGradients& g) { return g.d_inputs[i]; });
    return results;
  }
};

}  // namespace

PartialAttention ring_attention(const Tensor& q_BTHD,
                                const Tensor& k_BTGD,
                                const Tensor& v_BTGD,
                                const RingOrder& order,
                                const ScoreOptions& options) {
  require(q_BTHD.size(1) == order.tokens() && k_BTGD.size(1) == order.tokens(), "ring_attention",
          "{} queries and {} keys; the order is that of {} tokens", q_BTHD.size(1), k_BTGD.size(1),
          order.tokens());
  const auto type = wide(q_BTHD);
  variable_list inputs{q_BTHD.to(type), k_BTGD.to(type), v_BTGD.to(type)};
  if (options.sinks_H.defined()) inputs.push_back(options.sinks_H.to(type));
  if (options.term.bias_HR.defined()) inputs.push_back(options.term.bias_HR.to(type));
  inputs.insert(inputs.end(), options.term.inputs.begin(), options.term.inputs.end());
  const auto work = c10::make_intrusive<RingWork>(order, options);
  const variable_list results = RingFunction::apply(work, at::TensorList(inputs));
  return {results[0].transpose(1, 2).to(q_BTHD.scalar_type()), results[1]};
}

}  // namespace tessera::ops
