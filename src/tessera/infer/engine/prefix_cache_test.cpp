#include "tessera/infer/engine/prefix_cache.h"

#include <set>

#include "tessera/base/testing.h"
#include "tessera/infer/engine/beam.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/infer/infer_testing.h"

namespace tessera::infer::prefix_cache_test {
namespace {

using Ids = std::vector<int64_t>;

std::vector<Ids> tokens_of(const Generations& generations) {
  std::vector<Ids> rows;
  for (const Generation& row : generations.rows) rows.push_back(row.token_ids);
  return rows;
}

Ids behind(Ids begin, const Ids& rest) {
  begin.insert(begin.end(), rest.begin(), rest.end());
  return begin;
}

/// Prompts with a common beginning, with none, one within another, and two alike.
std::vector<Ids> prompts() {
  const Ids base = random_tokens(21, 1);
  return {behind(base, random_tokens(4, 2)),
          behind(base, random_tokens(9, 3)),
          random_tokens(8, 4),
          base,
          behind(base, random_tokens(4, 2)),
          behind(Ids(base.begin(), base.begin() + 13), random_tokens(6, 5))};
}

/// Runs of everything that a cache sees over its life, against runs without one.
void expect_same(const model::Model& model,
                 GenerateOptions options,
                 const PrefixCacheOptions& cached) {
  const auto want = [&](const std::vector<Ids>& asked) {
    GenerateOptions plain = options;
    plain.prefix_cache = nullptr;
    return tokens_of(generate(model, nullptr, asked, plain));
  };
  PrefixCache cache(model, cached);
  options.prefix_cache = &cache;
  const std::vector<Ids> all = prompts();
  const std::vector<std::vector<Ids>> calls = {{all[1]}, all, {all[0]}, {all[3], all[5]}, all};
  for (const std::vector<Ids>& asked : calls) {
    const Generations got = generate(model, nullptr, asked, options);
    EXPECT_EQ(tokens_of(got), want(asked));
    EXPECT_LE(cache.bytes(), cached.budget_bytes);
    for (const Generation& row : got.rows) EXPECT_LE(row.cached_tokens, row.prompt_tokens);
  }
  // what was said is a beginning too
  const Ids longer = behind(behind(all[0], want({all[0]})[0]), random_tokens(3, 9));
  EXPECT_EQ(tokens_of(generate(model, nullptr, {longer}, options)), want({longer}));
  EXPECT_GT(cache.stats().hits, 0);
}

class Prefixes : public ::testing::TestWithParam<std::pair<std::string, std::string>> {};

TEST_P(Prefixes, TextIsThatWithoutACache) {
  const model::Model model = tiny_model(GetParam().second, 7);
  GenerateOptions options;
  options.max_new_tokens = 14;
  for (const double temperature : {0.0, 0.9})
    for (const int64_t chunk : {1000, 5}) {
      options.sampling.temperature = temperature;
      options.prefill_chunk = chunk;
      expect_same(model, options, {.snapshot_every = 8, .least = 2});
    }
}

TEST_P(Prefixes, TextIsThatWithoutACacheWhenGuessing) {
  const model::Model model = tiny_model(GetParam().second, 7);
  GenerateOptions options;
  options.max_new_tokens = 14;
  options.speculation.lookup = 3;
  expect_same(model, options, {.snapshot_every = 8, .least = 2});
}

TEST_P(Prefixes, ALittleBudgetOnlyForgets) {
  const model::Model model = tiny_model(GetParam().second, 7);
  GenerateOptions options;
  options.max_new_tokens = 6;
  PrefixCache whole(model, {.snapshot_every = 8, .least = 2});
  options.prefix_cache = &whole;
  generate(model, nullptr, prompts(), options);
  ASSERT_EQ(whole.stats().evictions, 0);
  ASSERT_GT(whole.size(), 1);
  expect_same(model, options, {.budget_bytes = whole.bytes() / 2, .snapshot_every = 8, .least = 2});
  PrefixCache little(model, {.budget_bytes = whole.bytes() / 2, .snapshot_every = 8, .least = 2});
  options.prefix_cache = &little;
  generate(model, nullptr, prompts(), options);
  EXPECT_GT(little.stats().evictions, 0);
  EXPECT_GT(little.size(), 0);
}

// a second run of the same prompts computes at most their last tokens
TEST_P(Prefixes, WhatWasSeenIsNotComputed) {
  const model::Model model = tiny_model(GetParam().second, 7);
  GenerateOptions options;
  options.max_new_tokens = 2;
  PrefixCache cache(model, {.snapshot_every = 8, .least = 2});
  options.prefix_cache = &cache;
  const std::vector<Ids> asked = prompts();
  // of the five that share, four begin with another's work; every beginning is computed once
  std::set<Ids> beginnings;
  for (const Ids& prompt : asked)
    for (auto end = prompt.begin(); end != prompt.end();) beginnings.emplace(prompt.begin(), ++end);
  const Generations first = generate(model, nullptr, asked, options);
  EXPECT_EQ(cache.stats().hits, 4);
  EXPECT_EQ(first.prefill_tokens, static_cast<int64_t>(beginnings.size()));
  const Generations second = generate(model, nullptr, asked, options);
  EXPECT_LE(second.prefill_tokens, static_cast<int64_t>(asked.size()));
  // and a new one only what nobody has said; a state that cannot be cut goes back to a snapshot
  const Ids fresh =
      behind(Ids(asked[0].begin(), asked[0].begin() + 19), {(asked[0][19] + 1) % 23, 2, 3});
  const Generation row = generate(model, nullptr, {fresh}, options).rows[0];
  EXPECT_GE(row.cached_tokens, 16);
  EXPECT_LE(row.cached_tokens, 19);
}

INSTANTIATE_TEST_SUITE_P(Kinds,
                         Prefixes,
                         ::testing::ValuesIn(tiny_memories()),
                         [](const auto& info) { return info.param.first; });

class PairPrefixes : public ::testing::TestWithParam<const char*> {};

TEST_P(PairPrefixes, EqualSourcesAreReadOnce) {
  const model::Model model = tiny_pair(GetParam(), 7);
  GenerateOptions options;
  options.max_new_tokens = 9;
  const Ids a = random_tokens(12, 1), b = random_tokens(7, 2);
  const Ids c = behind(a, {4});  // begins alike, which does not help an encoder
  const auto want = tokens_of(generate(model, nullptr, {a, b, a, c}, options));
  PrefixCache cache(model, {.snapshot_every = 4, .least = 2});
  options.prefix_cache = &cache;
  const Generations first = generate(model, nullptr, {a, b, a, c}, options);
  EXPECT_EQ(tokens_of(first), want);
  EXPECT_EQ(cache.stats().hits, 1);
  EXPECT_EQ(first.prefill_tokens, 12 + 7 + 13);
  const Generations second = generate(model, nullptr, {c, b}, options);
  EXPECT_EQ(tokens_of(second), (std::vector<Ids>{want[3], want[1]}));
  EXPECT_EQ(second.prefill_tokens, 0);
  EXPECT_EQ(second.rows[0].cached_tokens, 13);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    PairPrefixes,
    ::testing::Values(R"({"type": "attention", "n_heads": 2, "position": "rope"})",
                      R"({"type": "mamba2", "n_heads": 4, "d_state": 8})"));

TEST(PrefixCache, ServesBeams) {
  for (const auto& [name, layers] : tiny_layers()) {
    const model::Model model = tiny_model(layers, 7);
    GenerateOptions options;
    options.max_new_tokens = 8;
    const auto want = tokens_of(beam_search(model, nullptr, prompts(), options, {.beams = 3}));
    PrefixCache cache(model, {.snapshot_every = 8, .least = 2});
    options.prefix_cache = &cache;
    const Generations got = beam_search(model, nullptr, prompts(), options, {.beams = 3});
    EXPECT_EQ(tokens_of(got), want) << name;
    EXPECT_GT(got.rows[4].cached_tokens, 20) << name;  // the first prompt again
    EXPECT_EQ(got.rows[2].cached_tokens, 0) << name;
  }
}

// --- the tree

/// A cache of a model, and states made for it token by token.
struct Tree {
  model::Model model;
  PrefixCache cache;
  explicit Tree(const std::string& kind, PrefixCacheOptions options = {.least = 1})
      : model(tiny_model(layers(kind), 1)), cache(model, options) {}

