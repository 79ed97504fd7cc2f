// Tiled attention against the definition in double: values and every gradient.
#include "tessera/ops/attention/flash_attention.h"

#include "tessera/base/threads.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::ops::flash_attention_test {
namespace {

struct Sizes {
  int64_t b = 2, t = 63, s = 63, h = 2, g = 2, k = 8, v = 8;
};

struct Leaves {
  Tensor q, k, v, sinks, bias;

  /// Numbers of type `rounding`, held as `type`.
  Leaves(const Sizes& n,
         at::ScalarType rounding,
         at::ScalarType type,
         int64_t bias_heads,
         int64_t distances) {
    const auto leaf = [&](const std::vector<int64_t>& shape, double a, double b) {
      // spread out, so that weights are neither equal nor one
      return (gen(shape, a, b) * 1.5).to(rounding).to(type).requires_grad_(true);
    };
    q = leaf({n.b, n.t, n.h, n.k}, 0.7371, 0.11);
    k = leaf({n.b, n.s, n.g, n.k}, 1.5313, 0.29);
    v = leaf({n.b, n.s, n.g, n.v}, 2.7117, 0.05);
    sinks = leaf({n.h}, 0.9, 0.3);
    bias = leaf({bias_heads, distances}, 0.61, 0.7);
  }
  std::vector<std::pair<const char*, Tensor>> all() const {
    return {{"q", q}, {"k", k}, {"v", v}, {"sinks", sinks}, {"bias", bias}};
  }
};

struct Setting {
  const char* name;
  ScoreOptions options;
  bool sinks = false, bias = false;
  int64_t bias_heads = 0;  // 0: one per head
};

double largest(const Tensor& x) {
  return x.abs().max().item<double>();
}

double error(const Tensor& got, const Tensor& want) {
  const Tensor a = got.to(at::kDouble);
  if (a.sizes() != want.sizes() || !at::isfinite(a).all().item<bool>()) return 1e9;
  return largest(a - want);
}

void expect_definition(const Sizes& n,
                       const Setting& setting,
                       int64_t start = 0,
                       int64_t first = 0,
                       at::ScalarType type = at::kFloat) {
  SCOPED_TRACE(fmt::format("{}: B {} T {} S {} H {} G {} K {} V {}, from {} and {}", setting.name,
                           n.b, n.t, n.s, n.h, n.g, n.k, n.v, start, first));
  constexpr int64_t kDistances = 21;
  const int64_t bias_heads = setting.bias_heads > 0 ? setting.bias_heads : n.h;
  const auto run = [&](const Leaves& x, bool fast) {
    ScoreOptions o = setting.options;
    o.scale = 0.8 / std::sqrt(static_cast<double>(n.k));
    if (setting.sinks) o.sinks_H = x.sinks;
    if (setting.bias) o.term.bias_HR = x.bias, o.term.zero = 15;
    const Tensor out = fast ? flash_attention(x.q, x.k, x.v, start, first, o)
                            : attention_plain(x.q.transpose(1, 2), x.k.transpose(1, 2),
                                              x.v.transpose(1, 2), start, first, o)
                                  .transpose(1, 2);
    (out * gen(out.sizes().vec(), 0.31, 0.5).to(type).to(out.scalar_type())).sum().backward();
    return out.detach();
  };
  const Leaves exact(n, type, at::kDouble, bias_heads, kDistances);
  const Leaves fast(n, type, type, bias_heads, kDistances);
  const Tensor want = run(exact, false), got = run(fast, true);
  EXPECT_EQ(got.scalar_type(), type);
  // the project's bounds for float32; with 16 bits, the rounding of the results alone
  const double forward = type == at::kFloat ? 1e-5 : 4e-3, unit = type == at::kFloat ? 1e-4 : 4e-3;
  EXPECT_LE(error(got, want), forward * std::max(0.1, largest(want)));
  const auto wants = exact.all(), gots = fast.all();
  double scale = 0;
  for (size_t i = 0; i < 3; ++i) scale = std::max(scale, largest(wants[i].second.grad()));
  for (size_t i = 0; i < wants.size(); ++i) {
    const bool used = i < 3 || (i == 3 ? setting.sinks : setting.bias);
    if (!used) continue;
    ASSERT_TRUE(gots[i].second.grad().defined()) << gots[i].first;
    const Tensor& gradient = wants[i].second.grad();
    // what is zero but for rounding has no relative error
    EXPECT_LE(error(gots[i].second.grad(), gradient),
              unit * std::max(largest(gradient), 0.01 * scale))
        << gots[i].first;
  }
}

/// Own key, every third one, the first of them twice; head 1 does not see key 3; rows 5 and 40 see
/// nothing.
class Holes final : public kernels::Visibility {
 public:
  explicit Holes(int64_t keys) : keys_(keys) {}
  int64_t multiplicity(int64_t head, int64_t query, int64_t key) const override {
    if (key > query || query == 5 || query == 40 || (head == 1 && key == 3)) return 0;
    return key == 0 ? 2 : key % 3 == 0 || key == query ? 1 : 0;
  }
  std::vector<kernels::KeyRange> ranges(int64_t, int64_t, int64_t end) const override {
    return {{0, std::min(end, keys_)}};
  }
  bool same_for_heads() const override { return false; }

