// Recurrent mixers read from both ends: a Vision Mamba block against plain loops
// (tools/golden/bidirectional.py), and every recurrent mixer against its two readings.
#include "tessera/base/testing.h"
#include "tessera/nn/mixer/mixer_testing.h"

namespace tessera::nn::bidirectional_test {
namespace {

using spec::Json;
using spec::Slot;

Tensor rows_of_4(const std::vector<double>& values) {
  return ops::tensor(values, {static_cast<int64_t>(values.size()) / 4, 4});
}

MixerUnderTest of_mamba(const Json& more) {
  Json json = {{"type", "bidirectional"},
               {"inner", {{"type", "mamba"}, {"d_state", 3}, {"d_conv", 3}, {"dt_rank", 2}}}};
  json.update(more);
  return golden_mixer(json, 4, {}, /*causal=*/false);
}

TEST(Bidirectional, GoldenVisionMamba) {
  const MixerUnderTest mixer = of_mamba({{"share", {"in", "out"}}});
  mixer.expect_everywhere(
      golden_input(5, 4),
      rows_of_4({330.8093174411, 555.8114562968, -18.8809436084,  -566.4076791157, 35.7543925240,
                 230.4953695261, 93.6025053551,  -177.9644672727, -397.8750835046, -572.6987913494,
                 76.4693250272,  615.6143375001, -81.0280873569,  -230.2673568153, -48.2008469236,
                 203.2164358098, 7.3149962066,   52.7981985195,   22.3160162867,   -40.2741697470}),
      1e-9);
}

TEST(Bidirectional, GoldenCombinations) {
  const std::vector<std::pair<const char*, Tensor>> wanted = {
      {"mean", rows_of_4({16.8136795644,   82.6123645234,   29.9741734932, -67.3745624222,
                          61.8902908737,   104.7246819379,  9.4248425337,  -68.1439512084,
                          -189.9529824873, -291.2943660810, 30.0825038986, 322.3106565183,
                          -5.8735681380,   -11.3596787863,  0.9137362667,  9.9890785632,
                          0.7291160099,    23.9364717018,   13.9223259411, -17.6057139351})},
      {"concat", rows_of_4({111.4541970066,  -107.8486198287, 93.8858131780,   -70.9066935428,
                            169.8529518840,  -194.7577083619, 200.9589313101,  -187.8610870148,
                            -259.8995520163, 275.3904387321,  -264.4342371765, 228.0831248723,
                            -8.2317274156,   9.3356756471,    -9.5430733700,   8.8340031685,
                            39.1313934997,   -36.7763587129,  30.8895106588,   -22.0361920953})},
      {"gate", rows_of_4({7.1136594238,    88.8994553844,   36.2609324130, -60.3551530832,
                          66.8308190501,   156.8805036058,  11.7967634105, -23.1766542995,
                          -178.6928431880, -357.9550694083, 12.9195781768, 291.7801750199,
                          -5.2061830026,   -10.6361194886,  1.0569098303,  11.2537614769,
                          -0.6407641962,   27.7630495663,   16.6091516182, -14.2738998094})}};
  for (const auto& [combine, want] : wanted)
    of_mamba({{"combine", combine}}).expect_everywhere(golden_input(5, 4), want, 1e-9);
}

/// Whether a mixer is what bidirectional takes, by its declarations alone.
bool recurrent(const spec::Mechanism& mechanism, spec::Scope scope) {
  const auto read = [&](bool causal) {
    scope.causal = causal;
    return spec::read_part(Slot::mixer, spec::example_part(mechanism, scope, 16), scope);
  };
  try {
    read(false);
    return false;
  } catch (const Error&) {
  }
  try {
    const auto kept = read(true).config->state(scope);
    return !kept.empty() && std::all_of(kept.begin(), kept.end(), [](const auto& decl) {
      return decl.kind == spec::StateDecl::Kind::fixed;
    });
  } catch (const Error&) {
    return false;
  }
}

TEST(Bidirectional, EveryRecurrentMixerReadsBothWays) {
  constexpr int64_t kD = 64;
  register_mechanisms();
  spec::Scope scope;
  scope.d_model = scope.width = kD;
  scope.path = "test";
  const std::vector<int64_t> lengths = {7, 1, 12};  // packed: each reversed within itself
  const Tensor x = ops::gen({20, kD}, 0.41, 0.2);
  std::vector<std::string> met;
  for (const spec::Mechanism& mechanism : spec::mechanisms()) {
    if (mechanism.slot != Slot::mixer || !recurrent(mechanism, scope)) continue;
    met.push_back(mechanism.name);
    const Json inner = spec::example_part(mechanism, scope, 16);
    MixerUnderTest both({{"type", "bidirectional"}, {"inner", inner}}, kD, /*causal=*/false);
    both.fill({.size = 0.1});
    MixerUnderTest forward(inner, kD), backward(inner, kD);
    for (const auto& [name, value] : both.values)
      if (name.starts_with("forward."))
        forward.values[name.substr(8)] = value;
      else if (name.starts_with("backward."))
        backward.values[name.substr(9)] = value;
      else
        forward.values[name] = backward.values[name] = value;  // one for the whole model
    std::vector<Tensor> want;
    int64_t begin = 0;
    for (const int64_t n : lengths) {
      const Tensor here = x.narrow(0, begin, n);
      want.push_back(forward.whole(here, {n}) + backward.whole(here.flip(0), {n}).flip(0));
      begin += n;
    }
    ops::expect_near(both.whole(x, lengths), at::cat(want), 1e-10, mechanism.name.c_str());
    const at::NoGradGuard no_gradients;
    const Tensor of_kernels = both.whole(x.to(at::kFloat), lengths);
    EXPECT_TRUE(
        at::equal(both.whole(x.narrow(0, 8, 12).to(at::kFloat), {12}), of_kernels.narrow(0, 8, 12)))
        << mechanism.name;
  }
  EXPECT_GE(met.size(), 18u) << fmt::format("{}", fmt::join(met, ", "));
}

/// What a direction leaves for later layers is read by the same direction there.
TEST(Bidirectional, DirectionsLeaveValuesApart) {
  const Json inner = {{"type", "rwkv7"}, {"n_heads", 2},    {"decay_rank", 2},
                      {"rate_rank", 2},  {"value_rank", 3}, {"gate_rank", 3}};
  const auto layer = [&](const Json& json, int64_t earlier, bool causal) {
    MixerUnderTest mixer(json, 8, causal);
    mixer.scope.earlier = earlier;
    return mixer;
  };
  const Json json = {{"type", "bidirectional"}, {"inner", inner}};
  MixerUnderTest first = layer(json, 0, false), second = layer(json, 1, false);
  first.fill();
  second.fill({.phase = 0.7});
  const Tensor x = ops::gen({6, 8}, 0.41, 0.2);
  Batch batch;
  batch.segments = {{.begin = 0, .length = 6}};
  batch.number();
  Context context;
  const Tensor y =
      second.forward(first.forward(x, batch, at::kDouble, context), batch, at::kDouble, context);
  const auto direction = [&](const char* name, const Tensor& in, const Tensor& in_second) {
    MixerUnderTest a = layer(inner, 0, true), b = layer(inner, 1, true);
    for (auto [from, to] : {std::pair{&first, &a}, std::pair{&second, &b}})
      for (const auto& [full, value] : from->values)
        if (full.starts_with(name)) to->values[full.substr(std::string(name).size())] = value;
    Context own;
    a.forward(in, batch, at::kDouble, own);
    return b.forward(in_second, batch, at::kDouble, own);
  };
  const Tensor h = first.whole(x, {6});
  const Tensor want =
      direction("forward.", x, h) + direction("backward.", x.flip(0), h.flip(0)).flip(0);
  ops::expect_near(y, want, 1e-10);
}

TEST(Bidirectional, RefusesInOneLine) {
  const auto refused = [](const char* json, const char* text, bool causal = false) {
    const std::string error = test::error_of([&] { MixerUnderTest(json, 8, causal); });
    EXPECT_NE(error.find(text), std::string::npos) << json << ": " << error;
    EXPECT_EQ(error.find('\n'), std::string::npos);
  };
  refused(R"({"type": "bidirectional", "inner": "mamba"})",
          "[test] bidirectional needs an encoder: its second reading begins at the end of the "
          "document; in a decoder use \"mamba\" itself",
          /*causal=*/true);
  refused(R"({"type": "bidirectional", "inner": {"type": "attention", "n_heads": 2}})",
          "[test.inner] \"attention\" is bidirectional already");
  refused(R"({"type": "bidirectional", "inner": {"type": "linear_attention", "n_heads": 2}})",
          "\"linear_attention\" is bidirectional already");
  refused(R"({"type": "bidirectional", "inner": {"type": "bidirectional", "inner": "mamba"}})",
          "[test.inner] bidirectional needs an encoder");
  refused(R"({"type": "bidirectional", "inner": {"type": "hyena", "max_length": 8}})",
          "[test.inner] \"hyena\" is no recurrence with a state of fixed size");
  refused(R"({"type": "bidirectional", "inner": null})", "[test.inner] found null");
  refused(R"({"type": "bidirectional", "inner": "mamba", "share": ["inn"]})",
          "[test.share] \"inn\" is no parameter of \"mamba\"; expected \"*\" or some of in.weight");
}

}  // namespace
}  // namespace tessera::nn::bidirectional_test