  static std::string layers(const std::string& kind) {
    for (const auto& [name, layers] : tiny_layers())
      if (name == kind) return layers;
    return "";
  }
  void add(const Ids& tokens) {
    const at::NoGradGuard no_gradients;
    model::State state(model.spec(), 1);
    model::ForwardOptions forward;
    forward.state = &state;
    const Tensor hidden = model.hidden(nn::Batch::of(std::vector<Ids>{tokens}), forward);
    cache.add({{}, tokens}, static_cast<int64_t>(tokens.size()), {}, std::move(state),
              hidden.select(0, -1).clone());
  }
  /// Tokens of the longest beginning, -1 = none; a "!" where nothing is left to feed.
  std::string find(const Ids& tokens) {
    const auto hit = cache.find({{}, tokens}, {});
    if (!hit) return "-";
    EXPECT_EQ(hit->state->length(0), hit->tokens);
    return std::to_string(hit->tokens) +
           (hit->tokens == static_cast<int64_t>(tokens.size()) && hit->last.defined() ? "!" : "");
  }
};

TEST(PrefixCache, StatesOfTokensAreCut) {
  Tree tree("attention");
  EXPECT_TRUE(tree.cache.cuts());
  EXPECT_EQ(tree.find({1, 2}), "-");
  tree.add({1, 2, 3, 4, 5});
  EXPECT_EQ(tree.find({1, 2, 3, 4, 5}), "5!");
  EXPECT_EQ(tree.find({1, 2, 3, 4, 5, 6}), "5");
  EXPECT_EQ(tree.find({1, 2, 3}), "2");  // one is fed for its logits
  EXPECT_EQ(tree.find({1, 2, 7, 7}), "2");
  EXPECT_EQ(tree.find({2, 1}), "-");
  // a longer one serves all that a shorter one did
  tree.add({1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(tree.cache.size(), 1);
  EXPECT_FALSE(tree.cache.wants({{}, {1, 2, 3}}, 3, {}));
  EXPECT_TRUE(tree.cache.wants({{}, {1, 2, 9}}, 3, {}));
  tree.add({1, 2, 9});
  EXPECT_EQ(tree.cache.size(), 2);
  EXPECT_EQ(tree.find({1, 2, 9, 9}), "3");
  EXPECT_EQ(tree.find({1, 2, 3, 4, 9}), "4");
}

TEST(PrefixCache, RecurrentStatesAreTakenWhole) {
  Tree tree("mamba2");
  EXPECT_FALSE(tree.cache.cuts());
  tree.add({1, 2, 3, 4});
  tree.add({1, 2});
  tree.add({1, 2, 3, 9, 9});
  EXPECT_EQ(tree.cache.size(), 3);
  EXPECT_EQ(tree.find({1, 2, 3}), "2");
  EXPECT_EQ(tree.find({1, 2, 3, 4}), "4!");
  EXPECT_EQ(tree.find({1, 2, 3, 4, 5}), "4");
  EXPECT_EQ(tree.find({1, 2, 3, 9}), "2");
  EXPECT_EQ(tree.find({1}), "-");
  EXPECT_FALSE(tree.cache.wants({{}, {1, 2, 7}}, 2, {}));
  EXPECT_TRUE(tree.cache.wants({{}, {1, 2, 3}}, 3, {}));
}

TEST(PrefixCache, KindsAndSourcesAreApart) {
  Tree tree("attention");
  tree.add({1, 2, 3, 4});
  EXPECT_FALSE(tree.cache.find({{}, {1, 2, 3, 4}}, {.max_pending = 5}));
  EXPECT_FALSE(tree.cache.find({{}, {1, 2, 3, 4}}, {.kv = spec::KvType::int8}));
  EXPECT_FALSE(tree.cache.find({{}, {1, 2, 3, 4}}, {.angles_until = 64}));
  EXPECT_FALSE(tree.cache.find({{1, 2, 3, 4}, {1}}, {}));
  EXPECT_TRUE(tree.cache.find({{}, {1, 2, 3, 4}}, {}));
  Sequence salted{{}, {1, 2, 3, 4}};
  for (const int64_t salt : {int64_t{3}, Sequence::kAlone}) {
    salted.salt = salt;
    EXPECT_FALSE(tree.cache.find(salted, {}));
    EXPECT_EQ(tree.cache.wants(salted, 4, {}), salt != Sequence::kAlone);
  }
}

TEST(PrefixCache, TheLeastRecentlyUsedGoesFirst) {
  Tree probe("mamba2");
  probe.add({1, 2, 3});
  const int64_t one = probe.cache.bytes();
  Tree tree("mamba2", {.budget_bytes = 3 * one, .least = 1});
  tree.add({1, 1, 1});
  tree.add({2, 2, 2});
  tree.add({3, 3, 3});
  EXPECT_EQ(tree.cache.stats().evictions, 0);
  EXPECT_EQ(tree.find({1, 1, 1}), "3!");
  tree.add({4, 4, 4});
  EXPECT_EQ(tree.cache.stats().evictions, 1);
  EXPECT_EQ(tree.find({2, 2, 2}), "-");
  for (const int64_t kept : {1, 3, 4}) EXPECT_EQ(tree.find(Ids(3, kept)), "3!") << kept;
  EXPECT_LE(tree.cache.bytes(), 3 * one);
  // one that never fits is not kept, and drives nothing out
  Tree tiny("attention", {.budget_bytes = 64, .least = 1});
  tiny.add({1, 2, 3, 4, 5});
  EXPECT_EQ(tiny.cache.size(), 0);
  EXPECT_EQ(tiny.cache.bytes(), 0);
}

// a short text takes no whole pages, and pages that snapshots share are there once
TEST(PrefixCache, CountsTheMemoryThatIsAllocated) {
  for (const std::string kind : {"attention", "mamba2", "window"}) {
    Tree tree(kind);
    const auto allocated = [&](std::initializer_list<const Ids*> texts) {
      std::set<const nn::Page*> pages;
      int64_t bytes = 0;
      for (const Ids* text : texts) {
        const auto hit = tree.cache.find({{}, *text}, {});
        bytes += hit->state->fixed_bytes();
        if (hit->last.defined()) bytes += static_cast<int64_t>(hit->last.nbytes());
        pages.merge(hit->state->all_pages());
      }
      for (const nn::Page* page : pages) bytes += page->bytes();
      return bytes;
    };
    const Ids brief{1, 2, 3};
    tree.add(brief);
    const int64_t one = tree.cache.bytes(), keys = one - allocated({&brief});
    EXPECT_GT(keys, 0) << kind;  // of the tokens that lead there
    EXPECT_LT(keys, 200) << kind;
    EXPECT_LE(one - keys, tree.cache.stats().snapshot_bytes) << kind;
    // one whose first pages another one shares
    const Ids longer = random_tokens(2 * spec::kDefaultKvPage + 5, 3);
    tree.add(longer);
    Ids other = longer;
    const auto hit = tree.cache.find({{}, longer}, {});
    ASSERT_TRUE(hit);
    other.push_back(1);
    {
      const at::NoGradGuard no_gradients;
      model::State state = hit->state->fork();
      model::ForwardOptions forward;
      forward.state = &state;
      const Tensor hidden =
          tree.model.hidden(nn::Batch::of(std::vector<Ids>{{1}}, {size_of(longer)}), forward);
      const int64_t before = tree.cache.bytes();
      tree.cache.add({{}, other}, static_cast<int64_t>(other.size()), {}, std::move(state),
                     hidden.select(0, -1).clone());
      // states of fixed size share nothing
      if (kind != "mamba2") {
        EXPECT_LT(tree.cache.bytes() - before, allocated({&other})) << kind;
      }
    }
    EXPECT_LE(tree.cache.bytes(), allocated({&brief, &longer, &other}) + 5000) << kind;
  }
}

// random additions and removals, against a list
TEST(PrefixCache, ATreeIsAListLookedUpFast) {
  Tree probe("mamba2");
  probe.add({1});
  Tree tree("mamba2", {.budget_bytes = 12 * probe.cache.bytes(), .least = 1});
  std::vector<Ids> kept;  // the last used first
  const RandomKey random(5);
  for (uint64_t step = 0; step < 400; ++step) {
    Ids tokens;
    for (uint64_t t = 0; t < 1 + random.bits(9 * step) % 6; ++t)
      tokens.push_back(random.bits(9 * step + t + 1) % 3);
    // the longest of the list
    auto best = kept.end();
    for (auto it = kept.begin(); it != kept.end(); ++it)
      if (it->size() <= tokens.size() && std::equal(it->begin(), it->end(), tokens.begin()) &&
          (best == kept.end() || it->size() > best->size()))
        best = it;
    const std::string want = best == kept.end() ? "-"
                                                : std::to_string(best->size()) +
                                                      (best->size() == tokens.size() ? "!" : "");
    ASSERT_EQ(tree.find(tokens), want) << step;
    if (best != kept.end()) std::rotate(kept.begin(), best, best + 1);
    if (!tree.cache.wants({{}, tokens}, static_cast<int64_t>(tokens.size()), {})) continue;
    const int64_t evicted = tree.cache.stats().evictions;
    tree.add(tokens);
    kept.insert(kept.begin(), tokens);
    for (int64_t n = tree.cache.stats().evictions - evicted; n > 0; --n) kept.pop_back();
    ASSERT_EQ(tree.cache.size(), static_cast<int64_t>(kept.size())) << step;
  }
  EXPECT_GT(tree.cache.stats().evictions, 20);
}

TEST(PrefixCache, WhatCannotBeIsRefused) {
  const auto refused = [&](const std::string& mixer, PrefixCacheOptions options,
                           const std::string& part) {
    const model::Model model = tiny_model(fmt::format(R"({{"mixer": {}}})", mixer), 1);
    test::expect_error(ErrorKind::usage, part, [&] { PrefixCache cache(model, options); });
  };
  refused(R"({"type": "lsh_attention", "n_heads": 2, "chunk": 4})", {},
          "lsh_attention offers no recurrent form");
  refused(R"({"type": "attention", "n_heads": 2, "position": "rope", "pattern": "prefix"})", {},
          "prefix lets tokens see later ones");
  const char* attention = R"({"type": "attention", "n_heads": 2, "position": "rope"})";
  refused(attention, {.budget_bytes = 0}, "budget = 0 bytes");
  refused(attention, {.snapshot_every = -1}, "snapshot_every = -1");
}

}  // namespace
}  // namespace tessera::infer::prefix_cache_test