 private:
  int64_t keys_;
};

/// Blocks of 50: a query sees its own block and the first one, all of them; tiles say so.
class Blocks final : public kernels::Visibility {
 public:
  int64_t multiplicity(int64_t, int64_t query, int64_t key) const override {
    return key / 50 == query / 50 || key < 50 ? 1 : 0;
  }
  std::vector<kernels::KeyRange> ranges(int64_t, int64_t begin, int64_t end) const override {
    const int64_t from = std::max<int64_t>(50, begin / 50 * 50);
    if (begin < 50) return {{0, (end + 49) / 50 * 50}};
    return {{0, 50}, {from, (end + 49) / 50 * 50}};
  }
  kernels::Seen tile(int64_t, kernels::KeyRange q, kernels::KeyRange k) const override {
    if (k.end <= 50) return kernels::Seen::all;
    if (k.begin / 50 > (q.end - 1) / 50) return kernels::Seen::none;
    return kernels::Seen::some;
  }
};

std::vector<Setting> settings() {
  return {{"causal", {}},
          {"bidirectional", {.causal = false}},
          {"window", {.window = 10}},
          {"symmetric window", {.causal = false, .window = 11}},
          {"softcap", {.softcap = 1.5}},
          {"sinks", {}, true},
          {"bias", {}, false, true},
          {"one bias for all heads", {.causal = false}, false, true, 1},
          {"dropout", {.dropout = {.p = 0.3, .key = RandomKey(7)}}},
          {"everything",
           {.softcap = 1.5, .window = 30, .dropout = {.p = 0.2, .key = RandomKey(8)}},
           true,
           true}};
}

TEST(FlashAttention, IsTheDefinitionAtOddLengths) {
  for (const Setting& setting : settings())
    for (const int64_t t : {1, 7, 63, 129}) expect_definition({2, t, t, 2, 2, 8, 8}, setting);
}

TEST(FlashAttention, ServesAnyHeadsAndWidths) {
  const Setting all{"everything", {.softcap = 1.5, .window = 70}, true, true};
  expect_definition({1, 100, 100, 6, 2, 16, 16}, all);
  expect_definition({2, 65, 65, 5, 1, 7, 3}, all);
  expect_definition({1, 97, 97, 3, 3, 33, 65}, all);
  expect_definition({1, 200, 200, 2, 1, 64, 128}, {"plain", {}});
  expect_definition({1, 300, 300, 64, 1, 4, 4}, {"more heads than rows of a tile", {}});
}

TEST(FlashAttention, ContinuesAPast) {
  expect_definition({1, 20, 120, 4, 2, 8, 8}, {"causal", {}}, 100, 0);
  expect_definition({1, 20, 110, 4, 2, 8, 8}, {"window", {.window = 12}, true, true}, 100, 10);
  // keys after all queries, and a window that ends before the first key: rows without keys
  expect_definition({1, 30, 30, 2, 1, 8, 8}, {"nothing to see", {}}, 0, 10);
  expect_definition({1, 30, 30, 2, 1, 8, 8}, {"nothing to see, sinks", {}, true}, 0, 10);
}

TEST(FlashAttention, PatternsCountKeysAndHideTiles) {
  for (const int64_t t : {1, 63, 129, 250}) {
    for (const bool sinks : {false, true}) {
      expect_definition({1, t, t, 2, 1, 8, 8},
                        {"holes", {.visibility = std::make_shared<Holes>(t)}, sinks, sinks});
      expect_definition({2, t, t, 4, 2, 8, 8},
                        {"blocks", {.visibility = std::make_shared<Blocks>()}, sinks, sinks});
    }
  }
}

TEST(FlashAttention, ServesSixteenBits) {
  expect_definition({2, 40, 40, 4, 2, 8, 8}, {"causal", {}, true}, 0, 0, at::kBFloat16);
}

TEST(FlashAttention, ReadsTensorsOfAnyLayout) {
  const Tensor all = gen({2, 50, 4, 24}, 0.37, 0.2).to(at::kFloat);
  const auto part = [&](int64_t i) { return all.narrow(3, 8 * i, 8); };
  const Tensor want =
      flash_attention(part(0).contiguous(), part(1).contiguous(), part(2).contiguous(), 0, 0, {});
  EXPECT_TRUE(at::equal(flash_attention(part(0), part(1), part(2), 0, 0, {}), want));
  const auto heads_first = [&](int64_t i) {
    return part(i).transpose(1, 2).contiguous().transpose(1, 2);
  };
  EXPECT_TRUE(
      at::equal(flash_attention(heads_first(0), heads_first(1), heads_first(2), 0, 0, {}), want));
}

TEST(FlashAttention, ThreadsDoNotChangeTheBits) {
  const int before = thread_count();
  const auto run = [&](int threads, int64_t groups) {
    set_thread_count(threads);
    const Sizes n{1, 400, 400, 4, groups, 16, 16};
    const Leaves x(n, at::kFloat, at::kFloat, 4, 21);
    ScoreOptions o{.scale = 0.3, .sinks_H = x.sinks};
    o.term.bias_HR = x.bias;
    o.term.zero = 15;
    const Tensor out = flash_attention(x.q, x.k, x.v, 0, 0, o);
    out.square().sum().backward();
    return std::vector<Tensor>{out,        x.q.grad(),     x.k.grad(),
                               x.v.grad(), x.sinks.grad(), x.bias.grad()};
  };
  for (const int64_t groups : {1, 4}) {
    const auto one = run(1, groups), two = run(2, groups);
    for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], two[i])) << i;
  }
  set_thread_count(before);
}

