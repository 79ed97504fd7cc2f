// What is guessed of files, and what a recipe is made of.
#include "tessera/train/finetune.h"

#include <fmt/ranges.h>

#include "tessera/format/safetensors.h"
#include "tessera/model/model_spec.h"
#include "tessera/nn/registry.h"
#include "tessera/train/objective_config.h"
#include "tessera/train/recipe.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::finetune_test {
namespace {

class Finetune : public testing::Test {
 protected:
  /// A model of bytes, all of whose weights are 0.
  std::string model(const char* arch, const char* head) {
    nn::register_mechanisms();
    Json json = json_of(R"({"tessera": 1, "vocab": 257, "d_model": 8,
        "mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
        "ffn": {"type": "glu", "d_hidden": 8}, "layers": [{"repeat": 3}]})");
    json["arch"] = arch;
    if (json["arch"] == "encoder_decoder") {
      json["cross"] = {{"type", "cross_attention"}, {"n_heads", 2}};
      for (const char* stack : {"encoder", "decoder"})
        json["stacks"][stack]["layers"] = json["layers"];
      json.erase("layers");
    }
    json["head"] = json_of(head);
    const model::ModelSpec spec = model::read_model_spec(json);
    std::vector<format::TensorView> views;
    for (const spec::ParamDecl& decl : model::parameters(spec)) {
      const auto bytes = std::make_shared<std::vector<std::byte>>(
          static_cast<size_t>(decl.elements()) * sizeof(float));
      views.push_back({decl.name, DType::f32, decl.shape, *bytes, bytes});
    }
    const auto folder = folder_ / arch;
    std::filesystem::create_directories(folder);
    format::write_safetensors(
        folder / "model.safetensors", views,
        {{"tessera_spec", model::resolve(spec).dump()}, {"tessera_tokenizer", "bytes"}});
    return folder.string();
  }
  FinetuneOptions options(std::string_view name, std::string_view content) {
    FinetuneOptions out;
    out.model = model("encoder", R"({"type": "masked_lm"})");
    out.data = {folder_.write(name, content)};
    return out;
  }
  static std::string table(const char* header, const std::vector<const char*>& rows) {
    std::string out = header;
    for (int i = 0; i < 30; ++i)
      out += std::string("\n") + rows[static_cast<size_t>(i) % rows.size()];
    return out + "\n";
  }

  TemporaryFolder folder_;
};

TEST_F(Finetune, GuessesTheTask) {
  const auto task = [&](std::string_view name, const std::string& content) {
    return plan_finetune(options(name, content)).task;
  };
  EXPECT_EQ(task("a.tsv", table("sentence\tlabel", {"good\t1", "bad\t0"})), "classification");
  EXPECT_EQ(task("a.csv", table("sentence1,sentence2,score", {"a,b,1.5", "a,c,3"})), "regression");
  EXPECT_EQ(task("a.jsonl", table(R"({"text": "x", "labels": ["a"]})",
                                  {R"({"text": "y", "labels": ["b", "a"]})"})),
            "multi_label");
  EXPECT_EQ(task("b.jsonl", table(R"({"tokens": ["a"], "ner_tags": ["O"]})",
                                  {R"({"tokens": ["B"], "ner_tags": ["B-X"]})"})),
            "tokens");
  EXPECT_EQ(task("a.conll", "EU B-ORG\nso O\n\nno O\n"), "tokens");
  EXPECT_EQ(task("q.jsonl", table(R"({"context": "a b", "question": "?", "answers": "a"})",
                                  {R"({"context": "a b", "question": "?", "answers": "b"})"})),
            "questions");
  EXPECT_EQ(task("p.tsv", table("query\tpositive\tnegative", {"a\tb\tc", "d\te\tf"})), "together");
  EXPECT_EQ(task("q.json", R"({"data": [{"paragraphs": [{"context": "a b", "qas": [
                {"id": "1", "question": "?", "answers": [{"text": "b", "answer_start": 2}]},
                {"id": "2", "question": "?", "answers": [{"text": "a", "answer_start": 0}]}]}]}]})"),
            "questions");
}

