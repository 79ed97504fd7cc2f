// Training mixtures of experts: the balancing bias that follows loads, and the losses of routers.
#include <set>
#include <stdexcept>

#include "tessera/format/safetensors.h"
#include "tessera/model/large_weights_testing.h"
#include "tessera/train/loop/batch_tensors.h"
#include "tessera/train/loop/loop.h"
#include "tessera/train/loop/trainer.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::experts_test {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kExperts = 6, kLayers = 2;
constexpr const char* kBalance = "layers.{}.ffn.router.balance";

struct Setting {
  TemporaryFolder folder;
  Json json = tiny_recipe(folder.write("text.txt", counting_text(3000)));

  explicit Setting(const std::string& router) {
    json["spec"]["ffn"] = {{"type", "moe"},
                           {"n_experts", kExperts},
                           {"router", json_of(router)},
                           {"expert", {{"type", "glu"}, {"d_hidden", 8}}}};
  }
  TrainResult train(const std::string& name,
                    const std::vector<std::string>& overrides = {},
                    const TrainOptions& options = {}) const {
    return train::train(read_recipe(json, "", overrides), folder / name, options);
  }
  std::vector<float> bias(const fs::path& checkpoint, int64_t layer) const {
    const format::TensorFile file = format::open_safetensors(checkpoint / "model.safetensors");
    const auto& view = file.at(fmt::format(fmt::runtime(kBalance), layer));
    const auto* from = reinterpret_cast<const float*>(view.data.data());
    return {from, from + kExperts};
  }
};

constexpr const char* kSigmoid =
    R"({"type": "top_k", "k": 2, "score": "sigmoid", "balance": true, "balance_rate": 0.03125})";

/// Where the first batch of a run goes, by a model that nothing has trained.
std::vector<std::vector<double>> first_loads(const Recipe& recipe) {
  const model::Model model(
      recipe.spec, model::Weights::initial(recipe.spec, static_cast<uint64_t>(recipe.train.seed)));
  std::vector<std::vector<double>> loads;
  const TemporaryFolder cache;
  const auto objective = open_objective(recipe, cache.path());
  std::vector<int64_t> begun;
  const PackedBatch packed =
      objective->source().train(0, recipe.train.batch * recipe.train.accumulate, begun);
  model::ForwardOptions forward;
  forward.add_statistic = [&](const std::string& name, const Tensor& value) {
    if (!name.ends_with(".load")) return;
    const Tensor counts = value.contiguous();
    loads.emplace_back(counts.data_ptr<double>(), counts.data_ptr<double>() + counts.numel());
  };
  const at::NoGradGuard no_gradients;
  model.hidden(batch_of(packed), forward);
  return loads;
}

TEST(Experts, BalancingBiasFollowsTheLoadsOfAnUpdate) {
  const Setting s(kSigmoid);
  const std::vector<std::string> one = {"train.steps=1", "train.batch=2", "train.accumulate=3",
                                        "schedule.warmup=0"};
  const TrainResult result = s.train("a", one);
  const auto loads = first_loads(read_recipe(s.json, "", one));
  ASSERT_EQ(loads.size(), static_cast<size_t>(kLayers));
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::vector<double>& counts = loads[static_cast<size_t>(layer)];
    double mean = 0;
    for (const double count : counts) mean += count / kExperts;
    EXPECT_GT(mean, 0);
    const std::vector<float> bias = s.bias(result.checkpoint, layer);
    for (size_t e = 0; e < counts.size(); ++e)
      EXPECT_EQ(bias[e], counts[e] < mean   ? 0.03125f
                         : counts[e] > mean ? -0.03125f
                                            : 0.0f)
          << layer << " " << e << ": " << counts[e] << " of " << mean;
  }
}

