// Branches of guesses: trees that are verified in one call.
#include <gmock/gmock.h>

#include "tessera/base/testing.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/infer/infer_testing.h"

namespace tessera::infer::branches_test {
namespace {

using testing::HasSubstr;

std::vector<std::pair<std::string, std::string>> layers() {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& [name, text] : tiny_memories())
    if (name == "attention" || name == "window" || name == "long_rope")
      out.emplace_back(name, text);
  return out;
}

std::vector<std::vector<int64_t>> prompts() {
  return {random_tokens(9, 1), {4, 5, 6, 4, 5, 6, 4, 5, 6, 4, 5}, random_tokens(2, 2)};
}

std::vector<std::vector<int64_t>> tokens_of(const Generations& all) {
  std::vector<std::vector<int64_t>> tokens;
  for (const auto& row : all.rows) tokens.push_back(row.token_ids);
  return tokens;
}

class Branches : public ::testing::TestWithParam<std::pair<std::string, std::string>> {};

/// What a call of pending tokens makes of them behind `text`; their depths where they branch.
Tensor pending(const model::Model& model,
               const std::vector<int64_t>& text,
               const std::vector<int64_t>& ids,
               const std::vector<int64_t>& depths,
               const spec::KvOptions& kv,
               bool steps) {
  const at::NoGradGuard no_gradients;
  model::State state(model.spec(), 1, std::ssize(ids), at::TensorOptions().dtype(at::kFloat), kv);
  model::ForwardOptions forward;
  forward.state = &state;
  forward.steps = steps;
  model.hidden(nn::Batch::of(std::vector<std::vector<int64_t>>{text}), forward);
  nn::Batch batch = nn::Batch::of(std::vector<std::vector<int64_t>>{ids}, {std::ssize(text)});
  batch.segments[0].pending = true;
  batch.number();
  for (size_t i = 0; i < depths.size(); ++i)
    batch.positions_N.data_ptr<int64_t>()[i] = std::ssize(text) + depths[i];
  return model.hidden(batch, forward);
}

// every branch of a call has the bits that it has alone
TEST_P(Branches, AreWhatTheyAreAlone) {
  const model::Model model = tiny_model(GetParam().second, 7);
  const std::vector<int64_t> text = random_tokens(13, 3);
  //  3 - 4 - 5 - 6
  //        \ 7 - 8
  //      \ 9
  //  10 - 11
  const std::vector<int64_t> ids = {3, 4, 5, 6, 7, 8, 9, 10, 11},
                             depths = {0, 1, 2, 3, 2, 3, 1, 0, 1};
  const std::vector<std::vector<size_t>> ways = {{0, 1, 2, 3}, {0, 1, 4, 5}, {0, 6}, {7, 8}};
  for (const bool steps : {true, false})
    for (const spec::KvType type : {spec::KvType::f32, spec::KvType::int8}) {
      const Tensor all = pending(model, text, ids, depths, {.type = type}, steps);
      for (const std::vector<size_t>& way : ways) {
        std::vector<int64_t> own, places;
        for (const size_t i : way) {
          own.push_back(ids[i]);
          places.push_back(static_cast<int64_t>(i));
        }
        const Tensor alone = pending(model, text, own, {}, {.type = type}, steps);
        EXPECT_TRUE(at::equal(all.index_select(0, at::tensor(places, at::kLong)), alone))
            << way.back() << ", steps " << steps;
      }
    }
}

TEST_P(Branches, SayWhatPlainGenerationSays) {
  const auto& [name, text] = GetParam();
  const model::Model model = tiny_model(text, 7), other = tiny_model(text, 8);
  // a draft that errs now and then
  const model::Model near = tiny_model(text, 7);
  Tensor head = near.weights().find("head.weight")->dense_tensor();
  for (int64_t i = 0; i < head.size(0); i += 3) head[i].mul_(0.6);
  for (const double temperature : {0.0, 0.9}) {
    GenerateOptions plain;
    plain.max_new_tokens = 40;
    plain.sampling.temperature = temperature;
    plain.sampling.repetition_penalty = 1.05;
    plain.sampling.seed = 3;
    const Generations want = generate(model, nullptr, prompts(), plain);
    int64_t aside = 0;
    for (const model::Model* draft :
         {&model, &other, &near, static_cast<const model::Model*>(nullptr)})
      for (const int64_t branches : {2, 3}) {
        GenerateOptions options = plain;
        options.speculation = {
            .draft = draft, .lookup = draft == nullptr ? 2 : 0, .draft_tokens = 3};
        const Generations chain = generate(model, nullptr, prompts(), options);
        options.speculation.tree_width = branches;
        const Generations tree = generate(model, nullptr, prompts(), options);
        EXPECT_EQ(tokens_of(tree), tokens_of(want)) << temperature << " " << branches;
        EXPECT_GT(tree.drafted_tokens, 0);
        aside += tree.accepted_tokens - chain.accepted_tokens;
      }
    // what a chain does not have is found beside it
    EXPECT_GT(aside, 0) << temperature;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Branches, ::testing::ValuesIn(layers()), [](const auto& info) {
  return info.param.first;
});

model::Model with_heads(const char* predictors) {
  return tiny_model_of(fmt::format(R"({{"tessera": 1, "arch": "decoder", "vocab": 23, "d_model": 16,
      "ffn": {{"type": "glu", "d_hidden": 24}}, "head": {{"type": "linear"}},
      "mixer": {{"type": "attention", "n_heads": 2, "position": "rope"}},
      "layers": [{{"repeat": 2}}], "predictors": [{}]}})",
                                   predictors),
                       7);
}

