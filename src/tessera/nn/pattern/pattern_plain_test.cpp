// Every pattern against its definition, one pair of positions at a time, and what attention takes
// from it: rows of counts, ranges, tiles, the past that a cache must keep.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <set>

#include "tessera/base/rng.h"
#include "tessera/base/testing.h"
#include "tessera/kernels/attention/attention_tiles.h"
#include "tessera/nn/pattern/big_bird.h"
#include "tessera/nn/pattern/dilated.h"
#include "tessera/nn/pattern/longformer.h"
#include "tessera/nn/pattern/prefix.h"
#include "tessera/nn/pattern/random.h"
#include "tessera/nn/registry.h"

namespace tessera::nn::pattern_plain_test {
namespace {

using spec::Json;

spec::AnyPart read(const std::string& json, bool causal = true) {
  register_mechanisms();
  spec::Scope scope;
  scope.causal = causal;
  scope.path = "pattern";
  return spec::read_part(spec::Slot::pattern, spec::parse_json(json, "test"), scope);
}

void expect_refused(const std::string& json, const std::string& text, bool causal = true) {
  SCOPED_TRACE(json);
  test::expect_error(ErrorKind::spec, text, [&] { read(json, causal); });
}

/// The definition: how often query i of head h counts key j, whatever j's side; causality is added.
using Definition = std::function<int64_t(const PatternSite& site, int64_t h, int64_t i, int64_t j)>;

struct Defined {
  const char* json;
  Definition times;
  bool causal_only = false;
  bool ahead = false;  // the definition says itself what is seen of later keys
  bool encoder_only = false;
};

/// Philox's numbers, as four of a counter; known answers hold the function (base/rng_test.cpp).
std::array<uint32_t, 4> philox_of(uint64_t key, uint64_t counter, uint32_t third) {
  return philox4x32(
      {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), third, 0},
      {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
}

/// The `count` of [0, n) that a row of blocks draws, by the words of random_blocks.h: a key made of
/// seed, name, layer, head and row, and Floyd's choice by its numbers in order.
std::set<int64_t> drawn_by_hand(
    uint64_t seed, const PatternSite& site, int64_t head, int64_t row, int64_t n, int64_t count) {
  uint64_t name = 14695981039346656037u;  // FNV-1a
  for (const char c : std::string("pattern.blocks"))
    name = (name ^ static_cast<uint8_t>(c)) * 1099511628211u;
  uint64_t key = seed;
  for (const uint64_t word : {name, static_cast<uint64_t>(site.layer), static_cast<uint64_t>(head),
                              static_cast<uint64_t>(row)}) {
    const auto r = philox_of(key, word, 0x7e55e3a);
    key = static_cast<uint64_t>(r[1]) << 32 | r[0];
  }
  std::set<int64_t> chosen;
  count = std::max<int64_t>(0, std::min(n, count));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t top = n - count + i;
    const uint64_t bits =
        philox_of(key, static_cast<uint64_t>(i / 4), 0)[static_cast<size_t>(i % 4)];
    const auto pick = static_cast<int64_t>(bits * static_cast<uint64_t>(top + 1) >> 32);
    chosen.insert(chosen.count(pick) > 0 ? top : pick);
  }
  return chosen;
}

int64_t one_if(bool seen) {
  return seen ? 1 : 0;
}

std::vector<Defined> all_defined() {
  const auto window = [](int64_t width, bool causal, int64_t i, int64_t j) {
    return causal ? i - j < width : std::abs(i - j) <= width / 2;
  };
  return {
      {R"({"type": "full"})", [](const auto&, auto, auto, auto) { return int64_t{1}; }},
      {R"({"type": "window", "width": 4})",
       [=](const auto& s, auto, auto i, auto j) { return one_if(window(4, s.causal, i, j)); }},
      {R"({"type": "window", "width": 6, "right": 4})",
       [](const auto&, auto, auto i, auto j) { return one_if(j >= i - 1 && j <= i + 4); }, false,
       false, true},
      {R"({"type": "chunked", "size": 5})",
       [](const auto&, auto, auto i, auto j) { return one_if(i / 5 == j / 5); }},
      {R"({"type": "sink_window", "first": 2, "width": 4})",
       [](const auto&, auto, auto i, auto j) { return one_if(j < 2 || i - j < 4); }, true},
      {R"({"type": "longformer", "width": 4})",
       [](const auto&, auto, auto i, auto j) { return one_if(std::abs(i - j) <= 2); }},
      {R"({"type": "longformer", "width": 2, "dilations": [1, 3, 2, 1], "global_tokens": [9, 2]})",
       [](const auto&, auto h, auto i, auto j) {
         const int64_t d = h == 1 ? 3 : h == 2 ? 2 : 1;
         return one_if(i == 2 || i == 9 || j == 2 || j == 9 || i == j || std::abs(i - j) == d);
       }},
      {R"({"type": "strided", "stride": 4})",
       [](const auto&, auto, auto i, auto j) {
         return one_if(std::abs(i - j) < 4 || (i - j) % 4 == 0);
       }},
      {R"({"type": "strided", "stride": 3, "combine": "alternate"})",
       [](const auto& s, auto, auto i, auto j) {
         return one_if(s.layer % 2 == 0 ? std::abs(i - j) < 3 : (i - j) % 3 == 0);
       }},
      {R"({"type": "strided", "stride": 3, "combine": "multihead"})",
       [](const auto&, auto h, auto i, auto j) {
         return one_if(h < 2 ? std::abs(i - j) < 3 : (i - j) % 3 == 0);
       }},
      {R"({"type": "fixed", "stride": 5, "summary": 2})",
       [](const auto&, auto, auto i, auto j) { return one_if(i / 5 == j / 5 || j % 5 >= 3); }},
      {R"({"type": "fixed", "stride": 7, "summary": 2, "sub_blocks": 3})",
       [](const auto&, auto h, auto i, auto j) {
         // the last two tokens of a block, the two before them, the two before these; head 3 again
         const int64_t from = h % 3 == 0 ? 5 : h % 3 == 1 ? 3 : 1;
         return one_if(i / 7 == j / 7 || j % 7 == from || j % 7 == from + 1);
       }},
      {R"({"type": "fixed", "stride": 4, "combine": "multihead"})",
       [](const auto&, auto h, auto i, auto j) {
         return one_if(h < 2 ? i / 4 == j / 4 : j % 4 == 3 || i == j);
       }},
      {R"({"type": "fixed", "stride": 4, "combine": "alternate", "self": false})",
       [](const auto& s, auto, auto i, auto j) {
         return one_if(s.layer % 2 == 0 ? i / 4 == j / 4 : j % 4 == 3);
       }},
      {R"({"type": "block_sparse", "block": 2, "local": 2, "stride": 3})",
       [](const auto& s, auto h, auto i, auto j) {
         const int64_t step = s.n_heads >= 3 ? 1 : 3 / s.n_heads;
         return one_if(std::abs(i / 2 - j / 2) < 2 || (j / 2 + h * step + 1) % 3 == 0);
       }},
      {R"({"type": "block_sparse", "block": 1, "local": 1, "stride": 9})",
       [](const auto& s, auto h, auto i, auto j) {
         const int64_t step = s.n_heads >= 9 ? 1 : 9 / s.n_heads;
         return one_if(i == j || (j + h * step + 1) % 9 == 0);
       }},
      {R"({"type": "block_sparse", "block": 3, "local": 1, "stride": 4, "shift": false})",
       [](const auto&, auto, auto i, auto j) { return one_if(i / 3 == j / 3 || j / 3 % 4 == 3); }},
      {R"({"type": "big_bird", "block": 3, "random": 2, "draw": "first_block"})",
       [](const auto& s, auto, auto i, auto j) {
         const int64_t n = (s.length + 2) / 3, a = i / 3, b = j / 3;
         if (a == 0 || (!s.causal && a == n - 1)) return int64_t{1};
         const bool held = b == 0 || std::abs(a - b) < 2 || (!s.causal && b == n - 1);
         return one_if(held) + (b == 0 ? 2 : 0);
       }},
      {R"({"type": "big_bird", "block": 2, "random": 0})",
       [](const auto& s, auto, auto i, auto j) {
         const int64_t n = (s.length + 1) / 2, a = i / 2, b = j / 2;
         return one_if(a == 0 || b == 0 || std::abs(a - b) < 2 ||
                       (!s.causal && (a == n - 1 || b == n - 1)));
       }},
      {R"({"type": "dilated", "segments": [4, 12, 12], "dilations": [1, 2, 4]})",
       [](const auto&, auto h, auto i, auto j) {
         int64_t count = one_if(i / 4 == j / 4);
         if (i / 12 == j / 12 && i % 12 % 2 == h % 2 && j % 12 % 2 == h % 2) ++count;
         if (i / 12 == j / 12 && i % 12 % 4 == h % 4 && j % 12 % 4 == h % 4) ++count;
         return count;
       }},
      {R"({"type": "dilated", "segments": [6], "dilations": [2], "offset": "blocks"})",
       [](const auto&, auto h, auto i, auto j) {
         const int64_t o = h < 2 ? 0 : 1;
         return one_if(i / 6 == j / 6 && i % 6 % 2 == o && j % 6 % 2 == o);
       }},
      {R"({"type": "random", "block": 2, "blocks": 3, "seed": 5})",
       [](const auto& s, auto h, auto i, auto j) {
         if (std::abs(i - j) < 2) return int64_t{1};
         // drawn among the earlier blocks, or among all but the own
         const int64_t row = i / 2, others = s.causal ? row : (s.length + 1) / 2 - 1, b = j / 2;
         if (b == row || (s.causal && b > row)) return int64_t{0};
         return one_if(drawn_by_hand(5, s, h, row, others, 3).count(b > row ? b - 1 : b) > 0);
       }},
      {R"({"type": "big_bird", "block": 2, "random": 2, "seed": 7})",
       [](const auto& s, auto h, auto i, auto j) {
         const int64_t n = (s.length + 1) / 2, a = i / 2, b = j / 2;
         const auto whole = [&](int64_t x) { return x == 0 || (!s.causal && x == n - 1); };
         if (whole(a) || whole(b) || std::abs(a - b) < 2) return int64_t{1};
         // of those left, those before the window come first
         std::vector<int64_t> left;
         for (int64_t x = 1; x < (s.causal ? a : n - 1); ++x)
           if (std::abs(x - a) > 1) left.push_back(x);
         for (const int64_t k : drawn_by_hand(7, s, h, a, static_cast<int64_t>(left.size()), 2))
           if (left[static_cast<size_t>(k)] == b) return int64_t{1};
         return int64_t{0};
       }},
      {R"({"type": "prefix", "length": 5})",
       [](const auto&, auto, auto i, auto j) { return one_if(j <= i || j < 5); }, true, true},
  };
}

TEST(Pattern, EveryRegisteredOneHasADefinitionHere) {
  register_mechanisms();
  std::set<std::string> registered, defined;
  for (const spec::Mechanism& mechanism : spec::mechanisms())
    if (mechanism.slot == spec::Slot::pattern) registered.insert(mechanism.name);
  for (const Defined& d : all_defined())
    defined.insert(spec::parse_json(d.json, "test").at("type").get<std::string>());
  EXPECT_EQ(defined, registered);
}

/// Everything that attention asks, against `times`.
void expect_pattern(const PatternConfig& pattern,
                    const PatternSite& site,
                    const std::function<int64_t(int64_t h, int64_t i, int64_t j)>& times) {
  const int64_t n = site.length;
  RandomKey random(7);
  uint64_t draws = 0;
  const auto below = [&](int64_t m) { return static_cast<int64_t>(random.bits(draws++)) % m; };
  const PatternVisibility asked(pattern, site);
  for (int64_t h = 0; h < site.n_heads; ++h) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t listed_to = 1 + below(n);
      std::vector<VisibleKey> listed, seen;
      asked.list(h, i, listed_to, listed);
      for (int64_t j = 0; j < listed_to; ++j)
        if (times(h, i, j) != 0) seen.push_back({j, static_cast<int8_t>(times(h, i, j))});
      ASSERT_EQ(listed.size(), seen.size()) << h << " " << i << " to " << listed_to;
      for (size_t k = 0; k < seen.size(); ++k)
        ASSERT_TRUE(listed[k].key == seen[k].key && listed[k].times == seen[k].times)
            << h << " " << i << " " << listed[k].key;
      for (int64_t j = 0; j < n; ++j) {
        const int64_t want = times(h, i, j);
        ASSERT_EQ(pattern.multiplicity(site, h, i, j), want) << h << " " << i << " " << j;
        ASSERT_TRUE(!pattern.same_for_heads() || want == times(0, i, j)) << h << " " << i;
        // what a cache keeps holds what is seen
        ASSERT_TRUE(want == 0 || !site.causal || pattern.horizon() == 0 ||
                    j > i - pattern.horizon() || j < pattern.first_kept())
            << i << " " << j;
      }
    }
    for (int round = 0; round < 60; ++round) {
      const int64_t begin = below(n), end = begin + 1 + below(std::min<int64_t>(8, n - begin));
      const auto ranges = pattern.ranges(site, h, begin, end);
      int64_t last = 0;
      std::vector<char> held(static_cast<size_t>(n));
      for (const KeyRange& r : ranges) {
        ASSERT_TRUE(r.begin >= last && r.begin < r.end && r.end <= n) << r.begin << " " << r.end;
        last = r.end;
        for (int64_t j = r.begin; j < r.end; ++j) held[static_cast<size_t>(j)] = 1;
      }
      const int64_t key = below(n), key_end = key + 1 + below(n - key);
      const Seen seen = pattern.tile(site, h, {begin, end}, {key, key_end});
      const int64_t stride = key_end - key + below(3);
      std::vector<int8_t> counts(static_cast<size_t>((end - begin) * stride), 77);
      pattern.counts(site, h, {begin, end}, {key, key_end}, counts.data(), stride);
      for (int64_t i = begin; i < end; ++i)
        for (int64_t j = 0; j < n; ++j) {
          const int64_t count = times(h, i, j);
          ASSERT_TRUE(count == 0 || held[static_cast<size_t>(j)]) << i << " sees " << j;
          if (j < key || j >= key_end) continue;
          ASSERT_EQ(counts[static_cast<size_t>((i - begin) * stride + j - key)], count)
              << h << " " << i << " " << j;
          ASSERT_TRUE(seen != Seen::none || count == 0) << i << " " << j;
          ASSERT_TRUE(seen != Seen::all || count == 1) << i << " " << j;
        }
    }
  }
}

