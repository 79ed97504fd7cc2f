// Models that guess by themselves: by predictors of tokens further ahead, and by their first
// layers.
#include <gmock/gmock.h>

#include "tessera/base/testing.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/infer/infer_testing.h"
#include "tessera/infer/speculation/mtp_draft.h"
#include "tessera/model/predictor_spec.h"

namespace tessera::infer::mtp_draft_test {
namespace {

using testing::HasSubstr;

/// Predictors of the layers that `layers` begins with: modules one after another, parallel heads,
/// and one of each that reads tokens out of the trunk.
model::Model with_predictors(const std::string& layers, const char* kind, uint64_t seed) {
  const std::string first =
      R"({"mixer": {"type": "attention", "n_heads": 2, "n_kv_heads": 1, "position": "rope"}})";
  const std::string modules = fmt::format(R"({{"repeat": 3, "layers": [{}]}})", first),
                    heads = fmt::format(
                        R"({{"repeat": 3, "reads": "trunk", "token": false, "layers": [{}]}})",
                        first),
                    mixed = fmt::format(
                        R"({{"reads": "trunk", "layers": [{0}]}},
                           {{"reads": "trunk", "token": true, "layers": [
                             {{"mixer": {{"type": "mamba2", "n_heads": 4, "d_state": 8}}}}]}},
                           {{"reads": "previous", "token": false, "layers": [{0}]}})",
                        first);
  const std::string list = kind == std::string("modules") ? modules
                           : kind == std::string("heads") ? heads
                                                          : mixed;
  return tiny_model_of(fmt::format(R"({{"tessera": 1, "arch": "decoder", "vocab": 23, "d_model": 16,
                       "ffn": {{"type": "glu", "d_hidden": 24}}, "layers": [{}],
                       "predictors": [{}], "head": {{"type": "linear"}}}})",
                                   layers, list),
                       seed);
}

constexpr const char* kKinds[] = {"modules", "heads", "mixed"};

std::vector<std::vector<int64_t>> prompts() {
  return {{3, 1, 4, 1, 5}, {9}, {2, 6, 5, 3, 5, 8, 9, 7, 9}};
}

std::vector<std::vector<int64_t>> tokens_of(const Generations& all) {
  std::vector<std::vector<int64_t>> tokens;
  for (const auto& row : all.rows) tokens.push_back(row.token_ids);
  return tokens;
}

/// The guesses of whole documents: every predictor over all of the text, its last guesses included.
std::vector<int64_t> guesses_of(const model::Model& model, const std::vector<int64_t>& text) {
  const at::NoGradGuard no_gradients;
  const std::vector<int64_t> read(text.begin(), text.end() - 1);
  const Tensor trunk = model.hidden(nn::Batch::of(std::vector<std::vector<int64_t>>{read}));
  std::vector<int64_t> tokens = text;
  Tensor previous = trunk;
  for (size_t k = 0; k < model.spec().predictors.size(); ++k) {
    const model::PredictorSpec& spec = model.spec().predictors[k];
    const bool chained = k > 0 && spec.reads == model::PredictorReads::previous;
    const auto from = tokens.begin() + (spec.token ? static_cast<int64_t>(k) + 1 : 0);
    const std::vector<int64_t> ids(from, from + std::ssize(read));
    previous = model.predict(k, chained ? previous : trunk,
                             nn::Batch::of(std::vector<std::vector<int64_t>>{ids}));
    tokens.push_back(
        model.logits(previous.narrow(0, previous.size(0) - 1, 1)).argmax(-1).item<int64_t>());
  }
  return {tokens.begin() + std::ssize(text), tokens.end()};
}

DraftModel::Ask ask_of(size_t row, const Sequence& sequence, int64_t count) {
  return {row, &sequence, count, [](std::span<const float> logits, const std::vector<int64_t>&) {
            return std::max_element(logits.begin(), logits.end()) - logits.begin();
          }};
}

TEST(MtpDraft, GuessesWhatWholeDocumentsGive) {
  const auto layers = tiny_layers();
  for (const char* kind : kKinds) {
    const model::Model model = with_predictors(layers[0].second, kind, 7);
    const at::NoGradGuard no_gradients;
    const std::vector<int64_t> text = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
    const Tensor hidden = model.hidden(nn::Batch::of(std::vector<std::vector<int64_t>>{text}));
    MtpDraft draft(model, nullptr);
    int64_t heard = 0;
    // as prompts and accepted guesses come: in cuts of any size; another row goes on beside it
    for (const int64_t length : {5, 6, 9, 10, 14}) {
      draft.on_hidden(0, heard, hidden.narrow(0, heard, length - 1 - heard));
      draft.on_hidden(4, heard, hidden.narrow(0, heard, length - 1 - heard));
      heard = length - 1;
      const Sequence sequence{{}, {text.begin(), text.begin() + length}, 0};
      const auto drafts =
          draft.draft({ask_of(4, sequence, 2), ask_of(0, sequence, 3)}, /*budget=*/3);
      const std::vector<int64_t> want = guesses_of(model, sequence.tokens);
      EXPECT_EQ(drafts[1].ids, want) << kind << " " << length;
      EXPECT_EQ(drafts[0].ids, std::vector<int64_t>(want.begin(), want.begin() + 2)) << kind;
    }
    // a row that has missed tokens, or comes again under the same number
    const Sequence sequence{{}, text, 0};
    EXPECT_TRUE(draft.draft({ask_of(0, sequence, 3)}, 64)[0].empty());
    draft.drop(0);
    draft.on_hidden(0, 0, hidden.narrow(0, 0, 15));
    EXPECT_EQ(draft.draft({ask_of(0, sequence, 3)}, 64)[0].ids, guesses_of(model, text)) << kind;
    draft.on_hidden(4, 14, hidden.narrow(0, 14, 1));
    EXPECT_EQ(draft.draft({ask_of(4, sequence, 3)}, 64)[0].size(), 3);
  }
}

