// Mixtures of experts: what holds for every router, and the goldens of those that mix tokens.
#include "tessera/nn/ffn/moe.h"

#include "tessera/nn/router/router_testing.h"

namespace tessera::nn::moe_test {
namespace {

using ops::expect_near;
using ops::gen;
using ops::tensor;

constexpr int64_t kD = 6, kE = 4;

struct Tested {
  TestedPart part;
  std::unique_ptr<Ffn> ffn;

  explicit Tested(const std::string& json,
                  Values given = {},
                  int64_t d = kD,
                  bool causal = true,
                  at::ScalarType type = at::kDouble)
      : part(spec::Slot::ffn, json, d, 0, std::move(given), causal, type),
        ffn(build_ffn(part.part, part.builder())) {}

  Tensor run(const Tensor& x, bool training = false, Heard* heard = nullptr) const {
    const Batch batch = batch_of_lengths({x.size(0)});
    Context context;
    context.batch = &batch;
    context.training = training;
    if (heard != nullptr) heard->listen(context);
    return ffn->forward(x, context);
  }
  const Tensor& value(const std::string& name) const { return part.values.at(name); }
};

std::string moe(const std::string& router,
                const std::string& expert = R"({"type": "glu", "d_hidden": 5, "bias": true})",
                const std::string& more = "") {
  return fmt::format(R"({{"type": "moe", "n_experts": {}, "router": {}, "expert": {}{}}})", kE,
                     router, expert, more);
}

constexpr const char* kExperts[] = {
    R"({"type": "glu", "d_hidden": 5})",
    R"({"type": "glu", "d_hidden": 5, "bias": true, "limit": 0.5, "up_offset": 1, "slope": 1.7})",
    R"({"type": "mlp", "d_hidden": 7})", R"({"type": "linear", "bias": true})",
    R"({"type": "chunked", "chunk": 3, "inner": {"type": "mlp", "d_hidden": 7}})"};

/// Expert e of a mixture, alone.
Tested expert_of(const Tested& all, const std::string& expert, int64_t e, at::ScalarType type) {
  Values own;
  const std::string prefix = "experts.";
  for (const auto& [name, value] : all.part.values)
    if (name.starts_with(prefix))
      own[name.substr(prefix.size())] = value.detach().select(0, e).clone();
  return Tested(expert, own, kD, true, type);
}

/// w_j(x) of all experts, zero for those that are not chosen: softmax over the k largest logits.
Tensor dense_weights(const Tensor& x, const Tensor& gate, int64_t k) {
  const Tensor z = at::matmul(x, gate.t());
  const auto [top, at] = z.topk(k, -1);
  return at::zeros(z.sizes(), z.options()).scatter(1, at, at::softmax(top, -1));
}

TEST(Moe, IsTheSumOfItsExperts) {
  for (const char* expert : kExperts)
    for (const int64_t k : {1, 2, 4}) {
      const Tested all(moe(fmt::format(R"({{"type": "top_k", "k": {}}})", k), expert));
      const Tensor x = gen({13, kD}, 1.3, 0.2);
      const Tensor w = dense_weights(x, all.value("router.gate.weight"), k);
      Tensor want = at::zeros({13, kD}, at::kDouble);
      for (int64_t e = 0; e < kE; ++e)
        want = want + w.narrow(1, e, 1) * expert_of(all, expert, e, at::kDouble).run(x);
      expect_near(all.run(x), want.detach(), 1e-12, expert);
    }
}

TEST(Moe, GradientsAreThoseOfTheSum) {
  for (const char* expert : kExperts) {
    const Tested all(moe(R"({"type": "top_k", "k": 2})", expert));
    Tensor of_x[2];
    std::map<std::string, Tensor> got;
    for (const bool by_hand : {false, true}) {
      const Tensor x = gen({13, kD}, 1.3, 0.2).requires_grad_(true);
      Tensor y;
      std::vector<Tested> experts;
      if (by_hand) {
        const Tensor w = dense_weights(x, all.value("router.gate.weight"), 2);
        y = at::zeros({13, kD}, at::kDouble);
        for (int64_t e = 0; e < kE; ++e) {
          experts.push_back(expert_of(all, expert, e, at::kDouble));
          y = y + w.narrow(1, e, 1) * experts.back().run(x);
        }
      } else {
        y = all.run(x);
      }
      (y * gen({13, kD}, 0.31, 0.2)).sum().backward();
      of_x[by_hand] = x.grad();
      const Tensor gate = all.value("router.gate.weight");
      if (!by_hand) {
        for (const auto& [name, value] : all.part.values) got[name] = value.grad().clone();
        gate.mutable_grad() = Tensor();
        continue;
      }
      expect_near(got.at("router.gate.weight"), gate.grad(), 1e-12, expert);
      for (int64_t e = 0; e < kE; ++e)
        for (const auto& [name, value] : experts[static_cast<size_t>(e)].part.values)
          expect_near(got.at("experts." + name).select(0, e), value.grad(), 1e-12, name.c_str());
    }
    expect_near(of_x[0], of_x[1], 1e-12, expert);
  }
}

TEST(Moe, ExpertsMayWorkInASpaceOfTheirOwn) {
  // y = W_out sum_j w_j F_j(W_in x) + S(x), with weights of x
  const std::string expert = R"({"type": "mlp", "d_hidden": 7})";
  const Tested all(moe(R"({"type": "top_k", "k": 2})", expert,
                       R"(, "d_latent": 4, "scale": 1.5, "shared": {"type": "linear"})"));
  const Tensor x = gen({13, kD}, 1.3, 0.2);
  const Tensor w = dense_weights(x, all.value("router.gate.weight"), 2) * 1.5;
  const Tensor latent = at::matmul(x, all.value("latent_in.weight").t());
  ASSERT_EQ(latent.size(1), 4);
  Tensor sum = at::zeros({13, 4}, at::kDouble);
  for (int64_t e = 0; e < kE; ++e) {
    Values own;
    for (const char* name : {"up.weight", "up.bias", "down.weight", "down.bias"})
      if (const auto found = all.part.values.find(std::string("experts.") + name);
          found != all.part.values.end())
        own[name] = found->second.detach().select(0, e).clone();
    sum = sum + w.narrow(1, e, 1) * Tested(expert, own, 4).run(latent);
  }
  const Tensor want = at::matmul(sum, all.value("latent_out.weight").t()) +
                      at::matmul(x, all.value("shared.out.weight").t());
  expect_near(all.run(x), want.detach(), 1e-12, "latent");
}

TEST(Moe, NormsStandBeforeAndBehindItsParts) {
  // Gemma 4: router, experts and shared layer read x by norms of their own
  const std::string expert = R"({"type": "mlp", "d_hidden": 7, "bias": false})",
                    norms = R"(, "shared": {"type": "mlp", "d_hidden": 3, "bias": false},
      "router_norm": {"type": "rms_norm", "eps": 0.1}, "expert_norm": {"type": "rms_norm", "eps": 0.1},
      "expert_out_norm": {"type": "rms_norm", "eps": 0.1}, "shared_norm": {"type": "rms_norm", "eps": 0.1},
      "shared_out_norm": {"type": "rms_norm", "eps": 0.1})";
  const Tested all(
      moe(R"({"type": "top_k", "k": 2, "logit_scale": 0.7, "expert_scale": true})", expert, norms));
  const auto norm = [&](const Tensor& x, const char* name) {
    return x / (x.square().mean(-1, true) + 0.1).sqrt() * all.value(std::string(name) + ".weight");
  };
  const Tensor x = gen({13, kD}, 1.3, 0.2);
  const Tensor w = dense_weights(norm(x, "router_norm") * 0.7, all.value("router.gate.weight"), 2) *
                   all.value("router.expert_scale");
  Tensor sum = at::zeros({13, kD}, at::kDouble);
  for (int64_t e = 0; e < kE; ++e)
    sum = sum + w.narrow(1, e, 1) *
                    expert_of(all, expert, e, at::kDouble).run(norm(x, "expert_norm").detach());
  Values own;
  for (const auto& [name, value] : all.part.values)
    if (name.starts_with("shared.")) own[name.substr(7)] = value.detach().clone();
  const Tensor shared = Tested(R"({"type": "mlp", "d_hidden": 3, "bias": false})", own)
                            .run(norm(x, "shared_norm").detach());
  const Tensor want = norm(sum, "expert_out_norm") + norm(shared, "shared_out_norm");
  expect_near(all.run(x), want.detach(), 1e-12);
}

TEST(Moe, EqualExpertsAreOne) {
  Tested all(moe(R"({"type": "top_k", "k": 3})"));
  const at::NoGradGuard no_gradients;
  for (auto& [name, value] : all.part.values)
    if (name.starts_with("experts.")) value.copy_(value.select(0, 1).expand_as(value).clone());
  const Tensor x = gen({9, kD}, 1.3, 0.2);
  expect_near(all.run(x),
              expert_of(all, R"({"type": "glu", "d_hidden": 5, "bias": true})", 0, at::kDouble)
                  .run(x)
                  .detach(),
              1e-12);
}

TEST(Moe, PermutedExpertsAreTheSame) {
  const std::string json = moe(R"({"type": "top_k", "k": 2})");
  const Tested all(json);
  const Tensor order = at::tensor({2, 0, 3, 1}, at::kLong);
  Values permuted;
  for (const auto& [name, value] : all.part.values)
    permuted[name] = value.detach().index_select(0, order);
  const Tensor x = gen({9, kD}, 1.3, 0.2);
  expect_near(Tested(json, permuted).run(x), all.run(x).detach(), 1e-12);
}

TEST(Moe, BitsOfATokenAreItsOwn) {
  for (const char* router :
       {R"({"type": "top_k", "k": 2})", R"({"type": "top_p", "probability": 0.7})",
        R"({"type": "sparse_mixer", "eps": 0.3})", R"({"type": "hierarchical"})",
        R"({"type": "switch"})"}) {
    const Tested all(moe(router), {}, kD, true, at::kFloat);
    const at::NoGradGuard no_gradients;
    const Tensor x = gen({33, kD}, 1.3, 0.2).to(at::kFloat), y = all.run(x);
    for (int64_t t = 0; t < 33; ++t)
      EXPECT_TRUE(at::equal(all.run(x.narrow(0, t, 1)), y.narrow(0, t, 1))) << router << t;
    const Tensor back = all.run(x.flip(0)).flip(0);
    EXPECT_TRUE(at::equal(back, y)) << router;
  }
}

TEST(Moe, KernelsAgreeWithThePlainForm) {
  for (const char* expert : kExperts) {
    const std::string json = moe(R"({"type": "top_k", "k": 2})", expert,
                                 R"(, "shared": {"type": "mlp", "d_hidden": 3})");
    const Tensor x = gen({21, kD}, 1.3, 0.2);
    const Tensor want = Tested(json).run(x).detach();
    const at::NoGradGuard no_gradients;
    expect_near(Tested(json, {}, kD, true, at::kFloat).run(x.to(at::kFloat)), want, 5e-6, expert);
  }
}

TEST(Moe, SharedExpertsAndTheirGate) {
  const std::string shared = R"(, "shared": {"type": "mlp", "d_hidden": 3}, "scale": 2.5)";
  const Tested all(moe(R"({"type": "top_k"})", kExperts[0], shared + R"(, "shared_gate": true)"));
  Values routed = all.part.values, own;
  for (const auto& [name, value] : all.part.values)
    if (name.starts_with("shared.")) own[name.substr(7)] = value.detach().clone();
  const Tensor x = gen({9, kD}, 1.3, 0.2);
  const Tensor want = 2.5 * Tested(moe(R"({"type": "top_k"})", kExperts[0]), routed).run(x) +
                      at::sigmoid(at::matmul(x, all.value("shared_gate.weight").t())) *
                          Tested(R"({"type": "mlp", "d_hidden": 3})", own).run(x);
  expect_near(all.run(x), want.detach(), 1e-12);
}

TEST(Moe, ScaledInputs) {
  // F(x) = relu(x)^2 with s = sigmoid(3): F(s x) is not s F(x)
  const Values values = {{"router.gate.weight", tensor({1.5, 0}, {2, 1})},
                         {"experts.up.weight", at::ones({2, 1, 1}, at::kDouble)},
                         {"experts.down.weight", at::ones({2, 1, 1}, at::kDouble)}};
  const auto run = [&](const char* more) {
    return Tested(fmt::format(R"({{"type": "moe", "n_experts": 2, {}
                      "router": {{"type": "top_k", "k": 1, "score": "sigmoid", "norm": 0}},
                      "expert": {{"type": "mlp", "act": "relu2", "d_hidden": 1, "bias": false}}}})",
                              more),
                  values, 1)
        .run(tensor({2}, {1, 1}))
        .item<double>();
  };
  EXPECT_NEAR(run(R"("scale_input": true,)"), 3.62958987, 6e-9);
  EXPECT_NEAR(run(""), 3.81029651, 6e-9);
}

