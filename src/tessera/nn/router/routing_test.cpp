// Routers against the numbers of their papers' and libraries' definitions.
#include "tessera/nn/router/routing.h"

#include "tessera/nn/router/router_testing.h"

namespace tessera::nn::routing_test {
namespace {

using ops::expect_near;
using ops::tensor;

constexpr double kDigits = 6e-9;  // the numbers have eight

/// Six tokens, three experts; token 3 has a tie.
Tensor six() {
  return tensor({2, .5, -1, 1, 1.5, 0, .3, -.2, .1, 3, 0, 0, -1, 0, 2, .5, .4, .3}, {6, 3});
}
Tensor of_six() {
  return at::softmax(six(), -1);
}

Tensor choices(const std::vector<int64_t>& values, int64_t k) {
  return at::tensor(values, at::kLong).reshape({-1, k});
}

/// A router whose logits are its input: the gate is the identity.
struct Tested {
  TestedPart part;
  std::unique_ptr<Router> router;
  Heard heard;
  bool training = false;

  Tested(const std::string& json, int64_t e, Values given = {}, bool causal = true)
      : part(spec::Slot::router, json, e, e, with_identity(std::move(given), e), causal),
        router(build_router(part.part, part.builder())) {}
  static Values with_identity(Values given, int64_t e) {
    given.emplace("gate.weight", at::eye(e, at::kDouble));
    return given;
  }
  Routing route(const Tensor& z, std::vector<int64_t> lengths = {}) {
    const Batch batch = batch_of_lengths(lengths.empty() ? std::vector{z.size(0)} : lengths);
    Context context;
    context.batch = &batch;
    context.training = training;
    heard.listen(context);
    return router->route(z, context);
  }
};

void expect_choices(const Tensor& got, const Tensor& want) {
  EXPECT_TRUE(at::equal(got, want)) << "got\n" << got << "\nwant\n" << want;
}

// --- top_k ---------------------------------------------------------------------------------------

TEST(TopKRouter, MixtralsGolden) {
  for (const char* score : {"softmax", "softmax_of_chosen"}) {
    const Routing r =
        Tested(fmt::format(R"({{"type": "top_k", "k": 2, "score": "{}"}})", score), 3).route(six());
    expect_choices(r.expert_NK, choices({0, 1, 1, 0, 0, 2, 0, 1, 2, 1, 0, 1}, 2));
    expect_near(r.weight_NK,
                tensor({0.81757448, 0.18242552, 0.62245933, 0.37754067, 0.54983400, 0.45016600,
                        0.95257413, 0.04742587, 0.88079708, 0.11920292, 0.52497919, 0.47502081},
                       {6, 2}),
                kDigits);
  }
}

TEST(TopKRouter, NormsOfDbrx) {
  const Tensor row = six().narrow(0, 1, 1);
  const auto weights = [&](const char* norm) {
    return Tested(fmt::format(R"({{"type": "top_k", "norm": {}}})", norm), 3).route(row).weight_NK;
  };
  expect_near(weights("1"), tensor({0.62245933, 0.37754067}, {1, 2}), kDigits);
  expect_near(weights("2"), tensor({0.85501964, 0.51859562}, {1, 2}), kDigits);
  expect_near(weights("0"), tensor({0.54654939, 0.33149896}, {1, 2}), kDigits);
}

TEST(TopKRouter, DeepSeekV4sScores) {
  Tested router(R"({"type": "top_k", "k": 2, "score": "sqrt_softplus", "balance": true})", 3,
                {{"balance", tensor({0, .4, -.3})}});
  const Routing r = router.route(six());
  const Tensor scores = (1 + six().exp()).log().sqrt();
  const Tensor want = std::get<1>((scores + tensor({0, .4, -.3})).topk(2, 1));
  expect_choices(r.expert_NK, want);
  const Tensor chosen = scores.gather(1, want);
  expect_near(r.weight_NK, chosen / chosen.sum(1, true), 1e-12);
}

const Tensor kEight = tensor({.2, -.1, 1, .9, -.5, 2, .3, .4}, {1, 8});

TEST(TopKRouter, DeepSeekV3sGolden) {
  Tested router(
      R"({"type": "top_k", "k": 2, "score": "sigmoid", "balance": true, "n_groups": 4, "keep_groups": 2,
                    "group_score": "sum_of_two"})",
      8, {{"balance", tensor({0, .3, -.2, 0, 0, -.4, .1, 0})}});
  const Routing r = router.route(kEight);
  expect_choices(r.expert_NK, choices({1, 6}, 2));
  expect_near(2.5 * r.weight_NK, tensor({1.13158030, 1.36841970}, {1, 2}), 2 * kDigits);
  // the bias chooses and does not weigh: no gradient reaches it
  r.weight_NK.sum().backward();
  EXPECT_FALSE(router.part.values.at("balance").grad().defined());
}

