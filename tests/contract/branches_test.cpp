// Branches that read the embedding and each other, leave the stream alone, share and adapt: against
// the same numbers computed here from the formulas. That such models hold to the contract of
// states, documents and bits is the suite's case shared_blocks.
#include <gtest/gtest.h>

#include "tessera/analysis/contract/kit.h"

namespace tessera::contract::branches_test {
namespace {

/// The formulas, in double, on the values of a rig.
class Plain {
 public:
  Plain(const Rig& rig, const Ids& ids) : values_(rig.values) {
    const Tensor tokens = at::tensor(ids, at::kLong);
    e_TD_ = h_TD_ = values_.at("embed.token.weight").index_select(0, tokens);
  }

  Tensor w(const std::string& name) const { return values_.at(name + ".weight"); }
  Tensor norm(const Tensor& x, const std::string& name) const {
    return x / (x.square().mean(-1, true) + 1e-6).sqrt() * w(name);
  }
  /// W x + B A x with the adapter of this use.
  Tensor adapted(const Tensor& x,
                 const std::string& name,
                 const std::string& a,
                 const std::string& b) const {
    return x.matmul(w(name).t()) + x.matmul(w(a).t()).matmul(w(b).t());
  }

  Tensor attention(const Tensor& q_TC,
                   const Tensor& k_TC,
                   const Tensor& v_TC,
                   int64_t heads) const {
    const auto split = [&](const Tensor& x) {
      return x.unflatten(-1, {heads, -1}).transpose(0, 1);  // [H, T, d]
    };
    const Tensor q = split(q_TC), k = split(k_TC), v = split(v_TC);
    const int64_t t = q.size(1);
    const Tensor past = at::ones({t, t}, at::kBool).tril();
    const Tensor s = (q.matmul(k.transpose(1, 2)) / std::sqrt(static_cast<double>(q.size(2))))
                         .masked_fill(past.logical_not(), -INFINITY);
    return s.softmax(-1).matmul(v).transpose(0, 1).flatten(1);
  }

  /// t = linear(ffn(N2(attention(N1([h, e])))));  h = h + mixer(N(h + t)), as layer `i`.
  void block(int64_t i) {
    const std::string own = fmt::format("layers.{}.", i);
    const Tensor c = norm(at::cat({h_TD_, e_TD_}, -1), "shared.one.block_norm");
    const auto of_block = [&](const std::string& n) {
      return adapted(c, "shared.one.block." + n, own + "block.adapters.0.a",
                     own + "block.adapters.0.b." + n);
    };
    const Tensor o =
        attention(of_block("q"), of_block("k"), c.matmul(w("shared.one.block.v").t()), 4)
            .matmul(w("shared.one.block.o").t());
    const Tensor n = norm(o, "shared.one.block_ffn_norm");
    const auto of_ffn = [&](const std::string& part) {
      return adapted(n, "shared.one.block_ffn." + part, own + "block_ffn.adapters.0.a",
                     own + "block_ffn.adapters.0.b." + part);
    };
    const Tensor f =
        (at::silu(of_ffn("gate")) * of_ffn("up")).matmul(w("shared.one.block_ffn.down").t());
    const Tensor t = f.matmul(w(own + "linear.out").t());
    const Tensor m = norm(h_TD_ + t, own + "mixer_norm");
    const auto of_mixer = [&](const char* name) { return m.matmul(w(own + "mixer." + name).t()); };
    h_TD_ =
        h_TD_ +
        attention(of_mixer("q"), of_mixer("k"), of_mixer("v"), 2).matmul(w(own + "mixer.o").t());
  }
  Tensor logits() const { return norm(h_TD_, "final_norm").matmul(w("head").t()); }

 private:
  const std::map<std::string, Tensor>& values_;
  Tensor e_TD_, h_TD_;
};

Json blocks() {
  return spec::parse_json(
      R"({"tessera": 1, "arch": "decoder", "vocab": 11, "d_model": 8, "head": "linear",
    "norm": {"type": "rms_norm", "eps": 1e-6},
    "layers": [{"repeat": 2, "branches": [
      {"name": "block", "share": "one", "inputs": ["stream", "embedding"], "residual": null,
       "mixer": {"type": "attention", "n_heads": 4}, "adapters": [{"rank": 2, "of": ["q", "k"]}]},
      {"name": "block_ffn", "share": "one", "inputs": ["block"], "residual": null,
       "ffn": {"type": "glu", "d_hidden": 10}, "adapters": [{"rank": 3, "of": ["gate", "up"]}]},
      {"name": "linear", "inputs": ["block_ffn"], "norm": null, "residual": null, "ffn": "linear"},
      {"mixer": {"type": "attention", "n_heads": 2}, "add": ["linear"]}]}]})",
      "blocks");
}

TEST(Branches, ComputeWhatTheSpecSays) {
  const Rig rig = make_rig(blocks(), at::kDouble);
  const Ids ids = random_ids(9, 3);
  Plain plain(rig, ids);
  plain.block(0);
  plain.block(1);
  EXPECT_LT(difference(whole(rig, {ids}), plain.logits()), 1e-12);
  // and the same through the products that inference takes
  const Rig fast = make_rig(blocks(), at::kFloat);
  const at::NoGradGuard no_gradients;
  EXPECT_LT(difference(whole(fast, {ids}), plain.logits()), 1e-5);
}