TEST(Experts, BalancingBiasEvensTheLoads) {
  // scores of fresh weights differ by about 0.02: steps that are small beside that
  const Setting s(
      R"({"type": "top_k", "k": 2, "score": "sigmoid", "balance": true, "balance_rate": 0.001})");
  const auto loads_of = [&](const fs::path& checkpoint) {
    const Recipe recipe = read_recipe(s.json, "", {"train.steps=1", "schedule.warmup=0"});
    const format::TensorFile file = format::open_safetensors(checkpoint / "model.safetensors");
    std::map<std::string, model::WeightPtr> weights;
    for (const auto& view : file.tensors())
      weights[view.name] = std::make_shared<ops::Weight>(ops::Weight::dense(
          view.name,
          at::from_blob(const_cast<std::byte*>(view.data.data()), view.shape, at::kFloat).clone()));
    const model::Model model(recipe.spec, model::Weights::check(recipe.spec, std::move(weights)));
    const TemporaryFolder cache;
    const auto objective = open_objective(recipe, cache.path());
    std::vector<int64_t> begun;
    double most = 0;
    model::ForwardOptions forward;
    forward.add_statistic = [&](const std::string& name, const Tensor& value) {
      if (name.ends_with(".load"))
        most = std::max(most, (value.max() / value.mean()).item<double>());
    };
    const at::NoGradGuard no_gradients;
    model.hidden(batch_of(objective->source().train(0, 64, begun)), forward);
    return most;
  };
  // the weights stay as they are: what changes is the bias alone
  const std::vector<std::string> still = {"optimizer.lr=0", "optimizer.weight_decay=0",
                                          "schedule.warmup=0"};
  const auto with = [&](const char* steps) {
    std::vector<std::string> all = still;
    all.push_back(steps);
    return all;
  };
  const double before = loads_of(s.train("short", with("train.steps=1")).checkpoint);
  const double after = loads_of(s.train("long", with("train.steps=40")).checkpoint);
  EXPECT_GT(before, 1.3);
  EXPECT_LT(after, 1 + (before - 1) / 2) << before;
}

TEST(Experts, RunsResumeWithTheirBalance) {
  const Setting s(kSigmoid);
  const TrainResult whole = s.train("whole", {"train.steps=7"});
  TrainOptions crash;
  crash.on_step = [](const LogLine& line, int64_t) {
    if (line.step == 6) throw std::runtime_error("crash");
  };
  EXPECT_THROW(s.train("cut", {"train.steps=7"}, crash), std::runtime_error);
  const TrainResult resumed = s.train("cut", {"train.steps=7"}, {.resume = true});
  EXPECT_EQ(resumed.step, 7);
  for (int64_t layer = 0; layer < kLayers; ++layer)
    EXPECT_EQ(s.bias(resumed.checkpoint, layer), s.bias(whole.checkpoint, layer));
}

TEST(Experts, BalanceStopsWhereTheRecipeSays) {
  Setting s(kSigmoid);
  s.json["optimizer"]["lr"] = 0;
  const auto bias_after = [&](const char* name, int64_t steps, int64_t balance_steps) {
    s.json["train"]["steps"] = steps;
    s.json["experts"] = {{"balance_steps", balance_steps}};
    return s.bias(s.train(name).checkpoint, 0);
  };
  const std::vector<float> three = bias_after("three", 3, 0);
  EXPECT_EQ(bias_after("stopped", 6, 3), three);
  EXPECT_NE(bias_after("on", 6, 0), three);
  Json without = Setting(R"({"type": "top_k"})").json;
  without["experts"] = {{"balance_steps", 3}};
  EXPECT_NE(test::error_of(ErrorKind::spec, [&] { read_recipe(without, "", {}); })
                .find("no router has a balancing bias"),
            std::string::npos);
}

TEST(Experts, AFrozenBalanceStays) {
  Setting s(kSigmoid);
  s.json["optimizer"]["groups"] = json_of(R"([{"match": ["*.balance"], "frozen": true}])");
  const TrainResult result = s.train("a", {"train.steps=3"});
  EXPECT_EQ(s.bias(result.checkpoint, 0), std::vector<float>(kExperts, 0.0f));
}

TEST(Experts, RouterLossesAreLoggedAsMeans) {
  const Setting s(
      R"({"type": "top_k", "k": 2, "losses": {"balance": "per_choice_mean", "balance_weight": 1, "z_weight": 0.1}})");
  const TrainResult result = s.train("a", {"train.steps=2", "train.accumulate=2"});
  ASSERT_TRUE(result.last);
  // of two layers, near 1 each where the experts are in balance
  EXPECT_NEAR(result.last->losses.at("balance"), 2, 0.3);
  EXPECT_GT(result.last->losses.at("router_z"), 0.1 * kLayers * 2);  // ln(6)^2 = 3.2
}

TEST(Experts, EveryRouterTrains) {
  for (const char* router :
       {R"({"type": "switch", "losses": {"z_weight": 0.001}})", R"({"type": "gshard"})",
        R"({"type": "noisy_top_k"})", R"({"type": "sparse_mixer", "jitter": 0.01})",
        R"({"type": "hierarchical"})", R"({"type": "top_p"})", R"({"type": "hash"})",
        R"({"type": "random"})", R"({"type": "top_k", "losses": {"balance": "hf_topk"}})"}) {
    const Setting s(router);
    std::vector<double> losses;
    TrainOptions options;
    options.on_step = [&](const LogLine& line, int64_t) { losses.push_back(line.loss); };
    s.train("a", {"train.steps=30", "train.eval_every=0"}, options);
    EXPECT_LT(losses.back(), losses.front() - 0.3) << router;
  }
}

