// Training of two stacks: from lines with a source and a text to a model that reads its source.
#include <cmath>

#include "tessera/base/base64.h"
#include "tessera/train/loop/checkpoint.h"
#include "tessera/train/loop/batch_tensors.h"
#include "tessera/train/objective/objective.h"
#include "tessera/train/objective/part_losses.h"
#include "tessera/train/runs/run_folder.h"
#include "tessera/train/train_testing.h"
#include "tessera/train/data/token_cache.h"
#include "tessera/train/data/packing.h"
#include "tessera/train/loop/trainer.h"

namespace tessera::train::pairs_test {
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

/// A decoder whose prompts are prefixes, on the same pairs.
Json prefix_recipe(const std::string& file) {
  Json json = tiny_recipe(file);
  json["spec"]["layers"][0]["mixer"]["pattern"] = {{"type", "prefix"}};
  json["data"]["format"] = "jsonl";
  json["data"]["source_key"] = "in";
  json["data"]["text_key"] = "out";
  return json;
}

TokenSplit tokens_of(const TemporaryFolder& folder, const std::string& lines) {
  const Json json = pair_recipe(folder.write("pairs.jsonl", lines));
  TextData data = read_recipe(json, "").data.files();
  data.valid_fraction = 0;
  return prepare_tokens(data, open_tokenizer({data}), 256, folder / "cache").train;
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

// sources by source.spm and vocab.json, texts by target.spm and target_vocab.json
TEST(Pairs, EachSideHasTheTokensOfItsVocabulary) {
  const Json golden =
      spec::read_json_file(TESSERA_SOURCE_DIR "/tests/golden/text/mapped_pieces.json");
  const Json& apart = golden["cases"]["apart"];
  const TemporaryFolder folder;
  for (const char* side : {"source", "target"})
    folder.write(fmt::format("{}.spm", side),
                 bytes_of_base64(golden[side].get<std::string>()).value());
  folder.write("vocab.json", apart["vocab"][0].dump());
  folder.write("target_vocab.json", apart["vocab"][1].dump());
  folder.write("tokenizer_config.json", R"({"separate_vocabs": true})");
  const auto text = golden["texts"].back().get<std::string>();
  const Json json =
      pair_recipe(folder.write("pairs.jsonl", Json{{"in", text}, {"out", text}}.dump() + "\n"));
  TextData data = read_recipe(json, "").data.files();
  data.valid_fraction = 0;
  data.tokenizer = folder.path().string();
  const auto prepared = [&](int64_t vocab, int64_t source_vocab) {
    return prepare_tokens(data, open_tokenizer({data}), vocab, folder / "cache", nullptr,
                          source_vocab)
        .train;
  };
  const TokenSplit split = prepared(256, 300);
  ASSERT_EQ(split.documents(), 2);
  for (const int64_t i : {0, 1}) {
    const auto [begin, n] = split.document(i);
    std::vector<int64_t> ids(static_cast<size_t>(n));
    split.read(begin, ids);
    const Json& want = apart[i == 0 ? "ids" : "target_ids"].back();
    EXPECT_EQ(ids, want.get<std::vector<int64_t>>());  // ends with </s>, as documents do
  }
  EXPECT_NE(apart["ids"].back(), apart["target_ids"].back());
  test::expect_error(ErrorKind::input, "vocabulary of 2", [&] { prepared(256, 2); });
  test::expect_error(ErrorKind::input, "vocabulary of 2", [&] { prepared(2, 256); });
}

TEST(Pairs, WithoutAnEncoderTheSourceIsAPrefix) {
  const TemporaryFolder folder;
  const TokenSplit split = tokens_of(folder,
                                     "{\"in\": \"ab;\", \"out\": \"xyz\"}\n"
                                     "{\"in\": \"cdefg;\", \"out\": \"u\"}\n");
  const auto packed = [&](int64_t length) {
    return pack_prefixed(split, std::vector<int64_t>{0, 1}, ';', length);
  };
  const PackedBatch all = packed(9);
  EXPECT_EQ(all.ids, (std::vector<int64_t>{'a', 'b', 'x', 'y', 'c', 'd', 'e', 'f', 'g'}));
  EXPECT_EQ(all.targets, (std::vector<int64_t>{-1, 'x', 'y', 'z', -1, -1, -1, -1, 'u'}));
  EXPECT_EQ(all.n_targets, 4);
  EXPECT_TRUE(all.sources.empty());
  ASSERT_EQ(all.pieces.size(), 2u);
  EXPECT_EQ(all.pieces[0].prefix, 2);
  EXPECT_EQ(all.pieces[1].prefix, 5);
  EXPECT_EQ(all.pieces[1].begin, 4);
  EXPECT_EQ(all.pieces[1].length, 5);
  // first the text is cut, then the source
  EXPECT_EQ(packed(3).ids, (std::vector<int64_t>{'a', 'b', 'x', 'c', 'd', 'e'}));
  EXPECT_EQ(packed(3).targets, (std::vector<int64_t>{-1, 'x', 'y', -1, -1, 'u'}));
  EXPECT_EQ(packed(1).ids, (std::vector<int64_t>{'a', 'c'}));
  EXPECT_EQ(packed(1).targets, (std::vector<int64_t>{'x', 'u'}));
}

TEST(Pairs, TargetsThatAPrefixSeesAreHidden) {
  PackedBatch batch;
  batch.ids = {1, 2, 3, 4, 5, 6, 7};
  batch.targets = {2, 3, 4, 5, -1, 7, 8};
  batch.pieces = {{0, 0, 5}, {0, 5, 2}};
  hide_seen(batch, 3);
  // the third token predicts the fourth, which it does not see
  EXPECT_EQ(batch.targets, (std::vector<int64_t>{-1, -1, 4, 5, -1, -1, -1}));
  EXPECT_EQ(batch.n_targets, 2);
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
  expect_error(ErrorKind::spec, "pairs are independent", [&] { read_recipe(json, ""); });
  json = prefix_recipe("a.jsonl");
  EXPECT_NO_THROW(read_recipe(json, ""));
  json["train"]["windows"] = "carried";
  expect_error(ErrorKind::spec, "pairs are independent", [&] { read_recipe(json, ""); });
  json = prefix_recipe("a.jsonl");
  json["spec"]["layers"][0]["mixer"]["pattern"]["length"] = 17;
  EXPECT_NO_THROW(read_recipe(json, ""));  // of pairs, texts are never in the prefix
  for (const char* key : {"format", "source_key", "text_key"}) json["data"].erase(key);
  expect_error(ErrorKind::spec, "leaves none to predict", [&] { read_recipe(json, ""); });
  json = pair_recipe("a.txt");
  json["data"]["format"] = "text";
  expect_error(ErrorKind::spec, "expected format \"jsonl\"", [&] { read_recipe(json, ""); });
}

TEST(Pairs, LossesOfPartsAreMeansOverTheTokensOfTheirStack) {
  const TemporaryFolder folder;
  const Recipe recipe = read_recipe(pair_recipe(folder.write("pairs.jsonl", letter_pairs(40))), "");
  const auto objective = open_objective(recipe, folder / "cache");
  std::vector<int64_t> begun;
  const PackedBatch packed = objective->source().train(0, 4, begun);
  int64_t sources = 0;
  for (const auto& source : packed.sources) sources += std::ssize(source);
  const auto texts = std::ssize(packed.ids);
  ASSERT_NE(sources, texts);
  Denominators whole = objective->denominators(packed);
  whole += objective->denominators(packed);
  EXPECT_EQ(whole.of("encoder.layers.0.ffn.balance"), 2 * sources);
  EXPECT_EQ(whole.of("decoder.layers.0.ffn.balance"), 2 * texts);
  EXPECT_EQ(whole.of("loss"), 2 * packed.n_targets);

  PartLosses parts(whole);
  const nn::LossSink add = parts.sink();
  const Tensor of_encoder = at::full({}, 3.0).requires_grad_(true),
               of_decoder = at::full({}, 5.0).requires_grad_(true);
  add("encoder.layers.0.ffn.balance", of_encoder);
  add("decoder.layers.0.ffn.balance", of_decoder);
  add("encoder.layers.0.ffn.balance", of_encoder);
  EXPECT_EQ(parts.sums().at("encoder.layers.0.ffn.balance").item<double>(), 6);
  parts.weighted().backward();
  EXPECT_FLOAT_EQ(of_encoder.grad().item<float>(), 1 / static_cast<float>(sources));
  EXPECT_FLOAT_EQ(of_decoder.grad().item<float>(), 0.5F / static_cast<float>(texts));
}

/// A part that two stacks may share does not say in which it stands.
TEST(Pairs, LossesOfPartsBearTheNameOfTheirStack) {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 40; ++i) lines += Json{{"in", "abc"}, {"out", "uvwxyzuvwxyz"}}.dump() + "\n";
  Json json = pair_recipe(folder.write("pairs.jsonl", lines));
  json["spec"]["stacks"]["decoder"]["layers"][0] = json_of(R"({"share": "one", "mixer": {
      "type": "compressive", "n_heads": 2, "segment": 2, "mem_len": 2, "n_compressed": 2, "rate": 2}})");
  const Recipe recipe = read_recipe(json, "");
  const auto objective = open_objective(recipe, folder / "cache");
  const model::Model model(recipe.spec, model::Weights::initial(recipe.spec, 1));
  std::vector<int64_t> begun;
  const PackedBatch packed = objective->source().train(0, 4, begun);
  model::ForwardOptions forward;
  forward.training = true;
  const LossSums sums = objective->forward_backward(
      model, {packed, batch_of(packed), forward, objective->denominators(packed)});
  EXPECT_TRUE(sums.contains("decoder.shared.one.mixer.reconstruction"));
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