TEST(Branches, EveryGradientIsThatOfTheFormulas) {
  const Rig rig = make_rig(blocks(), at::kDouble);
  const Ids ids = random_ids(7, 4);
  const auto found = gradients(rig, [&] { return whole(rig, {ids}); });
  const auto wanted = gradients(rig, [&] {
    Plain plain(rig, ids);
    plain.block(0);
    plain.block(1);
    return plain.logits();
  });
  for (const auto& [name, gradient] : wanted) {
    ASSERT_TRUE(gradient.defined()) << name;
    EXPECT_LT(difference(found.at(name), gradient), 1e-9) << name;
  }
}

/// A model whose one part reads the stream and the embedding side by side.
Json over_two_inputs(const Case& c) {
  Json json = {{"tessera", 1},
               {"arch", c.encoder_only ? "encoder" : "decoder"},
               {"vocab", kVocab},
               {"d_model", kWidth},
               {"head", "linear"}};
  Json branch = {{"inputs", {"stream", "embedding"}}};
  branch[spec::name_of(c.mechanism->slot)] = c.part;
  json["layers"] = Json::array({{{"branches", Json::array({branch})}}});
  return json;
}

TEST(Branches, PartsReadTheWidthsThatTheyDeclare) {
  for (const Case& c : cases()) {
    if (c.mechanism == nullptr || c.decoder.contains("stacks") ||
        (c.mechanism->slot != Slot::mixer && c.mechanism->slot != Slot::ffn))
      continue;
    SCOPED_TRACE(c.name);
    const Json json = over_two_inputs(c);
    if (!c.mechanism->info.any_width) {
      Report report;
      report.refuses(ErrorKind::spec, "reads 8 channels", "a part over two inputs",
                     [&] { model::read_model_spec(json); });
      EXPECT_TRUE(report.ok()) << report.text();
      continue;
    }
    if (c.mechanism->name == "engram" || (c.part.is_object() && c.part.value("identity", 0) > 0)) {
      Report report;
      report.refuses(ErrorKind::spec, "reads 16 channels and adds to 8",
                     "a part as wide as its input", [&] { model::read_model_spec(json); });
      EXPECT_TRUE(report.ok()) << report.text();
      continue;
    }
    const Rig rig = make_rig(json, at::kDouble);
    const Ids ids = random_ids(9, 5);
    for (const auto& [name, gradient] : gradients(rig, [&] { return whole(rig, {ids}); }))
      // what selects keys learns from a loss of its own
      EXPECT_TRUE(name.find(".select.") != std::string::npos ||
                  gradient.defined() && gradient.isfinite().all().item<bool>())
          << name;
    // both inputs count: channels of the norm beyond the stream's are those of the embedding
    const std::string part = spec::name_of(c.mechanism->slot);
    ASSERT_EQ(rig.values.at("layers.0." + part + "_norm.weight").size(0), 2 * kWidth);
    const at::NoGradGuard no_gradients;
    const Tensor before = whole(rig, {ids});
    rig.values.at("layers.0." + part + "_norm.weight").narrow(0, kWidth, kWidth).mul_(4);
    EXPECT_GT(difference(whole(rig, {ids}), before), 1e-6);
  }
}

TEST(Branches, FreshAdaptersChangeNothing) {
  const Json adapted = blocks();
  Json bare = blocks();
  for (Json& branch : bare["layers"][0]["branches"]) branch.erase("adapters");
  const auto logits = [](const Json& json) {
    const model::ModelSpec spec = model::read_model_spec(json);
    const model::Model model(spec, model::Weights::initial(spec, 5));
    const at::NoGradGuard no_gradients;
    const Ids ids = random_ids(9, 3);
    const nn::Batch batch = nn::Batch::of(Rows{ids});
    return model.logits(model.hidden(batch));
  };
  EXPECT_LT(difference(logits(adapted), logits(bare)), 1e-6);
}

// the first use of a shared rwkv7 has no earlier values to mix with, the second has
TEST(Branches, AValueMixIsForThoseThatHaveEarlierValues) {
  Json shared = spec::parse_json(
      R"({"tessera": 1, "arch": "decoder", "vocab": 11, "d_model": 8, "head": "linear",
    "layers": [{"repeat": 2, "share": "one", "ffn": null,
                "mixer": {"type": "rwkv7", "n_heads": 2}}]})",
      "shared");
  Json own = shared;
  own["layers"][0].erase("share");
  const Rig one = make_rig(shared, at::kDouble), two = make_rig(own, at::kDouble);
  ASSERT_TRUE(two.values.contains("layers.1.mixer.value_mix_up.weight"));
  ASSERT_FALSE(two.values.contains("layers.0.mixer.value_mix_up.weight"));
  const at::NoGradGuard no_gradients;
  for (const auto& [name, value] : two.values)
    value.copy_(one.values.at(name.starts_with("layers.") ? "shared.one." + name.substr(9) : name));
  const Ids ids = random_ids(9, 3);
  EXPECT_LT(difference(whole(one, {ids}), whole(two, {ids})), 1e-14);
}

}  // namespace
}  // namespace tessera::contract::branches_test
