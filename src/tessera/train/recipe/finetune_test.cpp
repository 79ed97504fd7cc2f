// What is guessed of files, and what a recipe is made of.
#include "tessera/train/recipe/finetune.h"

#include <fmt/ranges.h>

#include "tessera/format/safetensors.h"
#include "tessera/model/model_spec.h"
#include "tessera/nn/registry.h"
#include "tessera/train/objective/objective_config.h"
#include "tessera/train/recipe/recipe.h"
#include "tessera/train/data/dataset.h"
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

// A pooling that the class of its family cannot express is said before anything is trained.
TEST_F(Finetune, SaysWhatHuggingFaceFilesCannotHold) {
  const std::filesystem::path base =
      std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/golden/families/bert/base";
  FinetuneOptions how =
      options("a.tsv", table("sentence\tlabel", {"good\tup", "bad\tdown", "so\tup"}));
  how.model = (folder_ / "bert").string();
  std::filesystem::create_directories(how.model);
  for (const char* name : {"config.json", "model.safetensors"})
    std::filesystem::copy_file(base / name, folder_ / "bert" / name);
  folder_.write("bert/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ngood\nbad\nso\n");
  const auto said = [&] { return fmt::format("{}", fmt::join(plan_finetune(how).choices, "\n")); };
  EXPECT_EQ(said().find("convert --to hf"), std::string::npos) << said();
  folder_.write("bert/1_Pooling/config.json",
                R"({"word_embedding_dimension": 8, "pooling_mode_mean_tokens": true})");
  EXPECT_NE(said().find("cannot be exported to Hugging Face format (convert --to hf)"),
            std::string::npos)
      << said();
  EXPECT_NE(said().find("--set objective.pool=null"), std::string::npos) << said();
}

TEST_F(Finetune, RecognisesWhatDataSetsHave) {
  const auto plan = [&](std::string_view name, const std::string& line, const char* task = "") {
    std::string content;
    for (int i = 0; i < 12; ++i) content += line + "\n";
    FinetuneOptions how = options(name, content);
    how.model = model("decoder", R"("tied")");
    how.task = task;
    FinetunePlan out = plan_finetune(how);
    EXPECT_NO_THROW(read_recipe(out.recipe, "")) << line;
    EXPECT_EQ(read_recipe(out.recipe, "").checkpoint.best, 1);
    return out;
  };
  const auto said = [](const FinetunePlan& plan) {
    return fmt::format("{}", fmt::join(plan.choices, "\n"));
  };
  struct Case {
    const char *line, *format, *sample;
  };
  for (
      const Case& one :
      {Case{
           R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]})",
           "format: JSON lines, conversations of messages (\"messages\")",
           "trained on: \"Yo</s>\""},
       Case{
           R"({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]})",
           "format: JSON lines, ShareGPT (\"conversations\")", "trained on: \"Yo</s>\""},
       Case{R"({"instruction": "Add.", "input": "1 2", "output": "3"})",
            "format: JSON lines, Alpaca (\"instruction\", \"output\")", "Add.\\n1 2"},
       Case{R"({"question": "1+1?", "answer": "2"})",
            "prompt and completion (\"question\", \"answer\")", "trained on: \"2</s>\""}}) {
    const FinetunePlan got = plan("a.jsonl", one.line);
    EXPECT_EQ(got.task, "chat");
    EXPECT_EQ(got.recipe["objective"], (Json{{"type", "chat"}, {"format", "zephyr"}}));
    EXPECT_NE(said(got).find(one.format), std::string::npos) << said(got);
    EXPECT_NE(said(got).find(one.sample), std::string::npos) << said(got);
  }
  // strings under TRL's names are continued, unless messages are asked for
  const char* completion = R"({"prompt": "The sky is", "completion": " blue."})";
  const FinetunePlan plain = plan("a.jsonl", completion);
  EXPECT_EQ(plain.recipe["objective"], (Json{{"type", "chat"}, {"format", "none"}}));
  EXPECT_NE(said(plain).find("first example: \"The sky is blue\"; trained on: \" blue.\""),
            std::string::npos)
      << said(plain);
  EXPECT_EQ(plain.recipe["train"]["length"], 15);
  EXPECT_EQ(plan("a.jsonl", completion, "chat").recipe["objective"]["format"], "zephyr");
  // a list is read as lines are
  FinetuneOptions list = options("a.json", "[" + std::string(completion) + "," + completion + "]");
  list.model = model("decoder", R"("tied")");
  EXPECT_NE(said(plan_finetune(list)).find("format: a JSON list, prompt and completion"),
            std::string::npos);

  const FinetunePlan pairs =
      plan("p.jsonl", R"({"prompt": "2+2=", "chosen": "4", "rejected": "5"})");
  EXPECT_EQ(pairs.task, "preference");
  EXPECT_EQ(pairs.recipe["objective"], (Json{{"type", "preference"}}));
  EXPECT_NE(said(pairs).find("first example: \"2+2=\"; chosen: \"4\"; rejected: \"5\""),
            std::string::npos)
      << said(pairs);
  EXPECT_DOUBLE_EQ(pairs.recipe["optimizer"]["lr"].get<double>(), 1e-5);
  const FinetunePlan talks = plan(
      "p.jsonl",
      R"({"chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], )"
      R"("rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "c"}]})",
      "preference");
  EXPECT_EQ(talks.recipe["objective"]["format"], "zephyr");
  // labels of pairs stay labels, and text beside other columns is gone on with
  EXPECT_EQ(plan("l.jsonl", R"({"text": "abcdefghijkl", "url": "x"})").task, "text");
  FinetuneOptions judged =
      options("l.jsonl", table(R"({"question": "a", "answer": "b", "label": 1})",
                               {R"({"question": "a", "answer": "b", "label": 0})"}));
  judged.model = model("decoder", R"("tied")");
  EXPECT_EQ(plan_finetune(judged).task, "classification");
  // an encoder writes no answers
  FinetuneOptions encoder = options("a.jsonl", R"({"messages": []})");
  expect_error(ErrorKind::usage, "is an encoder, which writes no answers",
               [&] { plan_finetune(encoder); });
  FinetuneOptions kto = options("a.jsonl", R"({"prompt": "a", "completion": "b", "label": true})");
  kto.model = model("decoder", R"("tied")");
  kto.task = "chat";
  expect_error(ErrorKind::file, "unpaired preferences (KTO)", [&] { plan_finetune(kto); });
}