TEST(Experts, BalanceIsOfTheWholeUpdate) {
  // two calls of an update: each one's fractions are of both so far, and a call alone stands for
  // itself
  const Setting s(
      R"({"type": "top_k", "k": 1, "losses": {"balance": "switch", "balance_weight": 1}})");
  const Recipe recipe = read_recipe(s.json, "", {"spec.layers[0].repeat=1"});
  const model::Model model(recipe.spec, model::Weights::initial(recipe.spec, 3));
  const std::vector<nn::Batch> calls = {nn::Batch::of(std::vector<std::vector<int64_t>>{{1, 2, 3}}),
                                        nn::Batch::of(std::vector<std::vector<int64_t>>{{7, 8}})};
  struct Seen {
    double loss = 0;
    std::vector<double> load;
  };
  const auto run = [&](const nn::Batch& batch, nn::UpdateCounts* update) {
    Seen seen;
    model::ForwardOptions forward;
    forward.training = true;
    forward.update = update;
    forward.add_loss = [&](const std::string&, const Tensor& loss) {
      seen.loss += loss.item<double>() / static_cast<double>(batch.n_tokens());
    };
    forward.add_statistic = [&](const std::string& name, const Tensor& value) {
      if (name.ends_with(".load"))
        for (int64_t e = 0; e < kExperts; ++e) seen.load.push_back(value[e].item<double>());
    };
    model.hidden(batch, forward);
    return seen;
  };
  nn::UpdateCounts update;
  const Seen first = run(calls[0], &update), second = run(calls[1], &update),
             alone = run(calls[1], nullptr);
  EXPECT_EQ(first.loss, run(calls[0], nullptr).loss);
  // of probabilities that are near 1 / E in a fresh router, E sum f p is near 1 whatever f is: the
  // exact p is found from calls that count other fractions
  Tensor p_E = at::empty({kExperts}, at::kDouble);
  for (int64_t e = 0; e < kExperts; ++e) {
    nn::UpdateCounts one;  // as if a thousand million tokens before had all gone to e
    Tensor choices = at::zeros({1, kExperts}, at::kDouble);
    choices[0][e] = 1e15;
    one["layers.0.ffn.router 0.choices"] = choices;
    one["layers.0.ffn.router 0.tokens"] = at::full({}, 1e15, at::kDouble);
    p_E[e] = run(calls[1], &one).loss / kExperts;
  }
  EXPECT_NEAR(p_E.sum().item<double>(), 1, 1e-6);
  double want = 0, want_alone = 0;
  for (int64_t e = 0; e < kExperts; ++e) {
    const auto i = static_cast<size_t>(e);
    const double p = p_E[e].item<double>();
    want += kExperts * p * (first.load[i] + second.load[i]) / 5;
    want_alone += kExperts * p * second.load[i] / 2;
  }
  EXPECT_NEAR(second.loss, want, 1e-6);
  EXPECT_NEAR(alone.loss, want_alone, 1e-6);
  EXPECT_GT(std::abs(want - want_alone), 1e-4);
}

TEST(Experts, AnUpdateMayHaveCallsWithMoreChoicesAToken) {
  const Setting s(
      R"({"type": "top_p", "probability": 0.35, "losses": {"balance": "per_choice_mean"}})");
  const Recipe recipe = read_recipe(s.json, "", {});
  const model::Model model(recipe.spec, model::large_weights(recipe.spec, 3));
  const auto loss_of = [&](const std::vector<int64_t>& ids, nn::UpdateCounts* update) {
    double loss = 0;
    model::ForwardOptions forward;
    forward.training = true;
    forward.update = update;
    forward.add_loss = [&](const std::string&, const Tensor& own) { loss += own.item<double>(); };
    model.hidden(nn::Batch::of(std::vector<std::vector<int64_t>>{ids}), forward);
    return loss;
  };
  nn::UpdateCounts update;
  for (int64_t first = 0; first < 24; first += 2)
    EXPECT_TRUE(std::isfinite(loss_of({first, first + 1}, &update)));
  std::set<int64_t> rows;  // as many as some token chose
  for (int64_t id = 0; id < 24; ++id) {
    nn::UpdateCounts one;
    loss_of({id}, &one);
    rows.insert(one.at("layers.0.ffn.router 0.choices").size(0));
  }
  EXPECT_GT(rows.size(), 1U);
  EXPECT_EQ(update.at("layers.0.ffn.router 0.choices").size(0), *rows.rbegin());
}

