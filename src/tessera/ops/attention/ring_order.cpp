#include "tessera/ops/attention/ring_order.h"

#include <algorithm>

namespace tessera::ops {
namespace {

using kernels::KeyRange;
using kernels::Seen;

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max() / 4;

int64_t floor_div(int64_t a, int64_t b) {
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}
int64_t ceil_div(int64_t a, int64_t b) {
  return -floor_div(-a, b);
}

/// A band, as attention asks it.
class Band final : public kernels::Visibility {
 public:
  Band(int64_t low, int64_t high, int64_t keys) : low_(low), high_(high), keys_(keys) {}
  int64_t multiplicity(int64_t /*head*/, int64_t query, int64_t key) const override {
    return key - query >= low_ && key - query <= high_ ? 1 : 0;
  }
  std::vector<KeyRange> ranges(int64_t /*head*/, int64_t begin, int64_t end) const override {
    const KeyRange seen{std::max<int64_t>(0, begin + low_), std::min(keys_, end + high_)};
    return seen.begin < seen.end ? std::vector<KeyRange>{seen} : std::vector<KeyRange>{};
  }
  Seen tile(int64_t /*head*/, KeyRange queries, KeyRange keys) const override {
    const int64_t least = keys.begin - (queries.end - 1), most = keys.end - 1 - queries.begin;
    if (most < low_ || least > high_) return Seen::none;
    return least >= low_ && most <= high_ ? Seen::all : Seen::some;
  }

 private:
  int64_t low_, high_, keys_;
};

/// A pattern of the document, seen by the numbers of two pieces.
class Numbered final : public kernels::Visibility {
 public:
  Numbered(std::shared_ptr<const Visibility> whole, const RingPiece& queries, const RingPiece& keys)
      : whole_(std::move(whole)), queries_(queries), keys_(keys) {}
  int64_t multiplicity(int64_t head, int64_t query, int64_t key) const override {
    return whole_->multiplicity(head, queries_.position(query), keys_.position(key));
  }
  std::vector<KeyRange> ranges(int64_t head, int64_t begin, int64_t end) const override {
    std::vector<KeyRange> out;
    const auto number = [&](int64_t position) {
      return std::clamp<int64_t>(ceil_div(position - keys_.first, keys_.step), 0, keys_.count);
    };
    const KeyRange queries = hull(queries_, {begin, end});
    for (const KeyRange& range : whole_->ranges(head, queries.begin, queries.end)) {
      const KeyRange seen{number(range.begin), number(range.end)};
      if (seen.begin < seen.end) out.push_back(seen);
    }
    return out;
  }
  Seen tile(int64_t head, KeyRange queries, KeyRange keys) const override {
    return whole_->tile(head, hull(queries_, queries), hull(keys_, keys));
  }
  bool same_for_heads() const override { return whole_->same_for_heads(); }