// tables are read as lines of JSON with the same keys are, by the plan and by its recipe
TEST_F(Finetune, TablesAreReadAsTheirLinesAre) {
  using Row = std::vector<std::string>;
  struct Case {
    const char *task, *arch;
    Row names, values;
  };
  const auto quoted = [](const std::string& cell) {
    std::string out = "\"";
    for (const char c : cell) out += c == '"' ? "\"\"" : std::string(1, c);
    return out + "\"";
  };
  for (const Case& one :
       {Case{"chat", "decoder", {"prompt", "completion"}, {"The sky is", " \"blue\", they say."}},
        Case{"chat", "decoder", {"instruction", "input", "output"}, {"Add.", "1 2", "3"}},
        Case{"chat", "decoder", {"instruction", "input", "output"}, {"Count to 3.", "", "1, 2, 3"}},
        Case{"chat", "decoder", {"system", "question", "answer"}, {"Be brief.", "1+1?", "2"}},
        Case{"preference", "decoder", {"prompt", "chosen", "rejected"}, {"2+2=", "4", "5"}},
        Case{"text", "decoder", {"text", "url"}, {"abcdefghijkl", "x"}},
        Case{"pairs", "encoder_decoder", {"source", "target"}, {"ein Haus", "a house"}}}) {
    SCOPED_TRACE(fmt::format("{}: {}", one.task, fmt::join(one.names, ", ")));
    std::map<std::string, std::string> files;
    for (int i = 0; i < 20; ++i) {
      Row row = one.values;
      row.back() += std::to_string(i);
      Json object;
      std::string csv;
      for (size_t c = 0; c < row.size(); ++c) {
        object[one.names[c]] = row[c];
        csv += (c > 0 ? "," : "") + quoted(row[c]);
      }
      files["a.jsonl"] += object.dump() + "\n";
      files["a.csv"] += csv + "\r\n";
      files["a.tsv"] += fmt::format("{}\n", fmt::join(row, "\t"));
    }
    files["a.csv"] = fmt::format("{}\r\n", fmt::join(one.names, ",")) + files["a.csv"];
    files["a.tsv"] = fmt::format("{}\n", fmt::join(one.names, "\t")) + files["a.tsv"];
    const auto planned = [&](const std::string& name) {
      FinetuneOptions how = options(name, files.at(name));
      how.model = model(one.arch, R"("tied")");
      return plan_finetune(how);
    };
    const auto first_example = [](const FinetunePlan& plan) {
      for (const std::string& line : plan.choices)
        if (line.starts_with("first example: ")) return line;
      return std::string();
    };
    const auto ids = [&](const Json& json, const std::string& cache) {
      const Recipe recipe = read_recipe(json, "");
      const auto source = open_source(recipe, folder_ / cache, nullptr);
      std::vector<int64_t> begun, out;
      EXPECT_GT(source->valid_samples(), 0);
      for (const PackedBatch& batch : {source->train(0, 4, begun), source->valid({0})})
        out.insert(out.end(), batch.ids.begin(), batch.ids.end());
      return out;
    };
    const FinetunePlan lines = planned("a.jsonl");
    EXPECT_EQ(lines.task, one.task);
    for (const char* name : {"a.csv", "a.tsv"}) {
      SCOPED_TRACE(name);
      const FinetunePlan table = planned(name);
      EXPECT_EQ(table.task, one.task);
      EXPECT_EQ(first_example(table), first_example(lines));
      Json recipe = table.recipe;
      EXPECT_EQ(recipe["data"]["format"], std::string(name).substr(2));
      // the parts that are held out are those of the bytes
      if (one.task != std::string("text")) {
        recipe["data"]["valid"] = recipe["data"]["train"];
        recipe["data"].erase("valid_fraction");
        Json same = lines.recipe;
        same["data"]["valid"] = same["data"]["train"];
        same["data"].erase("valid_fraction");
        EXPECT_EQ(ids(recipe, std::string(name) + one.names[0]), ids(same, "jsonl" + one.names[0]));
      } else {
        const Recipe read = read_recipe(table.recipe, "");
        std::vector<int64_t> begun;
        // of the other column nothing is read
        for (const int64_t id : open_source(read, folder_ / ("cache-" + std::string(name)), nullptr)
                                    ->train(0, 1, begun)
                                    .ids)
          EXPECT_TRUE((id >= 'a' && id <= 'l') || id >= 256) << id;
      }
    }
  }
}