TEST(MtpDraft, TheTextIsThatOfPlainGeneration) {
  for (const auto& [name, layers] : tiny_layers())
    for (const char* kind : kKinds) {
      const model::Model model = with_predictors(layers, kind, 7);
      for (const double temperature : {0.0, 0.9}) {
        GenerateOptions options;
        options.max_new_tokens = 40;
        options.sampling.temperature = temperature;
        options.sampling.seed = 3;
        const Generations want = generate(model, nullptr, prompts(), options);
        options.speculation.predictors = true;
        const Generations got = generate(model, nullptr, prompts(), options);
        EXPECT_EQ(tokens_of(got), tokens_of(want)) << name << " " << kind << " " << temperature;
        EXPECT_GT(got.drafted_tokens, 0);
      }
    }
}

TEST(MtpDraft, RightGuessesAreKept) {
  // a model that always says the same, and heads that look at it alone
  const model::Model model = with_predictors(tiny_layers()[0].second, "heads", 7);
  const at::NoGradGuard no_gradients;
  Tensor tokens = model.weights().find("embed.token.weight")->dense_tensor();
  tokens.copy_(tokens[0].expand_as(tokens).clone());
  for (int k = 0; k < 3; ++k)
    for (const char* name : {"mixer.o", "ffn.down"})
      Tensor(model.weights()
                 .find(fmt::format("predictors.{}.layers.0.{}.weight", k, name))
                 ->dense_tensor())
          .zero_();
  GenerateOptions options;
  options.max_new_tokens = 21;
  options.speculation.predictors = true;
  const Generations got = generate(model, nullptr, {prompts()[0]}, options);
  EXPECT_EQ(got.rows[0].token_ids.size(), 21U);
  // one token, then four at a time
  EXPECT_EQ(got.drafted_tokens, 15);
  EXPECT_EQ(got.accepted_tokens, 15);
}

TEST(MtpDraft, AModelWithoutPredictorsIsRefused) {
  const model::Model model = tiny_model(tiny_layers()[0].second, 7);
  GenerateOptions options;
  options.speculation.predictors = true;
  EXPECT_THAT(
      test::error_of(ErrorKind::usage, [&] { generate(model, nullptr, prompts(), options); }),
      HasSubstr("no predictors"));
  options.speculation.exit_layer = 1;
  EXPECT_THAT(
      test::error_of(ErrorKind::usage, [&] { generate(model, nullptr, prompts(), options); }),
      HasSubstr("several sources of draft tokens"));
}

TEST(EarlyExit, TheFirstLayersGuessAndTheTextIsTheSame) {
  for (const auto& [name, layers] : tiny_layers()) {
    const model::Model model = tiny_model(layers, 7);
    const auto all = std::ssize(model.spec().layers);
    for (const double temperature : {0.0, 0.9}) {
      GenerateOptions options;
      options.max_new_tokens = 40;
      options.sampling.temperature = temperature;
      options.sampling.seed = 3;
      const Generations want = generate(model, nullptr, prompts(), options);
      for (int64_t layer = 1; layer <= all; ++layer) {
        options.speculation.exit_layer = layer;
        const Generations got = generate(model, nullptr, prompts(), options);
        EXPECT_EQ(tokens_of(got), tokens_of(want)) << name << " " << layer;
        EXPECT_GT(got.drafted_tokens, 0);
        if (layer == all) {
          EXPECT_EQ(got.accepted_tokens, got.drafted_tokens);  // it knows
        } else {
          EXPECT_LT(got.accepted_tokens, got.drafted_tokens);
        }
      }
    }
  }
}

TEST(EarlyExit, ALayerThatIsNotThereIsRefused) {
  const model::Model model = tiny_model(tiny_layers()[0].second, 7);
  GenerateOptions options;
  options.speculation.exit_layer = 3;
  EXPECT_THAT(
      test::error_of(ErrorKind::usage, [&] { generate(model, nullptr, prompts(), options); }),
      HasSubstr("[early exit] layer 3; expected 1 to 2"));
}

}  // namespace
}  // namespace tessera::infer::mtp_draft_test
