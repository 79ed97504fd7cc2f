// What a sample draws in training is its own: it does not turn on the batch that it stands in.
#include "tessera/train/loop/batch_tensors.h"
#include "tessera/train/objective/objective.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::randomness_test {
namespace {

struct Setting {
  TemporaryFolder folder;
  Json json = tiny_recipe(folder.write("text.txt", counting_text(3000)));

  Setting() {
    json["spec"]["embed"] = {{"type", "token"}, {"dropout", 0.2}};
    json["spec"]["residual"] = {{"type", "pre_norm"}, {"dropout", 0.2}};
    mixer()["dropout"] = 0.3;
  }
  Json& mixer() { return json["spec"]["layers"][0]["mixer"]; }
  /// Documents shorter and longer than a window.
  void of_documents() {
    std::string lines;
    for (int i = 0; i < 60; ++i)
      lines += Json{{"text", counting_text(static_cast<size_t>(3 + i % 23))}}.dump() + "\n";
    json["data"]["train"] = {folder.write("docs.jsonl", lines)};
    json["data"]["format"] = "jsonl";
  }
  /// Pairs for an encoder and a decoder.
  void of_pairs() {
    std::string lines;
    for (int i = 0; i < 40; ++i)
      lines += Json{{"source", counting_text(static_cast<size_t>(2 + i % 9))},
                    {"text", counting_text(static_cast<size_t>(3 + i % 7))}}
                   .dump() +
               "\n";
    json["spec"] = json_of(R"({"tessera": 1, "arch": "encoder_decoder", "vocab": 256, "d_model": 16,
        "embed": {"type": "token", "dropout": 0.2}, "residual": {"type": "pre_norm", "dropout": 0.2},
        "mixer": {"type": "attention", "n_heads": 2, "position": "rope", "dropout": 0.3},
        "cross": {"type": "cross_attention", "n_heads": 2, "dropout": 0.3},
        "ffn": {"type": "glu", "d_hidden": 32},
        "stacks": {"encoder": {"layers": [{}]}, "decoder": {"layers": [{}]}}})");
    json["data"] = {{"train", {folder.write("pairs.jsonl", lines)}},
                    {"format", "jsonl"},
                    {"source_key", "source"}};
  }
};

/// Gradients of the sum of losses over samples, computed `batch` at a time.
std::vector<Tensor> gradients(const Setting& s, int64_t samples, int64_t batch, bool training) {
  const Recipe recipe = read_recipe(s.json, "");
  const auto objective = open_objective(recipe, s.folder / "cache");
  const model::Model model(recipe.spec, model::Weights::initial(recipe.spec, 1));
  for (int64_t first = 0; first < samples; first += batch) {
    std::vector<int64_t> begun;
    const PackedBatch packed = objective->source().train(5 + first, batch, begun);
    Denominators whole;
    whole.losses[objective->main_loss()] = 100;  // of all of them, however they are split
    whole.tokens = 100;
    model::ForwardOptions forward;
    forward.training = training;
    forward.key = RandomKey(3);
    objective->forward_backward(model, {packed, batch_of(packed), forward, whole});
  }
  std::vector<Tensor> out;
  for (const auto& [decl, weight] : model.weights().all())
    out.push_back(weight->dense_tensor().grad());
  return out;
}

double largest_difference(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double size = a[i].abs().max().item<double>();
    largest = std::max(largest, (a[i] - b[i]).abs().max().item<double>() / std::max(size, 1e-3));
  }
  return largest;
}

/// The split of a batch over micro-batches moves gradients by rounding alone.
void expect_free_of_the_split(const Setting& s) {
  const auto whole = gradients(s, 4, 4, true);
  for (const int64_t batch : {1, 2})
    EXPECT_LT(largest_difference(whole, gradients(s, 4, batch, true)), 1e-5) << batch;
  EXPECT_GT(largest_difference(whole, gradients(s, 4, 4, false)), 1e-2) << "nothing is dropped";
}

TEST(Randomness, ASampleDrawsTheSameInAnySplitOfItsBatch) {
  for (
      const char* mixer :
      {R"({"type": "attention", "n_heads": 2, "position": "rope", "dropout": 0.3})",
       R"({"type": "attention", "n_heads": 2, "position": {"type": "cope", "n_positions": 8}, "dropout": 0.3})",
       R"({"type": "differential_attention", "n_heads": 2, "dropout": 0.3})",
       R"({"type": "latent_attention", "n_heads": 2, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 8, "dropout": 0.3})",
       R"({"type": "transformer_xl", "n_heads": 2, "segment": 6, "mem_len": 4, "dropout": 0.3})",
       R"({"type": "compressive", "n_heads": 2, "segment": 8, "mem_len": 8, "n_compressed": 4, "dropout": 0.3})",
       R"({"type": "memorizing", "n_heads": 2, "segment": 8, "memory": 32, "top_k": 4, "dropout": 0.3})",
       R"({"type": "gau", "d_hidden": 16, "d_key": 8, "weights": "softmax", "dropout": 0.3})"}) {
    SCOPED_TRACE(mixer);
    Setting s;
    s.mixer() = json_of(mixer);
    expect_free_of_the_split(s);
    s.of_documents();
    expect_free_of_the_split(s);
  }
}

TEST(Randomness, ExpertsDrawTheSameInAnySplitOfTheBatch) {
  Setting s;
  for (const char* more :
       {R"("expert": {"type": "glu", "d_hidden": 8, "dropout": 0.4})",
        R"("expert_dropout": 0.3, "jitter": 0.2, "expert": {"type": "mlp", "d_hidden": 8})"}) {
    SCOPED_TRACE(more);
    s.json["spec"]["ffn"] = json_of(fmt::format(R"({{"type": "moe", "n_experts": 5,
        "router": {{"type": "top_k", "k": 2, "losses": {{"balance": "none"}}}}, {}}})",
                                                more));
    s.json["spec"]["embed"] = "token";
    s.json["spec"]["residual"] = "pre_norm";
    s.mixer().erase("dropout");
    expect_free_of_the_split(s);
    s.of_documents();
    expect_free_of_the_split(s);
  }
}

TEST(Randomness, PairsDrawTheSameInAnySplitOfTheirBatch) {
  Setting s;
  s.of_pairs();
  expect_free_of_the_split(s);
}

/// Two samples of the same tokens, and two pieces of one sample, draw different numbers.
TEST(Randomness, SamplesAndPiecesOfASampleDrawTheirOwn) {
  const Setting s;
  const Recipe recipe = read_recipe(s.json, "");
  const model::Model model(recipe.spec, model::Weights::initial(recipe.spec, 1));
  const std::vector<int64_t> text{1, 2, 3, 4, 5, 6};
  const auto hidden = [&](int64_t sample, int64_t offset, int64_t step) {
    nn::Batch batch = nn::Batch::of({text});
    batch.segments[0].sample = sample;
    batch.segments[0].offset = offset;
    const at::NoGradGuard no_gradients;
    model::ForwardOptions forward;
    forward.training = true;
    forward.key = RandomKey(3).fold(static_cast<uint64_t>(step));
    return model.hidden(batch, forward);
  };
  const Tensor one = hidden(4, 0, 0);
  EXPECT_TRUE(at::equal(one, hidden(4, 0, 0)));
  EXPECT_FALSE(at::allclose(one, hidden(5, 0, 0)));
  EXPECT_FALSE(at::allclose(one, hidden(4, 1, 0)));
  EXPECT_FALSE(at::allclose(one, hidden(4, 0, 1)));
}

}  // namespace
}  // namespace tessera::train::randomness_test