TEST(Moe, ZeroAndIdentityExperts) {
  // six choices: 4 experts, one that adds nothing, one that adds the token
  const std::string json =
      moe(R"({"type": "top_k", "k": 6})", kExperts[0], R"(, "zero": 1, "identity": 1)");
  const Tested all(json);
  EXPECT_EQ(all.value("router.gate.weight").size(0), 6);
  EXPECT_EQ(all.value("experts.gate.weight").size(0), 4);
  const Tensor x = gen({9, kD}, 1.3, 0.2);
  const Tensor w = at::softmax(at::matmul(x, all.value("router.gate.weight").t()), -1);
  Tensor want = w.narrow(1, 5, 1) * x;
  for (int64_t e = 0; e < kE; ++e)
    want = want + w.narrow(1, e, 1) * expert_of(all, kExperts[0], e, at::kDouble).run(x);
  expect_near(all.run(x), want.detach(), 1e-12);
}

TEST(Moe, DroppedTokensAddNothing) {
  const Tested all(moe(R"({"type": "switch", "capacity": 1, "jitter": 0})"));
  const Tensor x = gen({9, kD}, 1.3, 0.2);
  const Tensor y = all.run(x, /*training=*/true), dense = all.run(x);
  int64_t kept = 0;
  for (int64_t t = 0; t < 9; ++t) {
    const bool zero = y[t].abs().max().item<double>() == 0;
    kept += zero ? 0 : 1;
    if (!zero) expect_near(y[t], dense[t].detach(), 1e-12);
  }
  EXPECT_LE(kept, kE);
  EXPECT_GT(kept, 0);
  y.sum().backward();  // experts without a token have no gradient but zeros
}

