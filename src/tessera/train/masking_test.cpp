#include "tessera/train/masking.h"

#include <cmath>

#include "tessera/train/train_testing.h"

namespace tessera::train::masking_test {
namespace {

/// u(n; a, b) of the specifications: (1 + sin(a i + b)) / 2.
std::vector<double> u(int64_t n, double a, double b) {
  std::vector<double> out;
  for (int64_t i = 0; i < n; ++i) out.push_back((1 + std::sin(a * static_cast<double>(i) + b)) / 2);
  return out;
}

const std::vector<int64_t> kIds = {2, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 3};

Masking masking(double rate, MaskCount count) {
  Masking out{{.rate = rate, .count = count}, 4, {}};
  for (int64_t id = 5; id < 32; ++id) out.ordinary.push_back(id);
  return out;
}

MaskDraws golden_draws(double count) {
  return {count, u(12, 1.7, 0.3), u(12, 2.3, 0.1), u(12, 3.1, 0.4)};
}

std::vector<size_t> selected(const std::vector<int64_t>& targets) {
  std::vector<size_t> out;
  for (size_t i = 0; i < targets.size(); ++i)
    if (targets[i] >= 0) out.push_back(i);
  return out;
}

TEST(Masking, HidesReplacesAndKeepsByItsDraws) {
  std::vector<int64_t> ids = kIds, targets(12, 7);
  masking(0.3, MaskCount::bernoulli).apply(ids, targets, golden_draws(0));
  EXPECT_EQ(ids, (std::vector<int64_t>{2, 11, 4, 14, 14, 15, 16, 17, 18, 19, 4, 3}));
  EXPECT_EQ(targets, (std::vector<int64_t>{-1, -1, 12, 13, -1, -1, 16, -1, -1, -1, 20, -1}));
}

TEST(Masking, AnExactCountTakesTheLeastDraws) {
  // 1.5 of ten tokens
  for (const auto& [count, expected] :
       {std::pair(0.2, std::vector<size_t>{10}), std::pair(0.7, std::vector<size_t>{6, 10})}) {
    std::vector<int64_t> ids = kIds, targets(12, 7);
    masking(0.15, MaskCount::exact).apply(ids, targets, golden_draws(count));
    EXPECT_EQ(selected(targets), expected) << count;
  }
  // at least one, where there is any
  std::vector<int64_t> ids = {2, 11, 3}, targets(3);
  MaskDraws draws{0, {0.1, 0.5, 0.2}, {0.1, 0.1, 0.1}, {0, 0, 0}};
  masking(0.15, MaskCount::exact).apply(ids, targets, draws);
  EXPECT_EQ(ids, (std::vector<int64_t>{2, 4, 3}));
  ids = {2, 0, 3};
  masking(0.15, MaskCount::exact).apply(ids, targets, draws);
  EXPECT_EQ(ids, (std::vector<int64_t>{2, 0, 3}));
  EXPECT_EQ(targets, (std::vector<int64_t>{-1, -1, -1}));
}

TEST(Masking, SharesAreThoseOfTheRecipe) {
  std::vector<int64_t> ids(20000, 11), targets(20000);
  masking(0.25, MaskCount::exact).apply(ids, targets, MaskDraws::of(RandomKey(3), 20000));
  EXPECT_NEAR(static_cast<double>(selected(targets).size()), 5000, 1);
  int64_t hidden = 0, kept = 0;
  for (const size_t i : selected(targets)) hidden += ids[i] == 4, kept += ids[i] == 11;
  // five standard errors; one in 27 replacements is the same token
  EXPECT_NEAR(static_cast<double>(hidden), 4000, 142);
  EXPECT_NEAR(static_cast<double>(kept), 500 + 500.0 / 27, 110);
}

Json masked_recipe() {
  Json json = tiny_recipe("a.txt");
  json["spec"]["arch"] = "encoder";
  json["spec"]["vocab"] = 257;
  json["spec"]["head"] = {{"type", "masked_lm"}};
  json["objective"] = {{"type", "masked_lm"}, {"mask_id", 256}};
  return json;
}

TEST(Masking, RecipeSpecAndDataMustAgree) {
  const Json good = masked_recipe();
  const Recipe recipe = read_recipe(good, "");
  EXPECT_EQ(resolve(read_recipe(resolve(recipe), "")), resolve(recipe));
  const auto refuses = [&](const char* pointer, const Json& value, const char* message) {
    Json json = good;
    json[Json::json_pointer(pointer)] = value;
    expect_error(ErrorKind::spec, message, [&] { read_recipe(json, ""); });
  };
  refuses("/objective/rate", 0, "objective.rate");
  refuses("/objective/rate", 1.5, "objective.rate");
  refuses("/objective/mask", 0.95, "objective.random");
  refuses("/objective/mask_id", 257, "a vocabulary of 257");
  refuses("/objective/mask_token", "[MASK]", "given together with mask_id");
  refuses("/objective/mask_id", nullptr, "missing; expected either it or mask_id");
  refuses("/objective/type", "masked", "objective.type");
  refuses("/spec/head", "linear", "needs \"masked_lm\"");
  refuses("/spec/head", nullptr, "spec.head");
  refuses("/spec/arch", "decoder", "expected \"encoder\"");
  refuses("/train/windows", "carried", "use \"isolated\"");
  refuses("/data", {{"type", "copying"}}, "expected files of text alone");
  Json json = good;
  json["objective"].erase("mask_id");
  json["objective"]["mask_token"] = "[MASK]";
  expect_error(ErrorKind::spec, "which the tokenizer does not have",
               [&] { read_recipe(json, ""); });
  json = good;
  json.erase("objective");
  expect_error(ErrorKind::spec, "spec.arch", [&] { read_recipe(json, ""); });
}

}  // namespace
}  // namespace tessera::train::masking_test
