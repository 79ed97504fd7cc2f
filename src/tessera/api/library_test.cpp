// The public headers as a program uses them, on a model of five layers that is written here: what
// they give is what the layers below give.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "tessera/api/tessera.h"
#include "tessera/api/tessera_c.h"
#include "tessera/base/testing.h"
#include "tessera/convert/checkpoint.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/infer/sampling/decoding_fields.h"
#include "tessera/spec/json.h"

namespace tessera {
namespace {

using spec::Json;

constexpr const char* kSpec = R"({
  "tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 32, "norm": "rms_norm",
  "layers": [{"repeat": 2, "mixer": {"type": "attention", "n_heads": 2, "position": "rope"}}],
  "ffn": {"type": "glu", "act": "silu", "d_hidden": 48}, "head": "tied"})";

/// An untrained decoder of bytes in a folder.
class Library : public testing::Test {
 protected:
  void SetUp() override {
    const model::ModelSpec spec = model::read_model_spec(spec::parse_json(kSpec, "spec"));
    const model::Weights weights = model::Weights::initial(spec, 7);
    std::vector<format::TensorView> views;
    for (const auto& [decl, weight] : weights.all())
      views.push_back(
          {decl.name,
           weight->dtype(),
           weight->shape(),
           {static_cast<const std::byte*>(weight->data()), static_cast<size_t>(weight->bytes())},
           weight});
    convert::TesseraFolderOptions how;
    how.metadata["tessera_tokenizer"] = "bytes";
    convert::write_tessera_folder(model::resolve(spec), views, folder_.path() / "model", how);
    path_ = (folder_.path() / "model").string();
  }
  static std::string error_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }

  test::TemporaryFolder folder_;
  std::string path_;
};

TEST_F(Library, TextIsThatOfTheEngine) {
  const Model model(path_);
  std::string streamed;
  const Completion found =
      model.generate("Once", R"({"max_new_tokens": 12, "temperature": 0, "ignore_eos": true})",
                     [&](std::string_view text) {
                       streamed += text;
                       return true;
                     });
  const infer::LoadedModel loaded = infer::load_model(path_, {}, kernels::Arithmetic::int15);
  infer::GenerateOptions options;
  options.max_new_tokens = 12;
  const auto ids = loaded.tokenizer->encode("Once");
  const auto expected =
      infer::generate(loaded.model, &*loaded.tokenizer, {{ids.begin(), ids.end()}}, options);
  EXPECT_EQ(found.token_ids, expected.rows.at(0).token_ids);
  EXPECT_EQ(found.text, expected.rows.at(0).text);
  EXPECT_EQ(streamed, found.text);
  EXPECT_EQ(found.prompt_tokens, 4);
  EXPECT_EQ(found.finish_reason, "length");
  const std::vector<int64_t> prompt(ids.begin(), ids.end());
  const Completion by_ids = model.generate(prompt, R"({"max_new_tokens": 12, "ignore_eos": true})");
  EXPECT_EQ(by_ids.token_ids, found.token_ids);
}

TEST_F(Library, AnAnswerEndsWhereTheCallerSays) {
  const Model model(path_);
  int64_t pieces = 0;
  const Completion stopped =
      model.generate("Once", R"({"max_new_tokens": 50, "ignore_eos": true, "temperature": 1.5,
                                 "regex": "[a-z]{50}"})",
                     [&](std::string_view) { return ++pieces < 3; });
  EXPECT_EQ(stopped.finish_reason, "cancelled");
  EXPECT_LT(stopped.token_ids.size(), 6u);
}

// every option of the list that has a setting is one, and no other
TEST_F(Library, OptionsOfDecodingAreThoseOfTheList) {
  const Model model(path_);
  for (const infer::DecodingField& option : infer::decoding_fields()) {
    // valid for none of them
    const std::string error = error_of(
        [&] { model.generate("ab", fmt::format("{{\"{}\": {{\"type\": 5}}}}", option.name)); });
    const bool unknown = error.find("unknown setting") != std::string::npos;
    EXPECT_EQ(unknown, (option.accepted & infer::in_settings) == 0) << error;
    EXPECT_NE(error.find(option.name), std::string::npos) << error;
  }
}

