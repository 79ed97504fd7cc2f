#include "tessera/model/solve.h"

#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/nn/registry.h"

namespace tessera::model {
namespace {

using test::expect_error;

/// examples/recipes/shakespeare/attention_rope.json, whose counts the specification of `compare`
/// states.
Json shakespeare(int64_t kv_heads = 4) {
  nn::register_mechanisms();
  Json json = spec::parse_json(R"({"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 128,
    "norm": {"type": "rms_norm", "eps": 1e-5},
    "layers": [{"repeat": 6, "mixer": {"type": "attention", "n_heads": 4, "position": "rope"}}],
    "ffn": {"type": "glu", "act": "silu", "d_hidden": 344}, "head": "tied"})",
                               "test");
  json["layers"][0]["mixer"]["n_kv_heads"] = kv_heads;
  return json;
}

TEST(Solve, CountsOfTheSpecification) {
  const ModelSpec spec = read_model_spec(shakespeare());
  EXPECT_EQ(cost_of(spec, PlanCost::parameters), 1'220'224);
  EXPECT_EQ(cost_of(spec, PlanCost::body_parameters), 1'187'456);
  // 2 for each of the 1,185,792 numbers of matrices and the 32,768 of the head, 4 * 128 for each of
  // 64.5 visible keys of 6 layers
  EXPECT_EQ(cost_of(spec, PlanCost::mean_flops, 128), 2'635'264);
  Json untied = shakespeare();
  untied["head"] = "linear";
  EXPECT_EQ(cost_of(read_model_spec(untied), PlanCost::parameters), 1'220'224 + 32'768);
  EXPECT_EQ(cost_of(read_model_spec(untied), PlanCost::body_parameters), 1'187'456);
}

TEST(Solve, OneKeyHeadGivesItsParametersToTheFeedForwardLayer) {
  // specification of `compare`, 4.1: width 408, difference 0
  const Solution found = solve(shakespeare(1), {.key = "ffn.d_hidden",
                                                .cost = PlanCost::body_parameters,
                                                .target = 1'187'456,
                                                .multiple = 8});
  EXPECT_EQ(found.value, 408);
  EXPECT_EQ(found.cost, 1'187'456);
  EXPECT_EQ(found.spec["ffn"]["d_hidden"], 408);
  // in the layers' own key the answer is the same
  EXPECT_EQ(solve(shakespeare(1), {.key = "d_hidden", .target = 1'220'224, .multiple = 8}).value,
            408);
}

TEST(Solve, TheNearestMultipleAndOfTwoTheSmaller) {
  // a unit of width is 3 * 128 * 6 = 2304 parameters
  const auto width = [](double target, int64_t multiple) {
    // what is measured is the nearest value, however far
    return solve(shakespeare(),
                 {.key = "ffn.d_hidden", .target = target, .multiple = multiple, .tolerance = 1e6})
        .value;
  };
  EXPECT_EQ(width(1'220'224 + 1151, 1), 344);
  EXPECT_EQ(width(1'220'224 + 1152, 1), 344);
  EXPECT_EQ(width(1'220'224 + 1153, 1), 345);
  EXPECT_EQ(width(1'220'224 + 4 * 2304, 8), 344);
  EXPECT_EQ(width(1'220'224 + 5 * 2304, 8), 352);
  EXPECT_EQ(width(1, 8), 8);
}

TEST(Solve, PlacesKeepTheirProportionAndShortFormsAreKnown) {
  Json json = shakespeare();
  json["layers"].push_back({{"repeat", 2},
                            {"mixer", json["layers"][0]["mixer"]},
                            {"ffn", {{"type", "glu"}, {"act", "silu"}, {"d_hidden", 172}}}});
  Json twice = json;
  twice["ffn"]["d_hidden"] = 688;  // of the first six layers
  twice["layers"][1]["ffn"]["d_hidden"] = 344;
  const double target = cost_of(read_model_spec(twice), PlanCost::parameters);
  EXPECT_EQ(solve(json, {.key = "ffn.d_hidden", .target = target, .multiple = 4}).spec, twice);
  Json brief = shakespeare();
  brief["ffn"] = "glu";
  EXPECT_EQ(solve(brief, {.key = "ffn.d_hidden", .target = 1'220'224}).spec["ffn"]["d_hidden"],
            344);
  const Json one =
      solve(shakespeare(), {.key = "layers[0].repeat", .target = 1'400'000, .tolerance = .1}).spec;
  EXPECT_EQ(one["layers"][0]["repeat"], 7);
}

TEST(Solve, ValuesThatAreRefusedAreLeftOut) {
  // of four heads 1, 2 and 4 may have keys: 2 * 32 numbers of 4 bytes a head, token and layer
  const Solution found = solve(shakespeare(), {.key = "mixer.n_kv_heads",
                                               .cost = PlanCost::state_bytes,
                                               .target = 2.0 * 2 * 32 * 4 * 6 * 100,
                                               .context = 100});
  EXPECT_EQ(found.value, 2);
  expect_error(
      ErrorKind::usage,
      "[solve] 460800 bytes of state within 1 % is out of reach of \"mixer.n_kv_heads\" in "
      "multiples of 1: the nearest values are 2 (307200) and 4 (614400)",
      [] {
        solve(shakespeare(), {.key = "mixer.n_kv_heads",
                              .cost = PlanCost::state_bytes,
                              .target = 3.0 * 2 * 32 * 4 * 6 * 100,
                              .context = 100});
      });
}

// widths that 32 heads with a rotation divide: multiples of 64, far from where the search begins
TEST(Solve, AcceptedValuesMayLieApart) {
  const Json json = spec::parse_json(
      R"({"tessera": 1, "arch": "decoder", "vocab": 320, "d_model": 2048, "head": "tied",
          "mixer": {"type": "attention", "n_heads": 32, "position": "rope"},
          "ffn": {"type": "glu", "d_hidden": 4096}, "layers": [{"repeat": 2}]})",
      "test");
  Json wide = json;
  wide["d_model"] = 4160;
  const double target = cost_of(read_model_spec(wide), PlanCost::parameters, 0, spec::KvType::f32);
  EXPECT_EQ(solve(json, {.key = "d_model", .target = target + 1000}).value, 4160);
}

TEST(Solve, RefusesWhatCannotBeReached) {
  const auto refused = [](ErrorKind kind, SolveGoal goal, const char* text) {
    expect_error(kind, text, [&] { solve(shakespeare(), goal); });
  };
  using enum ErrorKind;
  refused(usage, {.key = "ffn.d_hidden", .target = 1e5, .multiple = 8},
          "the nearest values are 8 (446080) and");
  refused(usage, {.key = "ffn.d_hidden", .cost = PlanCost::state_bytes, .target = 1e9},
          "bytes of state does not depend on \"ffn.d_hidden\"");
  refused(spec, {.key = "ffn.d_hiden", .target = 1e6}, "unknown key \"d_hiden\"");
  refused(usage, {.key = "ffn..d", .target = 1e6}, "expected a path such as ffn.d_hidden");
  refused(usage, {.key = "ffn.d_hidden", .target = 0}, "[solve] goal 0; expected more than 0");
  refused(usage, {.key = "ffn.d_hidden", .target = 1e6, .multiple = 0}, "multiples of 0");
}

}  // namespace
}  // namespace tessera::model
