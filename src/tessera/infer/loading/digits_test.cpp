// Texts of models whose weights lie in blocks and meet x in digits.
#include <array>

#include "tessera/base/threads.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/infer/infer_testing.h"

namespace tessera::infer::digits_test {
namespace {

using kernels::Arithmetic;

/// A decoder with experts, all of its matrices in blocks.
model::Model model_in(Arithmetic arithmetic) {
  const model::Model dense = tiny_model_of(
      R"({"tessera": 1, "arch": "decoder", "vocab": 61, "d_model": 64, "head": {"type": "tied"},
          "layers": [
            {"mixer": {"type": "attention", "n_heads": 2, "n_kv_heads": 1, "position": "rope"},
             "ffn": {"type": "glu", "d_hidden": 96}},
            {"mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
             "ffn": {"type": "moe", "n_experts": 4, "expert": {"type": "glu", "d_hidden": 32},
                     "router": {"type": "top_k", "k": 2}}}]})",
      7);
  std::map<std::string, model::WeightPtr> weights;
  int types = 0;
  for (const auto& [decl, weight] : dense.weights().all()) {
    const bool matrix = weight->shape().size() >= 2 && weight->shape().back() % 32 == 0;
    const DType type = std::array{DType::q8_0, DType::q4_1, DType::q5_0}[++types % 3];
    weights[decl.name] =
        std::make_shared<const ops::Weight>(matrix ? weight->converted(type) : *weight);
  }
  return {dense.spec(), model::Weights::check(dense.spec(), std::move(weights)), arithmetic};
}

std::vector<std::vector<int64_t>> prompts() {
  // the second is read in a call of more rows than are multiplied without a panel
  return {random_tokens(9, 1, 61), random_tokens(40, 3, 61), random_tokens(2, 2, 61)};
}

std::vector<std::vector<int64_t>> greedy(const model::Model& model,
                                         const std::vector<std::vector<int64_t>>& from,
                                         int64_t drafts = 0) {
  GenerateOptions options;
  options.max_new_tokens = 40;
  if (drafts > 0) options.speculation = {nullptr, 3, drafts};
  std::vector<std::vector<int64_t>> rows;
  for (const Generation& row : generate(model, nullptr, from, options).rows)
    rows.push_back(row.token_ids);
  return rows;
}

TEST(Digits, ATextDependsOnItselfAlone) {
  const int before = thread_count();
  for (const Arithmetic arithmetic : {Arithmetic::int15, Arithmetic::int8}) {
    const model::Model model = model_in(arithmetic);
    set_thread_count(1);
    const auto want = greedy(model, prompts());
    for (const int threads : {1, 2, 3}) {
      set_thread_count(threads);
      EXPECT_EQ(greedy(model, prompts()), want) << threads << " threads";
      EXPECT_EQ(greedy(model, prompts(), 4), want) << threads << " threads, with guesses";
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_EQ(greedy(model, {prompts()[i]}).front(), want[i]) << threads << " threads, alone";
    }
    set_thread_count(before);
  }
}

TEST(Digits, LogitsAreNearThoseOfFloats) {
  const std::vector<int64_t> ids = random_tokens(50, 4, 61);
  const auto logits = [&](Arithmetic arithmetic) {
    const model::Model model = model_in(arithmetic);
    const at::NoGradGuard no_gradients;
    return model.logits(model.hidden(nn::Batch::of({ids})));
  };
  const Tensor want = logits(Arithmetic::float32);
  const auto distance = [&](const Tensor& y) {
    return ((y - want).norm() / want.norm()).item<double>();
  };
  const double two = distance(logits(Arithmetic::int15)), one = distance(logits(Arithmetic::int8));
  EXPECT_GT(two, 0);
  EXPECT_LT(two, 1e-3);
  EXPECT_GT(one, 10 * two);
  EXPECT_LT(one, 0.2);
}

}  // namespace
}  // namespace tessera::infer::digits_test