TEST(TopKRouter, DeepSeekV2sGolden) {
  const Routing r =
      Tested(R"({"type": "top_k", "k": 3, "norm": 0, "n_groups": 4, "keep_groups": 2})", 8)
          .route(kEight);
  expect_choices(r.expert_NK, choices({5, 2, 3}, 3));
  expect_near(16 * r.weight_NK, tensor({6.51685800, 2.39741808, 2.16927358}, {1, 3}), 1e-7);
}

TEST(TopKRouter, OutsideOfGroupsAScoreOf0BeatsNegativeOnes) {
  // of two groups the first is kept, whose second expert has a score below 0
  const std::string json = R"({"type": "top_k", "k": 2, "score": "sigmoid", "balance": true, "n_groups": 2,
                    "keep_groups": 1)";
  const std::map<std::string, Tensor> bias{{"balance", tensor({.4, -.9, 0, 0}, {4})}};
  const Tensor x = tensor({1, 0, .2, -.1}, {1, 4});
  const auto chosen = [&](const std::string& more) {
    return Tested(json + more + "}", 4, bias).route(x).expert_NK;
  };
  expect_choices(chosen(""), choices({0, 1}, 2));
  expect_choices(chosen(R"(, "outside_groups": "zero")"), choices({0, 2}, 2));
}

TEST(TopKRouter, CapsLogitsSoftly) {
  // sigmoid(0.5 tanh(z / 0.5)) of z = 2, 0.5
  const Routing r = Tested(R"({"type": "top_k", "k": 2, "score": "sigmoid", "softcap": 0.5})", 3)
                        .route(six().narrow(0, 0, 1));
  expect_choices(r.expert_NK, choices({0, 1}, 2));
  expect_near(r.weight_NK, tensor({0.511638490, 0.488361510}, {1, 2}), kDigits);
}

TEST(TopKRouter, LlamasWeightIsASigmoid) {
  const Routing r =
      Tested(R"({"type": "top_k", "k": 1, "score": "sigmoid", "norm": 0})", 3).route(six());
  expect_choices(r.expert_NK, choices({0, 1, 0, 0, 2, 0}, 1));
  EXPECT_NEAR(r.weight_NK[3].item<double>(), 0.95257413, kDigits);
}

TEST(TopKRouter, HasABias) {
  const Routing r = Tested(R"({"type": "top_k", "k": 1, "bias": true, "norm": 0})", 3,
                           {{"gate.bias", tensor({0, 0, 9})}})
                        .route(six());
  expect_choices(r.expert_NK, choices({2, 2, 2, 2, 2, 2}, 1));
}

TEST(TopKRouter, BalanceFollowsLoads) {
  TestedPart part(spec::Slot::router,
                  R"({"type": "top_k", "balance": true, "balance_rate": 0.125})", 8, 8);
  spec::ParamList list("layers.0.ffn.router");
  part.part.config->params(list, part.scope);
  const spec::ParamDecl& bias = list.all().back();
  EXPECT_EQ(bias.name, "layers.0.ffn.router.balance");
  EXPECT_EQ(bias.rule.statistic, "layers.0.ffn.router.load");
  EXPECT_FALSE(bias.trainable);
  std::vector<float> b(8, 0.0f);
  const std::vector<double> counts = {3, 1, 0, 4, 2, 2, 2, 2};
  bias.rule.apply(b, counts);
  const float u = 0.125f;
  EXPECT_EQ(b, (std::vector<float>{-u, u, u, -u, 0, 0, 0, 0}));
}

TEST(TopKRouter, JitterActsInTrainingAlone) {
  Tested router(R"({"type": "top_k", "jitter": 0.2})", 3);
  const Tensor calm = router.route(six()).weight_NK;
  EXPECT_TRUE(at::equal(router.route(six()).weight_NK, calm));
  router.training = true;
  const Tensor shaken = router.route(six()).weight_NK;
  EXPECT_FALSE(at::equal(shaken, calm));
  EXPECT_TRUE(at::equal(router.route(six()).weight_NK, shaken));  // the same key and step
}