TEST(Experts, LayersThatShareARouterHaveFractionsOfTheirOwn) {
  const Setting s(R"({"type": "top_k", "losses": {"balance": "switch"}})");
  const Recipe recipe = read_recipe(s.json, "", {"spec.layers[0].share=one"});
  const model::Model model(recipe.spec, model::large_weights(recipe.spec, 3));
  std::vector<double> with, without;
  for (const bool together : {true, false}) {
    nn::UpdateCounts update;
    model::ForwardOptions forward;
    forward.training = true;
    forward.update = together ? &update : nullptr;
    forward.add_loss = [&](const std::string&, const Tensor& own) {
      (together ? with : without).push_back(own.item<double>());
    };
    model.hidden(nn::Batch::of(std::vector<std::vector<int64_t>>{{1, 2, 3, 4, 5}}), forward);
  }
  EXPECT_EQ(with.size(), 2U);
  EXPECT_EQ(with, without);  // one call is the whole update
}

TEST(Experts, RoutersWithoutLossesAreBalanced) {
  const auto recipe_of = [](const char* router) {
    return read_recipe(Setting(router).json, "", {});
  };
  for (const char* router :
       {R"("top_k")", R"({"type": "top_k", "k": 2})", R"("hierarchical")",
        R"({"type": "noisy_top_k", "importance_weight": 0, "load_weight": 0})"}) {
    const Recipe recipe = recipe_of(router);
    EXPECT_EQ(recipe.notes.size(), 1U) << router;
    EXPECT_NE(resolve(recipe).dump().find(R"("balance":"per_choice_mean")"), std::string::npos);
    // what is written out says so, and says nothing more when it is read
    EXPECT_TRUE(read_recipe(resolve(recipe), "", {}).notes.empty());
  }
  for (const char* router : {R"({"type": "top_k", "losses": {"balance": "none"}})", kSigmoid,
                             R"("hash")", R"("noisy_top_k")", R"("switch")"}) {
    EXPECT_TRUE(recipe_of(router).notes.empty()) << router;
    EXPECT_EQ(resolve(recipe_of(router)).dump().find("per_choice_mean"), std::string::npos);
  }
  // those of attention experts, too
  Setting attention(R"("hash")");
  attention.json["spec"]["layers"][0]["mixer"] = {
      {"type", "attention_experts"}, {"n_heads", 2}, {"n_experts", 4}};
  EXPECT_EQ(read_recipe(attention.json, "", {}).notes.size(), 1U);
  // a wrong key is told by the spec
  EXPECT_NE(test::error_of(ErrorKind::spec, [&] { recipe_of(R"({"type": "top_k", "kk": 2})"); })
                .find("[layers[0].ffn.router] unknown key \"kk\""),
            std::string::npos);
}

TEST(Experts, TheirUseAndCollapseAreLogged) {
  // a router that nothing balances and that begins by sending all to two experts
  const Setting s(R"({"type": "top_k", "k": 2, "losses": {"balance": "none"}})");
  const Recipe recipe = read_recipe(s.json, "", {});
  infer::ExpertUse use;
  use.add("layers.1.ffn.router.load", at::tensor({90., 2., 0., 1., 87., 0.}, at::kDouble));
  use.add("layers.1.ffn.router.tokens", at::full({}, 90., at::kDouble));
  use.add("layers.1.ffn.router.entropy", at::full({}, 45., at::kDouble));
  use.add("layers.1.ffn.router.dropped", at::full({}, 9., at::kDouble));
  Tensor together = at::zeros({6, 6}, at::kDouble);
  together[0][4] = together[4][0] = 86;
  together[1][3] = together[3][1] = 1;
  use.add("layers.1.ffn.router.together", together);
  use.add("layers.1.depth.share", at::ones({}));  // another's
  const Json json = use.to_json();
  EXPECT_EQ(json.size(), 1U);
  const Json& of = json["layers.1.ffn.router"];
  EXPECT_EQ(of["load"], Json({0.5, 0.0111, 0.0, 0.0056, 0.4833, 0.0}));
  EXPECT_EQ(of["entropy"], 0.5);
  EXPECT_EQ(of["dropped"], 0.05);
  EXPECT_EQ(of["together"], Json({{0, 4, 0.9556}, {1, 3, 0.0111}}));
  ASSERT_EQ(use.collapsed().size(), 1U);
  EXPECT_EQ(use.collapsed()[0].text().find("layers.1.ffn.router: 4 of 6 experts"), 0U);
  infer::ExpertUse few;
  few.add("r.load", at::tensor({9., 0., 0., 0.}, at::kDouble));
  EXPECT_TRUE(few.collapsed().empty());  // chance

  std::vector<LogLine> lines;
  TrainOptions options;
  options.on_step = [&](const LogLine& line, int64_t) { lines.push_back(line); };
  s.train("run", {"train.steps=2"}, options);
  ASSERT_FALSE(lines.empty());
  const Json& first = lines[0].experts["layers.0.ffn.router"];
  double sum = 0;
  for (const Json& share : first["load"]) sum += share.get<double>();
  EXPECT_NEAR(sum, 1, 1e-3);
  EXPECT_EQ(first["load"].size(), static_cast<size_t>(kExperts));
  EXPECT_TRUE(first.contains("entropy") && first.contains("together"));
  const LogLine back = log_line_of(to_json(lines[0]), "test");
  EXPECT_EQ(to_json(back), to_json(lines[0]));
}