TEST(Pattern, IsItsDefinition) {
  for (const Defined& d : all_defined())
    for (const bool causal : {true, false}) {
      if (causal ? d.encoder_only : d.causal_only) continue;
      const spec::AnyPart part = read(d.json, causal);
      for (const int64_t layer : {0, 1})
        for (const int64_t length : {1, 7, 12, 31}) {
          SCOPED_TRACE(
              fmt::format("{} causal {} layer {} length {}", d.json, causal, layer, length));
          const PatternSite site{layer, 4, length, causal};
          expect_pattern(part.as<PatternConfig>(), site, [&](int64_t h, int64_t i, int64_t j) {
            return causal && j > i && !d.ahead ? 0 : d.times(site, h, i, j);
          });
        }
    }
}

TEST(Pattern, WindowsRefuseSidesThatTheyLack) {
  expect_refused(R"({"type": "window", "width": 4, "right": 2})", "needs an encoder");
  expect_refused(R"({"type": "window", "width": 4, "right": 4})", "expected at most 3", false);
}

/// rows of "x" (seen) and "." against the mask at head 0 of a layer
void expect_mask(const char* json, int64_t layer, const std::vector<std::string>& rows) {
  const spec::AnyPart part = read(json);
  const PatternSite site{layer, 1, static_cast<int64_t>(rows.size()), true};
  for (size_t i = 0; i < rows.size(); ++i) {
    std::string row;
    for (size_t j = 0; j < rows.size(); ++j)
      row += part.as<PatternConfig>().multiplicity(site, 0, static_cast<int64_t>(i),
                                                   static_cast<int64_t>(j)) > 0
                 ? 'x'
                 : '.';
    EXPECT_EQ(row, rows[i]) << json << " row " << i;
  }
}

