#include "tessera/infer/encoders/embed.h"

#include <filesystem>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tessera/base/base64.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"
#include "tessera/convert/gguf_model.h"
#include "tessera/text/tokenizer/byte_tokenizer.h"

namespace tessera::infer::embed_test {
namespace {

using test::error_of;
using test::TemporaryFolder;

constexpr char kModules[] = R"([
  {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
  {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}])";

LoadedModel tiny_encoder() {
  const model::ModelSpec spec = model::read_model_spec(spec::parse_json(
      R"({"tessera": 1, "arch": "encoder", "vocab": 258, "d_model": 8, "layers": [{"repeat": 2}],
          "embed": {"type": "token", "position": {"type": "learned", "n_positions": 12}},
          "mixer": {"type": "attention", "n_heads": 2}, "ffn": {"type": "mlp", "d_hidden": 8}})",
      "test"));
  return {model::Model(spec, model::Weights::initial(spec, 5)),
          text::byte_tokenizer({{"<s>", "</s>"}, "<s>", "</s>"}),
          {}};
}

Tensor hidden_of(const LoadedModel& loaded, const std::string& text) {
  const at::NoGradGuard no_gradients;
  const auto ids = loaded.tokenizer->encode(text);
  return loaded.model
      .hidden(nn::Batch::of(std::vector<std::vector<int64_t>>{{ids.begin(), ids.end()}}))
      .to(at::kDouble);
}

TEST(Embed, PoolsTheTokensOfEachText) {
  const LoadedModel loaded = tiny_encoder();
  const std::vector<std::string> texts = {"ab", "", "hello"};
  for (const auto pooling : {Pooling::mean, Pooling::cls, Pooling::max, Pooling::last}) {
    EmbedOptions options;
    options.poolings = {pooling};
    options.normalize = false;
    const Embeddings plain = embed(loaded, texts, options);
    options.normalize = true;
    const Embeddings unit = embed(loaded, texts, options);
    ASSERT_EQ(plain.vectors_RD.sizes(), (at::IntArrayRef{3, 8}));
    for (int64_t r = 0; r < 3; ++r) {
      const Tensor x_TD = hidden_of(loaded, texts[static_cast<size_t>(r)]);
      EXPECT_EQ(plain.tokens[static_cast<size_t>(r)], x_TD.size(0));
      const Tensor want = pooling == Pooling::mean  ? x_TD.sum(0) / x_TD.size(0)
                          : pooling == Pooling::cls ? x_TD[0]
                          : pooling == Pooling::max ? std::get<0>(x_TD.max(0))
                                                    : x_TD[x_TD.size(0) - 1];
      const auto close = [&](const Tensor& got, const Tensor& expected) {
        return (got.to(at::kDouble) - expected).abs().max().item<double>() < 1e-6;
      };
      EXPECT_TRUE(close(plain.vectors_RD[r], want)) << name_of(pooling) << " of text " << r;
      EXPECT_TRUE(close(unit.vectors_RD[r], want / want.pow(2).sum().sqrt()));
    }
  }
}

TEST(Embed, VectorsDoNotDependOnTheirNeighbours) {
  const LoadedModel loaded = tiny_encoder();
  const Tensor together = embed(loaded, {"ab", "hello", "x"}, {}).vectors_RD;
  EXPECT_TRUE(at::equal(together[1], embed(loaded, {"hello"}, {}).vectors_RD[0]));
}

TEST(Embed, LongTextsAreCutBeforeWhatStandsAround) {
  const LoadedModel loaded = tiny_encoder();
  const Embeddings whole = embed(loaded, {"0123456789a"}, {});  // 12 positions, <s> before
  EXPECT_EQ(whole.tokens[0], 12);
  EXPECT_EQ(whole.cut, 0);
  const Embeddings cut = embed(loaded, {"0123456789abc"}, {});
  EXPECT_EQ(cut.cut, 1);
  EXPECT_TRUE(at::equal(cut.vectors_RD, whole.vectors_RD));
  EmbedOptions options;
  options.max_tokens = 4;
  EXPECT_TRUE(at::equal(embed(loaded, {"0123"}, options).vectors_RD,
                        embed(loaded, {"012"}, {}).vectors_RD));
  options.max_tokens = 1;
  EXPECT_EQ(error_of([&] { embed(loaded, {"0123"}, options); }),
            "[embed] 1 tokens leave no room for a text; expected more than 1");
}

