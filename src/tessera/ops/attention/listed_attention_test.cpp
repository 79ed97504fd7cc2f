// Attention to listed keys in training: out and gradients against the dense twin in double.
#include "tessera/ops/attention/listed_attention.h"

#include <limits>

#include "tessera/kernels/targets.h"
#include "tessera/ops/attention/listed_term.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::ops::listed_attention_test {
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

// --- what a position scheme adds
// ------------------------------------------------------------------

constexpr int64_t kStart = 3;  // position of the first query

/// Every other key of two memories, no list the same: by query and head.
KeyLists lists_by_head(int64_t first, int64_t n) {
  KeyLists lists;
  lists.per_query = kHeads;
  for (int64_t i = first; i < first + n; ++i)
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t j = (i + h) % 3; j < kFirst; j += 2)
        lists.add(0, j, 0.1 * static_cast<double>(h));
      for (int64_t j = i % 2; j < i % 6 && j < kSecond; ++j) lists.add(1, j);
      lists.end_list();
    }
  return lists;
}

/// The second memory's last keys stand together.
std::vector<KeyPlaces> places() {
  return {{1, 2}, {4, 3, 11}};
}

/// A table of distances, a function of queries, keys and a parameter, or both.
ScoreTerm term_of(const std::string& kind, const std::vector<Tensor>& parameters) {
  ScoreTerm term;
  if (kind != "function") {
    term.bias_HR = parameters[0];
    term.zero = 5;
  }
  if (kind != "table") {
    term.inputs = {parameters[1]};
    term.bias = [](const ScoreBlock& b, const std::vector<Tensor>& inputs) {
      const auto at = [&](int64_t from, int64_t step, int64_t n) {
        return (at::arange(n, inputs[0].options()) * static_cast<double>(step) +
                static_cast<double>(from)) *
               0.1;
      };
      const Tensor w_D = inputs[0];
      return (b.q_BHTD.matmul(w_D).unsqueeze(-1) * at(b.first_key, b.key_step, b.k_BHSD.size(2))) +
             (b.k_BHSD.matmul(w_D).unsqueeze(-2) *
              at(b.first_query, b.query_step, b.q_BHTD.size(2)).unsqueeze(-1));
    };
  }
  return term;
}

struct TermInputs : Inputs {
  explicit TermInputs(at::ScalarType type) : Inputs(type) {
    all.push_back((gen({kHeads, 12}, 0.83, 0.2)).to(type).requires_grad_(true));
    all.push_back((gen({6}, 0.47, 0.1)).to(type).requires_grad_(true));
  }
  std::vector<Tensor> parameters() const { return {all[5], all[6]}; }
};

/// The definition: one number for every pair, and hidden where no list names it.
std::vector<Tensor> dense_with_term(const std::string& kind) {
  const TermInputs in(at::kDouble);
  const ScoreTerm term = term_of(kind, in.parameters());
  const auto heads_first = [](const Tensor& x) { return x.transpose(0, 1).unsqueeze(0); };
  const Tensor q = heads_first(in.all[0]), k = heads_first(at::cat({in.all[1], in.all[3]}));
  const Tensor of_heads = k.repeat_interleave(kHeads / kGroups, 1);
  std::vector<Tensor> numbers;
  for (int64_t m = 0, row = 0; m < 2; ++m)
    for (int64_t j = 0; j < (m == 0 ? kFirst : kSecond); ++j, ++row)
      numbers.push_back(added_by_term(term, {q, of_heads.narrow(2, row, 1), kStart,
                                             places()[static_cast<size_t>(m)].of(j), 0.7})
                            .expand({1, kHeads, kTokens, 1}));
  Tensor hidden = at::full({kHeads, kTokens, kFirst + kSecond},
                           -std::numeric_limits<double>::infinity(), at::kDouble);
  const KeyLists lists = lists_by_head(0, kTokens);
  size_t j = 0;
  for (int64_t i = 0; i < kTokens * kHeads; ++i)
    for (; static_cast<int64_t>(j) < lists.ends[static_cast<size_t>(i)]; ++j) {
      const ListedKey& key = lists.keys[j];
      hidden[i % kHeads][i / kHeads][key.source * kFirst + key.index] = key.bias;
    }
  const Tensor out = biased_attention(q, k, heads_first(at::cat({in.all[2], in.all[4]})),
                                      at::cat(numbers, -1) + hidden, 0.7)
                         .out;
  return in.results(out.squeeze(0).transpose(0, 1));
}

TEST(ListedAttention, TermsReachTheirParametersQueriesAndKeys) {
  for (const char* kind : {"table", "function", "both"}) {
    SCOPED_TRACE(kind);
    const std::vector<Tensor> want = dense_with_term(kind);
    for (const at::ScalarType type : {at::kDouble, at::kFloat})
      for (const int64_t block : {1, 4, 64})
        for (const bool parts : {false, true}) {
          const TermInputs in(type);
          std::vector<KeyMemory> memories = in.memories();
          if (parts)
            for (KeyMemory& memory : memories)
              for (auto* side : {&memory.k, &memory.v})
                *side = (*side)[0].split_with_sizes({2, (*side)[0].size(0) - 2});
          const std::vector<Tensor> got = in.results(
              listed_attention(in.all[0], memories, lists_by_head, 0.7, block,
                               listed_term(term_of(kind, in.parameters()), 0.7, kStart, places())));
          for (size_t i = 0; i < want.size(); ++i) {
            ASSERT_EQ(got[i].defined(), want[i].defined()) << i;
            if (want[i].defined()) expect_near(got[i], want[i], type == at::kDouble ? 1e-13 : 1e-5);
          }
        }
  }
}

}  // namespace
}  // namespace tessera::ops::listed_attention_test