TEST_F(Finetune, TablesOfExamplesHaveALineOfNames) {
  FinetuneOptions how = options("a.csv", table("prompt,completion", {"a,b"}));
  how.model = model("decoder", R"("tied")");
  const auto refused = [&](const std::string& words) {
    const std::string message = test::error_of([&] { plan_finetune(how); });
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  how.columns = {"prompt", "completion"};
  refused("--columns with task chat; expected JSON lines");
  how.columns = {};
  how.data.push_back(folder_.write("b.jsonl", R"({"prompt": "a", "completion": "b"})"));
  refused("expected files of one format");
  how.data = {folder_.write("c.csv", "prompt,completion\na,b,c\n")};
  refused("c.csv: line 2: 3 cells; expected 2");
  how.data = {folder_.write("d.csv", "prompt,completion\na,\"b\n")};
  refused("a quote that nothing closes");
}

TEST_F(Finetune, ARecipeOfAModelWithoutDataIsSaidToLackThem) {
  const Json recipe = {{"init", {{"from", model("decoder", R"("tied")")}}},
                       {"train", {{"steps", 1}, {"batch", 1}, {"length", 8}}}};
  expect_error(ErrorKind::spec, "[recipe] \"data\" is missing; expected files to learn from",
               [&] { read_recipe(recipe, ""); });
}

TEST_F(Finetune, MakesARecipeThatIsRead) {
  FinetuneOptions how = options("a.tsv", table("sentence\tlabel", {"good\t1", "bad\t0", "so\t1"}));
  const FinetunePlan plan = plan_finetune(how);
  const Recipe recipe = read_recipe(plan.recipe, "");
  EXPECT_EQ(recipe.spec.head.type(), "classifier");
  EXPECT_EQ(recipe.data.labels()->text_key, "sentence");
  EXPECT_EQ(recipe.data.labels()->valid_fraction, 0.1);
  EXPECT_EQ(plan.recipe["objective"]["labels"], (Json{"0", "1"}));
  // 30 examples, 27 of which are learned from: 20 epochs at most
  EXPECT_EQ(recipe.train.steps, 20);
  EXPECT_EQ(recipe.train.batch, 32);
  EXPECT_EQ(recipe.train.length, 4);
  EXPECT_EQ(recipe.optimizer.lr, 1e-4);
  const auto said = fmt::format("{}", fmt::join(plan.choices, "\n"));
  EXPECT_NE(said.find("classification of \"sentence\" by \"label\" (--task, --text"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("2 classes: 0, 1"), std::string::npos) << said;

  how.adapter = "lora";
  const auto adapter = read_recipe(plan_finetune(how).recipe, "").adapter.value();
  EXPECT_EQ(std::get<LoraAdapter>(adapter).rank, 8);
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
  how.task = "contrastive";  // another name of "together"
  EXPECT_EQ(plan_finetune(how).task, "together");
  how.task = "";
  const Json objective = recipe.objective->dump();
  EXPECT_EQ(objective["positive_key"], "positive");
  EXPECT_EQ(objective["negatives_key"], "negative");
  EXPECT_EQ(objective["pooling"], "mean");
  EXPECT_EQ(recipe.data.files().text_key, "anchor");
  EXPECT_EQ(recipe.train.length, 4);
  EXPECT_EQ(recipe.train.batch, 7);
  // as sentence-transformers say that the model pools
  std::filesystem::create_directories(folder_ / "encoder/1_Pooling");
  std::ofstream(folder_ / "encoder/1_Pooling/config.json") << R"({"pooling_mode": "cls"})";
  EXPECT_EQ(plan_finetune(how).recipe["objective"]["pooling"], "cls");
  // and what it does after the pooling is not trained
  const auto says = [](const FinetunePlan& plan, const std::string& words) {
    return std::any_of(plan.choices.begin(), plan.choices.end(), [&](const std::string& line) {
      return line.find(words) != std::string::npos;
    });
  };
  EXPECT_FALSE(says(plan_finetune(how), "after the pooling"));
  std::filesystem::create_directories(folder_ / "encoder/2_Norm");
  std::ofstream(folder_ / "encoder/2_Norm/config.json") << R"({"dimension": 2})";
  const std::vector<float> ones(2, 1.0f);
  format::write_safetensors(
      folder_ / "encoder/2_Norm/model.safetensors",
      std::vector<format::TensorView>{
          {"norm.weight", DType::f32, {2}, std::as_bytes(std::span(ones)), nullptr},
          {"norm.bias", DType::f32, {2}, std::as_bytes(std::span(ones)), nullptr}});
  std::ofstream(folder_ / "encoder/modules.json")
      << R"([{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"},
             {"type": "x.LayerNorm", "path": "2_Norm"}])";
  EXPECT_TRUE(says(plan_finetune(how),
                   "modules after the pooling are left out of training and of what it writes: "
                   "LayerNorm"));
  std::filesystem::remove(folder_ / "encoder/modules.json");
  // a label says more
  how.text = "anchor";
  how.label = "negative";
  EXPECT_EQ(plan_finetune(how).task, "classification");
  how.text = how.label = "";
  how.columns = {"anchor", "positive", "negative"};
  const std::string message = test::error_of([&] { plan_finetune(how); });
  EXPECT_NE(message.find("--columns with task together"), std::string::npos) << message;
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
  EXPECT_EQ(plan.choices.at(1),
            "task: sequence to sequence, source \"question\", target \"answer\" (--text, --label)");
  const Recipe recipe = read_recipe(plan.recipe, "");
  EXPECT_EQ(recipe.objective->type(), "seq2seq");
  EXPECT_EQ(recipe.data.files().source_key, "question");
  EXPECT_EQ(recipe.data.files().text_key, "answer");
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
  how.data = {folder_.write("pairs.txt", "a b\n")};
  refused("task pairs reads JSON lines");
  how = options("a.jsonl", lines);
  how.task = "pairs";
  refused("is no encoder_decoder; expected one");
}