// --- losses --------------------------------------------------------------------------------------

TEST(RouterLosses, OfOneChoice) {
  const Tensor z = six().requires_grad_(true);
  const Tensor loss =
      balance_loss(BalanceLoss::switch_, at::softmax(z, -1), largest(of_six(), 1), {});
  EXPECT_NEAR(loss.item<double>(), 1.21201029, kDigits);
  loss.backward();
  expect_near(z.grad(),
              tensor({0.04210858, -0.03442690, -0.00768168, 0.05540185, -0.04529514, -0.01010671,
                      0.06057835, -0.02577957, -0.03479878, 0.02058911, -0.01029455, -0.01029455,
                      0.01006131, -0.00119934, -0.00886197, 0.05808874, -0.03049538, -0.02759336},
                     {6, 3}),
              kDigits);
}

TEST(RouterLosses, OfTwoChoicesByConvention) {
  const Tensor two = largest(of_six(), 2);
  EXPECT_NEAR(balance_loss(BalanceLoss::hf_topk, of_six(), two, {}).item<double>(), 2.07791710,
              2 * kDigits);
  EXPECT_NEAR(balance_loss(BalanceLoss::per_choice_mean, of_six(), two, {}).item<double>(),
              1.03895855, kDigits);
}

TEST(RouterLosses, BySequence) {
  const Tensor z = tensor({1, 0, -1, 2, .5, .5001, -2, 0}, {2, 4}), s = at::sigmoid(z);
  const Tensor p = s / s.sum(1, true);
  const Tensor one = balance_loss(BalanceLoss::sequence, p, largest(s, 2), {2});
  EXPECT_NEAR(one.item<double>(), 1.23203410, kDigits);
  // documents count by their tokens
  const Tensor two = balance_loss(BalanceLoss::sequence, at::cat({p, p.narrow(0, 0, 1)}),
                                  at::cat({largest(s, 2), largest(s, 2).narrow(0, 0, 1)}), {2, 1});
  const double alone =
      balance_loss(BalanceLoss::sequence, p.narrow(0, 0, 1), largest(s, 2).narrow(0, 0, 1), {1})
          .item<double>();
  EXPECT_NEAR(two.item<double>(), (2 * 1.23203410 + alone) / 3, kDigits);
}

TEST(RouterLosses, OfAllLayersTogether) {
  // transformers' load_balancing_loss_func over the concatenated logits of two layers
  const Tensor other = six().flip(1) * 0.5 + 0.1 * six();
  const Tensor p = at::cat({of_six(), at::softmax(other, -1)});
  const double want = balance_loss(BalanceLoss::hf_topk, p, largest(p, 2), {}).item<double>();
  Tested router(R"({"type": "top_k", "losses": {"balance": "hf_topk", "balance_weight": 0.5}})", 3);
  const Batch batch = batch_of_lengths({6});
  Context context;
  context.batch = &batch;
  Heard heard;
  heard.listen(context);
  router.router->route(six(), context);
  EXPECT_NEAR(heard.losses.at("balance").item<double>(), 0.5 * 6 * 2.07791710, 1e-7);
  router.router->route(other, context);
  EXPECT_NEAR(heard.losses.at("balance").item<double>(), 0.5 * 6 * want, 1e-12);
}

TEST(RouterLosses, ZLoss) {
  EXPECT_NEAR(router_z_loss(six()).item<double>(), 4.56665103, kDigits);
  Tested router(R"({"type": "top_k", "losses": {"z_weight": 0.001}})", 3);
  router.route(six());
  EXPECT_NEAR(router.heard.losses.at("router_z").item<double>(), 0.006 * 4.56665103, 1e-10);
  EXPECT_FALSE(router.heard.losses.contains("balance"));
}

TEST(RouterStatistics, CountLoadsAndEntropy) {
  Tested router(R"({"type": "top_k"})", 3);
  router.route(six());
  expect_near(router.heard.statistics.at(".load"), tensor({5, 5, 2}), 0);
  const Tensor entropy = -(of_six() * of_six().log()).sum();
  EXPECT_NEAR(router.heard.statistics.at(".entropy").item<double>(), entropy.item<double>(), 1e-12);
}

