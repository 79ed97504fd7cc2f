// Forgetting attention against plain loops (tools/golden/forgetting_attention.py).
#include "tessera/base/testing.h"
#include "tessera/nn/mixer/mixer_testing.h"

namespace tessera::nn::forgetting_attention_test {
namespace {

spec::Json config() {
  return {{"type", "forgetting_attention"},
          {"n_heads", 4},
          {"n_kv_heads", 2},
          {"head_dim", 2},
          {"gate", true},
          {"position", {{"type", "rope"}, {"theta", 100}}}};
}

TEST(ForgettingAttention, Golden) {
  golden_mixer(config(), 8)
      .expect_everywhere(
          golden_input(6, 8),
          ops::tensor({4.4825822905,  4.7238878721,  4.7708412192,  4.6215105568,  4.2820397115,
                       3.7663953394,  3.0957923040,  2.2978208449,  -2.8882043202, -3.2284170898,
                       -3.4358049295, -3.5018353993, -3.4237918450, -3.2048851682, -2.8541217220,
                       -2.3859327675, 5.3576698311,  5.5801753951,  5.5730989735,  5.3367317076,
                       4.8807983213,  4.2240570230,  3.3935277468,  2.4233804867,  -5.2137144632,
                       -5.1314801444, -4.8381242538, -4.3457161661, -3.6745147474, -2.8521348563,
                       -1.9124112015, -0.8940062992, 5.5111209313,  5.3542956119,  4.9771815504,
                       4.3952941365,  3.6325736334,  2.7204002173,  1.6963029209,  0.6024155972,
                       -0.8667020123, -0.3400046528, 0.2006813249,  0.7331107849,  1.2353782845,
                       1.6868193172,  2.0688605012,  2.3657837332},
                      {6, 8}),
          1e-9);
}

TEST(ForgettingAttention, RefusesAnEncoder) {
  EXPECT_THROW(MixerUnderTest(R"({"type": "forgetting_attention", "n_heads": 2})", 8, false),
               Error);
}

}  // namespace
}  // namespace tessera::nn::forgetting_attention_test