TEST(Experts, APolicyMovesAgainstTheLossesOfItsTokens) {
  const Setting s(
      R"({"type": "policy_gradient", "k": 2, "weight": 0.7, "losses": {"balance": "none"}})");
  const Recipe recipe = read_recipe(s.json, "", {"spec.layers[0].repeat=1"});
  const model::Model model(recipe.spec, model::Weights::initial(recipe.spec, 3));
  const auto objective = token_objective(recipe.data_plan(), *recipe.objective, nullptr);
  PackedBatch packed;
  packed.ids = {3, 1, 4, 1, 5, 9};
  packed.targets = {1, 4, 1, -1, 9, 2};
  packed.pieces = {{0, 0, 4}, {1, 4, 2}};
  packed.n_targets = 5;
  model::ForwardOptions forward;
  forward.training = true;
  forward.key = RandomKey(4);
  const Denominators whole = objective->denominators(packed);
  objective->forward_backward(model, {packed, batch_of(packed), forward, whole});
  const Tensor gate = model.weights().find("layers.0.ffn.router.gate.weight")->dense_tensor();
  const Tensor got = gate.grad().clone();
  EXPECT_GT(got.abs().max().item<double>(), 1e-6);

  // the definition, with the choices that the same random numbers make
  gate.mutable_grad() = Tensor();
  Tensor x_ND, policy_N;
  forward.probe = [&](const std::string& name, const Tensor& value) {
    if (name == "layers.0.ffn.in") x_ND = value.detach();
  };
  forward.take_values = [&](const nn::LayerValues& values) {
    policy_N = values.at("policy of layers.0.ffn.router 0");
  };
  const Tensor hidden = model.hidden(batch_of(packed), forward);
  const Tensor nll_N = at::nll_loss(at::log_softmax(model.logits(hidden), -1).detach(),
                                    targets_of(packed), {}, at::Reduction::None, -1);
  const Tensor asked = (targets_of(packed) >= 0).to(at::kFloat);
  const Tensor worse = (nll_N - nll_N.sum() / 5) * asked / 5;
  (policy_N * worse).sum().backward();
  EXPECT_TRUE(at::allclose(gate.grad(), got, 1e-4, 1e-7)) << gate.grad() << got;
  // ln pi of two draws, one after the other
  const Tensor p_NE = at::softmax(at::matmul(x_ND, gate.detach().t()), -1);
  bool found = false;
  for (int64_t a = 0; a < kExperts; ++a)
    for (int64_t b = 0; b < kExperts; ++b) {
      const double pa = p_NE[0][a].item<double>(), pb = p_NE[0][b].item<double>();
      if (a != b)
        found = found ||
                std::abs(0.7 * std::log(pa * pb / (1 - pa)) - policy_N[0].item<double>()) < 1e-5;
    }
  EXPECT_TRUE(found);
}

TEST(Experts, APolicyFindsTheExpertThatSuits) {
  // training with it lowers the loss as training by gradients does
  const Setting s(R"({"type": "policy_gradient", "k": 1})");
  std::vector<double> losses;
  TrainOptions options;
  options.on_step = [&](const LogLine& line, int64_t) { losses.push_back(line.loss); };
  s.train("run", {"train.steps=60"}, options);
  EXPECT_LT(losses.back(), 0.7 * losses.front());
  Json json = s.json;
  json["spec"]["depth"] = "layer_drop";
  EXPECT_NE(
      test::error_of(ErrorKind::spec, [&] { read_recipe(json, "", {}); }).find("takes them apart"),
      std::string::npos);
}

}  // namespace
}  // namespace tessera::train::experts_test
