// Gated feed-forward layers against values computed independently in double.
#include "tessera/nn/ffn/glu.h"

#include <gtest/gtest.h>

#include "tessera/nn/registry.h"
#include "tessera/nn/weights_testing.h"

namespace tessera::nn::glu_test {
namespace {

TEST(Glu, GoldenVariants) {
  register_mechanisms();
  const Values values = {{"gate.weight", ops::tensor({.5, 1, 2, 1, 0, -1}, {2, 3})},
                         {"up.weight", ops::tensor({1, 1, 0, -.5, 2, 1}, {2, 3})},
                         {"down.weight", ops::tensor({1, -1, .5, 2, 0, 1}, {3, 2})}};
  using spec::Json;
  const std::pair<Json, std::vector<double>> variants[] = {
      {{{"act", "sigmoid"}}, {2.11229666, -5.16844498, -2.48983732}},
      {{{"act", "identity"}}, {2.5, -3.75, -2}},
      {{{"act", "relu"}}, {2, -4, -2}},
      {{{"act", "gelu"}}, {1.53719369, -2.68871546, -1.38292492}},
      {{{"act", "silu"}}, {1.43368900, -2.39545216, -1.24491866}},
      // transformers' GptOssExperts with one expert, in double; the second reaches its limit
      {{{"slope", 1.702}, {"limit", 7}, {"up_offset", 1}},
       {1.0511653098, -2.1023306196, -1.0511653098}},
      {{{"slope", 1.702}, {"limit", 0.4}, {"up_offset", 1}},
       {-0.2491070722, 0.2737967993, 0.1593401342}}};
  spec::Scope scope;
  scope.d_model = 3;
  for (const auto& [variant, want] : variants) {
    Json json = {{"type", "glu"}, {"d_hidden", 2}};
    json.update(variant);
    const auto part = spec::read_part(spec::Slot::ffn, json, scope);
    const auto run = [&](at::ScalarType type) {
      Context context;
      return build_ffn(part, Builder(weights_from(values, type), "", scope))
          ->forward(ops::tensor({1, -2, .5}, {1, 3}).to(type), context)
          .squeeze(0);
    };
    SCOPED_TRACE(variant.dump());
    ops::expect_both(run, ops::tensor(want), 1e-8);
  }
}

}  // namespace
}  // namespace tessera::nn::glu_test
