// k fixed experts for every token id: a table that nothing trains. Or one for every run of the last
// few ids, which are hashed as they come. Roller et al. 2021, arXiv:2106.04426, sec. 3 (its bigram
// hash: ids = 2).
//
// Experts weigh 1 / k each. With learned weights a gate scores them, z = W x, and the weights of
// the chosen are their scores s(z) as in top_k.h, divided by their sum (DeepSeek-V4, first layers).
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "tessera/base/rng.h"
#include "tessera/nn/router/router_config.h"

namespace tessera::nn {

enum class HashTable {
  random,  // drawn from `seed`
  modulo,  // id mod E
};

enum class HashWeights { equal, softmax, sigmoid, sqrt_softplus };

struct HashRouterConfig final : RouterConfig {
  HashTable table = HashTable::random;
  int64_t seed = 0;
  int64_t ids = 1;
  int64_t k = 1;
  HashWeights weights = HashWeights::equal;

  static constexpr auto fields() {
    using C = HashRouterConfig;
    return std::tuple{
        spec::field("table", &C::table, "what the table holds before a checkpoint fills it"),
        spec::field("seed", &C::seed, "of a random table", {.min = 0}),
        spec::field("ids", &C::ids,
                    "how many ids say the expert: a token's own and those before it; more than one "
                    "are hashed by `seed`, without a table",
                    {.min = 1, .max = 64}),
        spec::field("k", &C::k, "experts of a token", {.min = 1}),
        spec::field("weights", &C::weights,
                    "what the chosen experts weigh: 1 / k each, or their scores by a learned gate, "
                    "divided by their sum")};
  }
  static spec::Info info() {
    return {
        .summary = "Fixed experts for every token id, by a table.",
        .paper =
            "Roller et al.: Hash Layers For Large Sparse Models, arXiv:2106.04426; DeepSeek-AI: "
            "DeepSeek-V4 technical report",
        .year = 2021,
        .forms = {.recurrent = true}};
  }
  void check(const spec::Scope& scope) const override {
    if (ids > 1 && table != HashTable::random)
      fail(ErrorKind::spec, scope.path,
           "table \"modulo\" with ids = {}: runs of ids are hashed; expected \"random\"", ids);
    if (ids > 1 && k > 1)
      fail(ErrorKind::spec, scope.path,
           "k = {} with ids = {}: a run of ids has one expert; expected k = 1, or ids = 1", k, ids);
    require_at_most("k", k, scope.n_experts, scope);
  }
  int64_t ids_before() const override { return ids - 1; }
  /// Of a token with these ids, its own first and -1 before the document.
  int64_t expert(std::span<const int64_t> run, int64_t n_experts) const {
    RandomKey key = RandomKey(static_cast<uint64_t>(seed)).fold("hash router");
    for (const int64_t id : run) key = key.fold(static_cast<uint64_t>(id));
    return static_cast<int64_t>(key.bits(0) % static_cast<uint64_t>(n_experts));
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    if (weights != HashWeights::equal)
      list.linear("gate", scope.n_experts, scope.input_width(), /*bias=*/false);
    if (ids > 1) {
      list.without("table");
      return;
    }
    const auto n = static_cast<uint64_t>(std::max<int64_t>(1, scope.n_experts));
    const auto distinct = static_cast<uint64_t>(
        table == HashTable::modulo ? scope.n_experts : std::max<int64_t>(1, scope.vocab));
    std::vector<double> experts;
    for (uint64_t v = 0; v < distinct; ++v)
      for (const uint64_t e : drawn(v, n)) experts.push_back(static_cast<double>(e));
    spec::ParamDecl decl{"table",
                         {scope.vocab},
                         spec::Init::repeat(std::move(experts)),
                         spec::ParamKind::structural};
    decl.roles = {spec::Role::vocabulary};
    if (k > 1) {
      decl.shape.push_back(k);
      decl.roles.push_back(spec::Role::none);
    }
    decl.trainable = false;
    list.add(std::move(decl));
  }
  double used(const spec::Scope&) const override { return static_cast<double>(k); }
  bool by_token() const override { return false; }

 private:
  /// The experts of the table's row v: k different ones of n.
  std::vector<uint64_t> drawn(uint64_t v, uint64_t n) const {
    const RandomKey key = RandomKey(static_cast<uint64_t>(seed)).fold("hash router");
    std::vector<uint64_t> out;
    const auto count = std::min(static_cast<uint64_t>(k), n);
    for (uint64_t i = 0; out.size() < count; ++i) {
      const uint64_t e = table == HashTable::modulo ? (v + i) % n
                         : i == 0                   ? key.bits(v) % n
                                                    : key.fold(i).bits(v) % n;
      if (std::find(out.begin(), out.end(), e) == out.end()) out.push_back(e);
    }
    return out;
  }
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::HashTable> {
  using T = nn::HashTable;
  static constexpr std::array names{std::pair{T::random, "random"}, std::pair{T::modulo, "modulo"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::HashWeights> {
  using W = nn::HashWeights;
  static constexpr std::array names{std::pair{W::equal, "equal"}, std::pair{W::softmax, "softmax"},
                                    std::pair{W::sigmoid, "sigmoid"},
                                    std::pair{W::sqrt_softplus, "sqrt_softplus"}};
};