TEST(Pattern, GoldenMasksOfTheSparseTransformer) {
  const char* strided = R"({"type": "strided", "stride": 4, "combine": "alternate"})";
  expect_mask(strided, 0,
              {"x.......", "xx......", "xxx.....", "xxxx....", ".xxxx...", "..xxxx..", "...xxxx.",
               "....xxxx"});
  expect_mask(strided, 1,
              {"x.......", ".x......", "..x.....", "...x....", "x...x...", ".x...x..", "..x...x.",
               "...x...x"});
  const char* fixed = R"({"type": "fixed", "stride": 4, "combine": "alternate", "self": false})";
  expect_mask(fixed, 0,
              {"x.......", "xx......", "xxx.....", "xxxx....", "....x...", "....xx..", "....xxx.",
               "....xxxx"});
  expect_mask(fixed, 1,
              {"........", "........", "........", "...x....", "...x....", "...x....", "...x....",
               "...x...x"});
}

// The rule of Phi-3-small's code: heads that differ, (block + head step + 1) % stride == 0.
TEST(Pattern, GoldenMaskOfPhi3Small) {
  expect_mask(R"({"type": "block_sparse", "block": 1, "local": 2, "stride": 3})", 0,
              {"x.......", "xx......", ".xx.....", "..xx....", "..xxx...", "..x.xx..", "..x..xx.",
               "..x..xxx"});
}

