// Heavy hitters against their definition, token by token in double, and the promises of a state.
#include "tessera/nn/mixer/attention/heavy_keys.h"

#include <gmock/gmock.h>

#include <set>

#include "tessera/base/rng.h"
#include "tessera/base/testing.h"
#include "tessera/nn/mixer/attention/attention.h"
#include "tessera/nn/registry.h"
#include "tessera/ops/ops_testing.h"
#include "tessera/spec/kv_type.h"

namespace tessera::nn::heavy_keys_test {
namespace {

constexpr int64_t kT = 90, kHeads = 4, kGroups = 2, kWidth = 16;
constexpr double kScale = 0.4;

Tensor drawn(int64_t heads, uint64_t seed) {
  Tensor x = at::empty({kT, heads, kWidth}, at::kDouble);
  for (int64_t i = 0; i < x.numel(); ++i)
    x.data_ptr<double>()[i] = RandomKey(seed).normal(static_cast<uint64_t>(i));
  return x;
}

struct Text {
  Tensor q = drawn(kHeads, 1), k = drawn(kGroups, 2), v = drawn(kGroups, 3);
  Text to(at::ScalarType type) const { return {q.to(type), k.to(type), v.to(type)}; }
};

/// What the header says, with a set of tokens for every head; `gone` counts those let go.
Tensor defined(const Text& text, const HeavyHitters& who, int64_t* gone = nullptr) {
  Tensor out = at::zeros({kT, kHeads, kWidth}, at::kDouble);
  for (int64_t g = 0; g < kGroups; ++g) {
    std::set<int64_t> seen;
    std::map<int64_t, double> weights;
    for (int64_t i = 0; i < kT; ++i) {
      seen.insert(i);
      const std::vector<int64_t> tokens(seen.begin(), seen.end());
      const Tensor index = at::tensor(tokens, at::kLong),
                   keys = text.k.select(1, g).index_select(0, index),
                   values = text.v.select(1, g).index_select(0, index);
      for (int64_t h = g * kHeads / kGroups; h < (g + 1) * kHeads / kGroups; ++h) {
        const Tensor p = at::softmax(kScale * at::mv(keys, text.q[i][h]), 0);
        out[i][h] = at::mv(values.t(), p);
        for (size_t j = 0; j < tokens.size(); ++j)
          weights[tokens[j]] += p.const_data_ptr<double>()[j];
      }
      if ((i + 1) % who.every != 0) continue;
      std::vector<int64_t> old;
      for (const int64_t token : seen)
        if (token < i + 1 - who.last) old.push_back(token);
      while (static_cast<int64_t>(old.size()) > who.keep) {
        const auto lightest = std::min_element(
            old.begin(), old.end(), [&](int64_t a, int64_t b) { return weights[a] < weights[b]; });
        seen.erase(*lightest);
        old.erase(lightest);
        if (gone != nullptr) ++*gone;
      }
    }
  }
  return out;
}

std::vector<spec::StateDecl> declared(const HeavyHitters& who, spec::KvType type = {}) {
  register_mechanisms();
  spec::Scope scope;
  scope.d_model = kHeads * kWidth;
  auto decls =
      spec::read_part(spec::Slot::mixer,
                      {{"type", "attention"},
                       {"n_heads", kHeads},
                       {"n_kv_heads", kGroups},
                       {"heavy", {{"keep", who.keep}, {"last", who.last}, {"every", who.every}}}},
                      scope)
          .config->state(scope);
  for (spec::StateDecl& decl : decls) decl = spec::stored_as(decl, type, "test");
  return decls;
}

RowState row_of(const HeavyHitters& who,
                const Tensor& like,
                spec::KvType type = {},
                int64_t pending = 0) {
  return RowState(declared(who, type), pending, like.options());
}

Tensor part(const Text& text, const HeavyHitters& who, RowState& row, int64_t from, int64_t to) {
  const auto cut = [&](const Tensor& x) { return x.narrow(0, from, to - from); };
  return HeavyKeys(who, row).attend(cut(text.q), cut(text.k), cut(text.v), from, {.scale = kScale});
}

TEST(HeavyKeys, AreThoseOfTheDefinition) {
  const Text text;
  for (const HeavyHitters who : {HeavyHitters{5, 8, 4}, HeavyHitters{1, 0, 1},
                                 HeavyHitters{7, 3, 16}, HeavyHitters{20, 64, 8}}) {
    SCOPED_TRACE(fmt::format("{} {} {}", who.keep, who.last, who.every));
    int64_t gone = 0;
    const Tensor expected = defined(text, who, &gone);
    EXPECT_GT(gone, 0);
    for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
      const at::NoGradGuard no_gradients;
      const Text own = text.to(type);
      RowState row = row_of(who, own.q);
      EXPECT_TRUE(at::allclose(part(own, who, row, 0, kT).to(at::kDouble), expected, 1e-5,
                               type == at::kDouble ? 1e-12 : 2e-6));
    }
    // with gradients
    RowState row = row_of(who, text.q);
    const Text learned{text.q, text.k.detach().clone().requires_grad_(), text.v};
    EXPECT_TRUE(at::allclose(part(learned, who, row, 0, kT), expected, 1e-9, 1e-12));
  }
}

TEST(HeavyKeys, AreTheSameBitsForAnyCutsAndPages) {
  const at::NoGradGuard no_gradients;
  const Text text = Text().to(at::kFloat);
  const HeavyHitters who{5, 8, 4};
  for (const spec::KvType type : {spec::KvType::f32, spec::KvType::f16, spec::KvType::int8}) {
    RowState row = row_of(who, text.q, type);
    const Tensor whole = part(text, who, row, 0, kT);
    for (const int64_t step : {1, 3, 4, 7, 33}) {
      RowState again(declared(who, type), 0, text.q.options(), PagePool::make(step));
      std::vector<Tensor> parts;
      for (int64_t at = 0; at < kT; at += step)
        parts.push_back(part(text, who, again, at, std::min(at + step, kT)));
      EXPECT_TRUE(at::equal(at::cat(parts), whole)) << step;
    }
  }
}

TEST(HeavyKeys, AreThoseOfAllWhereTheyCoverTheText) {
  const at::NoGradGuard no_gradients;
  const Text text = Text().to(at::kFloat);
  const Tensor all = ops::attention(text.q, {{text.k, text.v, 0}}, 0, {.scale = kScale});
  for (const HeavyHitters who : {HeavyHitters{80, 8, 4}, HeavyHitters{82, 4, 16}}) {
    RowState row = row_of(who, text.q);
    EXPECT_TRUE(at::equal(part(text, who, row, 0, kT), all));
  }
  const HeavyHitters fewer{60, 8, 4};
  RowState row = row_of(fewer, text.q);
  EXPECT_FALSE(at::equal(part(text, fewer, row, 0, kT), all));
}

TEST(HeavyKeys, TakeTheMemoryThatIsDeclared) {
  const at::NoGradGuard no_gradients;
  const Text text = Text().to(at::kFloat);
  const HeavyHitters who{5, 8, 4};
  RowState row = row_of(who, text.q, spec::KvType::int8);
  part(text, who, row, 0, kT);
  row.end_call(Tensor(), {.length = kT});
  // keys and values of a byte and a scale of four, and sums of weights
  EXPECT_EQ(row.bytes(), (5 + 12) * 2 * kGroups * (kWidth + 4) + kGroups * 17 * 4);
  EXPECT_EQ(row.fixed(2).scalar_type(), at::kChar);
  EXPECT_EQ(row.fixed(4).scalar_type(), at::kFloat);
}

TEST(HeavyKeys, AreRefusedWhereKeysAreNotTheirOwn) {
  register_mechanisms();
  const auto refused = [&](const char* fields, const char* what, bool causal = true) {
    spec::Scope scope;
    scope.d_model = 8;
    scope.causal = causal;
    scope.path = "mixer";
    spec::Json json = spec::parse_json(
        R"({"type": "attention", "n_heads": 2, "heavy": {"keep": 3, "last": 2}})", "test");
    json.merge_patch(spec::parse_json(fields, "test"));
    test::expect_error(ErrorKind::spec, what,
                       [&] { spec::read_part(spec::Slot::mixer, json, scope); });
  };
  refused(R"({"pattern": {"type": "window", "width": 4}})", "pattern \"window\" says itself");
  refused(R"({"position": "alibi"})", "position \"alibi\" counts the keys between");
  refused(R"({"kv_name": "a"})", "other layers use its keys");
  refused(R"({"dropout": 0.1})", "dropout would hide");
  refused(R"({"heavy": {"keep": 0}})", "keep");
  refused("{}", "an encoder's queries see them all", false);
}

}  // namespace
}  // namespace tessera::nn::heavy_keys_test
