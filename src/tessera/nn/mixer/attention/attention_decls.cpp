#include "tessera/nn/mixer/attention/attention.h"

#include <algorithm>

#include <fmt/format.h>

#include "tessera/nn/mixer/heads.h"
#include "tessera/spec/kv_type.h"

namespace tessera::nn {

namespace {

/// What a layer without keys and values of its own cannot do with them.
void check_shared(const AttentionConfig& c, const spec::Scope& scope) {
  if (!c.shares_keys()) return;
  const auto refuse = [&](const std::string& what) {
    fail(ErrorKind::spec, scope.path, "{} where keys and values are shared with other layers; {}",
         what, "leave it out");
  };
  if (c.pattern_config().global_projections()) refuse("global tokens with projections");
  if (c.select) refuse("select");
  if (c.has_keys()) return;
  if (!c.kv_name.empty()) refuse("kv_name together with kv_of");
  if (c.bias.k || c.bias.v) refuse("bias of k or v");
  if (c.groups.k > 1 || c.groups.v > 1) refuse("groups of k or v");
  if (c.v_norm) refuse("v_norm");
  if (c.k_eq_v) refuse("k_eq_v");
  if (c.gate_at == GatePlace::after_value) refuse("gate_at after_value");
  if (c.position.type() == "deberta") refuse("position \"deberta\", which projects keys,");
}

/// What letting go of keys by their weights does not go with.
void check_heavy(const AttentionConfig& c, const spec::Scope& scope) {
  if (!c.heavy) return;
  const spec::Scope here = scope.at("heavy");
  const auto refuse = [&](const std::string& what, const char* remedy) {
    fail(ErrorKind::spec, here.path, "keeps the heaviest keys of a text, and {}; {}", what, remedy);
  };
  if (!scope.causal) refuse("an encoder's queries see them all", "leave it out");
  if (c.pattern.type() != "full")
    refuse(fmt::format("pattern \"{}\" says itself which ones stay", c.pattern.type()),
           "use pattern \"full\"");
  if (c.position && c.position.info().place == spec::Place::score_bias)
    refuse(fmt::format("position \"{}\" counts the keys between, of which some are gone",
                       c.position.type()),
           "use a rotation");
  if (c.shares_keys()) refuse("other layers use its keys and values", "leave it out");
  if (c.select) refuse("select chooses among all of them", "leave it out");
  if (c.v_head_dim > 0) refuse("v_head_dim gives values another width", "leave it out");
  if (c.dropout > 0) refuse("dropout would hide how heavy they are", "set dropout to 0");
}

}  // namespace

void AttentionConfig::check(const spec::Scope& scope) const {
  require_groups(n_kv_heads, n_heads, scope);
  check_qk_norm(scope, position);
  temperature.check(scope);
  check_scale(scope, position);
  check_gate(scope);
  if (k_eq_v && bias.v)
    fail(ErrorKind::spec, scope.path,
         "bias of v with k_eq_v, whose values have no product; leave it out");
  if (k_eq_v && v_head_dim > 0)
    fail(ErrorKind::spec, scope.path,
         "v_head_dim = {} with k_eq_v, whose values are keys of {} channels; leave it out",
         v_head_dim, head_dim);
  if (v_head_dim > 0 && position && position.as<PositionConfig>().adds_values())
    fail(ErrorKind::spec, scope.path,
         "v_head_dim = {}, but position \"{}\" adds vectors of {} channels to the values; set its "
         "\"values\" to false, or leave v_head_dim out",
         v_head_dim, position.type(), head_dim);
  if (k_eq_v && pattern_config().global_projections())
    fail(ErrorKind::spec, scope.path,
         "k_eq_v with global tokens that have projections; set the pattern's \"projections\" to "
         "\"shared\"");
  check_pattern(pattern, position, n_heads, scope);
  check_shared(*this, scope);
  check_heavy(*this, scope);
  check_select(select, pattern, position, scope);
  const int64_t width = scope.input_width();
  check_channel_groups("q", {n_heads * head_dim, width}, groups.q, scope);
  check_channel_groups("k", {n_kv_heads * head_dim, width}, groups.k, scope);
  check_channel_groups("v", {n_kv_heads * value_dim(), width}, groups.v, scope);
  check_channel_groups("o", {scope.d_model, n_heads * value_dim()}, groups.o, scope);
}

void AttentionConfig::check_behind(const std::vector<spec::Placed>& before,
                                   const spec::Scope& scope) const {
  if (select) select.as<SelectConfig>().check_behind(before, scope);
  if (has_keys()) return;
  const auto& source = kv_source<AttentionConfig>(before, scope);
  if (source.value_dim() != value_dim())
    fail(ErrorKind::spec, scope.path,
         "values of {} channels, and those of \"{}\" have {}; expected the same", value_dim(),
         kv_of, source.value_dim());
  if (source.n_kv_heads != n_kv_heads || source.head_dim != head_dim)
    fail(ErrorKind::spec, scope.path,
         "{} key/value heads of {}, and those of \"{}\" are {} of {}; expected the same",
         n_kv_heads, head_dim, kv_of, source.n_kv_heads, source.head_dim);
  if (spec::dump_part(source.pattern) != spec::dump_part(pattern) ||
      spec::dump_part(source.position) != spec::dump_part(position))
    fail(ErrorKind::spec, scope.path,
         "pattern \"{}\" and position \"{}\" are not those of \"{}\", \"{}\" and \"{}\"; "
         "expected the same",
         pattern.type(), position.type(), kv_of, source.pattern.type(), source.position.type());
}

std::string AttentionConfig::not_recorded_reason() const {
  if (heavy) return "H2O eviction (heavy) chooses keys by their weights";
  return temperature.not_recorded_reason();
}

std::string AttentionConfig::no_split_reason(int64_t longest) const {
  const auto reason = [](const std::string& what, const char* remedy) {
    return fmt::format("{} cannot be computed where a sequence is split over ranks; {}", what,
                       remedy);
  };
  if (dropout > 0)
    return reason(fmt::format("dropout = {} of the weights", dropout), "set it to 0");
  if (const int64_t farthest = pattern_config().farthest(); farthest > 0 && longest > farthest + 1)
    return reason(
        fmt::format("pattern \"{}\" with other queries for the first keys", pattern.type()),
        "use \"window\"");
  if (v_head_dim > 0) return reason("values of another width than keys", "leave out v_head_dim");
  if (heavy) return reason("which keys are heavy", "leave \"heavy\" out");
  if (select) return reason("select, which scores all keys", "leave it out");
  if (pattern_config().global_projections())
    return reason("global tokens with projections of their own",
                  "set its \"projections\" to \"shared\"");
  if (position.as<PositionConfig>().counts_keys())
    return reason(fmt::format("position \"{}\", which counts every key between key and query,",
                              position.type()),
                  "use another position");
  return "";
}

void AttentionConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  const int64_t width = scope.input_width();
  const auto project = [&](std::string_view name, int64_t rows, int64_t in_groups, bool biased,
                           spec::Init init = spec::Init::product()) {
    declare_grouped_linear(list, name, {rows, width}, in_groups, biased, init);
  };
  const int64_t queries = n_heads * head_dim, keys = n_kv_heads * head_dim,
                values = n_kv_heads * value_dim();
  project("q", queries, groups.q, bias.q, spec::Init::query(head_dim));
  if (has_keys()) {
    project("k", keys, groups.k, bias.k);
    if (!k_eq_v) project("v", values, groups.v, bias.v, spec::Init::content());
  }
  if (pattern_config().global_projections()) {
    project("q_global", queries, groups.q, bias.q, spec::Init::query(head_dim));
    project("k_global", keys, groups.k, bias.k);
    project("v_global", values, groups.v, bias.v, spec::Init::content());
  }
  declare_grouped_linear(list, "o", {scope.d_model, n_heads * value_dim()}, groups.o, bias.o,
                         spec::Init::into_stream(scope.n_layers));
  declare_gate(list, {n_heads, n_kv_heads, value_dim(), scope.d_model}, width);
  declare_scale(list, n_heads);
  if (sinks)
    list.add({"sinks",
              {n_heads},
              spec::Init::normal(0.02),
              spec::ParamKind::structural,
              {spec::Role::head}});
  position.config->params_under(list, "position", child_scope(scope, "position"));
  if (select) select.config->params_under(list, "select", child_scope(scope, "select"));
  declare_qk_norm(list, "q_norm", n_heads, head_dim, scope);
  if (has_keys()) declare_qk_norm(list, "k_norm", n_kv_heads, head_dim, scope);
  declare_head_norms(list, "v_norm", v_norm, QkNormOver::head, n_kv_heads, value_dim(), scope);
  if (inner_norm)
    inner_norm.config->params_under(list, "inner_norm", child_scope(scope, "inner_norm"));
}