TEST(FlashAttention, DocumentsOneAfterAnotherAreDocumentsByThemselves) {
  const std::vector<int64_t> lengths{5, 1, 130, 17, 2, 45};
  const Sizes n{.b = 1, .t = 200, .s = 200, .h = 4, .g = 2};
  for (const Setting& setting : settings()) {
    SCOPED_TRACE(setting.name);
    std::vector<RandomKey> streams;
    for (const int64_t length : lengths)
      streams.push_back(RandomKey(4).fold(static_cast<uint64_t>(length)));
    const auto run = [&](at::ScalarType type) {
      const Leaves x(n, at::kFloat, type, 4, 21);
      ScoreOptions o = setting.options;
      o.scale = 0.3;
      if (setting.sinks) o.sinks_H = x.sinks;
      if (setting.bias) o.term.bias_HR = x.bias, o.term.zero = 15;
      const Tensor q = x.q.squeeze(0), k = x.k.squeeze(0), v = x.v.squeeze(0);
      std::vector<Tensor> alone;
      for (int64_t i = 0, first = 0; i < static_cast<int64_t>(lengths.size()); ++i) {
        const int64_t length = lengths[static_cast<size_t>(i)];
        const auto cut = [&](const Tensor& all) {
          return all.narrow(0, first, length).unsqueeze(0).transpose(1, 2);
        };
        o.dropout.streams = {streams[static_cast<size_t>(i)]};
        if (type == at::kDouble)
          alone.push_back(
              attention_plain(cut(q), cut(k), cut(v), 0, 0, o).transpose(1, 2).squeeze(0));
        first += length;
      }
      o.dropout.streams = streams;
      const Tensor out = type == at::kDouble
                             ? at::cat(alone)
                             : flash_documents(q, k, v, lengths, lengths, o);
      (out * gen(out.sizes().vec(), 0.31, 0.5).to(type)).sum().backward();
      return std::vector<Tensor>{out.detach(), x.q.grad(), x.k.grad(), x.v.grad()};
    };
    const auto want = run(at::kDouble), got = run(at::kFloat);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_LE(error(got[i], want[i]), 1e-5 * largest(want[i])) << i;
  }
}

