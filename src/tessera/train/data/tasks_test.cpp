#include "tessera/train/data/tasks.h"

#include <algorithm>
#include <map>
#include <set>

#include "tessera/train/data/dataset.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::tasks_test {
namespace {

constexpr int64_t kExamples = 200;

template <class Task>
Task of_items(int64_t items) {
  Task task;
  task.items = items;
  return task;
}

Example example(const TaskRecipe& task, int64_t vocab, int64_t length, int64_t number) {
  return make_example(task, vocab, length, RandomKey(5).fold(static_cast<uint64_t>(number)));
}

/// Positions with a target.
std::vector<size_t> due(const Example& e) {
  std::vector<size_t> positions;
  for (size_t i = 0; i < e.targets.size(); ++i)
    if (e.targets[i] >= 0) positions.push_back(i);
  return positions;
}

TEST(Tasks, MqarAsksEveryKeyOnceAndWantsItsValue) {
  const int64_t n = 5, vocab = 41, length = 30;
  for (const Filler filler : {Filler::zero, Filler::random})
    for (int64_t number = 0; number < kExamples; ++number) {
      auto task = of_items<MqarTask>(n);
      task.filler = filler;
      const Example e = make_example(task, vocab, length, RandomKey(static_cast<uint64_t>(number)));
      ASSERT_EQ(e.ids.size(), 30u);
      std::map<int64_t, int64_t> value_of;
      std::set<int64_t> values;
      for (size_t j = 0; j < 5; ++j) {
        const int64_t k = e.ids[2 * j], v = e.ids[2 * j + 1];
        EXPECT_TRUE(k >= 1 && k <= 19 && v >= 20 && v <= 40) << k << " " << v;
        value_of[k] = v;
        values.insert(v);
      }
      EXPECT_EQ(value_of.size(), 5u);
      EXPECT_EQ(values.size(), 5u);
      std::set<int64_t> asked;
      for (const size_t at : due(e)) {
        EXPECT_TRUE(at >= 10 && at % 2 == 0) << at;
        EXPECT_EQ(e.targets[at], value_of.at(e.ids[at]));
        asked.insert(e.ids[at]);
      }
      EXPECT_EQ(asked.size(), 5u);
      for (size_t i = 10; filler == Filler::zero && i < e.ids.size(); ++i)
        EXPECT_TRUE(e.targets[i] >= 0 || e.ids[i] == 0);
    }
}

// the law of the gaps for S = 6: specification, additions 11
TEST(Tasks, MqarAsksSoonerMoreOftenThanLater) {
  std::vector<double> share(6);
  const int64_t count = 20000;
  for (int64_t number = 0; number < count; ++number)
    share[(due(example(of_items<MqarTask>(1), 15, 14, number)).front() - 2) / 2] += 1.0 / count;
  // standard deviations of at most 0.0035
  EXPECT_NEAR(share[0], 0.40536575, 0.015);
  EXPECT_NEAR(share[1], 0.20409265, 0.012);
  EXPECT_NEAR(share[2], 0.13661457, 0.010);
  EXPECT_GT(share[5], 0.05);
}

TEST(Tasks, CopyingWantsTheSymbolsInOrder) {
  const int64_t n = 4, vocab = 6, length = 20;
  std::map<std::vector<size_t>, int> places_seen;
  for (const TaskRecipe& task :
       {TaskRecipe(of_items<CopyingTask>(n)), TaskRecipe(of_items<SelectiveCopyingTask>(n))})
    for (int64_t number = 0; number < kExamples; ++number) {
      const Example e = example(task, vocab, length, number);
      ASSERT_EQ(e.ids.size(), 20u);
      std::vector<int64_t> symbols;
      std::vector<size_t> places;
      for (size_t i = 0; i < 16; ++i) {
        EXPECT_TRUE(e.ids[i] >= 0 && e.ids[i] <= 4);
        if (e.ids[i] != 0) symbols.push_back(e.ids[i]), places.push_back(i);
      }
      EXPECT_EQ(symbols.size(), 4u);
      EXPECT_EQ(due(e), (std::vector<size_t>{16, 17, 18, 19}));
      EXPECT_EQ(std::vector<int64_t>(e.targets.begin() + 16, e.targets.end()), symbols);
      EXPECT_EQ(std::count(e.ids.begin() + 16, e.ids.end(), vocab - 1), 4);
      if (std::holds_alternative<CopyingTask>(task))
        EXPECT_EQ(places, (std::vector<size_t>{0, 1, 2, 3}));
      else
        ++places_seen[places];
    }
  EXPECT_GT(places_seen.size(), 150u);  // of 1820
}

TEST(Tasks, InductionWantsWhatFollowedTheToken) {
  std::set<size_t> places;
  for (int64_t number = 0; number < kExamples; ++number) {
    const Example e = example(InductionHeadsTask{}, 9, 12, number);
    EXPECT_EQ(due(e), std::vector<size_t>{11});
    EXPECT_EQ(e.ids.back(), 8);
    EXPECT_EQ(std::count(e.ids.begin(), e.ids.end(), 8), 2);
    const auto place = std::find(e.ids.begin(), e.ids.end(), 8);
    EXPECT_EQ(e.targets.back(), *(place + 1));
    places.insert(static_cast<size_t>(place - e.ids.begin()));
  }
  EXPECT_EQ(places.size(), 10u);
}

TEST(Tasks, NeedleIsAtItsDepthAndAskedAtTheEnd) {
  const TaskRecipe task = of_items<NeedleTask>(3);
  const int64_t vocab = 30, length = 27;
  for (const auto& [depth, place] : {std::pair{0.0, 0}, {0.5, 10}, {1.0, 20}})
    for (int64_t number = 0; number < kExamples; ++number) {
      const RandomKey key(static_cast<uint64_t>(number));
      const Example e = make_example(task, vocab, length, key, depth);
      ASSERT_EQ(std::ssize(e.ids), length);
      EXPECT_EQ(due(e), (std::vector<size_t>{24, 25, 26}));
      EXPECT_EQ(e.ids[24], 29);
      EXPECT_EQ(std::find(e.ids.begin(), e.ids.end(), 29) - e.ids.begin(), place);
      for (size_t j = 0; j < 3; ++j) {
        EXPECT_EQ(e.ids[static_cast<size_t>(place) + 1 + j], e.targets[24 + j]);
        if (j > 0) EXPECT_EQ(e.ids[24 + j], e.targets[23 + j]);
      }
    }
  std::set<int64_t> places;
  for (int64_t number = 0; number < kExamples; ++number) {
    const Example e = example(task, vocab, length, number);
    places.insert(std::find(e.ids.begin(), e.ids.end(), 29) - e.ids.begin());
  }
  EXPECT_EQ(places.size(), 21u);
}

TEST(Tasks, StatesAreTheProductsOfTheTokensSoFar) {
  for (int64_t number = 0; number < 20; ++number) {
    const Example bits = example(ParityTask{}, 2, 30, number);
    const Example sums = example(of_items<ModularSumTask>(7), 9, 30, number);
    int64_t parity = 0, sum = 0;
    for (size_t i = 0; i < 30; ++i) {
      EXPECT_EQ(bits.targets[i], parity ^= bits.ids[i]);
      EXPECT_TRUE(sums.ids[i] >= 0 && sums.ids[i] < 7);
      EXPECT_EQ(sums.targets[i], sum = (sum + sums.ids[i]) % 7);
    }
  }
}

// permutations as matrices: an independent way to multiply them
TEST(Tasks, PermutationsAreMultipliedInOrder) {
  // in lexicographic order: 012 021 102 120 201 210
  const std::vector<std::vector<size_t>> s3 = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                               {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  std::set<int64_t> states;
  for (int64_t number = 0; number < 20; ++number) {
    const Example e = example(S3Task{}, 6, 30, number);
    std::vector<std::vector<int64_t>> product = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}};
    for (size_t i = 0; i < 30; ++i) {
      // (P_x)_{x(k), k} = 1; the newest is the left factor
      std::vector<std::vector<int64_t>> next(3, std::vector<int64_t>(3, 0));
      for (size_t k = 0; k < 3; ++k) next[s3[static_cast<size_t>(e.ids[i])][k]] = product[k];
      product = next;
      const auto& state = s3[static_cast<size_t>(e.targets[i])];
      for (size_t k = 0; k < 3; ++k) EXPECT_EQ(product[state[k]][k], 1);
      states.insert(e.targets[i]);
    }
    const Example of_five = example(S5Task{}, 120, 30, number);
    EXPECT_EQ(of_five.targets[0], of_five.ids[0]);
    // 0 is the identity
    for (size_t i = 1; i < 30; ++i)
      if (of_five.ids[i] == 0) EXPECT_EQ(of_five.targets[i], of_five.targets[i - 1]);
  }
  EXPECT_EQ(states.size(), 6u);
}