/// Whether every earlier token is reached by one step of each layer.
bool connected(const char* json, int64_t n) {
  const spec::AnyPart part = read(json);
  const auto& who = part.as<PatternConfig>();
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j <= i; ++j) {
      bool reached = false;
      for (int64_t m = 0; m < n && !reached; ++m)
        reached = who.multiplicity({1, 1, n, true}, 0, i, m) > 0 &&
                  who.multiplicity({0, 1, n, true}, 0, m, j) > 0;
      if (!reached) return false;
    }
  return true;
}

TEST(Pattern, TwoStepsOfAFactorisedPatternReachEverything) {
  EXPECT_TRUE(connected(R"({"type": "strided", "stride": 5, "combine": "alternate"})", 33));
  EXPECT_FALSE(
      connected(R"({"type": "fixed", "stride": 5, "combine": "alternate", "self": false})", 33));
}

TEST(Pattern, WideEnoughIsFull) {
  for (const char* json :
       {R"({"type": "chunked", "size": 31})", R"({"type": "window", "width": 31})",
        R"({"type": "sink_window", "first": 4, "width": 27})",
        R"({"type": "strided", "stride": 31})", R"({"type": "strided", "stride": 1})",
        R"({"type": "block_sparse", "block": 4, "stride": 1})",
        R"({"type": "block_sparse", "block": 2, "local": 16, "stride": 99})",
        R"({"type": "fixed", "stride": 31})", R"({"type": "big_bird", "block": 16, "random": 0})",
        R"({"type": "dilated", "segments": [31], "dilations": [1]})"}) {
    SCOPED_TRACE(json);
    const spec::AnyPart part = read(json);
    for (int64_t i = 0; i < 31; ++i)
      for (int64_t j = 0; j <= i; ++j)
        EXPECT_EQ(part.as<PatternConfig>().multiplicity({0, 1, 31, true}, 0, i, j), 1);
  }
}

