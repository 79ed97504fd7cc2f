// Training of two stacks: from lines with a source and a text to a model that reads its source.
#include <cmath>

#include "tessera/train/checkpoint.h"
#include "tessera/train/run_folder.h"
#include "tessera/train/train_testing.h"
#include "tessera/train/token_cache.h"
#include "tessera/train/packing.h"
#include "tessera/train/trainer.h"

namespace tessera::train {
namespace {

/// Sources of one letter, some times over; the text is that letter as a capital. Without the source
/// no loss below ln 4 is possible.
std::string letter_pairs(int lines) {
  std::string out;
  for (int i = 0; i < lines; ++i) {
    const char letter = static_cast<char>('a' + (i * 7 + i / 5) % 4);
    out += Json{{"in", std::string(static_cast<size_t>(2 + i % 4), letter)},
                {"out", std::string(1, static_cast<char>(letter - 'a' + 'A'))}}
               .dump() +
           "\n";
  }
  return out;
}

Json pair_recipe(const std::string& file) {
  Json json = tiny_recipe(file);
  json["spec"] = json_of(R"({"tessera": 1, "arch": "encoder_decoder", "vocab": 256, "d_model": 16,
    "mixer": {"type": "attention", "n_heads": 2, "position": "rope"}, "ffn": {"type": "glu", "d_hidden": 32},
    "cross": {"type": "cross_attention", "n_heads": 2},
    "stacks": {"encoder": {"layers": [{}]}, "decoder": {"layers": [{}]}}})");
  json["data"]["format"] = "jsonl";
  json["data"]["source_key"] = "in";
  json["data"]["text_key"] = "out";
  return json;
}

TokenSplit tokens_of(const TemporaryFolder& folder, const std::string& lines) {
  const Json json = pair_recipe(folder.write("pairs.jsonl", lines));
  DataRecipe data = read_recipe(json, "").data;
  data.valid_fraction = 0;
  return prepare_tokens(data, open_tokenizer(data), 256, folder / "cache").train;
}

TEST(Pairs, PackWithTheStartBeforeAndTheTextBehind) {
  const TemporaryFolder folder;
  const TokenSplit split = tokens_of(folder,
                                     "{\"in\": \"ab\", \"out\": \"xyz\"}\n"
                                     "{\"out\": \"u\", \"in\": \"cdefg\"}\n");
  ASSERT_EQ(split.documents(), 4);
  EXPECT_EQ(split.text_bytes(), 4);  // of the texts alone
  const PackedBatch batch = pack_pairs(split, std::vector<int64_t>{1, 0}, 9, 2);
  const std::vector<std::vector<int64_t>> sources = {{'c', 'd'}, {'a', 'b'}};
  EXPECT_EQ(batch.sources, sources);
  EXPECT_EQ(batch.ids, (std::vector<int64_t>{9, 9, 'x'}));
  EXPECT_EQ(batch.targets, (std::vector<int64_t>{'u', 'x', 'y'}));
  EXPECT_EQ(batch.n_targets, 3);
  ASSERT_EQ(batch.pieces.size(), 2u);
  EXPECT_EQ(batch.pieces[1].begin, 1);
  EXPECT_EQ(batch.pieces[1].length, 2);
}

TEST(Pairs, EveryEpochTakesEachPairOnce) {
  const PairOrder order(13, 5);
  std::vector<int64_t> first, second;
  for (int64_t i = 0; i < 13; ++i) {
    first.push_back(order.at(i));
    second.push_back(order.at(13 + i));
  }
  EXPECT_NE(first, second);
  for (auto* epoch : {&first, &second}) {
    std::sort(epoch->begin(), epoch->end());
    for (int64_t i = 0; i < 13; ++i) EXPECT_EQ((*epoch)[static_cast<size_t>(i)], i);
  }
}

TEST(Pairs, HalfAPairIsRefusedWithItsLine) {
  const TemporaryFolder folder;
  expect_error(ErrorKind::file, "line 2",
               [&] { tokens_of(folder, "{\"in\": \"a\", \"out\": \"b\"}\n{\"in\": \"a\"}\n"); });
  expect_error(ErrorKind::file, "the string is empty",
               [&] { tokens_of(folder, "{\"in\": \"\", \"out\": \"b\"}\n"); });
}

TEST(Pairs, RecipeAndArchitectureMustAgree) {
  Json json = pair_recipe("a.jsonl");
  json["data"].erase("source_key");
  expect_error(ErrorKind::spec, "data.source_key", [&] { read_recipe(json, ""); });
  json = tiny_recipe("a.jsonl");
  json["data"]["format"] = "jsonl";
  json["data"]["source_key"] = "in";
  expect_error(ErrorKind::spec, "reads no source", [&] { read_recipe(json, ""); });
  json = pair_recipe("a.jsonl");
  json["train"]["windows"] = "carried";
  expect_error(ErrorKind::spec, "pairs stand alone", [&] { read_recipe(json, ""); });
  json = pair_recipe("a.txt");
  json["data"]["format"] = "text";
  expect_error(ErrorKind::spec, "expected format \"jsonl\"", [&] { read_recipe(json, ""); });
}

TEST(Pairs, ModelLearnsToReadItsSourceAndResumesBitForBit) {
  const TemporaryFolder folder;
  const Json json = pair_recipe(folder.write("pairs.jsonl", letter_pairs(200)));
  const auto recipe = [&](const std::string& steps) {
    return read_recipe(json, "",
                       {"train.steps=" + steps, "schedule.type=constant", "train.batch=8",
                        "checkpoint.every=0", "train.eval_every=0"});
  };
  const TrainResult whole = train(recipe("80"), folder / "whole");
  ASSERT_TRUE(whole.last && whole.last->valid_loss);
  EXPECT_LT(*whole.last->valid_loss, 0.5 * std::log(4.0));
  // one token a pair, with the byte before it unknown
  EXPECT_EQ(whole.last->tokens, 80 * 8);

  train(recipe("30"), folder / "cut");
  train(recipe("80"), folder / "cut", {.resume = true});
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_TRUE(read_text_file(checkpoint_folder(folder / "whole", 80) / file) ==
                read_text_file(checkpoint_folder(folder / "cut", 80) / file))
        << file;
}

}  // namespace
}  // namespace tessera::train