TEST(Embed, APromptStandsBeforeEveryText) {
  const LoadedModel loaded = tiny_encoder();
  EmbedOptions options;
  options.prompt = "q:";
  EXPECT_TRUE(at::equal(embed(loaded, {"ab", "c"}, options).vectors_RD,
                        embed(loaded, {"q:ab", "q:c"}, {}).vectors_RD));
  // left out of the pooling: <s> and the two bytes of the prompt
  options.include_prompt = false;
  options.normalize = false;
  for (const auto pooling : {Pooling::mean, Pooling::max, Pooling::cls}) {
    options.poolings = {pooling};
    const Tensor x_TD = hidden_of(loaded, "q:ab"), rest_TD = x_TD.slice(0, 3);
    ASSERT_EQ(rest_TD.size(0), 2);
    const Tensor want = pooling == Pooling::mean  ? rest_TD.mean(0)
                        : pooling == Pooling::max ? rest_TD.amax(0)
                                                  : rest_TD[0];
    const Tensor got = embed(loaded, {"ab"}, options).vectors_RD[0].to(at::kDouble);
    EXPECT_LT((got - want).abs().max().item<double>(), 1e-6) << name_of(pooling);
  }
  options.poolings = {Pooling::mean};
  EXPECT_NE(error_of(ErrorKind::input,
                     [&] {
                       embed(loaded, {"ab", ""}, options);
                     })
                .find("text 2 has 3 tokens, of which the first 3 belong to the prompt"),
            std::string::npos);
}

TEST(Embed, SpecialTokensAreTextUnlessAsked) {
  const LoadedModel loaded = tiny_encoder();
  EmbedOptions options;
  EXPECT_EQ(embed(loaded, {"a</s>"}, options).tokens[0], 6);  // <s> and five bytes
  options.parse_special = true;
  EXPECT_EQ(embed(loaded, {"a</s>"}, options).tokens[0], 3);
}

const std::filesystem::path kGolden =
    std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/golden/sentence";

/// A folder as tools/golden/sentence_modules.py saved it.
void put_case(const TemporaryFolder& folder, const spec::Json& files) {
  namespace fs = std::filesystem;
  for (const auto& one : fs::directory_iterator(kGolden / "base"))
    fs::copy_file(one.path(), folder / one.path().filename().string());
  for (const auto& [path, content] : files.items()) {
    fs::create_directories((folder / path).parent_path());
    fs::remove(folder / path);
    folder.write(path, content.is_string() ? bytes_of_base64(content.get<std::string>()).value()
                                           : content.dump());
  }
}

Tensor vectors_of(const std::filesystem::path& model, const std::vector<std::string>& texts) {
  const EmbedOptions options = embed_options_of(model);
  const LoadedModel loaded = load_model(model);
  const Tensor vectors_RD = embed(loaded, texts, options).vectors_RD;
  EXPECT_EQ(vectors_RD.size(1), embedding_width(loaded.model.spec(), options));
  return vectors_RD;
}

// what sentence-transformers 6.2 computes with the folders that it saves, and with those of earlier
// versions
TEST(Embed, VectorsAreThoseOfSentenceTransformers) {
  const spec::Json file = spec::read_json_file(kGolden / "cases.json");
  const auto texts = file["texts"].get<std::vector<std::string>>();
  for (const auto& [name, entry] : file["cases"].items()) {
    SCOPED_TRACE(name);
    const TemporaryFolder folder;
    put_case(folder, entry["files"]);
    const Tensor vectors_RD = vectors_of(folder.path(), texts);
    for (size_t r = 0; r < texts.size(); ++r) {
      const auto want = entry["vectors"][r].get<std::vector<float>>();
      ASSERT_EQ(vectors_RD.size(1), std::ssize(want));
      for (size_t c = 0; c < want.size(); ++c)
        EXPECT_NEAR(vectors_RD[static_cast<int64_t>(r)][static_cast<int64_t>(c)].item<float>(),
                    want[c], 1e-5 * std::max(1.0f, std::abs(want[c])))
            << "text " << r << ", number " << c;
    }
  }
}

// folders that are made of them, by way of either format, give the same vectors
TEST(Embed, VectorsStayThroughConversions) {
  const spec::Json file = spec::read_json_file(kGolden / "cases.json");
  const auto texts = file["texts"].get<std::vector<std::string>>();
  int64_t in_gguf = 0;
  for (const auto& [name, entry] : file["cases"].items()) {
    SCOPED_TRACE(name);
    const TemporaryFolder folder, out;
    put_case(folder, entry["files"]);
    const Tensor want_RD = vectors_of(folder.path(), texts);
    const convert::Checkpoint checkpoint = convert::load_checkpoint(folder.path());
    convert::write_hf_folder(checkpoint, out / "hf");
    EXPECT_TRUE(at::equal(vectors_of(out / "hf", texts), want_RD));
    convert::write_tessera_folder(checkpoint, out / "own");
    EXPECT_TRUE(at::equal(vectors_of(out / "own", texts), want_RD));
    convert::write_hf_folder(convert::load_checkpoint(out / "own"), out / "back");
    EXPECT_TRUE(at::equal(vectors_of(out / "back", texts), want_RD));
    // files hold no modules but the pooling, which a folder that is made of one has too
    if (name != "old_mean" && name != "old_cls" && name != "old_lasttoken") continue;
    ++in_gguf;
    convert::write_gguf_model(convert::gguf_model_of(checkpoint), out / "model.gguf");
    convert::write_hf_folder(convert::load_checkpoint(out / "model.gguf"), out / "of_gguf");
    EXPECT_TRUE(at::allclose(vectors_of(out / "of_gguf", texts),
                             vectors_of(out / "model.gguf", texts), 0, 1e-6));
  }
  EXPECT_EQ(in_gguf, 3);
}