/// 13 tokens of two documents in training, with the random numbers of key 5.
struct Dropping {
  Batch batch = batch_of_lengths({8, 5});
  Tensor x = gen({13, kD}, 1.3, 0.2);

  Tensor run(const Tested& tested, const Tensor& input, Heard* heard = nullptr) const {
    Context context;
    context.batch = &batch;
    context.training = true;
    context.key = RandomKey(5);
    if (heard != nullptr) heard->listen(context);
    return tested.ffn->forward(input, context);
  }
  /// Bits of element `column` of `width` that a site draws for every token.
  Tensor bits(const RandomKey& site, int64_t column, int64_t width) const {
    Tensor out = at::empty({13}, at::kDouble);
    for (const Segment& s : batch.segments)
      for (int64_t t = 0; t < s.length; ++t)
        out[s.begin + t] =
            static_cast<double>(s.stream(site).bits(static_cast<uint64_t>(t * width + column)));
    return out;
  }
};

TEST(Moe, ExpertsDropAsIfEachComputedAllTokens) {
  constexpr int64_t kHidden = 7;
  constexpr double kP = 0.5;
  const Dropping d;
  const Tested all(moe(R"({"type": "top_k", "k": 2})",
                       R"({"type": "mlp", "act": "relu", "d_hidden": 7, "bias": false,
                           "dropout": 0.5})"));
  Tensor of_x[2], y[2];
  for (const bool by_hand : {false, true}) {
    const Tensor x = d.x.clone().requires_grad_(true);
    if (by_hand) {
      const Tensor w = dense_weights(x, all.value("router.gate.weight").detach(), 2);
      y[1] = at::zeros({13, kD}, at::kDouble);
      for (int64_t e = 0; e < kE; ++e) {
        const RandomKey site = RandomKey(5).fold("experts").fold(static_cast<uint64_t>(e));
        std::vector<Tensor> kept;
        for (int64_t c = 0; c < kHidden; ++c)
          kept.push_back((d.bits(site, c, kHidden) >= kP * 4294967296.0).to(at::kDouble));
        const Tensor h = at::relu(at::matmul(x, all.value("experts.up.weight").detach()[e].t())) *
                         at::stack(kept, 1) / (1 - kP);
        y[1] = y[1] +
               w.narrow(1, e, 1) * at::matmul(h, all.value("experts.down.weight").detach()[e].t());
      }
    } else {
      y[0] = d.run(all, x);
    }
    (y[by_hand] * gen({13, kD}, 0.31, 0.2)).sum().backward();
    of_x[by_hand] = x.grad();
  }
  expect_near(y[0].detach(), y[1].detach(), 1e-12);
  expect_near(of_x[0], of_x[1], 1e-12);
  EXPECT_FALSE(at::allclose(y[0], all.run(d.x)));  // in training alone
}