// --- noisy_top_k ---------------------------------------------------------------------------------

TEST(NoisyTopKRouter, ChancesOfThePaper) {
  const Tensor clean = tensor({1, .5, 0, -1}, {1, 4}), h = tensor({1.2, .4, .6, -1.1}, {1, 4});
  expect_near(chance_to_be_chosen(clean, at::full({1, 4}, 0.5, at::kDouble), h, 2),
              tensor({0.88493033, 0.42074029, 0.21185540, 0.00068714}, {1, 4}), kDigits);
  const Routing r = Tested(R"({"type": "noisy_top_k"})", 4).route(h);
  expect_choices(r.expert_NK, choices({0, 2}, 2));
  expect_near(r.weight_NK, tensor({0.64565631, 0.35434369}, {1, 2}), kDigits);
  EXPECT_NEAR(cv_squared(tensor({3, 1, 2, 2})).item<double>(), 0.125, 1e-9);
  EXPECT_NEAR(cv_squared(tensor({3, 1, 2, 2}), true).item<double>(), 0.16666667, kDigits);
}

TEST(NoisyTopKRouter, LearnsFromImportanceAndLoadInTraining) {
  Tested router(R"({"type": "noisy_top_k", "k": 2})", 4);
  const Tensor z = ops::gen({40, 4}, 0.7, 0.1);
  router.route(z);
  EXPECT_TRUE(router.heard.losses.empty());
  router.training = true;
  router.route(z);
  EXPECT_GT(router.heard.losses.at("importance").item<double>(), 0);
  router.heard.losses.at("load").backward();
  EXPECT_GT(router.part.values.at("noise.weight").grad().abs().max().item<double>(), 0);
  EXPECT_GT(router.part.values.at("gate.weight").grad().abs().max().item<double>(), 0);
  // the load of all experts is that of everyone
  Tested all(R"({"type": "noisy_top_k", "k": 4})", 4);
  all.training = true;
  all.route(z);
  EXPECT_FALSE(all.heard.losses.contains("load"));
}

// --- capacity ------------------------------------------------------------------------------------

std::vector<bool> kept(const Tensor& expert_N1) {
  std::vector<bool> out;
  for (int64_t i = 0; i < expert_N1.numel(); ++i)
    out.push_back(expert_N1.reshape({-1})[i].item<int64_t>() >= 0);
  return out;
}

TEST(SwitchRouter, DropsWhatHasNoRoom) {
  Tested router(R"({"type": "switch", "capacity": 2, "jitter": 0})", 3);
  EXPECT_EQ(kept(router.route(six()).expert_NK), std::vector<bool>(6, true));
  router.training = true;
  const Routing r = router.route(six());
  EXPECT_EQ(kept(r.expert_NK), (std::vector<bool>{true, true, true, false, true, false}));
  EXPECT_EQ(router.heard.statistics.at(".dropped").item<double>(), 2);
  EXPECT_NEAR(r.weight_NK[0].item<double>(), 0.78559703, kDigits);
  // the room of a document; by a share, rounded up: ceil(0.5 * 3 / 3) = 1
  EXPECT_EQ(kept(router.route(six(), {3, 3}).expert_NK), std::vector<bool>(6, true));
  Tested share(R"({"type": "switch", "capacity_factor": 0.5, "jitter": 0})", 3);
  share.training = true;
  EXPECT_EQ(kept(share.route(six(), {3, 3}).expert_NK),
            (std::vector<bool>{true, true, false, true, true, false}));
  Tested call(R"({"type": "switch", "capacity": 2, "group": "call", "jitter": 0})", 3);
  call.training = true;
  EXPECT_EQ(kept(call.route(six(), {3, 3}).expert_NK),
            (std::vector<bool>{true, true, true, false, true, false}));
}

TEST(SwitchRouter, ABiasIsOfTheLogits) {
  Tested router(R"({"type": "switch", "bias": true, "jitter": 0})", 3,
                {{"gate.bias", tensor({0, 0, 50})}});
  const Routing r = router.route(six());
  EXPECT_TRUE((r.expert_NK == 2).all().item<bool>());
  EXPECT_NEAR(r.weight_NK.min().item<double>(), 1, 1e-12);
}

TEST(SwitchRouter, TheSurestFirst) {
  Tested router(R"({"type": "switch", "capacity": 2, "order": "by_probability", "jitter": 0})", 3);
  router.training = true;
  EXPECT_EQ(kept(router.route(six()).expert_NK),
            (std::vector<bool>{true, true, false, true, true, false}));
}

