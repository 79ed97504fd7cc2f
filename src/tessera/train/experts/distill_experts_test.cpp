// Experts into one dense layer by a text.
#include "tessera/train/experts/distill_experts.h"

#include "tessera/infer/loading/load_model.h"
#include "tessera/train/loop/trainer.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::distill_experts_test {
namespace {

using convert::Checkpoint;

Checkpoint golden(const std::string& family) {
  return convert::load_checkpoint(std::filesystem::path(TESSERA_SOURCE_DIR) /
                                  "tests/golden/families" / family / "base");
}

model::Model model_of(const Checkpoint& checkpoint) {
  return {model::read_model_spec(checkpoint.spec_json), infer::weights_of(checkpoint)};
}

std::vector<int64_t> text_of(int64_t n, int64_t vocab, int64_t first) {
  std::vector<int64_t> ids;
  for (int64_t i = first; i < first + n; ++i)
    ids.push_back(static_cast<int64_t>(RandomKey(5).bits(static_cast<uint64_t>(i)) % vocab));
  return ids;
}

/// What a model's branch makes of what the branch of another one reads, beside what that makes:
/// the root of the quotient of squares.
double error_of(const Checkpoint& dense,
                const Checkpoint& experts,
                const std::string& branch,
                const std::vector<int64_t>& ids) {
  const at::NoGradGuard no_gradients;
  const nn::Batch batch = nn::Batch::of(std::vector<std::vector<int64_t>>{ids});
  Tensor x, want, got;
  model::ForwardOptions options;
  options.probe = [&](const std::string& name, const Tensor& value) {
    if (name == branch + ".in") x = value;
    if (name == branch + ".out") want = value;
  };
  model_of(experts).hidden(batch, options);
  options.probe = [&](const std::string& name, const Tensor& value) {
    if (name == branch + ".out") got = value;
  };
  options.replace = [&](const std::string& name, const Tensor& given) {
    return name == branch + ".in" ? x : given;
  };
  model_of(dense).hidden(batch, options);
  return ((got - want).norm() / want.norm()).item<double>();
}

std::vector<int64_t> bytes_of(const std::string& text) {
  std::vector<int64_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

TEST(DistillExperts, FollowsTheMixtureBetterThanTheMeanOfItsExperts) {
  const TemporaryFolder folder;
  Json json = tiny_recipe(folder.write("text.txt", counting_text(3000)));
  json["spec"]["ffn"] = {
      {"type", "moe"}, {"n_experts", 4}, {"expert", {{"type", "glu"}, {"d_hidden", 32}}}};
  json["train"].update({{"steps", 60}, {"eval_every", 0}});
  const Checkpoint experts =
      convert::load_checkpoint(train(read_recipe(json, "", {}), folder / "run").checkpoint);
  std::vector<DistilledLayer> lines;
  const Checkpoint dense =
      distilled_experts(experts, {}, bytes_of(counting_text(2048)), {.steps = 300},
                        [&](const DistilledLayer& line) { lines.push_back(line); });
  const Checkpoint merged = convert::merged_experts(experts, {});
  EXPECT_EQ(dense.spec_json, merged.spec_json);
  ASSERT_EQ(lines.size(), 2U);
  // a text that it has not seen: other numbers in another order
  std::string other;
  for (int i = 0; i < 20; ++i) other += std::to_string(i * 37 % 100) + " ";
  for (const DistilledLayer& line : lines) {
    EXPECT_EQ(line.learned + line.held_out, 2048);
    EXPECT_EQ(line.held_out, 256);
    EXPECT_LT(line.after, 0.7 * line.before) << line.mixture;
    EXPECT_LT(error_of(dense, experts, line.mixture, bytes_of(other)),
              0.7 * error_of(merged, experts, line.mixture, bytes_of(other)))
        << line.mixture;
  }
}

TEST(DistillExperts, EqualExpertsStayWhatTheyAre) {
  const Checkpoint experts = convert::upcycled(golden("llama"), {.n_experts = 3, .k = 2});
  const auto ids = text_of(128, experts.spec.vocab, 0);
  std::vector<DistilledLayer> lines;
  const Checkpoint dense = distilled_experts(
      experts, {}, ids, {.steps = 20}, [&](const DistilledLayer& line) { lines.push_back(line); });
  for (const DistilledLayer& line : lines) {
    EXPECT_LT(line.before, 1e-5) << line.mixture;
    EXPECT_LE(line.after, line.before) << line.mixture;
  }
  EXPECT_EQ(dense.spec_json, golden("llama").spec_json);
}

TEST(DistillExperts, RefusesInOneLine) {
  const auto refused = [](const Checkpoint& checkpoint, int64_t tokens) {
    return test::error_of(ErrorKind::usage, [&] {
      distilled_experts(checkpoint, {}, text_of(tokens, checkpoint.spec.vocab, 0), {}, nullptr);
    });
  };
  EXPECT_NE(refused(golden("mixtral"), 127).find("a text of 127 tokens; expected at least 128"),
            std::string::npos);
  EXPECT_NE(refused(golden("llama"), 256).find("no mixture of experts to merge"),
            std::string::npos);
  EXPECT_NE(refused(golden("qwen2_moe"), 256).find("a mixture with a shared layer"),
            std::string::npos);
  EXPECT_NE(refused(golden("switch_transformers"), 256).find("an encoder_decoder"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::train::distill_experts_test
