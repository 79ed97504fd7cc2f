#include "tessera/nn/mixer/attention/infini_attention.h"

#include <cmath>

#include "tessera/nn/mixer/attention/attend.h"
#include "tessera/nn/mixer/attention/segment_memory.h"
#include "tessera/nn/parts.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/form.h"
#include "tessera/ops/linear/linear_recurrence.h"

namespace tessera::nn {
namespace {

/// elu(x) + 1 in float32 at least: the sums of many keys follow.
Tensor elu1(const Tensor& x) {
  const Tensor wide = x.to(ops::wide(x));
  return at::relu(wide) - ops::minus_exp(-at::relu(-wide));
}

/// Sums over all keys of the segments before a query, [B, G, D + 1, D]: of values and of 1, by
/// channel of the keys. None before the first segment has ended.
struct SegmentSums {
  Tensor sums_BGUK;
  double eps = 0;

  /// What features x_BGTK read: [B, G, T, D].
  Tensor read(const Tensor& x_BGTK) const {
    const Tensor y = ops::row_products(x_BGTK, sums_BGUK);
    const int64_t d = y.size(-1) - 1;
    const Tensor values = y.narrow(-1, 0, d);
    return values / ops::spread(y.narrow(-1, d, 1) + eps, values);
  }

  /// Adds a segment of keys and values [B, S, G, D], not rotated.
  void add(const Tensor& k_BSGD, const Tensor& v_BSGD, bool delta) {
    const Tensor k_BGSK = elu1(k_BSGD).transpose(1, 2);
    Tensor v_BGSD = v_BSGD.to(k_BGSK.scalar_type()).transpose(1, 2);
    if (delta && sums_BGUK.defined()) v_BGSD = v_BGSD - read(k_BGSK);
    const Tensor ones =
        at::ones({v_BGSD.size(0), v_BGSD.size(1), v_BGSD.size(2), 1}, v_BGSD.options());
    const Tensor added =
        ops::row_products(at::cat({v_BGSD, ones}, -1).transpose(2, 3), k_BGSK.transpose(2, 3));
    sums_BGUK = sums_BGUK.defined() ? sums_BGUK + added : added;
  }
};

class InfiniAttention final : public Mixer {
 public:
  InfiniAttention(const InfiniAttentionConfig& config, const Builder& builder)
      : config_(config),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        o_(builder, "o"),
        gate_(builder.weight("gate")),
        position_(build_position(
            config.position,
            builder.under("position", config.child_scope(builder.scope(), "position")))) {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const Tensor q = heads(q_(x_ND, context)), k = heads(k_(x_ND, context));
    const Call call{*context.batch,
                    rows,
                    q,
                    k,
                    heads(v_(x_ND, context)),
                    position_->rotate(q, Side::query, context),
                    position_->rotate(k, Side::key, context),
                    options(context)};
    std::vector<Tensor> out;
    for (const EqualSegments& group :
         equal_segments(call.batch, rows != nullptr || ops::documents_apart(x_ND)))
      out.push_back(documents(group, call));
    const Tensor o_NHD = out.size() == 1 ? out[0] : at::cat(out);
    return o_(o_NHD.reshape({x_ND.size(0), config_.n_heads * config_.head_dim}), context);
  }

 private:
  // of the state's declarations
  static constexpr size_t kMemory = 0, kKeys = 1, kValues = 2, kUnrotated = 3;

  struct Call {
    const Batch& batch;
    const StateRows* rows;
    Tensor q_NHD, k_NGD, v_NGD;  // as projected
    Tensor q_turned_NHD, k_turned_NGD;
    ops::ScoreOptions how;
    BySegment part{batch};

    Tensor queries_BTHD(const Tensor& q, const EqualSegments& group) const {
      const Segment& s = batch.segments[group.first];
      const auto n = static_cast<int64_t>(group.count);
      if (n == 1) return part(q, group.first).unsqueeze(0);
      return q.narrow(0, s.begin, n * s.length).reshape({n, s.length, q.size(1), q.size(2)});
    }
  };

  /// Keys and values of a document from its open segment on, by position: as its queries see them,
  /// and as the memory does.
  struct Held {
    std::vector<ops::KeyValues> local, remembered;
  };

  Tensor heads(const Tensor& x) const {
    return x.reshape({x.size(0), x.size(1) / config_.head_dim, config_.head_dim});
  }

  ops::ScoreOptions options(Context& context) const {
    return with_term(
        {.scale = 1 / std::sqrt(static_cast<double>(config_.head_dim))}, *position_,
        {.n_heads = config_.n_heads,
         .head_dim = config_.head_dim,
         .longest = context.batch->longest(),
         .project_q = [this, &context](const Tensor& x) { return heads(q_(x, context)); },
         .project_k = [this, &context](const Tensor& x) { return heads(k_(x, context)); }},
        context);
  }