TEST(Pairs, ADecoderLearnsToReadItsPrefixAndNeighboursDoNotShow) {
  const TemporaryFolder folder;
  const Json json = prefix_recipe(folder.write("pairs.jsonl", letter_pairs(200)));
  const Recipe recipe = read_recipe(json, "",
                                    {"train.steps=80", "schedule.type=constant", "train.batch=8",
                                     "checkpoint.every=0", "train.eval_every=0"});
  const TrainResult result = train(recipe, folder / "run");
  ASSERT_TRUE(result.last && result.last->valid_loss);
  EXPECT_LT(*result.last->valid_loss, 0.5 * std::log(4.0));
  EXPECT_EQ(result.last->tokens, 80 * 8);  // the text's tokens alone are learned

  // a pair's outputs are the same alone and among others, and depend on where its source ends
  const model::Model model(recipe.spec, model::Weights::initial(recipe.spec, 3));
  const TokenSplit split = tokens_of(folder,
                                     "{\"in\": \"abcd\", \"out\": \"xy\"}\n"
                                     "{\"in\": \"efg\", \"out\": \"uvw\"}\n");
  const at::NoGradGuard no_gradients;
  const auto hidden = [&](const PackedBatch& packed) { return model.hidden(batch_of(packed)); };
  PackedBatch both = pack_prefixed(split, std::vector<int64_t>{0, 1}, std::nullopt, 16);
  const Tensor first = hidden(pack_prefixed(split, std::vector<int64_t>{0}, std::nullopt, 16)),
               second = hidden(pack_prefixed(split, std::vector<int64_t>{1}, std::nullopt, 16));
  EXPECT_TRUE(at::equal(hidden(both), at::cat({first, second})));
  both.pieces[0].prefix = 3;
  EXPECT_FALSE(at::equal(hidden(both).narrow(0, 0, 5), first));
  EXPECT_TRUE(at::equal(hidden(both).narrow(0, 5, 5), second));
}

}  // namespace
}  // namespace tessera::train::pairs_test
