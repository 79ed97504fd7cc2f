// Mixers that attend to listed keys: what a position scheme adds to their scores costs memory in
// proportion to the tokens, gradients included.
#include "tessera/nn/mixer/mixer_testing.h"
#include "tessera/ops/live_bytes_testing.h"

namespace tessera::nn::listed_bias_test {
namespace {

constexpr int64_t kLong = 2048;  // of fewer keys a window keeps its scores

/// The most bytes at a time in a forward and a backward pass over t tokens.
int64_t peak(MixerUnderTest& m, int64_t t, at::ScalarType type) {
  const Tensor x = ops::gen({t, 8}, 1.3, 0.2).to(type).requires_grad_(true);
  for (auto& [name, value] : m.values) value = value.detach().to(type).requires_grad_(true);
  const ops::LiveBytes live;
  m.whole(x, {t}).sum().backward();
  return live.most();
}

TEST(ListedBias, MemoryIsLinear) {
  const std::string mixers[] = {
      R"({"type": "native_sparse_attention", "n_heads": 2, "block": 8, "stride": 8,
          "select_block": 8, "n_selected": 4, "window": 16, "pool": "mean")",
      R"({"type": "multi_level_attention", "n_heads": 2, "ratios": [1, 4, 16],
          "windows": [16, 64])"};
  const char* positions[] = {R"({"type": "alibi"})", R"({"type": "kerple"})",
                             R"({"type": "shaw", "left": 3, "right": 2})"};
  for (const std::string& mixer : mixers)
    for (const char* position : positions) {
      SCOPED_TRACE(mixer + " " + position);
      MixerUnderTest m(mixer + R"(, "position": )" + position + "}", 8);
      m.fill();
      // by kernels, and by torch operations
      for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
        if (type == at::kDouble && std::string(position).find("kerple") == std::string::npos)
          continue;
        const int64_t once = peak(m, kLong, type), twice = peak(m, 2 * kLong, type);
        EXPECT_LT(static_cast<double>(twice), 2.2 * static_cast<double>(once)) << once;
      }
    }
}

}  // namespace
}  // namespace tessera::nn::listed_bias_test
