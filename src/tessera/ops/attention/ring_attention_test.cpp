// Attention over the ranks of a ring against the definition on the whole sequence: values, sums of
// exponentials and every gradient, for all layouts.
#include "tessera/ops/attention/ring_attention.h"

#include <algorithm>
#include <numeric>

#include "tessera/ops/ops_testing.h"

namespace tessera::ops::ring_attention_test {
namespace {

constexpr RingLayout kLayouts[] = {RingLayout::contiguous, RingLayout::zigzag, RingLayout::striped};
constexpr int64_t kRanks[] = {1, 2, 3, 4, 8};

/// Positions 0 and 1 are seen by all and twice; else causal, and never a multiple of three by an
/// odd head.
class Odd final : public kernels::Visibility {
 public:
  explicit Odd(int64_t tokens) : tokens_(tokens) {}
  int64_t multiplicity(int64_t head, int64_t query, int64_t key) const override {
    if (key < 2) return 2;
    if (head % 2 == 1 && key % 3 == 0) return 0;
    return key <= query ? 1 : 0;
  }
  std::vector<kernels::KeyRange> ranges(int64_t, int64_t, int64_t end) const override {
    return {{0, std::min(tokens_, std::max<int64_t>(2, end))}};
  }
  bool same_for_heads() const override { return false; }