  Held hold(const Call& call, size_t document) const {
    const Segment& s = call.batch.segments[document];
    const Tensor k = call.part(call.k_turned_NGD, document), v = call.part(call.v_NGD, document),
                 plain = config_.rotates() ? call.part(call.k_NGD, document) : k;
    if (call.rows == nullptr)
      return {in_pieces(k, v, s.start, config_.segment),
              in_pieces(plain, v, s.start, config_.segment)};
    RowState& row = *(*call.rows)[document];
    TokenBuffer &keys = row.tokens(kKeys), &values = row.tokens(kValues),
                &unrotated = row.tokens(config_.rotates() ? kUnrotated : kKeys);
    Held held;
    // the buffers may free the oldest entries that are read here: they are held before
    if (const int64_t own = s.start / config_.segment * config_.segment; own < s.start)
      held = {held_keys(keys, values, own, s.start), held_keys(unrotated, values, own, s.start)};
    const Tensor stored_v = values.stored(v);
    held.local.push_back({keys.stored(k), stored_v, s.start});
    held.remembered.push_back({unrotated.stored(plain), stored_v, s.start});
    keys.append(held.local.back().k_SGD);
    values.append(stored_v);
    if (config_.rotates()) unrotated.append(held.remembered.back().k_SGD);
    return held;
  }

  /// The queries of documents alike, segment by segment: [B T, H, D].
  Tensor documents(const EqualSegments& group, const Call& call) const {
    const Segment& s = call.batch.segments[group.first];
    RowState* row = call.rows != nullptr ? (*call.rows)[group.first] : nullptr;
    std::vector<Held> held;
    for (size_t i = 0; i < group.count; ++i) held.push_back(hold(call, group.first + i));
    SegmentSums memory{{}, config_.eps};
    if (row != nullptr && s.start >= config_.segment)
      memory.sums_BGUK = row->fixed(kMemory).to(ops::wide(call.q_NHD)).unsqueeze(0);
    const std::vector<Stretch> parts = stretches(s.start, s.length, config_.segment);
    const auto turned = by_stretch(call.queries_BTHD(call.q_turned_NHD, group), parts),
               plain = by_stretch(call.queries_BTHD(call.q_NHD, group), parts);
    std::vector<Tensor> out;
    for (size_t i = 0; i < parts.size(); ++i) {
      const Stretch& stretch = parts[i];
      std::vector<std::vector<ops::KeyValues>> seen;
      for (const Held& document : held)
        seen.push_back(cut(document.local, stretch.segment, stretch.end));
      const Tensor local = attend_alike(turned[i], seen, stretch.begin, call.how);
      out.push_back(mixed(local, plain[i], memory));
      if (stretch.end < stretch.segment + config_.segment) continue;
      memory.add(joined(held, stretch, true), joined(held, stretch, false),
                 config_.update == MemoryUpdate::delta);
      if (row != nullptr)
        row->fixed(kMemory) = memory.sums_BGUK.squeeze(0).to(row->fixed(kMemory).scalar_type());
    }
    return (out.size() == 1 ? out[0] : at::cat(out, 1)).flatten(0, 1);
  }

  /// g A_mem + (1 - g) A_local.
  Tensor mixed(const Tensor& local_BTHD, const Tensor& q_BTHD, const SegmentSums& memory) const {
    const int64_t b = q_BTHD.size(0), t = q_BTHD.size(1), h = config_.n_heads, d = config_.head_dim,
                  g = config_.n_kv_heads;
    const Tensor gate_H1 =
        ops::activate(gate_->tensor().to(ops::wide(q_BTHD)), ops::Activation::sigmoid).unsqueeze(1);
    const Tensor gate_BTHD = ops::spread(gate_H1, local_BTHD);
    Tensor y = (1 - gate_BTHD) * local_BTHD;
    if (memory.sums_BGUK.defined()) {
      // the query heads of a memory one after another
      const Tensor q_BGXD = elu1(q_BTHD).transpose(1, 2).reshape({b, g, h / g * t, d});
      const Tensor read_BTHD = memory.read(q_BGXD).reshape({b, h, t, d}).transpose(1, 2);
      y = y + gate_BTHD * read_BTHD;
    }
    return y.to(q_BTHD.scalar_type());
  }

  /// Keys or values of a whole segment of all documents, [B, S, G, D].
  static Tensor joined(const std::vector<Held>& held, const Stretch& stretch, bool keys) {
    std::vector<Tensor> documents;
    for (const Held& document : held) {
      std::vector<Tensor> rows;
      for (const ops::KeyValues& part : cut(document.remembered, stretch.segment, stretch.end))
        rows.push_back(keys ? part.k_SGD : part.v_SGD);
      documents.push_back(rows.size() == 1 ? rows[0] : at::cat(rows));
    }
    return at::stack(documents);
  }

  InfiniAttentionConfig config_;
  Linear q_, k_, v_, o_;
  WeightPtr gate_;
  std::unique_ptr<Position> position_;
};

}  // namespace

std::unique_ptr<Mixer> build(const InfiniAttentionConfig& config, const Builder& builder) {
  return std::make_unique<InfiniAttention>(config, builder);
}

}  // namespace tessera::nn
