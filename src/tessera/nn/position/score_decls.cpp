// Rules, parameters and tables of the position schemes that act on scores: what needs no tensors.
#include <bit>
#include <cmath>

#include "tessera/base/half.h"
#include "tessera/nn/position/alibi.h"
#include "tessera/nn/position/cope.h"
#include "tessera/nn/position/deberta.h"
#include "tessera/nn/position/decoupled.h"
#include "tessera/nn/position/fire.h"
#include "tessera/nn/position/kerple.h"
#include "tessera/nn/position/shaw.h"
#include "tessera/nn/position/t5.h"
#include "tessera/nn/position/tupe.h"
#include "tessera/nn/position/xl.h"

namespace tessera::nn {

AlibiConfig::Slopes AlibiConfig::slopes(int64_t n_heads) const {
  const auto for_heads = [&](int64_t n) {
    const auto whole = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
    const auto slope = [&](int64_t h) {
      const double mu = std::exp2(-bias_max * static_cast<double>(h) / static_cast<double>(whole));
      return scaled ? bf16_to_float(float_to_bf16(static_cast<float>(mu))) : mu;
    };
    std::vector<double> out;
    if (whole == n) {
      for (int64_t h = 1; h <= n; ++h) out.push_back(slope(h));
      return out;
    }
    for (const int64_t first : {2, 1})
      for (int64_t h = first; h <= whole && static_cast<int64_t>(out.size()) < n; h += 2)
        out.push_back(slope(h));
    return out;
  };
  if (sides == AlibiSides::symmetric) return {for_heads(n_heads), for_heads(n_heads)};
  Slopes apart;
  const std::vector<double> all = for_heads(2 * n_heads);
  for (size_t h = 0; h < all.size(); h += 2) {
    apart.past.push_back(all[h]);
    apart.future.push_back(all[h + 1]);
  }
  return apart;
}

void T5Config::check(const spec::Scope& scope) const {
  require_scores("t5", scope);
  check_share(share, scope);
  if (!scope.causal && (n_buckets < 4 || n_buckets % 2 != 0))
    fail(ErrorKind::spec, scope.path,
         "n_buckets = {}; expected an even number of at least 4: an encoder has a half for each "
         "direction",
         n_buckets);
  const int64_t exact = (scope.causal ? n_buckets : n_buckets / 2) / 2;
  if (max_distance <= exact)
    fail(ErrorKind::spec, scope.path,
         "max_distance = {} lies within the {} distances that have their own bucket; expected more",
         max_distance, exact);
}

void T5Config::params(spec::ParamList& list, const spec::Scope& scope) const {
  declare(list, share, [&](spec::ParamList& to) {
    to.add({"weight",
            {n_buckets, scope.n_heads},
            spec::Init::normal(1 / std::sqrt(static_cast<double>(scope.d_model))),
            spec::ParamKind::embedding,
            1});
  });
}

int64_t T5Config::bucket(int64_t distance, bool causal) const {
  const int64_t buckets = causal ? n_buckets : n_buckets / 2;
  const int64_t offset = !causal && distance > 0 ? buckets : 0;
  const int64_t d = causal ? std::max<int64_t>(-distance, 0) : std::abs(distance);
  const int64_t exact = buckets / 2;
  if (d < exact) return offset + d;
  // in float32, as checkpoints were trained with
  const auto e = static_cast<float>(exact);
  const float part = std::log(static_cast<float>(d) / e) /
                     static_cast<float>(std::log(static_cast<double>(max_distance) / e));
  const auto step = static_cast<int64_t>(part * static_cast<float>(buckets - exact));
  return offset + std::min(buckets - 1, exact + step);
}

void KerpleConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  const auto add = [&](const char* name, double high) {
    list.add({name, {scope.n_heads}, spec::Init::uniform(0, high), spec::ParamKind::structural, 0});
  };
  const bool log = kernel == KerpleKernel::log;
  add(log ? "r1" : "a", log ? 2 : 1);
  add(log ? "r2" : "p", log ? 1 : kGreatestPower);
}

void ShawConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  const int64_t rows = left + right.value_or(left) + 1;
  for (const char* name : {"key.weight", "value.weight"})
    if (values || std::string_view(name) == "key.weight")
      list.add({name, {rows, scope.width}, spec::Init::normal(0.02), spec::ParamKind::embedding});
}

void XlConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("relative", scope.n_heads * scope.width, scope.d_model, false);
  declare(list, share, [&](spec::ParamList& to) {
    for (const char* name : {"u", "w"})
      to.add({name,
              {scope.n_heads, scope.width},
              spec::Init::normal(0.02),
              spec::ParamKind::structural,
              0});
  });
}

void CopeConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  std::vector<int64_t> shape{n_positions, scope.width};
  if (per_head) shape.insert(shape.begin(), scope.n_heads);
  list.add({"weight", shape, spec::Init::constant(0), spec::ParamKind::embedding});
}

void FireConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.add({"c", {1}, spec::Init::constant(c), spec::ParamKind::structural});
  list.add({"m", {1}, spec::Init::constant(1), spec::ParamKind::structural});
  list.linear("up", d_hidden, 1, true);
  list.linear("down", scope.n_heads, d_hidden, false);
}

void DebertaConfig::check(const spec::Scope& scope) const {
  require_scores("deberta", scope);
  check_share(share, scope);
  if (!c2p && !p2c)
    fail(ErrorKind::spec, scope.path, "c2p and p2c are both off; use position \"none\"");
  if (buckets % 2 != 0)
    fail(ErrorKind::spec, scope.path, "buckets = {}; expected an even number", buckets);
  if (buckets > 0 && max_relative - 1 <= buckets / 2)
    fail(ErrorKind::spec, scope.path,
         "max_relative = {} lies within the {} distances that have their own bucket; expected more",
         max_relative, buckets / 2 + 1);
}

void DebertaConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  declare(list, share, [&](spec::ParamList& to) {
    to.add({"weight",
            {2 * span(), scope.d_model},
            spec::Init::normal(0.02),
            spec::ParamKind::embedding});
    if (norm) norm.config->params_under(to, "norm", child_scope(scope, "norm"));
  });
  if (projections == DebertaProjections::mixer) return;
  if (c2p) list.linear("key", scope.n_heads * scope.width, scope.d_model, false);
  if (p2c) list.linear("query", scope.n_heads * scope.width, scope.d_model, true);
}

int64_t DebertaConfig::row(int64_t distance) const {
  int64_t place = distance;
  const int64_t mid = buckets / 2, far = std::abs(distance);
  if (buckets > 0 && far > mid) {
    // in float32, as checkpoints were trained with
    const auto m = static_cast<float>(mid);
    const float part = std::log(static_cast<float>(far) / m) /
                       static_cast<float>(std::log(static_cast<double>(max_relative - 1) / m));
    const int64_t bucket =
        mid + static_cast<int64_t>(std::ceil(part * static_cast<float>(mid - 1)));
    place = distance < 0 ? -bucket : bucket;
  }
  return std::clamp<int64_t>(place + span(), 0, 2 * span() - 1);
}

void TupeConfig::check(const spec::Scope& scope) const {
  require_scores("tupe", scope);
  check_share(share, scope);
  if (buckets % 2 != 0 || buckets == 2)
    fail(ErrorKind::spec, scope.path,
         "buckets = {}; expected an even number of at least 4, or 0 for none", buckets);
  if (buckets > 0 && max_distance <= buckets / 4)
    fail(ErrorKind::spec, scope.path,
         "max_distance = {} lies within the {} distances that have their own bucket; expected more",
         max_distance, buckets / 4);
  if (buckets == 0 && max_distance != TupeConfig().max_distance)
    fail(ErrorKind::spec, scope.path,
         "max_distance = {} without buckets; set buckets, or leave it out", max_distance);
}

void TupeConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  declare(list, share, [&](spec::ParamList& to) {
    to.add({"weight",
            {n_positions + (untie_cls ? 1 : 0), scope.d_model},
            spec::Init::normal(0.02),
            spec::ParamKind::embedding});
    if (norm) norm.config->params_under(to, "norm", child_scope(scope, "norm"));
    to.linear("q", scope.n_heads * scope.width, scope.d_model, true);
    to.linear("k", scope.n_heads * scope.width, scope.d_model, untie_cls);
    if (buckets > 0)
      to.add({"relative.weight",
              {buckets + (untie_cls ? 1 : 0), scope.n_heads},
              spec::Init::normal(0.02),
              spec::ParamKind::embedding,
              1});
  });
}

void DecoupledConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  using Kind = spec::ParamKind;
  if (const spec::AnyPart same = alias(scope)) return same.config->params(list, scope);
  declare(list, share, [&](spec::ParamList& to) {
    if (variant == DecoupledVariant::diet_rel)
      return to.add({"weight",
                     {scope.n_heads, 1 + max_distance * (scope.causal ? 1 : 2)},
                     spec::Init::normal(0.02),
                     Kind::embedding,
                     0});
    for (const char* name : {"q.weight", "k.weight"})
      to.add(
          {name, {n_positions, scope.n_heads, rank}, spec::Init::normal(0.02), Kind::embedding, 1});
  });
}

void DecoupledConfig::check(const spec::Scope& scope) const {
  using V = DecoupledVariant;
  require_scores("decoupled", scope);
  check_share(share, scope);
  const DecoupledConfig plain;
  const auto refuse = [&](std::string_view field, int64_t value, std::string_view users) {
    fail(ErrorKind::spec, scope.path, "{} = {} with variant {}; {} alone have it: leave it out",
         field, value, spec::enum_name(variant), users);
  };
  if (!tabled() && n_positions != plain.n_positions)
    refuse("n_positions", n_positions, "untied and diet_abs");
  if (variant != V::diet_abs && variant != V::decoupled_rope && rank != 0)
    refuse("rank", rank, "diet_abs and decoupled_rope");
  if (variant != V::diet_rel && variant != V::disentangled && max_distance != plain.max_distance)
    refuse("max_distance", max_distance, "diet_rel and disentangled");
  if (variant == V::disentangled && max_distance == 0)
    fail(ErrorKind::spec, scope.path, "max_distance = 0 with variant disentangled; expected more");
  if (variant != V::decoupled_rope) return;
  if (!share.empty())
    fail(ErrorKind::spec, scope.path,
         "share \"{}\" with variant decoupled_rope, which has no parameters; leave it out", share);
  require_place(spec::Place::rotation, "decoupled_rope", scope,
                "use another variant, or a mixer that rotates queries and keys");
  if (rank % 2 != 0 || rank > scope.turned())
    fail(ErrorKind::spec, scope.path,
         "rank = {} with variant decoupled_rope; expected an even number of at most head_dim = {}",
         rank, scope.turned());
}

spec::AnyPart DecoupledConfig::alias(const spec::Scope& scope) const {
  const auto part = [&](const spec::Json& json) {
    return spec::read_part(spec::Slot::position, json, scope);
  };
  switch (variant) {
    case DecoupledVariant::untied:
      return part({{"type", "tupe"}, {"n_positions", n_positions}, {"share", share}});
    case DecoupledVariant::disentangled:
      return part({{"type", "deberta"}, {"max_relative", max_distance}, {"share", share}});
    case DecoupledVariant::decoupled_rope:
      return part({{"type", "rope"}, {"rotary_dim", rank}});
    case DecoupledVariant::diet_abs:
    case DecoupledVariant::diet_rel:
      break;
  }
  return {};
}

}  // namespace tessera::nn
