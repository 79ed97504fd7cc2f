#include "tessera/train/data/mixed_source.h"

#include <algorithm>
#include <map>

#include "tessera/train/objective/denoising/noise_testing.h"

namespace tessera::train::mixed_source_test {
namespace {

TEST(MixedSource, EverySourceGivesItsOwnSamplesInTurn) {
  const std::vector<double> shares = {3, 1, 2};
  std::vector<int64_t> next(3);
  for (int64_t number = 0; number < 60000; ++number) {
    const SharedSample sample = shared_sample(number, shares);
    EXPECT_EQ(sample.number, next.at(sample.source)++) << number;
    if (number % 600 != 599) continue;
    // but for one sample each of them has its share of any beginning
    for (size_t i = 0; i < 3; ++i)
      EXPECT_NEAR(static_cast<double>(next[i]), static_cast<double>(number + 1) * shares[i] / 6,
                  1.0);
  }
  EXPECT_EQ(shared_sample(7, {2}).number, 7);
  EXPECT_EQ(shared_sample(int64_t{1} << 40, {1, 1}).number, int64_t{1} << 39);
}

TEST(MixedSource, TemperatureBringsSharesTogether) {
  EXPECT_DOUBLE_EQ(share_of(2, 900, 1), 1800);
  EXPECT_DOUBLE_EQ(share_of(1, 900, 2), 30);
}

/// Two files, of digits and of capitals.
Json mix_recipe(const TemporaryFolder& folder) {
  std::string capitals;
  for (size_t i = 0; i < 1200; ++i) capitals += static_cast<char>('A' + i % 26);
  Json json = tiny_recipe("");
  json["data"] = {
      {"mix",
       {{{"train", {folder.write("digits.txt", counting_text(4000))}},
         {"valid_fraction", 0.1},
         {"weight", 3}},
        {{"train", {folder.write("capitals.txt", capitals)}}, {"valid_fraction", 0.25}}}}};
  return json;
}

int64_t rows_of_capitals(const PackedBatch& batch) {
  return std::count_if(batch.pieces.begin(), batch.pieces.end(), [&](const PackedDocument& piece) {
    return batch.ids[static_cast<size_t>(piece.begin)] >= 'A';
  });
}

TEST(MixedSource, BatchesHaveTheSharesOfTheRecipe) {
  const TemporaryFolder folder;
  Json json = mix_recipe(folder);
  const auto open = [&] { return open_source(read_recipe(json, ""), folder / "cache"); };
  const auto source = open();
  std::vector<int64_t> begun;
  const PackedBatch all = source->train(40, 8, begun), last = source->train(46, 2, begun);
  EXPECT_EQ(rows_of_capitals(all), 2);
  EXPECT_EQ(all.first_sample, 40);
  EXPECT_EQ(all.n_targets, 8 * 16);
  EXPECT_EQ(std::vector<int64_t>(all.ids.end() - 32, all.ids.end()), last.ids);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(all.pieces[i].row, static_cast<int64_t>(i));
    EXPECT_EQ(all.pieces[i].begin, static_cast<int64_t>(16 * i));
  }
  // 400 bytes and 300 are held out, 25 windows and 19
  EXPECT_EQ(source->valid_samples(), 44);
  EXPECT_EQ(rows_of_capitals(source->valid({24, 25})), 1);
  EXPECT_DOUBLE_EQ(source->tokens_per_byte(), 1);
  // 3600 tokens and 900: their roots are 2 to 1, times the weights 6 to 1
  json["data"]["temperature"] = 2;
  EXPECT_EQ(rows_of_capitals(open()->train(0, 70, begun)), 10);
  // under every objective
  json = noise_recipe("", kSpans);
  json["data"] = mix_recipe(folder)["data"];
  EXPECT_EQ(rows_of_capitals(open()->train(0, 8, begun)), 2);
}

/// A row of two tokens in one piece, with something in every list of a batch.
PackedBatch row_of(int64_t number) {
  auto order = std::make_shared<nn::TokenOrder>();
  order->ranks = {number};
  PackedBatch out;
  out.ids = {number, number + 1};
  out.targets = {number + 2, -1};
  out.pieces = {{0, 0, 2, 1}};
  out.goes_on = {number == 20};
  out.sources = {{number + 3}};
  out.kinds = {number + 4};
  out.items = {number + 5};
  out.names = {std::to_string(number)};
  out.orders = {order};
  out.types = {0, number};
  out.labels = {{static_cast<double>(number), 0.5}};
  out.n_targets = 1;
  out.first_sample = number;
  return out;
}

TEST(MixedSource, BatchesHaveAllThatTheirRowsHave) {
  using Ids = std::vector<int64_t>;
  PackedBatch all = row_of(10);
  append(all, row_of(20), 1);
  EXPECT_EQ(all.ids, (Ids{10, 11, 20, 21}));
  EXPECT_EQ(all.targets, (Ids{12, -1, 22, -1}));
  ASSERT_EQ(all.pieces.size(), 2u);
  EXPECT_EQ(all.pieces[1].row, 1);
  EXPECT_EQ(all.pieces[1].begin, 2);
  EXPECT_EQ(all.pieces[1].length, 2);
  EXPECT_EQ(all.pieces[1].prefix, 1);
  EXPECT_EQ(all.goes_on, (std::vector<bool>{false, true}));
  EXPECT_EQ(all.sources, (std::vector<Ids>{{13}, {23}}));
  EXPECT_EQ(all.kinds, (Ids{14, 24}));
  EXPECT_EQ(all.items, (Ids{15, 25}));
  EXPECT_EQ(all.names, (std::vector<std::string>{"10", "20"}));
  ASSERT_EQ(all.orders.size(), 2u);
  EXPECT_EQ(all.orders[1]->ranks, Ids{20});
  EXPECT_EQ(all.types, (Ids{0, 10, 0, 20}));
  EXPECT_EQ(all.labels, (std::vector<std::vector<double>>{{10, 0.5}, {20, 0.5}}));
  EXPECT_EQ(all.n_targets, 2);
  EXPECT_EQ(all.first_sample, 10);
  PackedBatch unlike = row_of(20);
  unlike.orders.clear();
  expect_error(ErrorKind::internal, "unlike", [&] { append(all, unlike, 2); });
}

TEST(MixedSource, TextsInAnOrderKeepTheirOrders) {
  const TemporaryFolder folder;
  Json json = mix_recipe(folder);
  json["spec"]["arch"] = "encoder";
  json["spec"]["vocab"] = 257;
  json["spec"]["head"] = {{"type", "masked_lm"}};
  json["objective"] = {{"type", "permutation"}, {"mask_id", 256}, {"rate", 0.25}};
  const auto source = open_source(read_recipe(json, ""), folder / "cache");
  const auto check = [](const PackedBatch& batch) {
    ASSERT_EQ(batch.orders.size(), batch.pieces.size());
    for (size_t i = 0; i < batch.pieces.size(); ++i) {
      const PackedDocument& piece = batch.pieces[i];
      const nn::TokenOrder& order = *batch.orders[i];
      EXPECT_EQ(order.text() + order.queries(), piece.length) << i;
      // a query is a mask, and stands behind its text
      for (int64_t t = order.text(); t < piece.length; ++t)
        EXPECT_EQ(batch.ids[static_cast<size_t>(piece.begin + t)], 256) << i;
    }
  };
  std::vector<int64_t> begun;
  const PackedBatch some = source->train(0, 8, begun);
  EXPECT_EQ(rows_of_capitals(some), 2);
  check(some);
  check(source->valid({24, 25}));
}

TEST(MixedSource, RecipesSayWhatEachPartIs) {
  const TemporaryFolder folder;
  const Json good = mix_recipe(folder);
  const Recipe recipe = read_recipe(good, "");
  EXPECT_EQ(resolve(read_recipe(resolve(recipe), "")), resolve(recipe));
  EXPECT_EQ(differing_key(resolve(recipe), resolve(recipe)), "");
  const auto refuses = [&](const char* pointer, const Json& value, const char* message) {
    Json json = good;
    json[Json::json_pointer(pointer)] = value;
    expect_error(ErrorKind::spec, message, [&] { read_recipe(json, ""); });
  };
  refuses("/data/train", {"a.txt"}, "data.train] given with data.mix");
  refuses("/data/format", "jsonl", "data.format] given with data.mix");
  refuses("/data/mix", Json::array(), "data.train] no files");
  refuses("/data/mix/1/train", Json::array(), "data.mix[1].train] no files");
  refuses("/data/mix/1/weight", 0, "data.mix[1].weight] found 0");
  refuses("/data/mix/1/weihgt", 1, "did you mean \"weight\"?");
  refuses("/data/mix/0/valid_fraction", 1, "data.mix[0].valid_fraction");
  refuses("/data/temperature", 0.5, "data.temperature");
  refuses("/train/windows", "carried", "data.mix has several");
  Json other = resolve(recipe);
  other["data"]["mix"][0]["weight"] = 2;
  EXPECT_EQ(differing_key(resolve(recipe), other), "data.mix[0].weight");
}

TEST(LengthSchedule, GrowsInEqualPartsToTheWhole) {
  const LengthSchedule ramp = LengthSchedule::of({4, 10}, 24, 8, 1);
  EXPECT_EQ(ramp.at(0), 4);
  EXPECT_EQ(ramp.at(39), 12);
  EXPECT_EQ(ramp.at(40), 14);
  EXPECT_EQ(ramp.at(79), 22);
  EXPECT_EQ(ramp.at(80), 24);
  EXPECT_EQ(ramp.part(0, 48), 8);
  EXPECT_EQ(ramp.part(80, 49), 49);
  // none
  EXPECT_EQ(LengthSchedule::of({}, 24, 8, 1).at(0), 24);
}

TEST(LengthSchedule, SamplesOfEverySourceAreShortAtFirst) {
  const TemporaryFolder folder;
  Json json = tiny_recipe(folder.write("a.txt", counting_text(4000)));
  json["train"]["curriculum"] = {{"from", 4}, {"steps", 6}};
  const auto longest = [&](int64_t first) {
    std::vector<int64_t> begun;
    int64_t most = 0;
    const auto source = open_source(read_recipe(json, ""), folder / "cache");
    for (const PackedDocument& piece : source->train(first, 4, begun).pieces)
      most = std::max(most, piece.length);
    return most;
  };
  EXPECT_EQ(longest(0), 4);
  EXPECT_EQ(longest(12), 10);
  EXPECT_EQ(longest(24), 16);
  const Recipe recipe = read_recipe(json, "");
  EXPECT_EQ(resolve(read_recipe(resolve(recipe), "")), resolve(recipe));
  const Json plain = json;
  json = noise_recipe(plain["data"]["train"][0], kSpans);
  json["train"]["curriculum"] = plain["train"]["curriculum"];
  // 3 tokens of 25: two, a sentinel and the end are given, a sentinel and one token precede an end
  EXPECT_EQ(longest(0), 6);
  EXPECT_GE(longest(24), 30);
  json = plain;
  json["train"]["curriculum"]["from"] = 17;
  expect_error(ErrorKind::spec, "train.curriculum.from", [&] { read_recipe(json, ""); });
  json = plain;
  json["data"] = {{"type", "copying"}};
  expect_error(ErrorKind::spec, "train.curriculum", [&] { read_recipe(json, ""); });
}

}  // namespace
}  // namespace tessera::train::mixed_source_test