TEST(GshardRouter, Golden) {
  const Tensor z = tensor({2, 1, 0, 1.5, 1, 0, 1, 0, .5, 0, 2, 1}, {4, 3});
  Tested router(R"({"type": "gshard", "capacity": 2, "second": "all"})", 3);
  Routing r = router.route(z);
  expect_choices(r.expert_NK, choices({0, 1, 0, 1, 0, 2, 1, 2}, 2));
  expect_near(r.weight_NK.select(1, 0), tensor({0.73105858, 0.62245933, 0.62245933, 0.73105858}),
              kDigits);
  EXPECT_NEAR(router.heard.losses.at("balance").item<double>(), 0.01 * 4 * 1.28488051, 1e-9);
  router.training = true;
  r = router.route(z);
  expect_choices(r.expert_NK, choices({0, 1, 0, -1, -1, 2, 1, 2}, 2));
  Tested after(R"({"type": "gshard", "capacity": 2, "second": "all", "normalise": "after"})", 3);
  after.training = true;
  r = after.route(z);
  EXPECT_NEAR(r.weight_NK[1][0].item<double>(), 1, 1e-12);
  EXPECT_NEAR(r.weight_NK[2][1].item<double>(), 1, 1e-12);
  EXPECT_NEAR(r.weight_NK[0][0].item<double>(), 0.73105858, kDigits);
}

TEST(GshardRouter, TheSecondByChance) {
  // 2 g2 is about 0.54: so many of the second choices are used
  const Tensor z = tensor({1, 0, -9}, {1, 3}).expand({4000, 3}).contiguous();
  for (const char* second : {"random", "sampling", "all"}) {
    Tested router(fmt::format(R"({{"type": "gshard", "capacity": 4000, "second": "{}"}})", second),
                  3);
    router.training = true;
    const Tensor used = router.route(z).expert_NK.select(1, 1);
    const double share = used.ge(0).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(share, second == std::string("random") ? 2 * 0.26892 : 1, 0.04);
  }
}

TEST(ExpertChoiceRouter, Golden) {
  const Routing r =
      Tested(R"({"type": "expert_choice", "capacity_factor": 1})", 3, {}, /*causal=*/false)
          .route(six());
  expect_choices(r.expert_NK, choices({0, 1, 2, 0, 2, 1}, 1));
  expect_near(
      r.weight_NK,
      tensor({0.78559703, 0.54654939, 0.33758454, 0.90944300, 0.84379473, 0.33222499}, {6, 1}),
      kDigits);
  // a token of two experts, and one of none
  const Tensor z = tensor({2, 2, 0, 1, 1, 0}, {3, 2});
  const auto of = [&](const char* factor) {
    return Tested(fmt::format(R"({{"type": "expert_choice", "capacity_factor": {}}})", factor), 2,
                  {}, /*causal=*/false)
        .route(z)
        .expert_NK;
  };
  expect_choices(of("0.6"), choices({-1, 1, 0}, 1));
  expect_choices(of("1.3"), choices({0, 1, 1, -1, 0, -1}, 2));
}

// --- others --------------------------------------------------------------------------------------

TEST(SparseMixerRouter, Golden) {
  const Tensor z = tensor(
      {2, 1.99, -1, .5, 1, 1.5, 1.49, 1.48, -1, -1.005, -1.01, -3, .3, -.2, .1, .29}, {4, 4});
  const Routing r = Tested(R"({"type": "sparse_mixer"})", 4).route(z);
  expect_choices(r.expert_NK, choices({0, 1, 1, 2, 0, 1, 0, 3}, 2));
  expect_near(r.weight_NK,
              tensor({0.50249998, 1, 0.33667217, 0.50249998, 0.33500138, 0.50125000, 1, 1}, {4, 2}),
              kDigits);
  const Routing wide = Tested(R"({"type": "sparse_mixer", "eps": 0.5})", 4).route(z);
  expect_near(wide.weight_NK[3], tensor({0.35602639, 0.54735762}), kDigits);
}