TEST(FlashAttention, DocumentsMayHaveKeysOfTheirOwn) {
  const std::vector<int64_t> lengths{5, 1, 130, 17, 2, 45}, keys{3, 0, 20, 130, 7, 1};
  const Sizes n{.b = 1, .t = 200, .s = 161, .h = 4, .g = 2};
  const ScoreOptions o{.scale = 0.3, .softcap = 2, .causal = false};
  const auto run = [&](at::ScalarType type) {
    const Leaves x(n, at::kFloat, type, 4, 21);
    const Tensor q = x.q.squeeze(0), k = x.k.squeeze(0), v = x.v.squeeze(0);
    std::vector<Tensor> alone;
    int64_t first = 0, first_key = 0;
    for (size_t i = 0; i < lengths.size(); first += lengths[i], first_key += keys[i], ++i) {
      const auto cut = [](const Tensor& all, int64_t begin, int64_t length) {
        return all.narrow(0, begin, length).unsqueeze(0).transpose(1, 2);
      };
      if (type == at::kDouble)
        alone.push_back(attention_plain(cut(q, first, lengths[i]), cut(k, first_key, keys[i]),
                                        cut(v, first_key, keys[i]), 0, 0, o)
                            .transpose(1, 2)
                            .squeeze(0));
    }
    const Tensor out =
        type == at::kDouble ? at::cat(alone) : flash_documents(q, k, v, lengths, keys, o);
    (out * gen(out.sizes().vec(), 0.31, 0.5).to(type)).sum().backward();
    return std::vector<Tensor>{out.detach(), x.q.grad(), x.k.grad(), x.v.grad()};
  };
  const auto want = run(at::kDouble), got = run(at::kFloat);
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_LE(error(got[i], want[i]), (i == 0 ? 1e-5 : 1e-4) * largest(want[i])) << i;
  EXPECT_THROW(flash_documents(at::zeros({2, 1, 4}), at::zeros({2, 1, 4}), at::zeros({2, 1, 4}),
                               {1, 1}, {2}, {}),
               Error);
}

/// What the first three keys meet is another query; float32 goes through the tiles.
TEST(FlashAttention, FarQueriesMeetTheFirstKeys) {
  const Sizes n{.t = 60, .s = 60, .h = 4, .g = 2};
  const auto run = [&](at::ScalarType type) {
    Leaves x(n, at::kFloat, type, 1, 1);
    const Tensor far_q =
        (gen(x.q.sizes().vec(), 0.413, 0.7) * 1.5).to(at::kFloat).to(type).requires_grad_(true);
    ScoreOptions o;
    o.scale = 0.3;
    o.visibility = std::make_shared<Holes>(n.s);
    o.far_q = far_q, o.far_end = 3;
    const Tensor out = attention_equal(x.q, x.k, x.v, o);
    (out * gen(out.sizes().vec(), 0.31, 0.5).to(type)).sum().backward();
    return std::vector<Tensor>{out.detach(), x.q.grad(), far_q.grad(), x.k.grad(), x.v.grad()};
  };
  const auto want = run(at::kDouble), got = run(at::kFloat);
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_LE(error(got[i], want[i]), 1e-5 * largest(want[i])) << i;
  // the far queries are read, and not by the other keys alone
  EXPECT_GT(largest(want[2]), 0.01);
  EXPECT_GT(largest(want[1]), 0.01);
}

}  // namespace
}  // namespace tessera::ops::flash_attention_test