/// Pairs of a query and a key that attention looks at, whether they are seen or not.
double pairs_looked_at(const kernels::Visibility& who, int64_t length) {
  int64_t pairs = 0;
  if (who.scattered()) {
    for (int64_t i = 0; i < length; ++i)
      for (const KeyRange& range : who.ranges(0, i, i + 1)) pairs += range.end - range.begin;
    return static_cast<double>(pairs);
  }
  const char nothing = 0;
  const kernels::KeySpan span{&nothing, &nothing, 0, 0, 0, 0, 0, length, DType::f32};
  kernels::Attention a;
  a.T = length, a.H = a.G = a.K = a.V = 1;
  a.kv = {&span, 1};
  a.visible = &who;
  for (int64_t i = 0; i < kernels::tiles_per_group(a); ++i) {
    const kernels::QueryTile tile = kernels::make_tile(a, 0, i);
    for (const auto& chosen : tile.chosen)
      pairs += tile.rows * (chosen.keys.end - chosen.keys.begin);
  }
  return static_cast<double>(pairs);
}

// Work is counted, not timed: from 2048 tokens to 8192 it grows by no more than the claim says. A
// tenth more is for documents whose first tokens see less than the rest.
TEST(Pattern, WorkGrowsAsClaimed) {
  register_mechanisms();
  for (const spec::Mechanism& mechanism : spec::mechanisms()) {
    if (mechanism.slot != spec::Slot::pattern) continue;
    SCOPED_TRACE(mechanism.name);
    const auto pairs = [&](int64_t length) {
      spec::Scope scope;
      scope.causal = true;
      scope.path = "pattern";
      scope.n_heads = 2;
      const spec::AnyPart part =
          spec::read_part(spec::Slot::pattern, spec::example_part(mechanism, scope, length), scope);
      return pairs_looked_at(
          PatternVisibility(part.as<PatternConfig>(), {.n_heads = 2, .length = length}), length);
    };
    const auto claimed = [&](double length) { return spec::grown(mechanism.info.time, length); };
    EXPECT_LT(pairs(8192) / pairs(2048), 1.1 * claimed(8192) / claimed(2048));
  }
}