// the files of GLUE and SuperGLUE as they are published, and exports of `datasets`
TEST_F(Finetune, BenchmarksHaveTheirColumnsAndClasses) {
  const auto plan = [&](const char* task, std::string_view name, const std::string& content) {
    FinetuneOptions how = options(name, content);
    how.task = task;
    return plan_finetune(how);
  };
  const auto keys = [](const FinetunePlan& plan) {
    const Json& data = plan.recipe["data"];
    return fmt::format("{}, {}, {}", data["text_key"].get<std::string>(),
                       data.value("text_b_key", "-"),
                       data.value("label_key", data.value("score_key", "-")));
  };
  const auto classes = [](const FinetunePlan& plan) {
    return plan.recipe["objective"]["labels"].dump();
  };
  std::string cola;
  for (int i = 0; i < 30; ++i)
    cola += i % 3 == 0 ? "gj04\t0\t*\tHe \"read.\n" : "gj04\t1\t\tShe reads.\n";
  const FinetunePlan own = plan("cola", "train.tsv", cola);
  EXPECT_EQ(own.benchmark, "glue:cola");
  EXPECT_EQ(own.task, "classification");
  EXPECT_EQ(own.scores, std::vector<std::string>{"matthews"});
  EXPECT_EQ(keys(own), "sentence, -, label");
  EXPECT_EQ(classes(own), R"(["unacceptable","acceptable"])");
  EXPECT_EQ(own.recipe["data"]["columns"].size(), 4u);
  const FinetunePlan named =
      plan("glue:cola", "b.tsv", table("sentence\tlabel\tidx", {"a\t1\t0", "b\t0\t1"}));
  EXPECT_FALSE(named.recipe["data"].contains("columns"));
  EXPECT_EQ(keys(named), "sentence, -, label");
  const FinetunePlan mrpc = plan("glue:mrpc", "m.tsv",
                                 table("\xEF\xBB\xBFQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
                                       {"1\t7\t8\ta \"b\tc", "0\t9\t9\td\te"}));
  EXPECT_EQ(keys(mrpc), "#1 String, #2 String, Quality");
  EXPECT_EQ(mrpc.scores, (std::vector<std::string>{"accuracy", "f1"}));
  // rows that lack cells are left out, as in `datasets`
  const FinetunePlan qqp =
      plan("qqp", "q.tsv",
           table("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
                 {"1\t1\t2\ta?\tb?\t0", "2\t3\t4\tc?\td?\t1", "3\t5\t6\te", "4\t5\t6\tf?\t\t1"}));
  EXPECT_EQ(keys(qqp), "question1, question2, is_duplicate");
  EXPECT_EQ(qqp.recipe["data"]["skip_incomplete"], true);
  EXPECT_TRUE(std::any_of(qqp.choices.begin(), qqp.choices.end(), [](const std::string& line) {
    return line.starts_with("rows with missing cells");
  }));
  const FinetunePlan retrieval =
      plan("lra:retrieval", "r.tsv",
           table("label\tid1\tid2\ttext1\ttext2", {"0.0\t1\t2\ta\tb", "1.0\t1\t2\tc\td"}));
  EXPECT_FALSE(retrieval.recipe["data"].value("skip_incomplete", false));
  const FinetunePlan mnli =
      plan("mnli", "dev_matched.tsv",
           table("index\tpromptID\tpairID\tgenre\tsentence1_parse\tsentence2_parse\tsentence1\t"
                 "sentence2\tlabel1\tgold_label",
                 {"0\t1\t1\tx\t(\t(\tA.\tB.\tneutral\tentailment",
                  "1\t1\t1\tx\t(\t(\tA.\tB.\tneutral\tneutral"}));
  EXPECT_EQ(keys(mnli), "sentence1, sentence2, gold_label");
  EXPECT_EQ(classes(mnli), R"(["entailment","neutral","contradiction"])");
  const FinetunePlan stsb = plan("stsb", "dev.tsv",
                                 table("index\tgenre\tsentence1\tsentence2\tscore",
                                       {"0\tx\tA.\tB.\t5.000", "1\tx\tA.\tC.\t2"}));
  EXPECT_EQ(stsb.task, "regression");
  EXPECT_EQ(keys(stsb), "sentence1, sentence2, score");
  EXPECT_EQ(stsb.recipe["objective"]["type"], "regression");
  EXPECT_EQ(keys(plan("qnli", "n.tsv",
                      table("index\tquestion\tsentence\tlabel",
                            {"0\tQ?\tS.\tentailment", "1\tQ?\tS.\tnot_entailment"}))),
            "question, sentence, label");
  const FinetunePlan boolq =
      plan("superglue:boolq", "b.jsonl",
           table(R"({"question": "q", "passage": "p", "idx": 0, "label": true})",
                 {R"({"question": "q", "passage": "p", "idx": 1, "label": false})"}));
  EXPECT_EQ(keys(boolq), "question, passage, label");
  EXPECT_EQ(classes(boolq), R"(["false","true"])");
  const FinetunePlan copa = plan(
      "superglue:copa", "c.jsonl",
      table(
          R"({"premise": "a", "choice1": "b", "choice2": "c", "question": "cause", "label": 0, "idx": 0})",
          {R"({"premise": "a", "choice1": "b", "choice2": "c", "question": "effect", "label": 1, "idx": 1})"}));
  EXPECT_EQ(copa.recipe["data"]["layout"], "copa");
  EXPECT_EQ(keys(copa), "text, text_b, label");
  EXPECT_EQ(copa.scores, std::vector<std::string>{"choice_accuracy"});
  EXPECT_EQ(read_recipe(copa.recipe, "").data.labels()->layout, RecordLayout::copa);
  test::expect_error(ErrorKind::usage, "a table; expected the JSON lines of superglue:copa",
                     [&] { plan("superglue:copa", "c.tsv", "a\tb\n1\t2\n"); });
  test::expect_error(ErrorKind::usage, "no column for the text",
                     [&] { plan("mrpc", "x.tsv", table("a\tb", {"1\t2"})); });
  test::expect_error(ErrorKind::usage, "or a benchmark: glue:cola, ...",
                     [&] { plan("classify", "x.tsv", table("a\tb", {"1\t2"})); });
}