Json task_recipe(const std::string& type) {
  Json json = tiny_recipe("unused");
  json["data"] = {{"type", type}};
  json["train"]["length"] = 24;
  json["spec"]["vocab"] = 40;
  return json;
}

TEST(Tasks, SamplesAreAFunctionOfSeedAndNumber) {
  const Json json = task_recipe("selective_copying");
  const auto source = [&](const std::vector<std::string>& overrides) {
    return open_source(read_recipe(json, "", overrides), "unused");
  };
  const auto a = source({});
  std::vector<int64_t> begun;
  const PackedBatch all = a->train(3, 4, begun);
  EXPECT_TRUE(begun.empty());
  EXPECT_EQ(all.pieces.size(), 4u);
  EXPECT_EQ(all.n_targets, 16);
  const PackedBatch last = a->train(6, 1, begun);
  EXPECT_TRUE(std::equal(last.ids.begin(), last.ids.end(), all.ids.end() - 24));
  EXPECT_NE(source({"train.seed=1"})->train(3, 4, begun).ids, all.ids);
  EXPECT_NE(a->valid({3, 4, 5, 6}).ids, all.ids);
  EXPECT_EQ(source({"data.valid_length=30", "data.valid=7"})->valid({6}).ids.size(), 30u);

  // ten examples come again in every epoch, in another order
  const auto few = source({"data.examples=10"});
  const auto epoch = [&](int64_t number) {
    std::vector<std::vector<int64_t>> samples;
    for (int64_t i = 0; i < 10; ++i) samples.push_back(few->train(number * 10 + i, 1, begun).ids);
    return samples;
  };
  auto first = epoch(0), second = epoch(1);
  EXPECT_NE(first, second);
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  EXPECT_EQ(first, second);
}

