#include "tessera/nn/mixer/attention/segment_memory.h"

#include <algorithm>

#include "tessera/ops/attention/attention_form.h"
#include "tessera/ops/attention/flash_attention.h"

namespace tessera::nn {
namespace {

// more scores than these are computed document by document, where ops/ keeps memory linear
constexpr int64_t kScoresAtOnce = int64_t{1} << 21;

/// Entries [from, to) of a buffer followed by `fresh`, in one tensor.
Tensor after(const TokenBuffer& buffer, int64_t from, int64_t to, const Tensor& fresh) {
  if (from == to) return fresh;
  std::vector<Tensor> parts = buffer.spans(from, to);
  parts.push_back(fresh);
  return at::cat(parts);
}

}  // namespace

std::vector<Stretch> stretches(int64_t start, int64_t length, int64_t segment) {
  std::vector<Stretch> out;
  for (int64_t at = start; at < start + length;) {
    const int64_t first = at / segment * segment;
    const int64_t end = std::min(first + segment, start + length);
    out.push_back({first, at, end});
    at = end;
  }
  return out;
}

std::vector<EqualSegments> equal_segments(const Batch& batch, bool kernels) {
  std::vector<EqualSegments> out;
  for (size_t i = 0; i < batch.segments.size(); ++i) {
    const Segment& s = batch.segments[i];
    if (!out.empty() && !kernels) {
      const Segment& before = batch.segments[out.back().first];
      if (before.start == s.start && before.length == s.length) {
        ++out.back().count;
        continue;
      }
    }
    out.push_back({i, 1});
  }
  return out;
}

Tensor attend_alike(const Tensor& q_BTHD,
                    const std::vector<std::vector<ops::KeyValues>>& seen,
                    int64_t start,
                    const ops::ScoreOptions& how) {
  int64_t keys = 0;
  for (const ops::KeyValues& part : seen[0]) keys += part.k_SGD.size(0);
  const bool table = ops::tiles_serve(q_BTHD, how);
  const bool many = q_BTHD.size(0) * q_BTHD.size(1) * q_BTHD.size(2) * keys > kScoresAtOnce;
  if (seen.size() == 1 || (many && !table)) {
    std::vector<Tensor> out;
    for (size_t b = 0; b < seen.size(); ++b) {
      ops::ScoreOptions own = how;
      if (!how.dropout.streams.empty()) own.dropout.streams = {how.dropout.streams[b]};
      out.push_back(ops::attention(q_BTHD.select(0, static_cast<int64_t>(b)), seen[b], start, own));
    }
    return at::stack(out);
  }
  const auto joined = [&](const auto& side) {
    std::vector<Tensor> documents;
    for (const auto& parts : seen) {
      std::vector<Tensor> rows;
      for (const ops::KeyValues& part : parts) rows.push_back(side(part));
      documents.push_back(rows.size() == 1 ? rows[0] : at::cat(rows));
    }
    return at::stack(documents);
  };
  const Tensor k_BSHD = joined([](const ops::KeyValues&part) { return part.k_SGD; }),
               v_BSHD = joined([](const ops::KeyValues&part) { return part.v_SGD; });
  const int64_t first = seen[0].front().first;
  if (table) return ops::flash_attention(q_BTHD, k_BSHD, v_BSHD, start, first, how);
  return ops::attention_plain(q_BTHD.transpose(1, 2), k_BSHD.transpose(1, 2),
                              v_BSHD.transpose(1, 2), start, first, how)
      .transpose(1, 2);
}

std::vector<ops::KeyValues> in_pieces(const Tensor& k_SHD,
                                      const Tensor& v_SHD,
                                      int64_t first,
                                      int64_t segment) {
  if (!at::GradMode::is_enabled()) return {{k_SHD, v_SHD, first}};
  std::vector<int64_t> lengths;
  for (const Stretch& stretch : stretches(first, k_SHD.size(0), segment))
    lengths.push_back(stretch.end - stretch.begin);
  if (lengths.empty()) return {};
  const std::vector<Tensor> k = k_SHD.split_with_sizes(lengths),
                            v = v_SHD.split_with_sizes(lengths);
  std::vector<ops::KeyValues> out;
  for (size_t i = 0; i < lengths.size(); first += lengths[i++]) out.push_back({k[i], v[i], first});
  return out;
}

std::vector<Tensor> by_stretch(const Tensor& q_BTHD, const std::vector<Stretch>& stretches) {
  std::vector<int64_t> lengths;
  for (const Stretch& stretch : stretches) lengths.push_back(stretch.end - stretch.begin);
  return q_BTHD.split_with_sizes(lengths, 1);
}

std::vector<ops::KeyValues> cut(const std::vector<ops::KeyValues>& held, int64_t from, int64_t to) {
  std::vector<ops::KeyValues> out;
  for (const ops::KeyValues& part : held) {
    const int64_t begin = std::max(from, part.first),
                  end = std::min(to, part.first + part.k_SGD.size(0));
    if (begin >= end) continue;
    const auto rows = [&](const Tensor& x) { return x.narrow(0, begin - part.first, end - begin); };
    out.push_back({rows(part.k_SGD), rows(part.v_SGD), begin});
  }
  return out;
}

std::vector<ops::KeyValues> Remembered::seen(int64_t from, const Stretch& stretch) const {
  if (memory.empty()) return cut(live, from, stretch.end);
  std::vector<ops::KeyValues> out = cut(memory, from, stretch.segment);
  for (const ops::KeyValues& part : cut(live, stretch.segment, stretch.end)) out.push_back(part);
  return out;
}

InputMemory::InputMemory(
    const Builder& builder, int64_t n_heads, int64_t head_dim, int64_t segment, size_t slot)
    : n_heads_(n_heads),
      head_dim_(head_dim),
      segment_(segment),
      slot_(slot),
      k_(builder, "k"),
      v_(builder, "v") {}

Remembered InputMemory::projected(
    const Tensor& x_TD, int64_t start, int64_t first, RowState* row, const Context& context) const {
  const int64_t t = x_TD.size(0);
  const Tensor x = row != nullptr ? after(row->tokens(slot_), first, start, x_TD) : x_TD;
  Remembered out;
  out.first = first;
  out.x_SD = x.detach();
  // live from the segment of the first query on; memory up to the segment of the last one
  const int64_t own = start / segment_ * segment_, last = (start + t - 1) / segment_ * segment_;
  const Tensor live = x.narrow(0, own - first, start + t - own);
  const Tensor k = keys(live, context), v = values(live, context);
  out.live = in_pieces(k, v, own, segment_);
  if (last > first) {
    const Tensor still = out.x_SD.narrow(0, 0, last - first);
    out.memory = in_pieces(keys(still, context), values(still, context), first, segment_);
  }
  if (row != nullptr) {
    row->tokens(slot_).append(x_TD);
    const auto fresh = [&](const Tensor& all) { return all.detach().narrow(0, start - own, t); };
    row->tokens(slot_ + 1).append(fresh(k));
    row->tokens(slot_ + 2).append(fresh(v));
  }
  return out;
}

Remembered InputMemory::remember(const Tensor& x_TD,
                                 int64_t start,
                                 int64_t first,
                                 RowState* row,
                                 bool with_inputs,
                                 const Context& context) const {
  require(row == nullptr || row->tokens(slot_).length() == start, "segment_memory",
          "the state holds {} tokens, the call starts at {}",
          row == nullptr ? 0 : row->tokens(slot_).length(), start);
  if (at::GradMode::is_enabled()) return projected(x_TD, start, first, row, context);
  const int64_t t = x_TD.size(0);
  const Tensor k = keys(x_TD, context), v = values(x_TD, context);
  Remembered out;
  out.first = first;
  if (row == nullptr) {
    out.live = {{k, v, start}};
    out.x_SD = x_TD;
    return out;
  }
  TokenBuffer &inputs = row->tokens(slot_), &held_k = row->tokens(slot_ + 1),
              &held_v = row->tokens(slot_ + 2);
  if (with_inputs) out.x_SD = after(inputs, first, start, x_TD);
  // a ring may not hold both the oldest visible key and several new ones: these stay outside until
  // computed; a single one is read where it lies
  if (t > 1) out.live = {{after(held_k, first, start, k), after(held_v, first, start, v), first}};
  inputs.append(x_TD);
  held_k.append(k);
  held_v.append(v);
  if (t > 1) return out;
  out.live = held_keys(held_k, held_v, first, start + t);
  return out;
}

}  // namespace tessera::nn
