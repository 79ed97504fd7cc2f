// The table of attention's forms: every row is taken by some call, every call that can be made is
// served by the form that the table says, and every form computes the definition.
#include "tessera/ops/attention/attention_form.h"

#include <map>

#include "tessera/ops/ops_testing.h"

namespace tessera::ops::attention_form_test {
namespace {

constexpr int64_t kT = 11, kHeads = 4, kGroups = 2, kWidth = 5, kFarEnd = 4;

/// Own token and every third key, the first of them twice.
class Thirds final : public kernels::Visibility {
 public:
  explicit Thirds(bool scattered) : scattered_(scattered) {}
  int64_t multiplicity(int64_t, int64_t query, int64_t key) const override {
    if (key > query) return 0;
    return key == 0 ? 2 : key % 3 == 0 || key == query ? 1 : 0;
  }
  std::vector<kernels::KeyRange> ranges(int64_t, int64_t, int64_t end) const override {
    return {{0, end}};
  }
  bool scattered() const override { return scattered_; }

 private:
  bool scattered_;
};

struct Call {
  Tensor q, k, v;  // [T, H, D]
  ScoreOptions options;
};

/// The call that asks for this, in numbers of `type`.
Call call_of(uint32_t asks, at::ScalarType type) {
  const auto made = [&](const std::vector<int64_t>& shape, double a, double b) {
    return gen(shape, a, b).to(type);
  };
  Call call{made({kT, kHeads, kWidth}, 0.7371, 0.11),
            made({kT, kGroups, kWidth}, 1.5313, 0.29),
            made({kT, kGroups, kWidth}, 2.7117, 0.05),
            {}};
  ScoreOptions& o = call.options;
  o.scale = 0.6;
  if (asks & ask::softcap) o.softcap = 0.7;
  if (asks & ask::sinks) o.sinks_H = made({kHeads}, 0.9, 0.3);
  if (asks & ask::distances) {
    o.term.bias_HR = made({kHeads, 2 * kT - 1}, 0.61, 0.7);
    o.term.zero = kT - 1;
  }
  if (asks & ask::bias)
    o.term.bias = [](const ScoreBlock& block, const std::vector<Tensor>&) {
      return block.q_BHTD.select(-1, 0).unsqueeze(-1) * block.k_BHSD.select(-1, 1).unsqueeze(-2);
    };
  if (asks & ask::values)
    o.term.values = [](const Tensor& weights, const ScoreBlock& block, const std::vector<Tensor>&) {
      return 0.3 * at::matmul(weights, block.k_BHSD);
    };
  if (asks & ask::dropout) o.dropout = {0.25, RandomKey(3)};
  if (asks & ask::pattern) o.visibility = std::make_shared<Thirds>((asks & ask::scattered) != 0);
  if (asks & ask::far) {
    o.far_q = made({kT, kHeads, kWidth}, 0.31, 0.9);
    o.far_end = kFarEnd;
  }
  return call;
}

/// Whether a pattern stands behind what is asked for: scattered keys and far queries are its own,
/// of one pattern or another, and mixers join no term to the latter.
bool sensible(uint32_t asks) {
  if ((asks & ask::scattered) && !(asks & ask::pattern)) return false;
  if (asks & ask::far)
    return (asks & ask::pattern) &&
           !(asks & (ask::scattered | ask::distances | ask::bias | ask::values));
  return true;
}

Tensor by_definition(const Call& call) {
  const auto heads_first = [](const Tensor& x) { return x.transpose(0, 1).unsqueeze(0); };
  ScoreOptions options = call.options;
  if (options.far_q.defined()) options.far_q = heads_first(options.far_q);
  return attention_plain(heads_first(call.q), heads_first(call.k), heads_first(call.v), 0, 0,
                         options)
      .squeeze(0)
      .transpose(0, 1);
}

constexpr uint32_t kFromOptions = ask::softcap | ask::sinks | ask::distances | ask::bias |
                                  ask::values | ask::dropout | ask::pattern | ask::scattered |
                                  ask::far;

TEST(AttentionForm, EveryFormComputesTheDefinition) {
  std::map<AttentionForm, int> taken;
  for (uint32_t asks = 0; asks <= kFromOptions; asks += ask::softcap) {
    if (!sensible(asks)) continue;
    const Tensor want = by_definition(call_of(asks, at::kDouble));
    const Call call = call_of(asks, at::kFloat);
    for (const bool gradients : {false, true}) {
      const at::AutoGradMode mode(gradients);
      const uint32_t all = asks | (gradients ? uint32_t{ask::gradients} : 0);
      ASSERT_EQ(asks_of(call.q, call.options), all);
      const AttentionForm form = attention_form(all);
      ++taken[form];
      SCOPED_TRACE(fmt::format("asks {:#x}, {}", all, name_of(form)));
      const Tensor got = attention(call.q, {{call.k, call.v, 0}}, 0, call.options);
      expect_near(got, want, 1e-5);
    }
  }
  for (const AttentionForm form :
       {AttentionForm::kernel, AttentionForm::kernel_of_weights, AttentionForm::lists,
        AttentionForm::tiles, AttentionForm::far_tiles, AttentionForm::definition})
    EXPECT_GT(taken[form], 0) << name_of(form);
}

TEST(AttentionForm, TheChoice) {
  using F = AttentionForm;
  const std::vector<std::pair<uint32_t, F>> wanted{
      // inference on a CPU: the batch-invariant kernel, whatever joins the scores
      {0, F::kernel},
      {ask::softcap | ask::sinks | ask::distances | ask::bias | ask::pattern | ask::scattered,
       F::kernel},
      {ask::pattern | ask::far | ask::gaps, F::kernel},
      {ask::values, F::kernel_of_weights},
      // training on a CPU: tiles, or lists where scores are products alone
      {ask::gradients, F::tiles},
      {ask::gradients | ask::half | ask::softcap | ask::sinks | ask::distances | ask::dropout |
           ask::pattern,
       F::tiles},
      {ask::gradients | ask::pattern | ask::scattered, F::lists},
      {ask::gradients | ask::pattern | ask::scattered | ask::softcap, F::tiles},
      {ask::gradients | ask::pattern | ask::scattered | ask::dropout, F::tiles},
      {ask::gradients | ask::pattern | ask::far, F::far_tiles},
      // what no fast form knows
      {ask::gradients | ask::bias, F::definition},
      {ask::gradients | ask::values, F::definition},
      {ask::gradients | ask::gaps, F::definition},
      {ask::elsewhere, F::definition},
      // on a device
      {ask::device | ask::elsewhere | ask::gradients | ask::half | ask::together, F::fused},
      {ask::device | ask::elsewhere | ask::sinks, F::definition},
      {ask::elsewhere | ask::gradients | ask::pattern | ask::scattered, F::definition},
      // several documents: the kernel takes one at a time
      {ask::together, F::tiles},
      {ask::together | ask::bias, F::definition},
      {ask::packed | ask::gradients | ask::dropout | ask::distances, F::tiles},
      {ask::packed | ask::gradients | ask::pattern, F::apart},
      {ask::packed | ask::elsewhere, F::apart}};
  for (const auto& [asks, form] : wanted)
    EXPECT_STREQ(name_of(attention_form(asks)), name_of(form)) << fmt::format("{:#x}", asks);
}

TEST(AttentionForm, EveryRowIsTakenAndEveryCallIsServed) {
  std::map<const AttentionRow*, int> taken;
  for (uint32_t asks = 0; asks < 2 * uint32_t{ask::device}; ++asks) {
    const AttentionForm form = attention_form(asks);  // throws where none serves
    for (const AttentionRow& row : attention_table())
      if ((asks & ~row.serves) == 0 && (row.needs & ~asks) == 0) {
        EXPECT_EQ(row.form, form);
        ++taken[&row];
        break;
      }
  }
  for (const AttentionRow& row : attention_table()) EXPECT_GT(taken[&row], 0) << name_of(row.form);
}

TEST(AttentionForm, TilesServeFloatsWithoutFunctions) {
  const Tensor q = at::zeros({1, 2, 1, 4});
  EXPECT_TRUE(tiles_serve(q, {}));
  EXPECT_FALSE(tiles_serve(q.to(at::kDouble), {}));
  ScoreOptions term;
  term.term.bias = [](const ScoreBlock&, const std::vector<Tensor>&) { return Tensor(); };
  EXPECT_FALSE(tiles_serve(q, term));
  ScoreOptions far;
  far.far_q = q;
  EXPECT_FALSE(tiles_serve(q, far));
  ScoreOptions pattern;
  pattern.visibility = std::make_shared<Thirds>(false);
  EXPECT_TRUE(tiles_serve(q, pattern));
  EXPECT_TRUE(tiles_serve_packed(q, {}));
  EXPECT_FALSE(tiles_serve_packed(q, pattern));
}

}  // namespace
}  // namespace tessera::ops::attention_form_test