std::vector<spec::StateDecl> AttentionConfig::state(const spec::Scope& scope) const {
  if (!has_keys()) return {};
  const spec::StateDecl entry{"", spec::StateDecl::Kind::per_token, {n_kv_heads, head_dim}};
  std::vector<spec::StateDecl> decls(pattern_config().global_projections() ? 4 : 2, entry);
  for (size_t i = 0; const char* name : {"k", "v", "k_global", "v_global"})
    if (i < decls.size()) decls[i++].name = name;
  for (size_t i = 1; i < decls.size(); i += 2) decls[i].shape.back() = value_dim();
  if (heavy) {
    for (spec::StateDecl& decl : decls) decl.keep = heavy->last + heavy->every;
    decls = spec::packing(std::move(decls));
    for (spec::StateDecl& decl : heavy_state(*heavy, n_kv_heads, head_dim))
      decls.push_back(std::move(decl));
    return decls;
  }
  return with_select_state(kept_for(pattern_config(), spec::packing(std::move(decls))), select,
                           child_scope(scope, "select"));
}

double AttentionConfig::extra_flops(const spec::Scope& scope, int64_t context) const {
  // heavy ones are chosen by their scores, which are computed twice
  const int64_t met = heavy    ? std::min(context, heavy->most())
                      : select ? select.as<SelectConfig>().keys_met(context)
                               : pattern_config().keys_met(context);
  const int64_t width = (heavy ? 2 : 1) * head_dim + value_dim();
  return 2.0 * static_cast<double>(n_heads * width) * static_cast<double>(met) +
         (select ? select.config->extra_flops(child_scope(scope, "select"), context) : 0);
}

std::vector<spec::StateDecl> heavy_state(const HeavyHitters& who, int64_t heads, int64_t width) {
  using Kind = spec::StateDecl::Kind;
  return {
      {.name = "heavy_k", .kind = Kind::fixed, .shape = {who.keep, heads, width}, .packs = true},
      {.name = "heavy_v", .kind = Kind::fixed, .shape = {who.keep, heads, width}, .packs = true},
      {.name = "sums", .kind = Kind::fixed, .shape = {heads, who.most()}}};
}

}  // namespace tessera::nn