TEST_F(Library, SettingsAreHeldTo) {
  const Model model(path_);
  const auto text = [&](const char* settings) { return model.generate("ab", settings).text; };
  // seeds draw, and the same one the same
  const char* const drawn = R"({"temperature": 1, "seed": 3, "max_new_tokens": 20})";
  EXPECT_EQ(model.generate("ab", drawn).token_ids, model.generate("ab", drawn).token_ids);
  EXPECT_NE(
      model.generate("ab", drawn).token_ids,
      model.generate("ab", R"({"temperature": 1, "seed": 4, "max_new_tokens": 20})").token_ids);
  EXPECT_EQ(text(R"x({"regex": "(yes|no)", "max_new_tokens": 9})x").find_first_not_of("yesno"),
            std::string::npos);
  EXPECT_EQ(error_of([&] { text(R"({"top_kk": 3})"); }),
            "[generate] unknown setting \"top_kk\"; expected \"top_k\"?");
  EXPECT_EQ(error_of([&] { text(R"({"top_p": 3})"); }).rfind("[generate] top_p: 3; expected ", 0),
            0u);
  EXPECT_EQ(error_of([&] { text(R"({"regex": "a", "grammar": "root ::= \"a\""})"); }),
            "[generate] more than one of grammar, regex and json_schema; expected one of them");
  EXPECT_EQ(error_of([&] { text(R"({"seed": "x"})"); }),
            "[generate] seed: \"x\"; expected a whole number up to 2^64 - 1, or -1 for a new seed");
  EXPECT_EQ(error_of([&] {
              model.chat(R"([{"role": "user", "content": "Hi"}])");
            }).find("has no chat template") == std::string::npos,
            false);
}

TEST_F(Library, NumbersAreThoseOfTheModel) {
  const Model model(path_);
  const std::vector<int64_t> ids = model.tokenize("Hello");
  EXPECT_EQ(ids, (std::vector<int64_t>{'H', 'e', 'l', 'l', 'o'}));
  EXPECT_EQ(model.detokenize(ids), "Hello");
  const infer::LoadedModel loaded = infer::load_model(path_);
  const at::NoGradGuard no_gradients;
  const Tensor hidden = loaded.model.hidden(nn::Batch::of({ids}));
  const Tensor logits = loaded.model.logits(hidden);
  for (const auto& [found, expected] :
       {std::pair{model.hidden_states(ids), hidden}, std::pair{model.logits(ids), logits}}) {
    ASSERT_EQ(found.rows, 5);
    ASSERT_EQ(found.columns, expected.size(1));
    const Tensor held = expected.contiguous();
    EXPECT_TRUE(std::equal(found.values.begin(), found.values.end(), held.const_data_ptr<float>()));
  }
  const Matrix vectors = model.embed({"a", "Hello"}, R"({"pooling": "last", "normalize": true})");
  ASSERT_EQ(vectors.rows, 2);
  ASSERT_EQ(vectors.columns, 32);
  double length = 0, product = 0, own = 0;
  const Matrix states = model.hidden_states(ids);
  for (int64_t i = 0; i < 32; ++i) {
    length += vectors.row(1)[i] * vectors.row(1)[i];
    product += vectors.row(1)[i] * states.row(4)[i];
    own += states.row(4)[i] * states.row(4)[i];
  }
  EXPECT_NEAR(length, 1, 1e-5);
  EXPECT_NEAR(product, std::sqrt(own), 1e-4);
  EXPECT_EQ(error_of([&] { model.logits({256}); }), "[logits] token 256; expected 0 to 255");
  EXPECT_EQ(spec::parse_json(model.spec(), "spec")["d_model"], 32);
}

TEST_F(Library, ThreadsMayShareAModel) {
  const Model model(path_);
  const char* const settings = R"({"max_new_tokens": 20, "ignore_eos": true})";
  const auto alone = model.generate("abc", settings).token_ids;
  std::vector<std::vector<int64_t>> found(4);
  std::vector<std::thread> threads;
  for (auto& ids : found)
    threads.emplace_back([&] { ids = model.generate("abc", settings).token_ids; });
  for (std::thread& thread : threads) thread.join();
  for (const auto& ids : found) EXPECT_EQ(ids, alone);
}

TEST_F(Library, PlansAndTrains) {
  const Json costs = spec::parse_json(plan(kSpec, 128), "plan");
  EXPECT_EQ(costs, spec::parse_json(plan(path_, 128), "plan"));
  // the table, two layers of attention, gated feed-forward and two norms, the last norm
  EXPECT_EQ(costs["parameters"], 256 * 32 + 2 * (4 * 32 * 32 + 3 * 32 * 48 + 2 * 32) + 32);
  const std::string recipe = folder_.write("recipe.json", R"({"spec": )" + std::string(kSpec) + R"(,
    "data": {"train": ["text.txt"], "tokenizer": "bytes"},
    "train": {"steps": 50, "batch": 2, "length": 16}})");
  std::string text;
  for (int i = 0; i < 200; ++i) text += "abcdefgh ";
  folder_.write("text.txt", text);
  const std::string run = (folder_.path() / "run").string();
  int64_t last = 0;
  const auto ends_at = [&](int64_t end) {
    return [&last, end](std::string_view line, int64_t steps) {
      last = spec::parse_json(line, "line")["step"];
      EXPECT_EQ(steps, 6);
      return last < end;
    };
  };
  EXPECT_EQ(error_of([&] {
              train_recipe(recipe, run, R"({"set": "train.steps=6"})", ends_at(3));
            }).find("stopped on request") == std::string::npos,
            false);
  EXPECT_EQ(last, 3);
  const std::string checkpoint =
      train_recipe(recipe, run, R"({"set": ["train.steps=6"], "resume": true})", ends_at(100));
  EXPECT_EQ(last, 6);
  EXPECT_EQ(Model(checkpoint).tokenize("ab"), (std::vector<int64_t>{'a', 'b'}));
  const Json layers = spec::parse_json(outline(kSpec), "outline");
  EXPECT_EQ(layers, spec::parse_json(outline(path_), "outline"));
  EXPECT_EQ(layers["plan"]["parameters"], costs["parameters"]);
  EXPECT_EQ(layers["stacks"][0]["nodes"][1]["times"], 2);
  EXPECT_EQ(error_of([&] { plan(""); }), "[plan] an empty spec; expected JSON, a file or a model");
}