TEST(SparseMixerRouter, DrawsInTraining) {
  const Tensor z = tensor({2, 1.99, -1, .5}, {1, 4}).expand({2000, 4}).contiguous();
  Tested router(R"({"type": "sparse_mixer"})", 4);
  router.training = true;
  const Routing r = router.route(z);
  const Tensor first = r.expert_NK.select(1, 0);
  EXPECT_NEAR(first.to(at::kDouble).mean().item<double>(), 0.4975, 0.04);
  // the best counts in full; another by a third, except one time in four
  const Tensor weight = r.weight_NK.select(1, 0).detach();
  const Tensor others = weight.masked_select(first == 1) / 0.49750002;
  EXPECT_NEAR(others.eq(others.max()).to(at::kDouble).mean().item<double>(), 0.25, 0.05);
  EXPECT_NEAR(others.min().item<double>(), 0.3333, 1e-6);
  expect_near(weight.masked_select(first == 0),
              at::full({(first == 0).sum().item<int64_t>()}, 0.50249998, at::kDouble), kDigits);
}

TEST(HierarchicalRouter, IsAProductOfTwoGates) {
  const Tensor z = ops::gen({5, 4}, 0.9, 0.3);
  Tested router(R"({"type": "hierarchical", "n_groups": 2, "k_groups": 2, "k": 2})", 4);
  const Routing r = router.route(z);
  const Tensor a = at::softmax(at::matmul(z, router.part.values.at("group.weight").t()), -1);
  const Tensor want = (at::softmax(z.reshape({5, 2, 2}), -1) * a.unsqueeze(-1)).reshape({5, 4});
  expect_near(at::zeros({5, 4}, at::kDouble).scatter(1, r.expert_NK, r.weight_NK.detach()), want,
              1e-12);
  Tested one(R"({"type": "hierarchical", "n_groups": 2, "k_groups": 1, "k": 2})", 4,
             {{"group.weight", router.part.values.at("group.weight").detach().clone()}});
  const Tensor group = one.route(z).expert_NK.div(2, "floor");
  EXPECT_TRUE(at::equal(group.select(1, 0), group.select(1, 1)));
  EXPECT_TRUE(at::equal(group.select(1, 0), largest(a, 1).squeeze(1)));
}

TEST(TopPRouter, TakesAsManyAsItNeeds) {
  const Routing r = Tested(R"({"type": "top_p", "probability": 0.8})", 3).route(six());
  // 0.7856 + 0.1753; 0.5465 + 0.3315; 0.4123 + 0.3376 + 0.2501; 0.9094; 0.8438; all three
  expect_choices(r.expert_NK,
                 choices({0, 1, -1, 1, 0, -1, 0, 2, 1, 0, -1, -1, 2, -1, -1, 0, 1, 2}, 3));
  EXPECT_NEAR(r.weight_NK[3][0].item<double>(), 0.90944300, kDigits);
  EXPECT_EQ(r.weight_NK[3][1].item<double>(), 0);
  const Routing bound =
      Tested(R"({"type": "top_p", "probability": 0.35, "rule": "threshold", "norm": true})", 3)
          .route(six());
  expect_choices(bound.expert_NK, choices({0, 1, 0, 0, 2, 0}, 1));
  expect_near(bound.weight_NK, at::ones({6, 1}, at::kDouble), 1e-12);
}

TEST(HashRouter, ReadsTheTokensIds) {
  Tested router(R"({"type": "hash", "table": "modulo"})", 3,
                {{"table", tensor({0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1})}});
  const Tensor ids = batch_of_lengths({6}).ids_N;
  const Routing r = router.route(six());
  expect_choices(r.expert_NK.squeeze(1), ids.remainder(3));
  expect_near(r.weight_NK, at::ones({6, 1}, at::kDouble), 0);
  const std::string error = test::error_of([] {
    Tested(R"({"type": "hash"})", 3, {{"table", at::full({11}, 3.0, at::kDouble)}});
  });
  EXPECT_NE(error.find("expert 3 of token 0; expected one of 0 to 2"), std::string::npos) << error;
}

