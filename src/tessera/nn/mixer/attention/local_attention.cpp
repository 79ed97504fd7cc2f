#include "tessera/nn/mixer/attention/local_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/nn/mixer/attention/attend.h"
#include "tessera/nn/mixer/attention/segment_memory.h"
#include "tessera/nn/pattern/pattern_config.h"
#include "tessera/nn/parts.h"
#include "tessera/ops/attention/listed_attention.h"
#include "tessera/ops/form.h"

namespace tessera::nn {
namespace {

/// Chunks of a document of t tokens, those that only fill it up included.
int64_t ring_of(const LocalAttentionConfig& config, int64_t t) {
  const int64_t c = config.chunk, unit = config.pad_to > 0 ? config.pad_to : c;
  return t <= c ? 1 : (t + unit - 1) / unit * unit / c;
}

/// The chunks that chunk `own` of `chunks` sees, one after another; around the ends in an encoder,
/// whose only chunk sees itself once. -1 = none.
std::vector<int64_t> seen_chunks(const LocalAttentionConfig& config,
                                 int64_t own,
                                 int64_t chunks,
                                 bool causal) {
  if (!causal && chunks == 1) return {0};
  std::vector<int64_t> out;
  for (int64_t c = own - config.chunks_before; c <= own + config.chunks_after; ++c)
    out.push_back(causal ? std::max<int64_t>(c, -1) : ((c % chunks) + chunks) % chunks);
  return out;
}

/// The same as a pattern; a chunk that is met twice counts twice.
class Neighbourhood final : public kernels::Visibility {
 public:
  Neighbourhood(const LocalAttentionConfig& config, int64_t length, bool causal)
      : chunk_(config.chunk), length_(length), causal_(causal) {
    const int64_t chunks = (length + chunk_ - 1) / chunk_;
    for (int64_t c = 0; c < chunks; ++c)
      seen_.push_back(seen_chunks(config, c, ring_of(config, length), causal));
  }
  int64_t multiplicity(int64_t /*head*/, int64_t query, int64_t key) const override {
    if (causal_ && key > query) return 0;
    const auto& seen = seen_[static_cast<size_t>(query / chunk_)];
    return std::count(seen.begin(), seen.end(), key / chunk_);
  }
  std::vector<kernels::KeyRange> ranges(int64_t /*head*/,
                                        int64_t begin,
                                        int64_t end) const override {
    std::vector<kernels::KeyRange> out;
    for (int64_t own = begin / chunk_; own <= (end - 1) / chunk_; ++own)
      for (const int64_t c : seen_[static_cast<size_t>(own)])
        if (c >= 0) out.push_back({c * chunk_, (c + 1) * chunk_});
    return tidy_ranges(out, causal_ ? end : length_);
  }

 private:
  int64_t chunk_, length_;
  bool causal_;
  std::vector<std::vector<int64_t>> seen_;  // by the queries' chunk
};

class LocalAttention final : public Mixer {
 public:
  LocalAttention(const LocalAttentionConfig& config, const Builder& builder)
      : config_(config),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        o_(builder, "o"),
        position_(build_position(
            config.position,
            builder.under("position", config.child_scope(builder.scope(), "position")))) {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t n = x_ND.size(0), h = config_.n_heads, d = config_.head_dim;
    const Tensor q = position_->rotate(q_(x_ND, context).reshape({n, h, d}), Side::query, context),
                 k = position_->rotate(k_(x_ND, context).reshape({n, h, d}), Side::key, context),
                 v = v_(x_ND, context).reshape({n, h, d});
    const Batch& batch = *context.batch;
    const ops::ScoreOptions how = options(context);
    Tensor o;
    if (const int64_t t = batch.equal_length();
        rows == nullptr && t > 0 && !ops::documents_apart(x_ND)) {
      const auto fold = [&](const Tensor& x) { return x.reshape({n / t, t, h, d}); };
      o = how.term ? ops::attention_equal(fold(q), fold(k), fold(v), in_document(how, t))
                   : whole(fold(q), fold(k), fold(v), context.causal);
    } else {
      const BySegment part(batch);
      o = over_segments(batch, ops::may_go_side_by_side(q, how), [&](size_t i, const Segment& s) {
        const auto cut = [&](const Tensor& x) { return part(x, i); };
        if (rows != nullptr) return continued(cut(q), cut(k), cut(v), how, s.start, (*rows)[i]);
        if (ops::documents_apart(x_ND) && context.causal)
          return continued(cut(q), cut(k), cut(v), how, 0, nullptr);
        if (how.term)
          return ops::attention(cut(q), {{cut(k), cut(v), 0}}, 0, in_document(how, s.length));
        if (ops::documents_apart(x_ND)) return ring(cut(q), cut(k), cut(v));
        const auto alone = [&](const Tensor& x) { return cut(x).unsqueeze(0); };
        return whole(alone(q), alone(k), alone(v), context.causal).squeeze(0);
      });
    }
    return o_(o.reshape({n, h * d}), context);
  }

 private:
  double scale() const { return 1 / std::sqrt(static_cast<double>(config_.head_dim)); }

  Tensor heads(const Tensor& x) const {
    return x.reshape({x.size(0), config_.n_heads, config_.head_dim});
  }

