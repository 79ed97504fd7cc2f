#include "tessera/nn/mixer/attention/memorizing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tessera/nn/mixer/attention/attend.h"
#include "tessera/nn/mixer/attention/segment_memory.h"
#include "tessera/ops/attention/attention_merge.h"
#include "tessera/ops/attention/key_search.h"
#include "tessera/ops/basic/l2_norm.h"
#include "tessera/ops/attention/listed_attention.h"
#include "tessera/ops/attention/lsh_attention.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/form.h"

namespace tessera::nn {
namespace {

constexpr int64_t kMemoryQueryBlock = 64;  // queries whose scores are in memory at a time
constexpr double kNormEps = 1e-12;

using Parts = std::vector<ops::KeyValues>;

int64_t keys_in(const Parts& parts) {
  return std::accumulate(parts.begin(), parts.end(), int64_t{0},
                         [](int64_t n, const auto& p) { return n + p.k_SGD.size(0); });
}

std::vector<Tensor> keys_of(const Parts& parts) {
  std::vector<Tensor> keys;
  for (const ops::KeyValues& part : parts) keys.push_back(part.k_SGD);
  return keys;
}

/// What a term adds to the scores of q_THD at positions from `start` with the keys of `part`,
/// [H or 1, T, S].
Tensor added(const ops::ScoreTerm& term,
             const Tensor& q_THD,
             int64_t start,
             const ops::KeyValues& part) {
  const Tensor q = q_THD.transpose(0, 1).unsqueeze(0), k = part.k_SGD.transpose(0, 1).unsqueeze(0);
  const Tensor sum = ops::added_by_term(term, {q, k, start, part.first, 1});
  return sum.defined() ? sum.squeeze(0)
                       : at::zeros({1, q_THD.size(0), part.k_SGD.size(0)}, q_THD.options());
}

class Memorizing final : public Mixer {
 public:
  Memorizing(const MemorizingConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        o_(builder, "o"),
        scale_(builder.weight("scale")),
        gate_(builder.optional("gate")),
        position_(build_position(
            config.position,
            builder.under("position", config.child_scope(builder.scope(), "position")))) {
    if (!config.hashes()) return;
    const RandomKey key(static_cast<uint64_t>(config.hash_seed));
    rotations_ =
        ops::lsh_rotations(key.fold(static_cast<uint64_t>(builder.scope().layer)),
                           {config.n_buckets}, config.n_hashes, config.n_heads, config.head_dim)[0];
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    // lengths are free of each head's scale, which the queries carry into the scores
    const Tensor q_NHD = queries(x_ND, context), k_NHD = keys(x_ND, context),
                 v_NHD = heads(v_(x_ND, context));
    const ops::ScoreOptions how = options(context);
    const WeightDropout dropout = weight_dropout(context, name_, config_.dropout);
    const BySegment part(*context.batch);
    const bool apart = ops::may_go_side_by_side(q_NHD, how) && dropout.p == 0;
    const auto of_segment = [&](size_t i, const Segment& s) {
      const auto cut = [&](const Tensor& x) { return part(x, i); };
      RowState* row = rows != nullptr ? (*rows)[i] : nullptr;
      return document(cut(q_NHD), {cut(k_NHD), cut(v_NHD), s.start}, row, how, dropout, s);
    };
    const Tensor o_NHD = over_segments(*context.batch, apart, pairs_of(*context.batch), of_segment);
    return o_(o_NHD.reshape({x_ND.size(0), config_.n_heads * config_.head_dim}), context);
  }

 private:
  Tensor heads(const Tensor& x) const {
    return x.reshape({x.size(0), config_.n_heads, config_.head_dim});
  }
  static Tensor unit(const Tensor& x) {
    return ops::l2_norm(x.to(ops::wide(x)), kNormEps).to(x.scalar_type());
  }
  Tensor queries(const Tensor& x, const Context& context) const {
    return unit(heads(q_(x, context)));
  }
  Tensor keys(const Tensor& x, const Context& context) const { return unit(heads(k_(x, context))); }
  Tensor scaled(const Tensor& q_THD) const {
    return q_THD * ops::spread(scale_->tensor().to(q_THD.scalar_type()).unsqueeze(-1), q_THD);
  }

  ops::ScoreOptions options(Context& context) const {
    ops::ScoreOptions how;
    const int64_t longest = context.batch->longest();
    return with_term(
        std::move(how), *position_,
        {.n_heads = config_.n_heads,
         .head_dim = config_.head_dim,
         .longest = config_.by_place() ? longest : std::min(longest, config_.reach()),
         .project_q = [this, &context](const Tensor& x) { return queries(x, context); },
         .project_k = [this, &context](const Tensor& x) { return keys(x, context); }},
        context);
  }

  /// What queries can read; and the buckets of its keys, as keys and values, where these are
  /// searched by them.
  struct ReadableKeys {
    Parts entries, buckets;
  };

  /// All that the queries of a call can read: what the row holds, as it is, and the call's own.
  ReadableKeys remembered(const ops::KeyValues& own, RowState* row) const {
    ops::KeyValues hashed;
    if (config_.hashes()) {
      const Tensor buckets = ops::key_buckets(own.k_SGD, rotations_);
      hashed = {buckets, buckets, own.first};
    }
    if (row == nullptr)
      return {in_pieces(own.k_SGD, own.v_SGD, own.first, config_.segment),
              config_.hashes() ? Parts{hashed} : Parts{}};
    ReadableKeys out{after_past(own, row->tokens(0), row->tokens(1)), {}};
    if (config_.hashes()) out.buckets = after_past(hashed, row->tokens(2), row->tokens(2));
    return out;
  }

  /// What buffers hold, as it is, and a call's own entries, which they take.
  Parts after_past(const ops::KeyValues& own, TokenBuffer& held_k, TokenBuffer& held_v) const {
    const int64_t start = own.first, t = own.k_SGD.size(0);
    require(held_k.length() == start, "memorizing",
            "the state holds {} tokens, the call starts at {}", held_k.length(), start);
    const int64_t segment = start / config_.segment * config_.segment;
    const int64_t first = std::max<int64_t>(0, segment - std::max(config_.memory, config_.mem_len));
    // what the ring would lose to the call's own tokens is copied out
    const bool fits = !at::GradMode::is_enabled() && t == 1;
    Parts out;
    const auto hold = [&](int64_t from, int64_t to) {
      for (const ops::KeyValues& part : held_keys(held_k, held_v, from, to)) {
        const auto lasting = [&](const Tensor& x) { return fits ? x : x.clone(); };
        if (part.k_SGD.size(0) > 0)
          out.push_back({lasting(part.k_SGD), lasting(part.v_SGD), part.first});
      }
    };
    if (!fits) hold(first, start);
    held_k.append(own.k_SGD);
    if (&held_v != &held_k) held_v.append(own.v_SGD);
    if (fits)
      hold(first, start + t);
    else
      out.push_back(own);
    return out;
  }

  Tensor document(const Tensor& q_THD,
                  const ops::KeyValues& own,
                  RowState* row,
                  const ops::ScoreOptions& how,
                  const WeightDropout& dropout,
                  const Segment& segment) const {
    const int64_t start = own.first;
    const ReadableKeys known = remembered(own, row);
    const Parts& all = known.entries;
    const std::vector<Stretch> segments = stretches(start, q_THD.size(0), config_.segment);
    const std::vector<Tensor> queries = by_stretch(q_THD.unsqueeze(0), segments);
    std::vector<Tensor> out;
    for (const Stretch& s : segments) {
      const Tensor q = queries[out.size()].squeeze(0);
      const auto far = [&](const Parts& parts) {
        return still(cut(parts, s.segment - config_.memory, s.segment));
      };
      const ReadableKeys memory{far(all), far(known.buckets)};
      Parts local = still(cut(all, s.segment - config_.mem_len, s.segment));
      for (const ops::KeyValues& part : cut(all, s.segment, s.end)) local.push_back(part);
      if (memory.entries.empty() || config_.combine == MemoryCombine::gate) {
        const Tensor near =
            ops::attention(scaled(q), local, s.begin, dropout.in(how, segment, s.begin - start));
        if (memory.entries.empty()) {
          out.push_back(near);
          continue;
        }
        const Read read = by_blocks(q, memory, {}, s.begin, how);
        Tensor g =
            ops::spread(at::sigmoid(gate_->tensor().to(q.scalar_type())).unsqueeze(-1), near);
        if (read.some_TH1.defined()) g = g * read.some_TH1.to(q.options());
        out.push_back(g * read.out + (1 - g) * near);
      } else {
        out.push_back(by_blocks(q, memory, local, s.begin, how).out);
      }
    }
    return out.size() == 1 ? out[0] : at::cat(out);
  }

  /// The same numbers, at which gradients stop.
  static Parts still(Parts parts) {
    for (ops::KeyValues& part : parts)
      part = {part.k_SGD.detach(), part.v_SGD.detach(), part.first};
    return parts;
  }

  /// What queries read [T, H, D], and 1 for those that found a key of the memory, 0 for others;
  /// undefined where all did.
  struct Read {
    Tensor out, some_TH1;
  };

  /// One softmax over the nearest keys of the memory and, causally, those of `local`.
  Read by_blocks(const Tensor& q_THD,
                 const ReadableKeys& memory,
                 const Parts& local,
                 int64_t start,
                 const ops::ScoreOptions& how) const {
    ops::KeySearch search = config_.hashes()
                                ? ops::KeySearch(keys_of(memory.entries), keys_of(memory.buckets))
                                : ops::KeySearch(keys_of(memory.entries));
    Tensor some;
    if (config_.hashes()) some = at::ones({q_THD.size(0), q_THD.size(1), 1}, at::kFloat);
    // without gradients all blocks write into one tensor: what lay between the scores of two blocks
    // would keep the second from taking the memory of the first
    Tensor all;
    std::vector<Tensor> blocks;
    for (int64_t i = 0; i < q_THD.size(0); i += kMemoryQueryBlock) {
      const Tensor q = q_THD.narrow(0, i, std::min(kMemoryQueryBlock, q_THD.size(0) - i));
      const ops::FoundKeys found =
          config_.hashes() ? search.nearest(q, ops::key_buckets(q, rotations_), config_.top_k)
                           : search.nearest(q, config_.top_k);
      const auto lists = static_cast<int64_t>(found.ends.size());
      for (int64_t list = 0; some.defined() && list < lists; ++list)
        if (found.begin(list) == found.end(list)) some.data_ptr<float>()[i * q.size(1) + list] = 0;
      const Tensor out = ops::kernel_serves(ops::Op::retrieved_attention, q)
                             ? by_lists(scaled(q), memory.entries, found, local, start + i, how)
                             : gathered(scaled(q), memory.entries, found, local, start + i, how);
      if (at::GradMode::is_enabled()) {
        blocks.push_back(out);
        continue;
      }
      if (!all.defined()) all = at::empty(q_THD.sizes(), out.options());
      all.narrow(0, i, q.size(0)).copy_(out);
    }
    return {blocks.empty() ? all : at::cat(blocks), some};
  }

  /// Consecutive parts in one: what a position adds may depend on all keys in between.
  static ops::KeyValues joined(const Parts& parts) {
    if (parts.size() == 1) return parts[0];
    std::vector<Tensor> k, v;
    for (const ops::KeyValues& part : parts) {
      k.push_back(part.k_SGD);
      v.push_back(part.v_SGD);
    }
    return {at::cat(k), at::cat(v), parts[0].first};
  }

  static Tensor by_lists(const Tensor& q_THD,
                         const Parts& memory,
                         const ops::FoundKeys& found,
                         const Parts& local,
                         int64_t start,
                         const ops::ScoreOptions& how) {
    const int64_t t = q_THD.size(0), h = q_THD.size(1);
    std::vector<ops::KeyMemory> sources;
    Tensor term_HTS;
    if (!local.empty())
      term_HTS = added(how.term, q_THD, start, joined(local))
                     .to(at::kFloat)
                     .expand({h, t, keys_in(local)});
    std::vector<Tensor> terms;  // of the local parts, [H, T, S]
    for (const ops::KeyValues& part : memory) sources.push_back({part.k_SGD, part.v_SGD});
    for (const ops::KeyValues& part : local) {
      sources.push_back({part.k_SGD, part.v_SGD});
      terms.push_back(
          term_HTS.narrow(2, part.first - local[0].first, part.k_SGD.size(0)).contiguous());
    }
    ops::KeyLists lists;
    lists.per_query = h;
    for (int64_t row = 0; row < t * h; ++row) {
      int64_t source = 0, before = 0;
      for (int64_t j = found.begin(row); j < found.end(row); ++j) {
        const int64_t key = found.keys[static_cast<size_t>(j)];
        while (key - before >= memory[static_cast<size_t>(source)].k_SGD.size(0))
          before += memory[static_cast<size_t>(source++)].k_SGD.size(0);
        lists.add(source, key - before);
      }
      for (size_t p = 0; p < local.size(); ++p) {
        const int64_t s = local[p].k_SGD.size(0), query = start + row / h;
        const float* term = terms[p].const_data_ptr<float>() + (row % h * t + row / h) * s;
        for (int64_t j = 0; j < std::min(s, query + 1 - local[p].first); ++j)
          lists.add(static_cast<int64_t>(memory.size() + p), j, term[j]);
      }
      lists.end_list();
    }
    return ops::listed_attention(q_THD, sources, lists, how.scale).out;
  }

  static Tensor gathered(const Tensor& q_THD,
                         const Parts& memory,
                         const ops::FoundKeys& found,
                         const Parts& local,
                         int64_t start,
                         const ops::ScoreOptions& how) {
    const int64_t t = q_THD.size(0), h = q_THD.size(1), d = q_THD.size(2);
    // lists as rows of one length: what a shorter one lacks is hidden
    int64_t k = 1;
    for (int64_t list = 0; list < t * h; ++list)
      k = std::max(k, found.end(list) - found.begin(list));
    // key n of head a is row n * H + a
    std::vector<int64_t> rows(static_cast<size_t>(t * h * k));
    Tensor lacking = at::zeros({t, h, 1, k}, at::kBool);
    for (int64_t list = 0; list < t * h; ++list) {
      const int64_t begin = found.begin(list), n = found.end(list) - begin;
      for (int64_t j = 0; j < n; ++j)
        rows[static_cast<size_t>(list * k + j)] =
            found.keys[static_cast<size_t>(begin + j)] * h + list % h;
      std::fill_n(lacking.data_ptr<bool>() + list * k + n, k - n, true);
    }
    const Tensor index = at::tensor(rows, at::kLong).to(q_THD.device());
    const auto pick = [&](const auto& side) {
      std::vector<Tensor> parts;
      for (const ops::KeyValues& part : memory) parts.push_back(side(part));
      return at::cat(parts).reshape({-1, d}).index_select(0, index).reshape({t, h, k, d});
    };
    const auto k_of = [](const ops::KeyValues& part) { return part.k_SGD; };
    const auto v_of = [](const ops::KeyValues& part) { return part.v_SGD; };
    const Tensor hides =
        at::zeros({t, h, 1, k}, q_THD.options().dtype(ops::wide(q_THD)))
            .masked_fill(lacking.to(q_THD.device()), -std::numeric_limits<double>::infinity());
    const ops::Attended far =
        ops::biased_attention(q_THD.unsqueeze(2), pick(k_of), pick(v_of), hides, how.scale);
    const Tensor o_THD = far.out.squeeze(2);
    if (local.empty()) return o_THD;

    const ops::KeyValues all = joined(local);
    const auto on = at::TensorOptions().dtype(at::kLong).device(q_THD.device());
    const int64_t s = all.k_SGD.size(0);
    const Tensor hidden = at::arange(all.first, all.first + s, on).unsqueeze(0) >
                          at::arange(start, start + t, on).unsqueeze(1);
    const Tensor term_HTS = added(how.term, q_THD, start, all)
                                .to(ops::wide(q_THD))
                                .expand({h, t, s})
                                .masked_fill(hidden, -std::numeric_limits<double>::infinity());
    const auto heads_first = [](const Tensor& x) { return x.transpose(0, 1).unsqueeze(0); };
    const ops::Attended near = ops::biased_attention(heads_first(q_THD), heads_first(all.k_SGD),
                                                     heads_first(all.v_SGD), term_HTS, how.scale);
    return ops::attention_merge({o_THD, far.lse.squeeze(2)}, {near.out.squeeze(0).transpose(0, 1),
                                                              near.lse.squeeze(0).transpose(0, 1)})
        .out;
  }

  MemorizingConfig config_;
  std::string name_;
  Linear q_, k_, v_, o_;
  WeightPtr scale_, gate_;
  Tensor rotations_;  // of the tables, [R, H, D, n / 2]
  std::unique_ptr<Position> position_;
};

}  // namespace

std::unique_ptr<Mixer> build(const MemorizingConfig& config, const Builder& builder) {
  return std::make_unique<Memorizing>(config, builder);
}

}  // namespace tessera::nn