TEST_F(Finetune, MakesARecipeThatIsRead) {
  FinetuneOptions how = options("a.tsv", table("sentence\tlabel", {"good\t1", "bad\t0", "so\t1"}));
  const FinetunePlan plan = plan_finetune(how);
  const Recipe recipe = read_recipe(plan.recipe, "");
  EXPECT_EQ(recipe.spec.head.type(), "classifier");
  EXPECT_EQ(recipe.labels->text_key, "sentence");
  EXPECT_EQ(recipe.labels->valid_fraction, 0.1);
  EXPECT_EQ(plan.recipe["objective"]["labels"], (Json{"0", "1"}));
  // 30 examples, 27 of which are learned from: 20 epochs at most
  EXPECT_EQ(recipe.train.steps, 20);
  EXPECT_EQ(recipe.train.batch, 32);
  EXPECT_EQ(recipe.train.length, 4);
  EXPECT_EQ(recipe.optimizer.lr, 1e-4);
  const auto said = fmt::format("{}", fmt::join(plan.said, "\n"));
  EXPECT_NE(said.find("the class of \"sentence\", from \"label\" (--task"), std::string::npos)
      << said;
  EXPECT_NE(said.find("2 classes: 0, 1"), std::string::npos) << said;

  how.adapter = "lora";
  EXPECT_EQ(read_recipe(plan_finetune(how).recipe, "").adapter->rank, 8);
  how.adapter = "";
  how.last = 1;
  const Recipe last = read_recipe(plan_finetune(how).recipe, "");
  ASSERT_EQ(last.optimizer.groups.size(), 2u);
  EXPECT_EQ(last.optimizer.groups[0].match.back(), "layers.2.*");
  how.last = 0;
  how.head_only = true;
  how.steps = 7;
  how.lr = 0.5;
  const Recipe head = read_recipe(plan_finetune(how).recipe, "");
  EXPECT_EQ(head.train.steps, 7);
  EXPECT_EQ(head.optimizer.lr, 0.5);
}

TEST_F(Finetune, TheModelOfARecipeMayBeSet) {
  const FinetuneOptions how = options("a.tsv", table("sentence\tlabel", {"good\t1", "bad\t0"}));
  Json json = plan_finetune(how).recipe;
  json["init"]["from"] = (folder_ / "nowhere").string();
  const Recipe recipe = read_recipe(json, "", {"init.from=" + how.model});
  EXPECT_EQ(recipe.spec.d_model, 8);
  EXPECT_EQ(recipe.init->from, how.model);
}

TEST_F(Finetune, TextsThatBelongTogether) {
  FinetuneOptions how =
      options("p.tsv", table("anchor\tpositive\tnegative", {"one\tb\tc", "two\tfour\tf"}));
  const Recipe recipe = read_recipe(plan_finetune(how).recipe, "");
  EXPECT_EQ(recipe.objective->type(), "contrastive");
  const Json objective = recipe.objective->dump();
  EXPECT_EQ(objective["positive_key"], "positive");
  EXPECT_EQ(objective["negatives_key"], "negative");
  EXPECT_EQ(objective["pooling"], "mean");
  EXPECT_EQ(recipe.data.text_key, "anchor");
  EXPECT_EQ(recipe.train.length, 4);
  EXPECT_EQ(recipe.train.batch, 7);
  // as sentence-transformers say that the model pools
  std::filesystem::create_directories(folder_ / "encoder/1_Pooling");
  std::ofstream(folder_ / "encoder/1_Pooling/config.json") << R"({"pooling_mode_cls_token": true})";
  EXPECT_EQ(plan_finetune(how).recipe["objective"]["pooling"], "cls");
  // a label says more
  how.text = "anchor";
  how.label = "negative";
  EXPECT_EQ(plan_finetune(how).task, "classification");
  how.text = how.label = "";
  how.columns = {"anchor", "positive", "negative"};
  const std::string message = test::error_of([&] { plan_finetune(how); });
  EXPECT_NE(message.find("--columns with texts that belong together"), std::string::npos)
      << message;
}