TEST(Pattern, DrawnBlocksAreDistinctAndDoNotDependOnTheCall) {
  const auto draws = [](const auto& pattern, const PatternSite& site, int64_t h, int64_t row) {
    return pattern.drawn(site, h, row);
  };
  std::set<std::vector<int64_t>> seen;
  for (const bool causal : {true, false}) {
    const spec::AnyPart bird = read(R"({"type": "big_bird", "block": 2, "random": 3})", causal);
    const spec::AnyPart random = read(R"({"type": "random", "block": 2, "blocks": 3})", causal);
    for (int64_t layer = 0; layer < 2; ++layer)
      for (int64_t h = 0; h < 3; ++h)
        for (int64_t row = 0; row < 20; ++row) {
          const PatternSite site{layer, 3, 40, causal};
          const auto a = draws(bird.as<BigBirdPatternConfig>(), site, h, row);
          // candidates: neither window nor first nor last block
          const int64_t last = causal ? row : 19;
          for (const int64_t b : a)
            EXPECT_TRUE(b >= 1 && b < last && std::abs(b - row) > 1) << row << " " << b;
          EXPECT_EQ(std::set<int64_t>(a.begin(), a.end()).size(), a.size());
          const int64_t before = std::max<int64_t>(0, row - 2),
                        after = causal ? 0 : std::max<int64_t>(0, 17 - row);
          EXPECT_EQ(static_cast<int64_t>(a.size()), std::min<int64_t>(3, before + after));
          const auto r = draws(random.as<RandomPatternConfig>(), site, h, row);
          for (const int64_t b : r) EXPECT_TRUE(b >= 0 && b < (causal ? row : 20) && b != row);
          EXPECT_EQ(static_cast<int64_t>(r.size()), std::min<int64_t>(3, causal ? row : 19));
          if (row == 15) seen.insert(r);
          if (causal) {
            const PatternSite longer{layer, 3, 90, true};
            EXPECT_EQ(draws(bird.as<BigBirdPatternConfig>(), longer, h, row), a);
            EXPECT_EQ(draws(random.as<RandomPatternConfig>(), longer, h, row), r);
          }
        }
    for (const spec::AnyPart* part : {&bird, &random}) {
      const auto& who = part->as<PatternConfig>();
      const PatternSite site{1, 3, 41, causal};
      expect_pattern(who, site, [&](int64_t h, int64_t i, int64_t j) -> int64_t {
        if (causal && j > i) return 0;
        const int64_t a = i / 2, b = j / 2;
        const auto own = part == &bird ? bird.as<BigBirdPatternConfig>().drawn(site, h, a)
                                       : random.as<RandomPatternConfig>().drawn(site, h, a);
        const bool drawn = std::count(own.begin(), own.end(), b) > 0;
        if (part == &random) return one_if(drawn || std::abs(i - j) < 2);
        const auto global = [&](int64_t x) { return x == 0 || (!causal && x == 20); };
        return one_if(drawn || global(a) || global(b) || std::abs(a - b) < 2);
      });
    }
  }
  EXPECT_GE(seen.size(), 10u);  // of 12 rows in other layers, heads and directions
}

TEST(Pattern, EveryBlockIsDrawnAboutEquallyOften) {
  std::vector<int> times(10);
  for (int64_t row = 0; row < 4000; ++row)
    for (const int64_t b : distinct_draws(block_row_key(3, 1, 2, row), 10, 3))
      ++times[static_cast<size_t>(b)];
  for (const int count : times) EXPECT_NEAR(count, 1200, 5 * 29);  // deviation of a binomial: 29
}

