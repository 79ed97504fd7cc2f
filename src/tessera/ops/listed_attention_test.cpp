// Attention to listed keys in training: out and gradients against the dense twin in double.
#include "tessera/ops/listed_attention.h"

#include <limits>

#include "tessera/kernels/targets.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::ops {
namespace {

constexpr int64_t kTokens = 11, kHeads = 4, kGroups = 2, kFirst = 7, kSecond = 5;

/// Lists of 0 to 6 keys of two memories, of every kv head or of all; some keys count twice.
KeyLists lists_of(int64_t first, int64_t n, int64_t per_query) {
  KeyLists lists;
  lists.per_query = per_query;
  for (int64_t i = first * per_query; i < (first + n) * per_query; ++i) {
    for (int64_t j = 0; j < i % 7; ++j)
      if (j % 2 == 0)
        lists.add(0, (i + j) % kFirst, 0.25 * static_cast<double>(j));
      else
        lists.add(1, (2 * i + j) % kSecond, std::log(2.0));
    lists.end_list();
  }
  return lists;
}

struct Inputs {
  explicit Inputs(at::ScalarType type) {
    const auto leaf = [&](int64_t n, int64_t heads, int64_t width, double a) {
      return gen({n, heads, width}, a, 0.3).to(type).requires_grad_(true);
    };
    all = {leaf(kTokens, kHeads, 6, 0.37), leaf(kFirst, kGroups, 6, 0.53),
           leaf(kFirst, kGroups, 9, 0.71), leaf(kSecond, kGroups, 6, 0.91),
           leaf(kSecond, kGroups, 9, 1.13)};
  }
  std::vector<KeyMemory> memories() const { return {{all[1], all[2]}, {all[3], all[4]}}; }
  /// Output, then the gradients of all inputs.
  std::vector<Tensor> results(const Tensor& out) const {
    const Tensor weights = gen({kTokens, kHeads, 9}, 0.29, 0.1).to(out.scalar_type());
    (out * weights).sum().backward();
    std::vector<Tensor> results{out};
    for (const Tensor& x : all) results.push_back(x.grad());
    return results;
  }
  std::vector<Tensor> all;
};

std::vector<Tensor> dense(int64_t per_query) {
  const Inputs in(at::kDouble);
  Tensor bias = at::full({kHeads, kTokens, kFirst + kSecond},
                         -std::numeric_limits<double>::infinity(), at::kDouble);
  const KeyLists lists = lists_of(0, kTokens, per_query);
  size_t j = 0;
  for (int64_t i = 0; i < kTokens * per_query; ++i)
    for (; static_cast<int64_t>(j) < lists.ends[static_cast<size_t>(i)]; ++j) {
      const ListedKey& key = lists.keys[j];
      for (int64_t h = 0; h < kHeads; ++h)
        if (per_query == 1 || h / 2 == i % per_query)
          bias[h][i / per_query][key.source * kFirst + key.index] = key.bias;
    }
  const auto heads_first = [](const Tensor& x) { return x.transpose(0, 1).unsqueeze(0); };
  const Tensor out =
      biased_attention(heads_first(in.all[0]), heads_first(at::cat({in.all[1], in.all[3]})),
                       heads_first(at::cat({in.all[2], in.all[4]})), bias, 0.7)
          .out;
  return in.results(out.squeeze(0).transpose(0, 1));
}

TEST(ListedAttention, OutputAndGradientsOfTheDefinition) {
  for (const int64_t per_query : {int64_t{1}, kGroups}) {
    const std::vector<Tensor> want = dense(per_query);
    for (const at::ScalarType type : {at::kDouble, at::kFloat})
      for (const int64_t block : {1, 4, 64}) {
        const auto compare = [&] {
          const Inputs in(type);
          const std::vector<Tensor> got = in.results(listed_attention(
              in.all[0], in.memories(),
              [&](int64_t first, int64_t n) { return lists_of(first, n, per_query); }, 0.7, block));
          for (size_t i = 0; i < want.size(); ++i)
            expect_near(got[i], want[i], type == at::kDouble ? 1e-13 : 5e-6);
        };
        if (type == at::kDouble) {
          compare();
          continue;
        }
        for (const std::string& name : kernels::available_targets()) {
          SCOPED_TRACE(name);
          const kernels::TargetScope scope(name);
          compare();
        }
      }
  }
}

}  // namespace
}  // namespace tessera::ops