TEST(Moe, ExpertDropoutLeavesOutChoices) {
  constexpr double kP = 0.25;
  const Dropping d;
  const std::string router =
      R"({"type": "top_k", "k": 5, "losses": {"balance": "per_choice_mean"}})";
  for (const char* more :
       {R"(, "zero": 1, "identity": 1)", R"(, "zero": 1, "identity": 1, "scale_input": true)"}) {
    const bool scales_input = std::string(more).find("scale_input") != std::string::npos;
    const Tested whole(moe(router, kExperts[1], more));
    const Tested all(moe(router, kExperts[1], std::string(more) + R"(, "expert_dropout": 0.25)"),
                     whole.part.values);
    const Tensor w = dense_weights(d.x, all.value("router.gate.weight"), 5);
    Tensor want = at::zeros({13, kD}, at::kDouble);
    int64_t left_out = 0;
    for (int64_t e = 0; e < 6; ++e) {
      const Tensor out =
          (d.bits(RandomKey(5).fold(".expert_dropout"), e, 6) < kP * 4294967296.0).unsqueeze(1);
      const Tensor w_N1 = w.narrow(1, e, 1);
      left_out += (out & (w_N1 > 0)).sum().item<int64_t>();
      Tensor term = at::zeros({13, kD}, at::kDouble);
      if (e < kE) {
        const Tested expert = expert_of(all, kExperts[1], e, at::kDouble);
        term = scales_input ? expert.run(d.x * w_N1) * (w_N1 > 0) : expert.run(d.x) * w_N1;
      } else if (e == 5) {
        term = d.x * w_N1;
      }
      want = want + at::where(out, at::zeros_like(term), term / (1 - kP));
    }
    EXPECT_GT(left_out, 5);
    EXPECT_LT(left_out, 30);
    Heard heard, before;
    expect_near(d.run(all, d.x, &heard).detach(), want.detach(), 1e-12, more);
    d.run(whole, d.x, &before);
    // what is counted and lost is what was chosen
    ASSERT_FALSE(heard.losses.empty());
    for (const auto& [name, value] : before.losses)
      EXPECT_TRUE(at::equal(value, heard.losses.at(name))) << name;
    for (const auto& [name, value] : before.statistics)
      EXPECT_TRUE(at::equal(value, heard.statistics.at(name))) << name;
    // in training alone
    EXPECT_TRUE(at::equal(all.run(d.x), whole.run(d.x)));
  }
}

