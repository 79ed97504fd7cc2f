// The Memorizing Transformer against its definition.
#include "tessera/nn/mixer/attention/memorizing.h"

#include <algorithm>

#include "tessera/base/testing.h"
#include "tessera/nn/mixer/attention/segment_testing.h"
#include "tessera/ops/attention/lsh_attention.h"

namespace tessera::nn::memorizing_test {
namespace {

using ops::gen;

constexpr int64_t kT = 23, kD = 6, kHeads = 2, kE = 3;

struct Case {
  const char* combine;
  int64_t segment, mem_len, memory, top_k;
  int64_t n_hashes = 0, n_buckets = 64;  // of the approximate search; 0 = exact
};
constexpr Case kCases[] = {{"gate", 4, 0, 7, 3},         {"joint", 4, 0, 7, 3},
                           {"gate", 5, 3, 2, 2},         {"joint", 5, 3, 2, 1},
                           {"gate", 4, 6, 30, 30},       {"joint", 3, 2, 30, 4},
                           {"gate", 4, 0, 16, 3, 1, 16}, {"joint", 4, 3, 9, 2, 2, 8}};

MixerUnderTest mixer(const Case& c) {
  MixerUnderTest m(
      fmt::format(R"({{"type": "memorizing", "n_heads": 2, "segment": {}, "mem_len": {},
      "memory": {}, "top_k": {}, "combine": "{}",
      "position": {{"type": "t5", "n_buckets": 6, "max_distance": 8}}}})",
                  c.segment, c.mem_len, c.memory, c.top_k, c.combine),
      kD);
  if (c.n_hashes > 0) {
    m.json.update({{"search", "approximate"},
                   {"n_hashes", c.n_hashes},
                   {"n_buckets", c.n_buckets},
                   {"hash_seed", 3}});
    m.read();
  }
  m.fill({.size = 1});
  m.values["scale"] = ops::tensor({2.5, 4});
  return m;
}

/// Causal buckets: three exact ones, then logarithmic up to `max`.
double bias(MixerUnderTest& m, int64_t head, int64_t distance) {
  int64_t bucket = distance;
  if (distance >= 3)
    bucket =
        std::min<int64_t>(5, 3 + static_cast<int64_t>(std::log(static_cast<double>(distance) / 3) /
                                                      std::log(8.0 / 3) * 3));
  return m.values["position.weight"][bucket][head].item<double>();
}

Tensor definition(MixerUnderTest& m, const Case& c, const Tensor& x) {
  const auto project = [&](const char* name) {
    return at::matmul(x, m.values[name].t()).reshape({-1, kHeads, kE});
  };
  const auto unit = [](const Tensor& y) { return y / (y.square().sum(-1, true) + 1e-12).sqrt(); };
  const Tensor q = unit(project("q.weight")), k = unit(project("k.weight")),
               v = project("v.weight");
  Tensor turns_RHDn;
  if (c.n_hashes > 0)
    turns_RHDn = ops::lsh_rotations(RandomKey(3).fold(uint64_t{0}), {c.n_buckets}, c.n_hashes,
                                    kHeads, kE)[0];
  // whether a query and a key are nearest to the same direction in some table
  const auto meet = [&](const Tensor& a, const Tensor& b, int64_t head) {
    for (int64_t r = 0; r < c.n_hashes; ++r) {
      const auto bucket = [&](const Tensor& y) {
        const Tensor along = at::mv(turns_RHDn[r][head].t(), y.detach());
        return at::cat({along, -along}).argmax().item<int64_t>();
      };
      if (bucket(a) == bucket(b)) return true;
    }
    return c.n_hashes == 0;
  };
  std::vector<Tensor> rows;
  for (int64_t i = 0; i < x.size(0); ++i) {
    const int64_t segment = i / c.segment * c.segment;
    std::vector<Tensor> heads;
    for (int64_t a = 0; a < kHeads; ++a) {
      const auto score = [&](int64_t j) {
        const Tensor key = j < segment ? k[j][a].detach() : k[j][a];
        return m.values["scale"][a] * q[i][a].dot(key);
      };
      const auto value = [&](int64_t j) { return j < segment ? v[j][a].detach() : v[j][a]; };
      std::vector<int64_t> best;
      for (int64_t j = std::max<int64_t>(0, segment - c.memory); j < segment; ++j)
        if (meet(q[i][a], k[j][a], a)) best.push_back(j);
      std::stable_sort(best.begin(), best.end(), [&](int64_t p, int64_t r) {
        return q[i][a].dot(k[p][a]).item<double>() > q[i][a].dot(k[r][a]).item<double>();
      });
      best.resize(std::min<size_t>(best.size(), static_cast<size_t>(c.top_k)));
      std::vector<Tensor> far, far_values, near, near_values;
      for (const int64_t j : best) far.push_back(score(j)), far_values.push_back(value(j));
      for (int64_t j = std::max<int64_t>(0, segment - c.mem_len); j <= i; ++j) {
        near.push_back(score(j) + bias(m, a, i - j));
        near_values.push_back(value(j));
      }
      const auto attend = [](const std::vector<Tensor>& s, const std::vector<Tensor>& of) {
        return at::mv(at::stack(of).t(), at::softmax(at::stack(s), 0));
      };
      Tensor o;
      if (far.empty()) {
        o = attend(near, near_values);
      } else if (c.combine == std::string("gate")) {
        const Tensor g = at::sigmoid(m.values["gate"][a]);
        o = g * attend(far, far_values) + (1 - g) * attend(near, near_values);
      } else {
        far.insert(far.end(), near.begin(), near.end());
        far_values.insert(far_values.end(), near_values.begin(), near_values.end());
        o = attend(far, far_values);
      }
      heads.push_back(o);
    }
    rows.push_back(at::mv(m.values["o.weight"], at::cat(heads)));
  }
  return at::stack(rows);
}