TEST(Branches, OfHeadsAreTheTextToo) {
  const std::string layer = R"({"mixer": {"type": "attention", "n_heads": 2}})";
  for (const std::string& kind :
       {fmt::format(R"({{"repeat": 3, "reads": "trunk", "token": false, "layers": [{}]}})", layer),
        fmt::format(R"({{"repeat": 3, "layers": [{}]}})", layer)}) {
    const model::Model model = with_heads(kind.c_str());
    for (const double temperature : {0.0, 0.9}) {
      GenerateOptions options;
      options.max_new_tokens = 40;
      options.sampling.temperature = temperature;
      const Generations want = generate(model, nullptr, prompts(), options);
      options.speculation.predictors = true;
      options.speculation.tree_width = 3;
      for (const bool adaptive : {false, true}) {
        options.speculation.adaptive = adaptive;
        const Generations got = generate(model, nullptr, prompts(), options);
        EXPECT_EQ(tokens_of(got), tokens_of(want)) << kind << " " << temperature;
        EXPECT_GT(got.drafted_tokens, 0);
        EXPECT_EQ(got.plain_tokens_per_s > 0, adaptive);
      }
    }
  }
}

TEST(Branches, BesideAnEncoderSayWhatPlainGenerationSays) {
  const char* mixer = R"({"type": "attention", "n_heads": 2, "position": "rope"})";
  const model::Model model = tiny_pair(mixer, 7), other = tiny_pair(mixer, 8);
  GenerateOptions options;
  options.max_new_tokens = 16;
  const Generations want = generate(model, nullptr, prompts(), options);
  for (const model::Model* draft : {&model, &other}) {
    options.speculation = {.draft = draft, .draft_tokens = 3, .tree_width = 3};
    EXPECT_EQ(tokens_of(generate(model, nullptr, prompts(), options)), tokens_of(want));
  }
}