TEST(Moe, JitterIsOfWhatRouterAndExpertsRead) {
  constexpr double kJitter = 0.4;
  const Dropping d;
  const std::string rest = R"(, "identity": 1, "shared": {"type": "linear"})";
  const Tested whole(moe(R"({"type": "top_k", "k": 3})", kExperts[1], rest));
  const Tested all(moe(R"({"type": "top_k", "k": 3})", kExperts[1], rest + R"(, "jitter": 0.4)"),
                   whole.part.values);
  std::vector<Tensor> factors;
  for (int64_t c = 0; c < kD; ++c) {
    // 24 bits of the 32
    const Tensor u = (d.bits(RandomKey(5).fold(".jitter"), c, kD) / 256).floor() / 16777216;
    factors.push_back(1 + kJitter * (2 * u - 1));
  }
  const Tensor read = d.x * at::stack(factors, 1);
  // the shared layer reads the token itself
  const Tensor want = whole.run(read) + at::matmul(d.x - read, all.value("shared.out.weight").t());
  expect_near(d.run(all, d.x).detach(), want.detach(), 1e-6);
  EXPECT_TRUE(at::equal(all.run(d.x), whole.run(d.x)));
}

TEST(Moe, SoftGolden) {
  const Values values = {
      {"router.slots.weight", tensor({1, 0, 0, 2}, {2, 2})},
      {"experts.out.weight", at::stack({2 * at::eye(2, at::kDouble), -at::eye(2, at::kDouble)})}};
  const Tested soft(
      R"({"type": "moe", "n_experts": 2, "router": {"type": "soft", "normalise": false}, "expert": "linear"})",
      values, 2, /*causal=*/false);
  const Tensor x = tensor({1, 0, 0, 1, 1, 1}, {3, 2});
  expect_near(
      soft.run(x),
      tensor({1.09196580, 0.59274140, -0.26694399, -0.68725052, 0.06561992, -0.37400006}, {3, 2}),
      6e-9);
  // two documents at once are each by itself
  const Batch batch = batch_of_lengths({3, 2});
  Context context;
  context.batch = &batch;
  const Tensor two = soft.ffn->forward(at::cat({x, x.narrow(0, 0, 2)}), context);
  expect_near(two, at::cat({soft.run(x), soft.run(x.narrow(0, 0, 2))}).detach(), 1e-12);
}