 private:
  int64_t tokens_;
};

/// A slope per head times the distance, and to the outputs the mean position of what is seen.
ScoreTerm sloped(const Tensor& slopes_H, const Tensor& direction_V) {
  const auto positions = [](int64_t first, int64_t step, int64_t n, const Tensor& like) {
    return (at::arange(n, at::kDouble) * step + first).to(like.scalar_type());
  };
  ScoreTerm term;
  term.inputs = {slopes_H, direction_V};
  term.bias = [positions](const ScoreBlock& b, const std::vector<Tensor>& inputs) {
    const Tensor &q = b.q_BHTD, &k = b.k_BHSD;
    const Tensor distance = positions(b.first_key, b.key_step, k.size(2), q).unsqueeze(0) -
                            positions(b.first_query, b.query_step, q.size(2), q).unsqueeze(1);
    return inputs[0].to(q.scalar_type()).reshape({1, -1, 1, 1}) * distance * b.scale;
  };
  term.values = [positions](const Tensor& weights, const ScoreBlock& b,
                            const std::vector<Tensor>& inputs) {
    const Tensor at = positions(b.first_key, b.key_step, b.k_BHSD.size(2), weights);
    return at::matmul(weights, at.unsqueeze(1)) * inputs[1].to(weights.scalar_type());
  };
  return term;
}

struct Setting {
  const char* name;
  ScoreOptions options;
  bool sinks = false, table = false, term = false, pattern = false;
};

std::vector<Setting> settings() {
  return {{"causal", {.scale = 0.6}},
          {"full", {.scale = 0.6, .causal = false}},
          {"soft-cap", {.scale = 0.9, .softcap = 1.5}},
          {"window", {.scale = 0.6, .window = 4}},
          {"window both ways", {.scale = 0.6, .causal = false, .window = 6}},
          {"sinks and a table", {.scale = 0.6}, true, true},
          {"a table both ways", {.scale = 0.6, .causal = false}, false, true},
          {"a pattern", {.scale = 0.6}, true, false, false, true},
          {"a term of scores and values", {.scale = 0.6}, false, false, true}};
}

struct Leaves {
  std::vector<std::pair<const char*, Tensor>> all;
  Leaves(int64_t t, at::ScalarType type) {
    const auto leaf = [&](const char* name, const std::vector<int64_t>& shape, double a, double b) {
      all.emplace_back(name, (gen(shape, a, b) * 1.4).to(type).requires_grad_(true));
    };
    leaf("q", {2, t, 4, 6}, 0.7371, 0.11);
    leaf("k", {2, t, 2, 6}, 1.5313, 0.29);
    leaf("v", {2, t, 2, 5}, 2.7117, 0.05);
    leaf("sinks", {4}, 0.9, 0.3);
    leaf("table", {4, 9}, 0.61, 0.7);
    leaf("slopes", {4}, 0.37, 0.2);
    leaf("direction", {5}, 1.1, 0.4);
  }
  const Tensor& operator[](size_t i) const { return all[i].second; }
  ScoreOptions options(const Setting& s) const {
    ScoreOptions o = s.options;
    if (s.sinks) o.sinks_H = all[3].second;
    if (s.table) o.term.bias_HR = all[4].second, o.term.zero = 6;
    if (s.term) o.term = sloped(all[5].second, all[6].second);
    if (s.pattern) o.visibility = std::make_shared<Odd>(all[0].second.size(1));
    return o;
  }
};

/// A loss of outputs and sums of exponentials; rows without keys have none.
void back(const PartialAttention& result, bool with_lse) {
  const Tensor& out = result.out;
  Tensor loss = (out * gen(out.sizes().vec(), 0.413, 0.2).to(out.scalar_type())).sum();
  if (with_lse)
    loss =
        loss + (result.lse * gen(result.lse.sizes().vec(), 0.77, 0.5).to(out.scalar_type())).sum();
  loss.backward();
}

/// The definition on the whole sequence, in double: out [B, T, H, V], lse [B, H, T].
PartialAttention defined(const Leaves& in, const ScoreOptions& options) {
  PartialAttention whole = attention_part(in[0].transpose(1, 2), in[1].transpose(1, 2),
                                          in[2].transpose(1, 2), 0, 0, options);
  whole.out = whole.out.transpose(1, 2);
  return whole;
}

void expect_definition(const Setting& setting, int64_t t, at::ScalarType type, double tolerance) {
  const bool exact = type == at::kDouble;
  Leaves plain(t, at::kDouble);
  const PartialAttention want = defined(plain, plain.options(setting));
  back(want, exact);
  for (const RingLayout layout : kLayouts)
    for (const int64_t p : kRanks) {
      SCOPED_TRACE(fmt::format("{}, T {}, {} ranks, layout {}", setting.name, t, p,
                               static_cast<int>(layout)));
      const Leaves in(t, type);
      const PartialAttention got =
          ring_attention(in[0], in[1], in[2], RingOrder(t, p, layout), in.options(setting));
      expect_near(got.out, want.out, tolerance, "out");
      expect_near(got.lse, want.lse, tolerance, "lse");
      back(got, exact);
      for (size_t i = 0; i < in.all.size(); ++i) {
        ASSERT_EQ(in[i].grad().defined(), plain[i].grad().defined()) << in.all[i].first;
        if (in[i].grad().defined())
          expect_near(in[i].grad(), plain[i].grad(),
                      tolerance * std::max(1.0, plain[i].grad().abs().max().item<double>()),
                      in.all[i].first);
      }
    }
}

TEST(RingAttention, IsAttentionOfTheWholeSequence) {
  for (const Setting& setting : settings())
    for (const int64_t t : {1, 18}) expect_definition(setting, t, at::kDouble, 1e-11);
}

TEST(RingAttention, ByTilesInFloat32) {
  for (const Setting& setting : settings())
    if (!setting.term)
      for (const int64_t t : {5, 67}) expect_definition(setting, t, at::kFloat, 2e-5);
}

TEST(RingAttention, SixteenBitFloatsKeepTheirType) {
  const Leaves in(9, at::kBFloat16);
  const PartialAttention got =
      ring_attention(in[0], in[1], in[2], RingOrder(9, 2, RingLayout::striped), {.scale = 0.6});
  EXPECT_EQ(got.out.scalar_type(), at::kBFloat16);
  back({got.out, {}}, false);
  EXPECT_EQ(in[0].grad().scalar_type(), at::kBFloat16);
  Leaves plain(9, at::kDouble);
  expect_near(got.out, defined(plain, {.scale = 0.6}).out, 0.05);
}

TEST(RingAttention, OrderOfTheBlocksDoesNotMatter) {
  constexpr int64_t kTokens = 22, kParts = 4;
  const Leaves in(kTokens, at::kDouble);
  const ScoreOptions options{.scale = 0.6};
  const RingOrder order(kTokens, kParts, RingLayout::striped);
  const RingPiece own = order.pieces(1)[0];
  const auto rows = [](const Tensor& x, const RingPiece& piece) {  // of a stripe
    return x.transpose(1, 2).slice(2, piece.first, std::nullopt, piece.step);
  };
  std::vector<PartialAttention> parts;
  for (int64_t b = 0; b < kParts; ++b) {
    const RingPiece keys = order.pieces(b)[0];
    parts.push_back(attention_part(rows(in[0], own), rows(in[1], keys), rows(in[2], keys), 0, 0,
                                   Meeting(own, keys, options).numbered(options)));
  }
  const PartialAttention whole = defined(in, options);
  std::vector<size_t> turn{0, 1, 2, 3};
  do {
    PartialAttention sum = parts[turn[0]];
    for (size_t i = 1; i < turn.size(); ++i) sum = attention_merge(sum, parts[turn[i]]);
    expect_near(sum.out, rows(whole.out, own), 1e-12);
    expect_near(sum.lse, whole.lse.slice(2, own.first, std::nullopt, own.step), 1e-12);
  } while (std::next_permutation(turn.begin(), turn.end()));
}

// --- layouts
// -----------------------------------------------------------------------------------------

TEST(RingOrder, EveryPositionHasOnePlaceAndComesBack) {
  for (const RingLayout layout : kLayouts)
    for (const int64_t p : kRanks)
      for (const int64_t t : {1, 2, 7, 16, 33}) {
        const RingOrder order(t, p, layout);
        const auto positions = order.positions(), places = order.places();
        ASSERT_EQ(static_cast<int64_t>(positions.size()), p * order.rows());
        ASSERT_EQ(static_cast<int64_t>(places.size()), t);
        for (int64_t i = 0; i < t; ++i)
          EXPECT_EQ(positions[static_cast<size_t>(places[static_cast<size_t>(i)])], i);
        EXPECT_EQ(std::count(positions.begin(), positions.end(), -1), p * order.rows() - t);
      }
}

TEST(RingOrder, LayoutsHoldWhatTheySay) {
  const auto rows = [](RingLayout layout) { return RingOrder(8, 2, layout).positions(); };
  using Positions = std::vector<int64_t>;
  EXPECT_EQ(rows(RingLayout::contiguous), (Positions{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(rows(RingLayout::zigzag), (Positions{0, 1, 6, 7, 2, 3, 4, 5}));
  EXPECT_EQ(rows(RingLayout::striped), (Positions{0, 2, 4, 6, 1, 3, 5, 7}));
}

TEST(RingOrder, StripesAndZigzagsShareTheWork) {
  constexpr int64_t kTokens = 64, kParts = 4;
  const ScoreOptions causal;
  const auto of_rank = [&](RingLayout layout, int64_t rank) {
    int64_t sum = 0;
    for (int64_t s = 0; s < kParts; ++s)
      sum += RingOrder(kTokens, kParts, layout).work(rank, s, causal);
    return sum;
  };
  for (const RingLayout layout : kLayouts) {
    int64_t all = 0;
    for (int64_t a = 0; a < kParts; ++a) all += of_rank(layout, a);
    EXPECT_EQ(all, kTokens * (kTokens + 1) / 2);  // each pair once
  }
  // contiguous: rank 0 sees its own triangle, the last rank three blocks besides
  EXPECT_EQ(of_rank(RingLayout::contiguous, 0), 16 * 17 / 2);
  EXPECT_EQ(of_rank(RingLayout::contiguous, 3), 16 * 17 / 2 + 3 * 16 * 16);
  for (int64_t a = 0; a < kParts; ++a)
    EXPECT_EQ(of_rank(RingLayout::zigzag, a), kTokens * (kTokens + 1) / 2 / kParts);
  // striped: at every step each rank has a triangle, with its diagonal or without
  const RingOrder stripes(kTokens, kParts, RingLayout::striped);
  for (int64_t a = 0; a < kParts; ++a)
    for (int64_t s = 0; s < kParts; ++s)
      EXPECT_EQ(stripes.work(a, s, causal), s <= a ? 16 * 17 / 2 : 16 * 15 / 2);
}

// --- transport
// ---------------------------------------------------------------------------------------

TEST(LocalRing, HandsCopiesToTheNextRank) {
  LocalRing ring(3);
  Tensor k = gen({1, 2, 1, 2}, 0.3, 0.1);
  ring.at(2).send({2, k, k, {}, {}});
  k.zero_();
  const RingBlock got = ring.at(0).receive();
  EXPECT_EQ(got.owner, 2);
  expect_near(got.k_BNGK, gen({1, 2, 1, 2}, 0.3, 0.1), 0);
  EXPECT_FALSE(got.dk.defined());
  EXPECT_THROW(ring.at(0).receive(), Error);
}

TEST(RingAttention, RefusesWhatCannotBeSpread) {
  const Leaves in(4, at::kDouble);
  ScoreOptions options{.scale = 0.6, .dropout = {.p = 0.1}};
  const RingOrder order(4, 2, RingLayout::striped);
  EXPECT_THROW(ring_attention(in[0], in[1], in[2], order, options), Error);
  options.dropout = {};
  EXPECT_THROW(ring_attention(in[0], in[1], in[2], RingOrder(5, 2, RingLayout::striped), options),
               Error);
}

}  // namespace
}  // namespace tessera::ops::ring_attention_test