// 2,000 texts by different random numbers: how often each second token came, against the sum over
// first tokens of p(first) p(second | first). The limit is the 1 - 1e-6 quantile of chi-square with
// 22 degrees of freedom.
TEST(Branches, FollowTheDistributionOfTheModel) {
  const model::Model model = tiny_model(layers()[0].second, 7),
                     other = tiny_model(layers()[0].second, 8);
  const std::vector<int64_t> prompt = {3, 1, 4};
  constexpr int64_t kTexts = 2000, kVocab = 23;
  constexpr double kTemperature = 4, kLimit = 68.86;
  GenerateOptions options;
  options.max_new_tokens = 3;
  options.choices = kTexts;
  options.sampling.temperature = kTemperature;
  options.speculation = {.draft = &other, .draft_tokens = 2, .tree_width = 4};
  const Generations got = generate(model, nullptr, {prompt}, options);
  EXPECT_GT(got.accepted_tokens, kTexts / 10);
  EXPECT_LT(got.accepted_tokens, got.drafted_tokens);
  std::vector<double> counts(kVocab, 0), expected(kVocab, 0);
  for (const Generation& row : got.rows) ++counts[static_cast<size_t>(row.token_ids.at(1))];
  const at::NoGradGuard no_gradients;
  const auto next = [&](const std::vector<int64_t>& text) {
    const Tensor hidden = model.hidden(nn::Batch::of(std::vector<std::vector<int64_t>>{text}));
    return (model.logits(hidden.narrow(0, hidden.size(0) - 1, 1)).to(at::kDouble) / kTemperature)
        .softmax(-1)[0]
        .contiguous();
  };
  const Tensor first = next(prompt);
  for (int64_t a = 0; a < kVocab; ++a) {
    const Tensor second = next({3, 1, 4, a});
    for (int64_t b = 0; b < kVocab; ++b)
      expected[static_cast<size_t>(b)] +=
          kTexts * first.data_ptr<double>()[a] * second.data_ptr<double>()[b];
  }
  double chi_square = 0;
  for (size_t i = 0; i < kVocab; ++i) {
    ASSERT_GT(expected[i], 5) << i;
    chi_square += (counts[i] - expected[i]) * (counts[i] - expected[i]) / expected[i];
  }
  EXPECT_LT(chi_square, kLimit);
}

TEST(Branches, OfAMixerWithOnePastAreRefused) {
  for (const auto& [name, text] : tiny_memories()) {
    const bool serves = name == "attention" || name == "window" || name == "long_rope";
    const model::Model model = tiny_model(text, 7);
    EXPECT_EQ(no_branches_reason(model.spec()).empty(), serves) << name;
    if (serves) continue;
    GenerateOptions options;
    options.speculation = {.lookup = 2, .tree_width = 2};
    EXPECT_THAT(
        test::error_of(ErrorKind::usage, [&] { generate(model, nullptr, prompts(), options); }),
        HasSubstr("has one past; expected 1, a chain"))
        << name;
  }
}

// mu goes with the row, whatever was guessed
TEST(Branches, SamplersWithAMemorySayWhatPlainGenerationSays) {
  const model::Model model = tiny_model(layers()[0].second, 7),
                     other = tiny_model(layers()[0].second, 8);
  GenerateOptions options;
  options.max_new_tokens = 40;
  options.sampling = {.temperature = 1.5, .dry_multiplier = 0.8, .mirostat = 2, .mirostat_tau = 2};
  const Generations want = generate(model, nullptr, prompts(), options);
  for (const model::Model* draft : {&model, &other})
    for (const int64_t branches : {1, 3}) {
      options.speculation = {.draft = draft, .draft_tokens = 3, .tree_width = branches};
      EXPECT_EQ(tokens_of(generate(model, nullptr, prompts(), options)), tokens_of(want));
    }
  options.speculation = {};
  Session session;
  options.session = &session;
  EXPECT_THAT(
      test::error_of(ErrorKind::usage, [&] { generate(model, nullptr, prompts(), options); }),
      HasSubstr("mirostat in a session"));
}

}  // namespace
}  // namespace tessera::infer::branches_test