TEST(Embed, ModulesAreCopiedWithinTheirFolder) {
  const TemporaryFolder from, to;
  from.write("model.safetensors", "weights");
  from.write("secret", "x");
  from.write("sentence_bert_config.json", R"({"max_seq_length": 9})");
  const auto copied = [&](const std::string& path) {
    from.write("modules.json", R"([{"type": "x.Transformer", "path": ""},
                                   {"type": "x.Pooling", "path": ")" +
                                   path + "\"}]");
    return error_of([&] { convert::copy_sentence_modules(from.path(), to.path()); });
  };
  EXPECT_NE(copied("../secret").find("expected one within the folder"), std::string::npos);
  EXPECT_NE(copied("/etc").find("expected one within the folder"), std::string::npos);
  EXPECT_EQ(copied("1_Pooling"), "");
  // a module in the folder itself does not bring the weights along
  EXPECT_EQ(copied("."), "");
  EXPECT_TRUE(std::filesystem::exists(to / "sentence_bert_config.json"));
  EXPECT_FALSE(std::filesystem::exists(to / "model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(to / "secret"));
  from.write("modules.json", R"({"type": "x"})");
  EXPECT_NE(error_of([&] {
              convert::copy_sentence_modules(from.path(), to.path());
            }).find("expected a list of modules"),
            std::string::npos);
}

TEST(Embed, KeepsTheFirstNumbers) {
  const LoadedModel loaded = tiny_encoder();
  EmbedOptions options;
  const Tensor whole_D = embed(loaded, {"ab"}, options).vectors_RD[0];
  options.dimensions = 3;
  EXPECT_EQ(embedding_width(loaded.model.spec(), options), 3);
  EXPECT_TRUE(at::equal(embed(loaded, {"ab"}, options).vectors_RD[0], whole_D.slice(0, 0, 3)));
  options.renormalize = true;
  const Tensor unit_D = embed(loaded, {"ab"}, options).vectors_RD[0];
  EXPECT_NEAR(unit_D.norm().item<float>(), 1, 1e-6);
  EXPECT_TRUE(at::allclose(unit_D, whole_D.slice(0, 0, 3) / whole_D.slice(0, 0, 3).norm()));
  options.dimensions = 100;  // as many as there are
  EXPECT_TRUE(at::equal(embed(loaded, {"ab"}, options).vectors_RD[0], whole_D));
}

TEST(Embed, ModulesMustFit) {
  const LoadedModel loaded = tiny_encoder();
  EmbedOptions options;
  options.layers.push_back({.kind = convert::SentenceLayer::Kind::dense,
                            .where = "2_Dense/config.json",
                            .in = 9,
                            .out = 1,
                            .weight = std::vector<float>(9)});
  EXPECT_EQ(error_of([&] { embed(loaded, {"ab"}, options); }),
            "[2_Dense/config.json] the module reads vectors of 9 numbers; before it there are 8");
}

TEST(EmbedOptions, FromAFolderOfModules) {
  const TemporaryFolder folder;
  EXPECT_EQ(embed_options_of(folder.path()).poolings, std::vector{Pooling::mean});
  EXPECT_TRUE(embed_options_of(folder.path()).normalize);
  folder.write("modules.json", kModules);
  folder.write("1_Pooling/config.json",
               R"({"word_embedding_dimension": 8, "pooling_mode_cls_token": true,
                   "pooling_mode_mean_tokens": false})");
  folder.write("sentence_bert_config.json", R"({"max_seq_length": 77, "do_lower_case": false})");
  EXPECT_EQ(embed_options_of(folder.path()).prompt, "");
  folder.write("config_sentence_transformers.json",
               R"({"prompts": {"query": "q: ", "passage": "p: "}, "default_prompt_name": null})");
  EXPECT_EQ(embed_options_of(folder.path()).prompt, "");
  folder.write("config_sentence_transformers.json",
               R"({"prompts": {"query": "q: ", "passage": "p: "},
                   "default_prompt_name": "query"})");
  const EmbedOptions options = embed_options_of(folder.path());
  EXPECT_EQ(options.prompt, "q: ");
  EXPECT_EQ(options.prompts,
            (std::map<std::string, std::string>{{"query", "q: "}, {"passage", "p: "}}));
  EXPECT_TRUE(options.include_prompt);
  EXPECT_EQ(options.poolings, std::vector{Pooling::cls});
  EXPECT_FALSE(options.normalize);  // no module does it
  EXPECT_EQ(options.max_tokens, 77);
  std::filesystem::rename(folder / "sentence_bert_config.json",
                          folder / "sentence_xlm-roberta_config.json");
  EXPECT_EQ(embed_options_of(folder.path()).max_tokens, 77);
}

TEST(EmbedOptions, RefusesWhatItCannotDo) {
  const TemporaryFolder folder;
  const auto error = [&] { return error_of([&] { embed_options_of(folder.path()); }); };
  const auto pooling = [&](const char* text) {
    folder.write("modules.json", kModules);
    folder.write("1_Pooling/config.json", text);
    return error();
  };
  EXPECT_NE(pooling(R"({"pooling_mode_median_tokens": true})")
                .find("pooling_mode_median_tokens is not supported; expected one of cls, max,"),
            std::string::npos);
  EXPECT_NE(pooling(R"({"pooling_mode": "median"})")
                .find("pooling_mode \"median\"; expected cls, max, mean, mean_sqrt_len_tokens,"),
            std::string::npos);
  EXPECT_NE(pooling(R"({"pooling_mode": ["mean", 1]})").find("pooling_mode 1; expected cls"),
            std::string::npos);
  EXPECT_NE(pooling("{}").find("no pooling mode"), std::string::npos);
  EXPECT_NE(pooling(R"({"pooling_mode": []})").find("no pooling mode"), std::string::npos);
  EXPECT_NE(pooling("[1]").find("found an array; expected an object"), std::string::npos)
      << error();
  EXPECT_NE(pooling(R"({"pooling_mode_mean_tokens": true, "include_prompt": 0})")
                .find("include_prompt = 0; expected true or false"),
            std::string::npos);
  EXPECT_EQ(pooling(R"({"pooling_mode_mean_tokens": true})"), "");
  for (const auto& [modules, expected] :
       {std::pair(R"([{"type": "x.CNN", "path": "2_CNN"}])", "module \"x.CNN\" is not supported"),
        std::pair(R"([{"type": "x.Dense", "path": "2_Dense"}])", "2_Dense/config.json"),
        std::pair(R"([{"type": "x.Pooling", "path": "../other"}])", "within the folder"),
        std::pair(R"([{"type": "x.Pooling", "path": "/etc"}])", "within the folder"),
        std::pair(R"([{"type": "x.Pooling"}])", "without \"path\""),
        std::pair(R"({"type": "x.Pooling"})", "expected a list of modules"),
        std::pair("[]", "found no module; expected Transformer, Pooling"),
        std::pair(R"([{"type": "x.Transformer", "path": ""}])", "found Transformer; expected"),
        std::pair(R"([{"type": "x.Transformer", "path": ""}, {"type": "x.Normalize", "path": ""},
                      {"type": "x.Pooling", "path": "1_Pooling"}])",
                  "found Transformer, Normalize, Pooling; expected Transformer, Pooling and")}) {
    folder.write("modules.json", modules);
    EXPECT_NE(error().find(expected), std::string::npos) << error();
  }
  folder.write("modules.json", kModules);
  for (const char* config :
       {R"({"max_seq_length": 0})", R"({"transformer_task": "fill-mask"})",
        R"({"modality_config": {"image": {}}})", R"({"module_output_name": "logits"})",
        R"({"do_lower_case": "yes"})", "[]", "77", "null"}) {
    folder.write("sentence_bert_config.json", config);
    EXPECT_NE(error().find("sentence_bert_config.json"), std::string::npos) << error();
  }
  folder.write("sentence_bert_config.json", "{}");
  for (const char* config : {"[]", R"({"prompts": ["q"]})", R"({"prompts": {"query": 1}})",
                             R"({"default_prompt_name": "query"})",
                             R"({"prompts": {"query": "q: "}, "default_prompt_name": 0})"}) {
    folder.write("config_sentence_transformers.json", config);
    EXPECT_NE(error().find("config_sentence_transformers.json"), std::string::npos) << error();
    EXPECT_NE(error().find("expected"), std::string::npos) << error();
  }
}

}  // namespace
}  // namespace tessera::infer::embed_test