TEST_F(Finetune, ReadsTextsAndConversationsToo) {
  FinetuneOptions how = options("a.txt", counting_text(5000));
  how.model = model("decoder", R"({"type": "tied"})");
  const FinetunePlan text = plan_finetune(how);
  EXPECT_EQ(text.task, "text");
  EXPECT_EQ(read_recipe(text.recipe, "").objective->type(), "causal_lm");
  std::string chats;
  for (int i = 0; i < 30; ++i)
    chats +=
        R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]})"
        "\n";
  how.data = {folder_.write("a.jsonl", chats)};
  const FinetunePlan chat = plan_finetune(how);
  EXPECT_EQ(chat.task, "chat");
  EXPECT_EQ(read_recipe(chat.recipe, "").objective->type(), "chat");
}

TEST_F(Finetune, PairsTuneAnEncoderDecoder) {
  std::string lines;
  for (int i = 0; i < 20; ++i)
    lines +=
        fmt::format("{{\"id\": {}, \"question\": \"{}?\", \"answer\": \"it is {}\"}}\n", i, i, i);
  FinetuneOptions how = options("pairs.jsonl", lines);
  how.model = model("encoder_decoder", R"("tied")");
  const FinetunePlan plan = plan_finetune(how);
  EXPECT_EQ(plan.task, "pairs");
  EXPECT_EQ(plan.said.front(), "task: \"answer\" as the answer to \"question\" (--label, --text)");
  const Recipe recipe = read_recipe(plan.recipe, "");
  EXPECT_EQ(recipe.objective->type(), "seq2seq");
  EXPECT_EQ(recipe.data.source_key, "question");
  EXPECT_EQ(recipe.data.text_key, "answer");
  EXPECT_EQ(recipe.train.length, 8);
  how.last = 1;
  EXPECT_EQ(plan_finetune(how).recipe["optimizer"]["groups"][0]["match"],
            (Json{"head.*", "pooler.*", "decoder.final_norm.*", "decoder.layers.2.*"}));
  const auto refused = [&](const std::string& words) {
    const std::string message = test::error_of([&] { plan_finetune(how); });
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  how.task = "chat";
  refused("is an encoder_decoder; expected pairs");
  how.task = "";
  how.label = "reply";
  refused("--label reply: ");
  how.label = "";
  how.data = {folder_.write("pairs.tsv", "source\ttarget\na\tb\n")};
  refused("expected JSON lines (.jsonl) with a source");
  how = options("a.jsonl", lines);
  how.task = "pairs";
  refused("has no encoder beside it; expected an encoder_decoder");
}

TEST_F(Finetune, SaysWhatItCannotGuess) {
  const auto refusal = [&](const FinetuneOptions& how) {
    return test::error_of([&] { plan_finetune(how); });
  };
  const auto has = [](const std::string& message, std::string_view part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  has(refusal(options("a.tsv", table("foo\tbar", {"good\t1"}))), "no column for the text");
  has(refusal(options("a.tsv", table("text\tbar", {"good\t1"}))), "expected --label NAME");
  has(refusal(options("a.tsv", table("text\tlabel", {"good\t1"}))), "at least two classes");
  FinetuneOptions how = options("a.tsv", table("text\tlabel", {"good\t1", "bad\t0"}));
  how.text = "txt";
  has(refusal(how), "--text txt");
  how.text = "";
  how.task = "sentiment";
  has(refusal(how), "expected one of classification");
  how.task = "";
  how.last = 9;
  has(refusal(how), "the model has 3 layers");
  // an encoder has nothing to say
  how = options("a.jsonl", table(R"({"messages": []})", {R"({"messages": []})"}));
  has(refusal(how), "expected a decoder");
}

}  // namespace
}  // namespace tessera::train::finetune_test
