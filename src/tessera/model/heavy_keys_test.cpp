// A decoder that keeps the heaviest keys: its states go on as its texts do.
#include "tessera/model/state_testing.h"

namespace tessera::model::heavy_keys_test {
namespace {

Continued decoder() {
  const ModelSpec spec = read_model_spec(spec::parse_json(R"({
    "tessera": 1, "arch": "decoder", "vocab": 13, "d_model": 16, "ffn": {"type": "glu", "d_hidden": 12},
    "layers": [{"repeat": 2, "mixer": {"type": "attention", "n_heads": 4, "n_kv_heads": 2, "position": "rope",
                                      "heavy": {"keep": 3, "last": 2, "every": 2}}}]})",
                                                          "test"));
  return Continued(Model(spec, Weights::initial(spec, 3)));
}

TEST(HeavyKeys, AreTheSameForAnyCuts) {
  decoder().expect_any_cuts();
}

TEST(HeavyKeys, FollowARollBackAndAFile) {
  decoder().expect_roll_back();
}

TEST(HeavyKeys, CannotBeCutButAreForked) {
  const Continued own = decoder();
  State state(own.model().spec(), 1);
  own.feed(state, 0, 7);
  EXPECT_FALSE(state.can_truncate(0, 6));
  State fork = state.fork();
  const Tensor expected = own.feed(state, 7, 5);
  EXPECT_TRUE(at::equal(own.feed(fork, 7, 5), expected));
}

}  // namespace
}  // namespace tessera::model::heavy_keys_test