TEST(Memorizing, AgainstTheDefinition) {
  const Tensor x = gen({kT, kD}, 1.3, 0.2);
  for (const Case& c : kCases) {
    SCOPED_TRACE(fmt::format("{} {} {} {} {}", c.combine, c.segment, c.mem_len, c.memory, c.top_k));
    MixerUnderTest m = mixer(c);
    const Tensor want = definition(m, c, x);
    for (const std::vector<int64_t>& calls :
         {std::vector<int64_t>{}, {23}, {5, 1, 9, 1, 7}, {12, 11}, std::vector<int64_t>(23, 1)})
      ops::expect_both([&](at::ScalarType type) { return m.run(x, type, calls); }, want, 1e-11);
  }
}

TEST(Memorizing, GradientsStopAtTheMemory) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(fmt::format("{} {} {} {} {}", c.combine, c.segment, c.mem_len, c.memory, c.top_k));
    MixerUnderTest m = mixer(c);
    for (auto& [name, value] : m.values)
      if (name != "position.weight") value = value.clone().requires_grad_(true);
    const Tensor x = gen({kT, kD}, 1.3, 0.2).requires_grad_(true), r = gen({kT, kD}, 0.7, 0.4);
    std::vector<Tensor> leaves{x};
    for (auto& [name, value] : m.values)
      if (name != "position.weight") leaves.push_back(value);
    const auto gradients = [&](const Tensor& y) {
      for (const Tensor& leaf : leaves) leaf.mutable_grad() = Tensor();
      (y * r).sum().backward();
      std::vector<Tensor> out;
      for (const Tensor& leaf : leaves) out.push_back(leaf.grad().clone());
      return out;
    };
    const auto want = gradients(definition(m, c, x));
    for (const std::vector<int64_t>& calls : {std::vector<int64_t>{}, {5, 1, 9, 1, 7}, {12, 11}}) {
      const auto got = gradients(m.run(x, at::kDouble, calls));
      for (size_t i = 0; i < want.size(); ++i) ops::expect_near(got[i], want[i], 1e-11);
    }
  }
}

TEST(Memorizing, AClosedGateIsLocalAttention) {
  MixerUnderTest m = mixer(kCases[0]);
  m.values["gate"] = ops::tensor({-1e9, -1e9});
  MixerUnderTest whole = mixer({"gate", kT, 0, 7, 3});
  whole.values = m.values;
  const Tensor x = gen({8, kD}, 1.3, 0.2), got = m.run(x, at::kDouble);
  // its second segment as a document of its own
  ops::expect_near(got.narrow(0, 4, 4), whole.run(x.narrow(0, 4, 4), at::kDouble), 1e-13);
}

TEST(Memorizing, OfEqualKeysTheEarliest) {
  // all keys of the memory are alike: the first three are read, whose values are their numbers
  MixerUnderTest m(
      R"({"type": "memorizing", "n_heads": 1, "head_dim": 2, "segment": 6, "mem_len": 0,
      "memory": 6, "top_k": 3, "position": "none"})",
      8);
  m.fill({.size = 1});
  m.values["k.weight"] = at::ones({2, 8}, at::kDouble);
  m.values["v.weight"] = at::arange(16, at::kDouble).reshape({2, 8});
  m.values["o.weight"] = at::constant_pad_nd(at::eye(2, at::kDouble), {0, 0, 0, 6});
  m.values["gate"] = ops::tensor({1e9});
  ops::expect_both(
      [&](at::ScalarType type) { return m.run(at::eye(8, at::kDouble), type)[6].narrow(0, 0, 2); },
      ops::tensor({1, 9}), 1e-13);
}

TEST(Memorizing, Refusals) {
  const auto refused = [](const std::string& fields, const std::string& part) {
    test::expect_error(ErrorKind::spec, part, [&] {
      MixerUnderTest(R"({"type": "memorizing", "n_heads": 2, "segment": 4, )" + fields + "}", kD);
    });
  };
  refused(R"("memory": 3, "top_k": 4)", "top_k = 4 of memory = 3");
  refused(R"("combine": "joint", "dropout": 0.1)", "expected 0 with combine");
  refused(R"("position": null)", "found null");
  refused(R"("n_hashes": 2)", "are of the approximate search; set search \"approximate\"");
  refused(R"("search": "approximate", "n_buckets": 7)", "n_buckets = 7; expected an even number");
  refused(R"("search": "approximate", "n_buckets": 258)", ".n_buckets] found 258; expected at most 256");
}

}  // namespace
}  // namespace tessera::nn::memorizing_test