TEST_F(Finetune, SaysWhatItCannotGuess) {
  const auto refusal = [&](const FinetuneOptions& how) {
    return test::error_of([&] { plan_finetune(how); });
  };
  const auto has = [](const std::string& message, std::string_view part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  has(refusal(options("a.tsv", table("foo\tbar", {"good\t1"}))), "no column for the text");
  has(refusal(options("a.tsv", table("text\tbar", {"good\t1"}))), "name it with --label NAME");
  // names of another spelling are known, other separators are named
  const auto keys = [&](std::string_view name, const std::string& content,
                        const std::string& separator = "") {
    FinetuneOptions how = options(name, content);
    how.separator = separator;
    const Json data = plan_finetune(how).recipe["data"];
    return fmt::format("{}|{}|{}", data.value("text_key", ""), data.value("text_b_key", ""),
                       data.value("label_key", ""));
  };
  EXPECT_EQ(keys("a.csv", table("Text,Label", {"good,1", "bad,0"})), "Text||Label");
  EXPECT_EQ(keys("a.csv", table("text, label", {"good, 1", "bad, 0"})), "text|| label");
  EXPECT_EQ(keys("a.csv", table("Sentence,LABEL", {"good,1", "bad,0"})), "Sentence||LABEL");
  has(refusal(options("a.csv", table("text;label", {"good;1", "bad;0"}))),
      "has one column, \"text;label\"; expected --separator ';'");
  has(refusal(options("a.csv", table("text\tlabel", {"good\t1", "bad\t0"}))),
      "expected --format tsv");
  EXPECT_EQ(keys("a.csv", table("text;label", {"\"good; so\";1", "bad;0"}), ";"), "text||label");
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
