// What the forms of compressed attention share (compressed_attention.h): what a query sees, and the
// pooling of tokens to entries.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "tessera/kernels/attention/visibility.h"
#include "tessera/nn/mixer/attention/compressed_attention.h"
#include "tessera/nn/parts.h"
#include "tessera/nn/step_products.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/softmax.h"

namespace tessera::nn {

// --- what a query sees -----------------------------------------------------------------------

/// Keys are the entries 0 .. entries - 1, then the tokens from position `from` on; the query at
/// position p of the document is number entries + p - from.
struct EntriesThenTokens {
  int64_t entries = 0, from = 0, every = 1, window = 1;
  int64_t of_position(int64_t position) const { return entries + position - from; }
  int64_t position(int64_t key) const { return key - entries + from; }
};

class EntriesAndWindow final : public kernels::Visibility {
 public:
  /// entry_TK: as ops::top_entries gives them, of queries at positions start, start + 1, ..;
  /// undefined = all entries are read.
  EntriesAndWindow(const EntriesThenTokens& keys, Tensor entry_TK, int64_t start, bool scattered)
      : keys_(keys), entry_TK_(std::move(entry_TK)), start_(start), scattered_(scattered) {}

  int64_t multiplicity(int64_t, int64_t query, int64_t key) const override {
    const int64_t p = keys_.position(query);
    if (key >= keys_.entries) return key <= query && key > query - keys_.window ? 1 : 0;
    if (key >= met(p)) return 0;
    const auto [begin, end] = chosen(p);
    return begin == nullptr || std::binary_search(begin, end, static_cast<int32_t>(key)) ? 1 : 0;
  }
  void counts(int64_t,
              kernels::KeyRange queries,
              kernels::KeyRange keys,
              int8_t* out,
              int64_t stride) const override {
    const auto fill = [&](int64_t begin, int64_t end) {
      begin = std::max(begin, keys.begin), end = std::min(end, keys.end);
      if (begin < end) std::fill(out + begin - keys.begin, out + end - keys.begin, int8_t{1});
    };
    for (int64_t query = queries.begin; query < queries.end; ++query, out += stride) {
      std::fill_n(out, keys.end - keys.begin, int8_t{0});
      const int64_t p = keys_.position(query);
      if (const auto [begin, end] = chosen(p); begin == nullptr)
        fill(0, met(p));
      else
        for (auto entry = begin; entry != end; ++entry) fill(*entry, *entry + 1);
      fill(first_token(query), query + 1);
    }
  }
  void list(int64_t,
            int64_t query,
            int64_t end,
            std::vector<kernels::VisibleKey>& out) const override {
    out.clear();
    const int64_t p = keys_.position(query);
    if (const auto [first, last] = chosen(p); first == nullptr)
      for (int64_t entry = 0; entry < met(p); ++entry) out.push_back({entry, 1});
    else
      for (auto entry = first; entry != last; ++entry) out.push_back({*entry, 1});
    for (int64_t key = first_token(query); key < std::min(query + 1, end); ++key)
      out.push_back({key, 1});
  }
  std::vector<kernels::KeyRange> ranges(int64_t, int64_t begin, int64_t end) const override {
    std::vector<kernels::KeyRange> runs;
    const auto add = [&](int64_t from, int64_t to) {
      if (from >= to) return;
      if (!runs.empty() && runs.back().end == from)
        runs.back().end = to;
      else
        runs.push_back({from, to});
    };
    const int64_t last = keys_.position(end - 1);
    if (const auto [first, stop] = chosen(last); first == nullptr || end - begin > 1)
      add(0, met(last));
    else
      for (auto entry = first; entry != stop; ++entry) add(*entry, *entry + 1);
    add(first_token(begin), end);
    return runs;
  }
  bool scattered() const override { return scattered_; }

 private:
  int64_t met(int64_t position) const {
    return std::min(keys_.entries, (position + 1) / keys_.every);
  }
  int64_t first_token(int64_t query) const {
    return std::max(keys_.entries, query - keys_.window + 1);
  }
  /// The entries of a query that reads some of them alone; null pointers where it reads all.
  std::pair<const int32_t*, const int32_t*> chosen(int64_t position) const {
    if (!entry_TK_.defined() || met(position) <= entry_TK_.size(1)) return {nullptr, nullptr};
    const int32_t* entries =
        entry_TK_.const_data_ptr<int32_t>() + (position - start_) * entry_TK_.size(1);
    return {entries, entries + entry_TK_.size(1)};
  }

  EntriesThenTokens keys_;
  Tensor entry_TK_;
  int64_t start_;
  bool scattered_;
};

// --- pooling ---------------------------------------------------------------------------------

/// Blocks of tokens as entries of `width` channels.
class EntryPool {
 public:
  EntryPool(const CompressedAttentionConfig& config, const Builder& builder, int64_t width)
      : kv_(builder, "kv"),
        gate_(builder, "gate"),
        place_(builder.weight("place")),
        block_(config.block),
        series_(config.series()),
        width_(width) {
    if (config.norm)
      norm_ =
          build_norm(config.norm, builder.under("norm", config.norm_scope(builder.scope(), width)));
  }

  const Linear& kv() const { return kv_; }
  const Linear& gate() const { return gate_; }