TEST(Pattern, GlobalTokensComeWithTheBatchToo) {
  const spec::AnyPart part =
      read(R"({"type": "longformer", "width": 2, "global_tokens": [1]})", false);
  PatternSite site{0, 1, 9, false};
  site.global =
      std::make_shared<const std::vector<char>>(std::vector<char>{0, 0, 0, 0, 0, 0, 1, 0, 0});
  expect_pattern(part.as<PatternConfig>(), site, [](int64_t, int64_t i, int64_t j) {
    const auto global = [](int64_t x) { return x == 1 || x == 6; };
    return one_if(std::abs(i - j) <= 1 || global(i) || global(j));
  });
}

TEST(Pattern, PrefixTokensSeeEachOther) {
  for (const auto& [json, given] : {std::pair{R"({"type": "prefix"})", int64_t{5}},
                                    std::pair{R"({"type": "prefix", "length": 5})", int64_t{0}}}) {
    const spec::AnyPart part = read(json);
    PatternSite site{0, 2, 12, true};
    site.prefix = given;
    expect_pattern(part.as<PatternConfig>(), site,
                   [](int64_t, int64_t i, int64_t j) { return one_if(j <= i || j < 5); });
    EXPECT_NO_THROW(part.as<PatternConfig>().check_call(site, 0));
    EXPECT_NO_THROW(part.as<PatternConfig>().check_call(site, 5));
    EXPECT_THROW(part.as<PatternConfig>().check_call(site, 4), Error);
  }
}

TEST(Pattern, PrefixIsNeverLongerThanWhatWasGiven) {
  const auto prefix = [](const char* json, int64_t given) {
    return read(json).as<PrefixPatternConfig>().prefix(given);
  };
  EXPECT_EQ(prefix(R"({"type": "prefix"})", 0), 0);
  EXPECT_EQ(prefix(R"({"type": "prefix"})", 7), 7);
  EXPECT_EQ(prefix(R"({"type": "prefix", "length": 5})", 0), 5);
  EXPECT_EQ(prefix(R"({"type": "prefix", "length": 5})", 3), 3);
  EXPECT_EQ(prefix(R"({"type": "prefix", "length": 5})", 7), 5);
}

TEST(Pattern, BigBirdSeesAllOfAShortDocumentWhereAsked) {
  const spec::AnyPart part = read(
      R"({"type": "big_bird", "block": 2, "random": 1, "draw": "first_block", "full_up_to": 14})",
      false);
  for (const int64_t n : {14, 15})
    EXPECT_EQ(part.as<PatternConfig>().multiplicity({0, 1, n, false}, 0, 4, 8), n == 14 ? 1 : 0);
  expect_pattern(part.as<PatternConfig>(), {0, 1, 14, false},
                 [](int64_t, int64_t, int64_t) { return int64_t{1}; });
}

TEST(Pattern, RefusesWhatCannotBe) {
  expect_refused(R"({"type": "sink_window", "width": 8})", "is causal", false);
  expect_refused(R"({"type": "longformer", "width": 5})", "width = 5; expected an even number");
  expect_refused(R"({"type": "longformer", "width": 4, "dilations": []})", "dilations = []");
  expect_refused(R"({"type": "longformer", "width": 4, "dilations": [0]})", "dilations hold 0");
  expect_refused(R"({"type": "longformer", "width": 4, "global_tokens": [3, -1]})", "hold -1");
  expect_refused(R"({"type": "fixed", "stride": 6, "summary": 4, "sub_blocks": 2})",
                 "must fit into a block");
  expect_refused(R"({"type": "big_bird", "random": 127})",
                 ".random] found 127; expected at most 126");
  expect_refused(R"({"type": "big_bird", "full_up_to": 64})", "full_up_to = 64 in a causal stack");
  expect_refused(R"({"type": "dilated", "segments": [4], "dilations": [1, 2]})",
                 "1 segments and 2 dilations");
  expect_refused(R"({"type": "dilated", "segments": [4], "dilations": [5]})", "dilations[0] = 5");
  const spec::AnyPart heads = read(R"({"type": "longformer", "width": 4, "dilations": [1, 2]})");
  EXPECT_THROW(heads.as<PatternConfig>().check_heads({}, 3), Error);
  const spec::AnyPart half = read(R"({"type": "strided", "stride": 4, "combine": "multihead"})");
  EXPECT_THROW(half.as<PatternConfig>().check_heads({}, 3), Error);
  EXPECT_NO_THROW(half.as<PatternConfig>().check_heads({}, 4));
}

}  // namespace
}  // namespace tessera::nn::pattern_plain_test