TEST(Tasks, RecipesThatDoNotFitAreRefused) {
  const auto refused = [](const std::string& type, const std::vector<std::string>& overrides,
                          const std::string& part) {
    expect_error(ErrorKind::spec, part, [&] { read_recipe(task_recipe(type), "", overrides); });
  };
  refused("mqar", {"data.items=7"}, "[train.length] found 24; expected at least 28");
  refused("mqar", {"train.length=23"}, "expected an even number");
  refused("mqar", {"spec.vocab=24"}, "[spec.vocab] found 24; expected at least 25");
  refused("mqar", {"data.valid_length=14"}, "[data.valid_length] found 14; expected at least 16");
  refused("mqar", {"data.valid_length=25"},
          "[data.valid_length] found 25; expected an even number");
  refused("mqar", {"data.valid_length=4000"},
          "more tokens than positions, of which data.valid_length has 4000");
  refused("selective_copying", {"data.valid_length=1"}, "[data.valid_length]");
  refused("induction_heads", {"data.valid_length=2"}, "[data.valid_length]");
  refused("copying", {"data.valid_length=65", R"(spec.embed={"type": "token", "position":
                                      {"type": "learned", "n_positions": 64}})"},
          "[data.valid_length] 65 tokens; the spec has 64 positions");
  refused("copying", {"data.items=13"}, "[train.length]");
  refused("copying", {"data.filler=zero"}, "[data] unknown key \"filler\"; valid keys: items,");
  refused("induction_heads", {"data.items=2"}, "[data] unknown key \"items\"");
  refused("mqar", {"data.tokenizer=bytes"}, "[data] unknown key \"tokenizer\"");
  refused("mqar", {"train.windows=carried"}, "[train.windows]");
  refused("mqra", {}, "did you mean \"mqar\"?");
  const Json once = resolve(read_recipe(task_recipe("mqar"), ""));
  EXPECT_EQ(resolve(read_recipe(once, "")), once);
}

}  // namespace
}  // namespace tessera::train::tasks_test
