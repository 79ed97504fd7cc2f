#include "tessera/ops/attention/recorded_attention.h"

#include <algorithm>
#include <limits>

#include "tessera/ops/attention/kv_rows.h"

namespace tessera::ops {
namespace {

/// [R, ...] of tensors of one shape: a view where they lie at equal distances in one memory, else a
/// copy.
Tensor together(const std::vector<Tensor>& rows) {
  const Tensor& first = rows.front();
  if (rows.size() == 1) return first.unsqueeze(0);
  const int64_t apart = rows[1].storage_offset() - first.storage_offset();
  for (size_t i = 0; i < rows.size(); ++i)
    if (!rows[i].is_alias_of(first) || rows[i].strides() != first.strides() ||
        rows[i].storage_offset() != first.storage_offset() + static_cast<int64_t>(i) * apart ||
        apart <= 0)
      return at::stack(rows);
  std::vector<int64_t> sizes = first.sizes().vec(), strides = first.strides().vec();
  sizes.insert(sizes.begin(), static_cast<int64_t>(rows.size()));
  strides.insert(strides.begin(), apart);
  return first.as_strided(sizes, strides, first.storage_offset());
}

}  // namespace

bool is_recorded(const std::vector<AttentionCall>& calls) {
  return !calls.empty() && !calls.front().kv.empty() && calls.front().kv.front().place.defined();
}

Tensor recorded_attention(const std::vector<AttentionCall>& calls) {
  const ScoreOptions& options = calls.front().options;
  std::vector<Tensor> queries, keys, values, places;
  for (const AttentionCall& call : calls) {
    require(call.kv.size() == 1 && call.kv[0].place.defined() && call.kv[0].first == 0 &&
                call.q_THD.size(0) == 1 && call.options.causal && !call.options.visibility &&
                !call.options.term.bias && !call.options.term.values && !call.options.dropout &&
                !call.options.far_q.defined(),
            "attention", "a call that a recorded step does not serve");
    queries.push_back(call.q_THD.squeeze(0));
    keys.push_back(call.kv[0].k_SGD);
    values.push_back(call.kv[0].v_SGD);
    places.push_back(call.kv[0].place);
  }
  const Tensor q_RHD = queries.size() == 1 ? queries[0].unsqueeze(0) : at::stack(queries),
               place_R1 = together(places);
  const auto numbers = [&](const Tensor& x) {
    return x.element_size() < q_RHD.element_size() ? from_kv_rows(x, q_RHD.scalar_type()) : x;
  };
  const auto type = wide(q_RHD);
  const Tensor k_RGSD = numbers(together(keys)).to(type).transpose(1, 2),
               v_RGSD = numbers(together(values)).to(type).transpose(1, 2);
  const int64_t heads = q_RHD.size(1), groups = k_RGSD.size(1), s = k_RGSD.size(2);

  // the heads of a group as queries of its keys: [R, G, H / G, D]
  const Tensor q_RGED = q_RHD.to(type).unflatten(1, {groups, heads / groups});
  const Tensor distance_RS = at::arange(s, place_R1.options()).unsqueeze(0) - place_R1;
  Tensor seen_RS = distance_RS <= 0;
  if (options.window > 0) seen_RS = seen_RS.logical_and(distance_RS > -options.window);
  const Tensor seen = seen_RS.unsqueeze(1).unsqueeze(1);
  Tensor added;  // [R, G or 1, H / G or 1, S]
  if (options.term.bias_HR.defined()) {
    const Tensor table_HR = options.term.bias_HR.to(q_RHD.device(), type);
    const Tensor index = (distance_RS + options.term.zero).clamp(0, table_HR.size(1) - 1);
    const Tensor bias_HRS = table_HR.index_select(1, index.flatten()).unflatten(1, index.sizes());
    added = bias_HRS.transpose(0, 1);
    added = added.size(1) == 1 ? added.unsqueeze(1) : added.unflatten(1, {groups, heads / groups});
  }

  Tensor out_RGEV;
  if (options.softcap == 0 && !options.sinks_H.defined()) {
    const Tensor mask =
        added.defined()
            ? added.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity())
            : seen;
    out_RGEV =
        at::scaled_dot_product_attention(q_RGED, k_RGSD, v_RGSD, mask, 0, false, options.scale);
  } else {
    Tensor scores = at::matmul(q_RGED, k_RGSD.transpose(-1, -2)) * options.scale;
    if (options.softcap > 0) scores = options.softcap * at::tanh(scores / options.softcap);
    if (added.defined()) scores = scores + added;
    scores = scores.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
    if (options.sinks_H.defined())
      scores = at::cat({scores, options.sinks_H.to(type)
                                    .reshape({1, groups, heads / groups, 1})
                                    .expand({scores.size(0), -1, -1, -1})},
                       -1);
    out_RGEV = at::matmul(at::softmax(scores, -1).narrow(-1, 0, s), v_RGSD);
  }
  return out_RGEV.flatten(1, 2).to(q_RHD.scalar_type());
}

}  // namespace tessera::ops