  ops::ScoreOptions options(Context& context) const {
    return with_term(
        {.scale = scale(), .causal = context.causal}, *position_,
        {.n_heads = config_.n_heads,
         .head_dim = config_.head_dim,
         .longest = context.batch->longest(),
         .project_q = [this, &context](const Tensor& x) { return heads(q_(x, context)); },
         .project_k = [this, &context](const Tensor& x) { return heads(k_(x, context)); }},
        context);
  }

  /// With the neighbourhoods of a document as a pattern.
  ops::ScoreOptions in_document(ops::ScoreOptions how, int64_t length) const {
    how.visibility = std::make_shared<Neighbourhood>(config_, length, how.causal);
    return how;
  }

  /// Whole documents, all chunks at once.
  Tensor whole(const Tensor& q_BTHD,
               const Tensor& k_BTHD,
               const Tensor& v_BTHD,
               bool causal) const {
    const int64_t b = q_BTHD.size(0), t = q_BTHD.size(1), h = q_BTHD.size(2), d = q_BTHD.size(3),
                  c = std::min(config_.chunk, t), chunks = (t + c - 1) / c;
    std::vector<int64_t> tokens;  // of every chunk's keys, t = none
    for (int64_t x = 0; x < chunks; ++x)
      for (const int64_t from : seen_chunks(config_, x, ring_of(config_, t), causal))
        for (int64_t o = 0; o < c; ++o) tokens.push_back(from < 0 ? t : std::min(t, from * c + o));
    const int64_t width = static_cast<int64_t>(tokens.size()) / chunks;
    const Tensor key = at::tensor(tokens, at::kLong).to(q_BTHD.device());
    const Tensor query = at::arange(chunks * c, key.options()).reshape({chunks, c, 1});
    Tensor hidden = key.eq(t).reshape({chunks, 1, width});
    if (causal) hidden = hidden.logical_or(key.reshape({chunks, 1, width}).gt(query));
    const Tensor bias = at::zeros({chunks, c, width}, q_BTHD.options().dtype(ops::wide(q_BTHD)))
                            .masked_fill(hidden, -std::numeric_limits<double>::infinity())
                            .unsqueeze(1)
                            .repeat({b, 1, 1, 1});
    const auto keys = [&](const Tensor& x) {  // [B chunks, H, width, D]
      return x.index_select(1, key.clamp_max(t - 1))
          .reshape({b * chunks, width, h, d})
          .transpose(1, 2);
    };
    const Tensor q = at::constant_pad_nd(q_BTHD, {0, 0, 0, 0, 0, chunks * c - t})
                         .reshape({b * chunks, c, h, d})
                         .transpose(1, 2);
    return ops::biased_attention(q, keys(k_BTHD), keys(v_BTHD), bias, scale())
        .out.transpose(1, 2)
        .reshape({b, chunks * c, h, d})
        .narrow(1, 0, t);
  }

  /// A decoder's tokens from position `start` on, chunk after chunk: each sees one run of keys.
  Tensor continued(const Tensor& q,
                   const Tensor& k,
                   const Tensor& v,
                   const ops::ScoreOptions& how,
                   int64_t start,
                   RowState* row) const {
    const int64_t t = q.size(0), c = config_.chunk, end = start + t;
    const auto first_seen = [&](int64_t position) {
      return std::max<int64_t>(0, position / c - config_.chunks_before) * c;
    };
    const int64_t base = row != nullptr ? first_seen(start) : 0;
    std::vector<ops::KeyValues> held;
    if (row == nullptr) {
      held.push_back({k, v, 0});
    } else {
      TokenBuffer &keys = row->tokens(0), &values = row->tokens(1);
      if (base < start) held = held_keys(keys, values, base, start);
      // a window may free the oldest keys that are read here: they are held before
      held.push_back({keys.stored(k), values.stored(v), start});
      keys.append(held.back().k_SGD);
      values.append(held.back().v_SGD);
    }
    std::vector<Tensor> out;
    for (int64_t position = start; position < end;) {
      const int64_t stop = std::min(end, (position / c + 1) * c), from = first_seen(position);
      out.push_back(ops::attention(q.narrow(0, position - start, stop - position),
                                   cut(held, from, stop), position, how));
      position = stop;
    }
    return out.size() == 1 ? out[0] : at::cat(out);
  }

  /// An encoder's document by the kernels.
  Tensor ring(const Tensor& q, const Tensor& k, const Tensor& v) const {
    const int64_t t = q.size(0), c = config_.chunk, chunks = (t + c - 1) / c;
    std::vector<Tensor> out;
    for (int64_t x = 0; x < chunks; ++x) {
      const int64_t n = std::min(c, t - x * c);
      ops::KeyLists lists;
      for (int64_t i = 0; i < n; ++i) {
        for (const int64_t from : seen_chunks(config_, x, ring_of(config_, t), false))
          for (int64_t j = from * c; j < std::min(t, (from + 1) * c); ++j) lists.add(0, j);
        lists.end_list();
      }
      out.push_back(ops::listed_attention(q.narrow(0, x * c, n), {{k, v}}, lists, scale()).out);
    }
    return out.size() == 1 ? out[0] : at::cat(out);
  }

  LocalAttentionConfig config_;
  Linear q_, k_, v_, o_;
  std::unique_ptr<Position> position_;
};

}  // namespace

std::unique_ptr<Mixer> build(const LocalAttentionConfig& config, const Builder& builder) {
  return std::make_unique<LocalAttention>(config, builder);
}

}  // namespace tessera::nn