TEST_F(Library, NamesAreLookedUpInTheCache) {
  namespace fs = std::filesystem;
  const std::string commit(40, 'a');
  const fs::path repo = folder_.path() / "hub/models--org--tiny";
  fs::create_directories(repo / "snapshots");
  fs::copy(path_, repo / "snapshots" / commit);
  folder_.write("hub/models--org--tiny/refs/main", commit);
  ::setenv("HF_HUB_CACHE", (folder_.path() / "hub").c_str(), 1);
  const char* const settings = R"({"max_new_tokens": 4, "ignore_eos": true})";
  EXPECT_EQ(Model("org/tiny").generate("ab", settings).token_ids,
            Model(path_).generate("ab", settings).token_ids);
  EXPECT_EQ(plan("org/tiny", 64), plan(path_, 64));
  EXPECT_NE(error_of([] { Model("org/none"); }).find("`tessera pull org/none`"), std::string::npos);
  ::unsetenv("HF_HUB_CACHE");
}

TEST_F(Library, CHasTheSame) {
  EXPECT_STREQ(tessera_version(), version().c_str());
  EXPECT_EQ(tessera_load((path_ + "/none").c_str(), nullptr), nullptr);
  EXPECT_EQ(tessera_error_code(), TESSERA_FILE);
  EXPECT_NE(std::string(tessera_error()).find("none"), std::string::npos);
  EXPECT_EQ(tessera_load(nullptr, nullptr), nullptr);
  EXPECT_EQ(tessera_error_code(), TESSERA_USAGE);
  tessera_model* const model = tessera_load(path_.c_str(), "{\"arithmetic\": \"exact\"}");
  ASSERT_NE(model, nullptr);
  const Model same(path_);

  int64_t* ids = nullptr;
  ASSERT_EQ(tessera_tokenize(model, "Once", 1, 0, &ids), 4);
  std::string streamed;
  const tessera_on_text on_text = [](const char* text, int64_t bytes, void* user) {
    static_cast<std::string*>(user)->append(text, static_cast<size_t>(bytes));
    return 1;
  };
  const char* const settings = "{\"max_new_tokens\": 8, \"ignore_eos\": true}";
  char* const by_text = tessera_generate(model, "Once", settings, on_text, &streamed);
  char* const by_ids = tessera_generate_ids(model, ids, 4, settings, nullptr, nullptr);
  ASSERT_NE(by_text, nullptr);
  ASSERT_NE(by_ids, nullptr);
  EXPECT_STREQ(by_text, by_ids);
  const Json completion = spec::parse_json(by_text, "completion");
  EXPECT_EQ(completion["text"], streamed);
  EXPECT_EQ(completion["token_ids"], same.generate("Once", settings).token_ids);

  int64_t rows = 0, columns = 0;
  float* const logits = tessera_logits(model, ids, 4, &rows, &columns);
  const Matrix expected = same.logits({ids, ids + 4});
  ASSERT_NE(logits, nullptr);
  ASSERT_EQ(rows * columns, static_cast<int64_t>(expected.values.size()));
  EXPECT_TRUE(std::equal(expected.values.begin(), expected.values.end(), logits));
  const char* const texts[] = {"a", "b"};
  float* const vectors = tessera_embed(model, texts, 2, "{\"pooling\": \"mean\"}", &rows, &columns);
  ASSERT_NE(vectors, nullptr);
  EXPECT_EQ(std::pair(rows, columns), std::pair(int64_t{2}, int64_t{32}));
  EXPECT_EQ(tessera_generate(model, "a", "{\"no\": 1}", nullptr, nullptr), nullptr);
  EXPECT_EQ(tessera_error_code(), TESSERA_USAGE);
  char* const text = tessera_detokenize(model, ids, 4);
  EXPECT_STREQ(text, "Once");
  char* const spec = tessera_spec(model);
  char* const costs = tessera_plan(kSpec, 64);
  EXPECT_EQ(spec::parse_json(spec, "spec")["vocab"], 256);
  EXPECT_EQ(std::string(costs), plan(kSpec, 64));
  for (void* memory :
       std::initializer_list<void*>{ids, by_text, by_ids, logits, vectors, text, spec, costs})
    tessera_free(memory);
  tessera_close(model);
}

}  // namespace
}  // namespace tessera
