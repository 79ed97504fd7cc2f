// A fixed expert for every token id, with weight 1: a table that nothing trains. Or for every run
// of the last few ids, which are hashed as they come. Roller et al. 2021, arXiv:2106.04426, sec. 3
// (its bigram hash: ids = 2).
#pragma once

#include <span>

#include "tessera/base/rng.h"
#include "tessera/nn/router/router_config.h"

namespace tessera::nn {

enum class HashTable {
  random,  // drawn from `seed`
  modulo,  // id mod E
};

struct HashRouterConfig final : RouterConfig {
  HashTable table = HashTable::random;
  int64_t seed = 0;
  int64_t ids = 1;

  static constexpr auto fields() {
    using C = HashRouterConfig;
    return std::tuple{
        spec::field("table", &C::table, "what the table holds before a checkpoint fills it"),
        spec::field("seed", &C::seed, "of a random table", {.min = 0}),
        spec::field("ids", &C::ids,
                    "how many ids say the expert: a token's own and those before it; more than one "
                    "are hashed by `seed`, without a table",
                    {.min = 1})};
  }
  static spec::Info info() {
    return {.summary = "A fixed expert for every token id.",
            .paper = "Roller et al.: Hash Layers For Large Sparse Models, arXiv:2106.04426",
            .year = 2021,
            .forms = {.recurrent = true}};
  }
  void check(const spec::Scope& scope) const override {
    if (ids > 64) fail(ErrorKind::spec, scope.path, "ids = {}; expected 1 to 64", ids);
    if (ids > 1 && table != HashTable::random)
      fail(ErrorKind::spec, scope.path,
           "table \"modulo\" with ids = {}: runs of ids are hashed; expected \"random\"", ids);
  }
  int64_t ids_before() const override { return ids - 1; }
  /// Of a token with these ids, its own first and -1 before the document.
  int64_t expert(std::span<const int64_t> run, int64_t n_experts) const {
    RandomKey key = RandomKey(static_cast<uint64_t>(seed)).fold("hash router");
    for (const int64_t id : run) key = key.fold(static_cast<uint64_t>(id));
    return static_cast<int64_t>(key.bits(0) % static_cast<uint64_t>(n_experts));
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    if (ids > 1) {
      list.without("table");
      return;
    }
    std::vector<double> experts;
    const RandomKey key = RandomKey(static_cast<uint64_t>(seed)).fold("hash router");
    const auto n = static_cast<uint64_t>(std::max<int64_t>(1, scope.n_experts));
    const auto distinct = static_cast<uint64_t>(
        table == HashTable::modulo ? scope.n_experts : std::max<int64_t>(1, scope.vocab));
    for (uint64_t v = 0; v < distinct; ++v)
      experts.push_back(static_cast<double>(table == HashTable::modulo ? v : key.bits(v) % n));
    spec::ParamDecl decl{"table",
                         {scope.vocab},
                         spec::Init::repeat(std::move(experts)),
                         spec::ParamKind::structural};
    decl.roles = {spec::Role::vocabulary};
    decl.trainable = false;
    list.add(std::move(decl));
  }
  double used(const spec::Scope&) const override { return 1; }
  bool by_token() const override { return false; }
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::HashTable> {
  using T = nn::HashTable;
  static constexpr std::array names{std::pair{T::random, "random"}, std::pair{T::modulo, "modulo"}};
};