TEST(Moe, SoftWithSlotsByDirection) {
  const Tested soft(
      R"({"type": "moe", "n_experts": 3, "router": {"type": "soft", "slots": 2}, "expert": {"type": "mlp", "d_hidden": 5}})",
      {}, kD, /*causal=*/false);
  const Tensor x = gen({7, kD}, 1.3, 0.2);
  const Tensor phi = soft.value("router.slots.weight");
  const Tensor z = at::matmul(x / x.norm(2, -1, true), (phi / phi.norm(2, -1, true)).t()) *
                   soft.value("router.scale");
  const Tensor inputs = at::matmul(at::softmax(z, 0).t(), x);
  std::vector<Tensor> outputs;
  for (int64_t s = 0; s < 6; ++s)
    outputs.push_back(expert_of(soft, R"({"type": "mlp", "d_hidden": 5})", s / 2, at::kDouble)
                          .run(inputs.narrow(0, s, 1)));
  expect_near(soft.run(x), at::matmul(at::softmax(z, 1), at::cat(outputs)).detach(), 1e-9);
}

TEST(Moe, DeclaresStacksAndShares) {
  const Tested all(moe(R"({"type": "top_k", "k": 1, "norm": 0})", kExperts[2]));
  spec::ParamList list("ffn");
  all.part.part.config->params(list, all.part.scope);
  for (const spec::ParamDecl& decl : list.all()) {
    const bool stacked = decl.name.starts_with("ffn.experts.");
    EXPECT_EQ(decl.share, stacked ? 0.25 : 1) << decl.name;
    EXPECT_EQ(decl.shard_axis(), 0) << decl.name;
    EXPECT_EQ(decl.axis_of(spec::Role::expert), stacked ? 0 : -1) << decl.name;
    if (decl.name == "ffn.experts.up.weight") {
      EXPECT_EQ(decl.shape, (std::vector<int64_t>{4, 7, kD}));
      EXPECT_TRUE(decl.adapts() && decl.quantises());
    }
  }
}

TEST(Moe, RefusesInOneLine) {
  const auto expect = [&](const std::string& json, const std::string& text) {
    const std::string error = test::error_of([&] { Tested{json}; });
    EXPECT_NE(error.find(text), std::string::npos) << json << ": " << error;
  };
  expect(moe(R"({"type": "top_k", "k": 5})"), "[part.router] k = 5 of 4 experts");
  expect(moe(R"({"type": "top_k", "k": 2})", R"({"type": "mlp", "d_hidden": 7})",
             R"(, "d_latent": 4, "identity": 1)"),
         "identity = 1 with d_latent = 4: it would add 6 channels to 4");
  expect(moe(R"("attention")"), "unknown router \"attention\"");
  expect(moe(R"({"type": "top_k", "n_heads": 2})"), "[part.router] unknown key \"n_heads\"");
  expect(moe("null"), "[part.router] found null; expected a router");
  expect(moe("\"top_k\"", "null"), "[part.expert] found null; expected a feed-forward layer");
  expect(moe("\"top_k\"", kExperts[0], R"(, "shared_gate": true)"), "without a shared layer");
  expect(moe("\"top_k\"", moe("\"top_k\"")), "experts of experts");
  expect(R"({"type": "chunked", "chunk": 2, "inner": )" + moe("\"hash\"") + "}",
         "reads the tokens of a whole call");
  expect(moe("\"top_k\"", kExperts[0], R"(, "expert_dropout": 1)"),
         "[part.expert_dropout] found 1; expected less than 1");
  expect(R"({"type": "chunked", "chunk": 2, "inner": )" +
             moe("\"top_k\"", kExperts[0], R"(, "expert_dropout": 0.1)") + "}",
         "expert_dropout = 0.1 in slices");
  const auto expect_soft = [&](const std::string& expert, const char* more, const char* text) {
    const std::string error =
        test::error_of([&] { Tested(moe("\"soft\"", expert, more), {}, kD, /*causal=*/false); });
    EXPECT_NE(error.find(text), std::string::npos) << error;
  };
  expect_soft(kExperts[0], R"(, "expert_dropout": 0.1)", "mixes tokens");
  expect_soft(R"({"type": "mlp", "d_hidden": 7, "dropout": 0.1})", "",
              "dropout = 0.1 in an expert of router \"soft\"");
  expect(moe(R"({"type": "top_k"})").replace(0, 1, R"({"capacity": 0, )"),
         "unknown key \"capacity\"");
}

}  // namespace
}  // namespace tessera::nn::moe_test
