// Attention by lists of keys against the definition in double: values and gradients; and the choice
// between lists and tiles.
#include "tessera/ops/attention/scattered_attention.h"

#include "tessera/ops/attention/flash_attention.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::ops::scattered_attention_test {
namespace {

/// Every third key, key 3 twice; row 5 sees nothing; head 1, where heads differ, misses key 6.
class Thirds final : public kernels::Visibility {
 public:
  explicit Thirds(bool same) : same_(same) {}
  int64_t multiplicity(int64_t head, int64_t query, int64_t key) const override {
    if (key > query || key % 3 != 0 || query == 5 || (!same_ && head == 1 && key == 6)) return 0;
    return key == 3 ? 2 : 1;
  }
  std::vector<kernels::KeyRange> ranges(int64_t, int64_t, int64_t end) const override {
    std::vector<kernels::KeyRange> out;
    for (int64_t key = 0; key < end; key += 3) out.push_back({key, key + 1});
    return out;
  }
  bool same_for_heads() const override { return same_; }
  bool scattered() const override { return true; }

 private:
  bool same_;
};

struct Leaves {
  Tensor q, k, v;
  Leaves(int64_t t, int64_t s, at::ScalarType type) {
    const auto leaf = [&](const std::vector<int64_t>& shape, double a, double b) {
      return (gen(shape, a, b) * 1.5).to(type).requires_grad_(true);
    };
    q = leaf({2, t, 4, 9}, 0.7371, 0.11);
    k = leaf({2, s, 2, 9}, 1.5313, 0.29);
    v = leaf({2, s, 2, 7}, 2.7117, 0.05);
  }
  /// dq, dk, dv, from a gradient that differs in every element.
  std::vector<Tensor> gradients(const Tensor& out) const {
    out.backward(gen(out.sizes().vec(), 0.917, 0.4).to(out.scalar_type()));
    return {q.grad(), k.grad(), v.grad()};
  }
};

void expect_definition(int64_t t, int64_t s, int64_t start, int64_t first, bool same) {
  SCOPED_TRACE(fmt::format("T {} S {} from {} and {}, heads alike: {}", t, s, start, first, same));
  ScoreOptions options;
  options.scale = 0.4;
  options.visibility = std::make_shared<Thirds>(same);
  const Leaves exact(t, s, at::kDouble), single(t, s, at::kFloat);
  const Tensor want = attention_plain(exact.q.transpose(1, 2), exact.k.transpose(1, 2),
                                      exact.v.transpose(1, 2), start, first, options)
                          .transpose(1, 2);
  const Tensor got = scattered_attention(single.q, single.k, single.v, start, first, options);
  expect_near(got, want, 3e-6, "out");
  const auto wanted = exact.gradients(want), given = single.gradients(got);
  for (size_t i = 0; i < wanted.size(); ++i)
    expect_near(given[i], wanted[i], 1e-5 * std::max(1.0, wanted[i].abs().max().item<double>()),
                "gradient");
}

TEST(ScatteredAttention, IsTheDefinition) {
  for (const bool same : {true, false}) {
    for (const int64_t t : {1, 7, 63, 130}) expect_definition(t, t, 0, 0, same);
    expect_definition(20, 110, 100, 10, same);
  }
}

// What lists do not serve goes by tiles, with the same pattern.
TEST(ScatteredAttention, TilesServeTheSamePattern) {
  ScoreOptions options;
  options.visibility = std::make_shared<Thirds>(false);
  const Leaves x(70, 70, at::kFloat);
  const at::NoGradGuard no_gradients;
  expect_near(scattered_attention(x.q, x.k, x.v, 0, 0, options),
              flash_attention(x.q, x.k, x.v, 0, 0, options), 3e-6);
}

}  // namespace
}  // namespace tessera::ops::scattered_attention_test