 private:
  /// Positions from the first of these numbers to the last.
  static KeyRange hull(const RingPiece& piece, KeyRange numbers) {
    return {piece.position(numbers.begin), piece.position(numbers.end - 1) + 1};
  }
  std::shared_ptr<const Visibility> whole_;
  RingPiece queries_, keys_;
};

}  // namespace

// --- two pieces -------------------------------------------------------------------------------

Meeting::Meeting(const RingPiece& q, const RingPiece& k, const ScoreOptions& options)
    : queries(q), keys(k), low(-kNoLimit), high(kNoLimit) {
  if (options.visibility) return;
  const int64_t ahead = k.first - q.first, step = q.step;
  if (options.causal) {
    high = floor_div(-ahead, step);
    if (options.window > 0) low = floor_div(-options.window - ahead, step) + 1;
  } else if (options.window > 0) {
    low = ceil_div(-(options.window / 2) - ahead, step);
    high = floor_div(options.window / 2 - ahead, step);
  }
}

bool Meeting::empty() const {
  return queries.count == 0 || keys.count == 0 || low >= keys.count || high <= -queries.count;
}

Tensor Meeting::distances(at::Device device) const {
  const auto on = at::TensorOptions().dtype(at::kLong).device(device);
  return (at::arange(queries.count + keys.count - 1, on) + 1 - queries.count) * queries.step +
         keys.first - queries.first;
}

std::shared_ptr<const kernels::Visibility> Meeting::visible(const ScoreOptions& options) const {
  if (options.visibility) return std::make_shared<Numbered>(options.visibility, queries, keys);
  return std::make_shared<Band>(low, high, keys.count);
}

ScoreTerm Meeting::numbered(const ScoreTerm& term) const {
  ScoreTerm out;
  out.inputs = term.inputs;
  out.numbers = term.numbers;
  const auto block_of = [q = queries, k = keys](const ScoreBlock& block) {
    return ScoreBlock{block.q_BHTD,
                      block.k_BHSD,
                      q.position(block.first_query),
                      k.position(block.first_key),
                      block.scale,
                      q.step,
                      k.step};
  };
  if (term.bias_HR.defined()) {
    // a row for every difference of numbers that the pieces can have
    const Tensor rows =
        (distances(term.bias_HR.device()) + term.zero).clamp(0, term.bias_HR.size(1) - 1);
    out.bias_HR = term.bias_HR.index_select(1, rows);
    out.zero = queries.count - 1;
  }
  if (term.bias)
    out.bias = [inner = term.bias, block_of](const ScoreBlock& block,
                                             const std::vector<Tensor>& inputs) {
      return inner(block_of(block), inputs);
    };
  if (term.values)
    out.values = [inner = term.values, block_of](const Tensor& weights, const ScoreBlock& block,
                                                 const std::vector<Tensor>& inputs) {
      return inner(weights, block_of(block), inputs);
    };
  return out;
}

ScoreOptions Meeting::numbered(const ScoreOptions& options) const {
  ScoreOptions out = options;
  out.causal = false;
  out.window = 0;
  out.sinks_H = Tensor();
  out.visibility = visible(options);
  out.term = numbered(options.term);
  return out;
}

Tensor Meeting::of_whole_table(const Tensor& d_rows_HR, const ScoreTerm& term) const {
  const Tensor rows =
      (distances(d_rows_HR.device()) + term.zero).clamp(0, term.bias_HR.size(1) - 1);
  return at::zeros(term.bias_HR.sizes(), d_rows_HR.options()).index_add(1, rows, d_rows_HR);
}

// --- layouts ----------------------------------------------------------------------------------

RingOrder::RingOrder(int64_t tokens, int64_t ranks, RingLayout layout) : tokens_(tokens) {
  require(tokens > 0 && ranks > 0, "ring_attention", "{} tokens over {} ranks", tokens, ranks);
  const bool zigzag = layout == RingLayout::zigzag;
  const int64_t chunk = ceil_div(tokens, zigzag ? 2 * ranks : ranks);
  rows_ = zigzag ? 2 * chunk : chunk;
  const auto run = [&](int64_t first, int64_t row) {
    return RingPiece{first, 1, std::clamp<int64_t>(tokens - first, 0, chunk), row};
  };
  for (int64_t a = 0; a < ranks; ++a) {
    if (layout == RingLayout::striped)
      pieces_.push_back({{a, ranks, std::max<int64_t>(0, ceil_div(tokens - a, ranks)), 0}});
    else if (zigzag)
      pieces_.push_back({run(a * chunk, 0), run((2 * ranks - 1 - a) * chunk, chunk)});
    else
      pieces_.push_back({run(a * chunk, 0)});
  }
}

std::vector<int64_t> RingOrder::positions() const {
  std::vector<int64_t> out(static_cast<size_t>(ranks() * rows_), -1);
  for (int64_t a = 0; a < ranks(); ++a)
    for (const RingPiece& piece : pieces(a))
      for (int64_t i = 0; i < piece.count; ++i)
        out[static_cast<size_t>(a * rows_ + piece.row + i)] = piece.position(i);
  return out;
}

std::vector<int64_t> RingOrder::places() const {
  std::vector<int64_t> out(static_cast<size_t>(tokens_));
  const std::vector<int64_t> all = positions();
  for (size_t row = 0; row < all.size(); ++row)
    if (all[row] >= 0) out[static_cast<size_t>(all[row])] = static_cast<int64_t>(row);
  return out;
}

int64_t RingOrder::work(int64_t rank, int64_t step, const ScoreOptions& options) const {
  const int64_t owner = (rank - step % ranks() + ranks()) % ranks();
  int64_t pairs = 0;
  for (const RingPiece& queries : pieces(rank))
    for (const RingPiece& keys : pieces(owner)) {
      const Meeting m(queries, keys, options);
      if (m.empty()) continue;
      const auto visible = m.visible(options);
      for (int64_t i = 0; i < queries.count; ++i)
        for (const KeyRange& range : visible->ranges(0, i, i + 1)) {
          if (!options.visibility)
            pairs += range.end - range.begin;
          else
            for (int64_t j = range.begin; j < range.end; ++j)
              pairs += visible->multiplicity(0, i, j) > 0 ? 1 : 0;
        }
    }
  return pairs;
}

}  // namespace tessera::ops