TEST(HashRouter, SeveralExpertsWeighTheirScoresByAGate) {
  const Tensor table =
      tensor({0, 2, 1, 0, 2, 1, 0, 1, 1, 2, 2, 0, 0, 2, 1, 0, 2, 1, 0, 1, 1, 2}, {11, 2});
  const auto route = [&](const std::string& weights) {
    return Tested(R"({"type": "hash", "k": 2, "weights": ")" + weights + "\"}", 3,
                  {{"table", table}})
        .route(six());
  };
  const Tensor ids = batch_of_lengths({6}).ids_N, want = table.index_select(0, ids).to(at::kLong);
  expect_choices(route("equal").expert_NK, want);
  expect_near(route("equal").weight_NK, at::full({6, 2}, 0.5, at::kDouble), 0);
  for (const auto& [name, scores] :
       std::map<std::string, Tensor>{{"softmax", of_six()},
                                     {"sigmoid", at::sigmoid(six())},
                                     {"sqrt_softplus", (1 + six().exp()).log().sqrt()}}) {
    const Routing r = route(name);
    expect_choices(r.expert_NK, want);
    const Tensor chosen = scores.gather(1, want);
    expect_near(r.weight_NK, chosen / chosen.sum(1, true), 1e-12);
  }
}

TEST(HashRouter, FreshTablesHaveDifferentExpertsForAToken) {
  for (const char* table : {"random", "modulo"}) {
    TestedPart part(spec::Slot::router,
                    fmt::format(R"({{"type": "hash", "k": 3, "table": "{}"}})", table), 4, 4);
    spec::ParamList list;
    part.part.config->params(list, part.scope);
    const auto& decl = list.all().at(0);
    EXPECT_EQ(decl.shape, (std::vector<int64_t>{11, 3}));
    const std::vector<double>& values = decl.init.values;
    for (size_t v = 0; v + 3 <= values.size(); v += 3) {
      EXPECT_NE(values[v], values[v + 1]);
      EXPECT_NE(values[v], values[v + 2]);
      EXPECT_NE(values[v + 1], values[v + 2]);
    }
  }
}

TEST(RandomRouter, FollowsFromTextAndPositionOutsideTraining) {
  Tested router(R"({"type": "random", "k": 2})", 5);
  const Tensor x = at::zeros({30, 5}, at::kDouble);
  const Tensor once = router.route(x).expert_NK;
  EXPECT_TRUE(at::equal(router.route(x).expert_NK, once));
  EXPECT_TRUE((once.select(1, 0) != once.select(1, 1)).all().item<bool>());
  EXPECT_GT(loads(once, 5).min().item<double>(), 0);
  EXPECT_TRUE(
      at::equal(router.route(x, {12, 18}).expert_NK.narrow(0, 0, 12), once.narrow(0, 0, 12)));
  router.training = true;
  EXPECT_FALSE(at::equal(router.route(x).expert_NK, once));
}

// --- refusals ------------------------------------------------------------------------------------

TEST(Routers, RefuseInOneLine) {
  const auto error = [](const std::string& json, bool causal = true) {
    return test::error_of([&] { TestedPart(spec::Slot::router, json, 4, 4, {}, causal); });
  };
  const auto expect = [&](const std::string& json, const std::string& text) {
    EXPECT_NE(error(json).find(text), std::string::npos) << json << ": " << error(json);
  };
  expect(R"({"type": "top_k", "k": 5})", "[part] k = 5 of 4 experts; expected at most 4");
  expect(R"({"type": "noisy_top_k", "k": 5})", "k = 5 of 4 experts");
  expect(R"({"type": "hash", "k": 5})", "k = 5 of 4 experts");
  expect(R"({"type": "hash", "k": 2, "ids": 2})", "a run of ids has one expert");
  expect(R"({"type": "random", "k": 5})", "k = 5 of 4 experts");
  expect(R"({"type": "top_k", "n_groups": 3})", "n_groups = 3 does not divide 4 experts");
  expect(R"({"type": "top_k", "n_groups": 2, "k": 3})", "keep_groups = 1 of 2 groups of 2 experts");
  expect(R"({"type": "switch", "capacity_factor": 0})",
         "an expert has room for no token; expected one of them above 0");
  expect(R"({"type": "gshard", "drop": "always"})", "needs an encoder");
  expect(R"({"type": "expert_choice"})", "later ones included; expected one that chooses by token");
  expect(R"({"type": "soft"})", "needs an encoder");
  expect(R"({"type": "hierarchical", "k_groups": 3})", "k_groups = 3 of 2 groups");
  expect(R"({"type": "top_k", "n_heads": 2})", "unknown key \"n_heads\"");
  expect(R"({"type": "attention", "n_heads": 2})", "unknown router \"attention\"");
  EXPECT_EQ(error(R"({"type": "gshard", "drop": "always"})", false), "");
}

}  // namespace
}  // namespace tessera::nn::routing_test
