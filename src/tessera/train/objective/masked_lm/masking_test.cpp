#include "tessera/train/objective/masked_lm/masking.h"

#include <cmath>

#include "tessera/text/tokenizer/byte_tokenizer.h"
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

/// Ids that end in 0 begin words.
Masking of_words(double rate, MaskUnit unit) {
  Masking out{{.rate = rate, .mask = 1, .random = 0, .unit = unit}, 4, {}, {}};
  for (int64_t id = 0; id < 100; ++id) {
    if (id >= 10) out.ordinary.push_back(id);
    out.starts.push_back(id % 10 == 0);
  }
  return out;
}

MaskDraws draws_of(std::vector<double> select, double count = 0) {
  const size_t n = select.size();
  return {count, std::move(select), std::vector<double>(n, 0), std::vector<double>(n, 0),
          std::vector<double>(n, 0)};
}

TEST(Masking, WordsAreHiddenWholeAndPassedOverWhereTheyAreTooLong) {
  // words of 3, 1, 2 and 1 tokens, the last two on either side of a special one
  const std::vector<int64_t> text = {10, 11, 12, 20, 30, 31, 3, 41};
  const auto hidden = [&](const std::vector<double>& select, double rate,
                          std::vector<int64_t> begins = {}) {
    std::vector<int64_t> ids = text, targets(8);
    of_words(rate, MaskUnit::word).apply(ids, targets, draws_of(select), begins);
    return selected(targets);
  };
  using Places = std::vector<size_t>;
  // 2.8 of seven tokens, 2: the first word is too long, the second has room, the third has not
  EXPECT_EQ(hidden({0.1, 0, 0, 0.2, 0.3, 0, 0, 0.4}, 0.4), (Places{3, 7}));
  // 3.5, 3
  EXPECT_EQ(hidden({0.1, 0.9, 0.9, 0.2, 0.3, 0, 0, 0.4}, 0.5), (Places{0, 1, 2}));
  EXPECT_EQ(hidden({0.9, 0, 0, 0.2, 0.3, 0, 0, 0.4}, 0.5), (Places{3, 4, 5}));
  // a document that begins at 31 makes a word of it
  EXPECT_EQ(hidden({0.9, 0, 0, 0.8, 0.7, 0.1, 0, 0.9}, 0.15, {5}), (Places{5}));
}

TEST(Masking, SpansAreOfWholeWordsAndOneDrawSaysWhatBecomesOfThem) {
  const std::vector<int64_t> text = {10, 11, 20, 30, 31, 40, 50, 51};
  Masking masking = of_words(0.5, MaskUnit::span);
  masking.how.mask = 0.8;
  MaskDraws draws = draws_of({0.5, 0, 0.1, 0.9, 0, 0.9, 0.9, 0});
  draws.span[2] = 0.4;  // of 1 - .8^10 = .8926: .357, behind .2 of one word, before .36 of two
  draws.change = {0, 0, 0.85, 0.1, 0.1, 0, 0, 0};
  draws.replace = std::vector<double>(8, 0);
  std::vector<int64_t> ids = text, targets(8);
  masking.apply(ids, targets, draws);
  // two words from the third token on, three tokens; the fourth of the budget finds no word of one
  // that comes first: the first word is of two, the next of one
  EXPECT_EQ(selected(targets), (std::vector<size_t>{2, 3, 4, 5}));
  // the span stays as it is: its first draw is above mask and random none
  EXPECT_EQ(ids, (std::vector<int64_t>{10, 11, 20, 30, 31, 4, 50, 51}));
}

TEST(Masking, SpansHaveTheLengthsOfSpanBert) {
  EXPECT_EQ(span_words(0), 1);
  EXPECT_EQ(span_words(0.22), 1);
  EXPECT_EQ(span_words(0.23), 2);  // .2 / .8926 = .2241
  EXPECT_EQ(span_words(1 - 1e-9), 10);
  double sum = 0;
  for (int i = 0; i < 100000; ++i) sum += static_cast<double>(span_words((i + 0.5) / 100000));
  EXPECT_NEAR(sum / 100000, 3.79709750, 1e-4);
}

TEST(Masking, WordsAreKnownByTheMarksOfTheTokenizer) {
  const std::vector<bool> bytes = word_starts(text::byte_tokenizer());
  EXPECT_TRUE(bytes[' '] && bytes['\n']);
  EXPECT_FALSE(bytes['a'] || bytes['.']);
  // begun words of a text
  const auto begun = [](const text::Tokenizer& tokenizer, const char* text) {
    const std::vector<bool> starts = word_starts(tokenizer);
    int64_t n = 0;
    for (const int32_t id : tokenizer.encode(text, {.add_special = false}))
      n += starts.at(static_cast<size_t>(id));
    return n;
  };
  const TemporaryFolder folder;
  folder.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##known\n##s\nword\n,\n#\n");
  EXPECT_EQ(begun(text::load_tokenizer(folder / "vocab.txt"), "unknown word unknowns words"), 4);
  const char* data = std::getenv("TESSERA_TEST_DATA");
  if (data == nullptr) GTEST_SKIP() << "TESSERA_TEST_DATA is not set";
  // the first word of a text bears SentencePiece's mark alone
  for (const auto& [name, words] : {std::pair("roberta-base", 3), std::pair("llama2", 4)})
    EXPECT_EQ(begun(text::load_tokenizer(std::filesystem::path(data) / "tokenizers" / name),
                    "x antidisestablishmentarian gobbledygooks\u00e9 multithreadedness"),
              words)
        << name;
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
  refuses("/objective/unit", "letter", "objective.unit");
  refuses("/spec/head", "linear", "needs \"masked_lm\"");
  refuses("/spec/head", nullptr, "spec.head");
  refuses("/spec/arch", "decoder", "expected \"encoder\"");
  refuses("/train/windows", "carried", "use \"isolated\"");
  refuses("/data", {{"type", "copying"}}, "expected text files");
  Json json = good;
  json["objective"].erase("mask_id");
  json["objective"]["mask_token"] = "[MASK]";
  expect_error(ErrorKind::spec, "which the tokenizer does not have",
               [&] { read_recipe(json, ""); });
  json = good;
  json["objective"]["unit"] = "span";
  EXPECT_NO_THROW(read_recipe(json, ""));
  json["objective"]["count"] = "bernoulli";
  expect_error(ErrorKind::spec, "objective.count", [&] { read_recipe(json, ""); });
  json = good;
  json.erase("objective");
  expect_error(ErrorKind::spec, "spec.arch", [&] { read_recipe(json, ""); });
}

}  // namespace
}  // namespace tessera::train::masking_test