  /// C and Z of every token, [N, 2 * series * width].
  Tensor tokens(const Tensor& x_ND, const Context& context) const {
    return at::cat({kv_(x_ND, context), gate_(x_ND, context)}, 1);
  }

  /// Tokens of the block before the first one that are pooled with it.
  int64_t before() const { return (series_ - 1) * block_; }

  /// The entries of blocks first .. first + n - 1 of a row: from what tokens() made of the tokens
  /// that `held` has and of `own`, which follow them and which it has not; without `held` these
  /// begin the document. [n, width] of `type`, not rotated.
  Tensor completed(const TokenBuffer* held,
                   const Tensor& own,
                   int64_t first,
                   int64_t n,
                   at::ScalarType type,
                   const ops::ProductSettings& products) const {
    const int64_t from = std::max<int64_t>(0, first * block_ - before());
    std::vector<Tensor> parts;
    if (held != nullptr && from < held->length()) parts = held->spans(from, held->length());
    parts.push_back(own);
    const Tensor raw = parts.size() == 1 ? own : at::cat(parts);
    const int64_t skip = held != nullptr ? 0 : from;
    return entries(raw.narrow(0, skip, (first + n) * block_ - from).to(type), first == 0, products);
  }

  /// The entries of whole blocks, from what tokens() made of their tokens and, unless the first one
  /// begins the document, of the block before: [n, width], not rotated.
  Tensor entries(const Tensor& tokens_SA,
                 bool begins,
                 const ops::ProductSettings& products) const {
    const int64_t blocks = tokens_SA.size(0) / block_, skip = begins ? 0 : series_ - 1,
                  n = blocks - skip;
    const Tensor all = tokens_SA.reshape({blocks, block_, 2, series_, width_}),
                 content = all.select(2, 0), logits = all.select(2, 1);
    const Tensor place = place_->tensor(products)
                             .to(logits.device(), logits.scalar_type())
                             .reshape({block_, series_, width_});
    const Tensor placed = logits + ops::spread(place, logits);
    // rows of an entry: those of the block before, then its own
    const auto rows_of = [&](const Tensor& x, double none) {
      const Tensor own = x.narrow(0, skip, n).select(2, series_ - 1);
      if (series_ == 1) return own;
      Tensor before = x.narrow(0, 0, blocks - 1).select(2, 0);
      if (begins) before = at::cat({at::full({1, block_, width_}, none, x.options()), before});
      return at::cat({before, own}, 1);
    };
    const Tensor c_nRD = rows_of(content, 0),
                 z_nDR = rows_of(placed, -std::numeric_limits<double>::infinity())
                             .transpose(1, 2)
                             .to(ops::wide(placed))
                             .contiguous();
    const Tensor w_nDR = ops::softmax(z_nDR).to(c_nRD.scalar_type());
    // row after row: no bits depend on the number of blocks
    Tensor sum = w_nDR.select(2, 0) * c_nRD.select(1, 0);
    for (int64_t r = 1; r < c_nRD.size(1); ++r) sum = sum + w_nDR.select(2, r) * c_nRD.select(1, r);
    return norm_ ? norm_->forward(sum, products) : sum;
  }

 private:
  Linear kv_, gate_;
  WeightPtr place_;
  std::unique_ptr<Norm> norm_;
  int64_t block_, series_, width_;
};

/// The entries that a call completes, as tokens at the positions of their first tokens.
struct EntryCall {
  Batch batch;
  Context context;
  std::vector<int64_t> first;  // of each segment: the number of its first entry
};

inline int64_t start_of_call(const Segment& s, const StateRows* rows) {
  return rows != nullptr ? s.start : 0;
}

/// Of blocks of `every` tokens.
inline std::shared_ptr<EntryCall> entry_call(const Batch& batch,
                                             const StateRows* rows,
                                             int64_t every) {
  auto made = std::make_shared<EntryCall>();
  std::vector<int64_t> positions;
  for (const Segment& s : batch.segments) {
    const int64_t start = start_of_call(s, rows), first = start / every,
                  last = (start + s.length) / every;
    made->first.push_back(first);
    made->batch.segments.push_back(
        {s.row, static_cast<int64_t>(positions.size()), last - first, first});
    for (int64_t e = first; e < last; ++e) positions.push_back(e * every);
  }
  made->batch.positions_N = at::tensor(positions, at::kLong).to(batch.positions_N.device());
  made->batch.ids_N = at::zeros({static_cast<int64_t>(positions.size())}, at::kLong);
  return made;
}
/// That of a call, made once for all layers.
inline std::shared_ptr<EntryCall> entry_call_of(Context& context,
                                                const StateRows* rows,
                                                int64_t every) {
  const auto& made = context.once<std::shared_ptr<EntryCall>>(
      fmt::format("entries of {} tokens", every),
      [&] { return entry_call(*context.batch, rows, every); });
  made->context.causal = context.causal;
  made->context.training = context.training;
  made->context.products = context.products;
  made->context.batch = &made->batch;
  return made;
}

/// Where the entries of a pool lie in a state: after the tokens that are still to be pooled, in
/// `tokens`; as CompressedAttentionConfig::state declares them.
struct EntrySlots {
  size_t tokens;
  size_t entries() const { return tokens + 1; }
};
inline constexpr size_t kCompressedKeysSlot = 0;
inline constexpr EntrySlots kEntrySlots{1}, kIndexKeySlots{3};

}  // namespace tessera::nn
