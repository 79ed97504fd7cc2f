#include <algorithm>

#include "tessera/nn/channel_groups.h"
#include "tessera/nn/mixer/attention/compressed_attention.h"
#include "tessera/nn/mixer/causal.h"
#include "tessera/nn/mixer/heads.h"

namespace tessera::nn {

void CompressedAttentionConfig::complete(const spec::Scope& scope) {
  require_heads_divide(head_dim, n_heads, scope.d_model, scope);
  head_dim = width_of_head(scope);
  if (rope_head_dim == 0) rope_head_dim = head_dim;
}

void CompressedAttentionConfig::check(const spec::Scope& scope) const {
  require_causal(scope, "compressed_attention", "attention");
  if (rope_head_dim > head_dim)
    fail(ErrorKind::spec, scope.path, "rope_head_dim = {}; expected at most head_dim = {}",
         rope_head_dim, head_dim);
  if (block == 0 && (overlap || indexed()))
    fail(ErrorKind::spec, scope.path,
         "block = 0 makes no entries, but {} is of entries; set block, or leave it out",
         overlap ? "overlap" : "index");
  if (indexed() && index.head_dim < std::max<int64_t>(1, rope_head_dim))
    fail(ErrorKind::spec, scope.at("index").path,
         "head_dim = {}; expected at least rope_head_dim = {}, whose angles the indexer uses",
         index.head_dim, rope_head_dim);
  if (!indexed() && index.head_dim != 0)
    fail(ErrorKind::spec, scope.at("index").path,
         "head_dim = {} with n_heads = 0, which is no indexer; set n_heads, or leave it out",
         index.head_dim);
  if (o_groups > 1 && o_lora_rank == 0)
    fail(ErrorKind::spec, scope.path,
         "o_groups = {} with o_lora_rank = 0; set o_lora_rank, the width of a group's projection",
         o_groups);
  if (n_heads % o_groups != 0)
    fail(ErrorKind::spec, scope.path, "o_groups = {} does not divide n_heads = {}", o_groups,
         n_heads);
  if (position && position.as<PositionConfig>().angles_change())
    fail(ErrorKind::spec, scope.path,
         "the angles of this position change with the length, but entries are rotated once; use a "
         "scaling such as yarn or llama3");
}

void CompressedAttentionConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  const auto norm_of = [&](spec::ParamList& to, const char* name, int64_t width) {
    if (norm) norm.config->params_under(to, name, norm_scope(scope, width));
  };
  const auto pool = [&](const char* name, int64_t width) {
    spec::ParamList own = list.under(name);
    own.linear("kv", series() * width, scope.input_width(), false);
    own.linear("gate", series() * width, scope.input_width(), false);
    own.add(
        {"place", {block, series() * width}, spec::Init::constant(0), spec::ParamKind::structural});
    norm_of(own, "norm", width);
    list.append(own);
  };
  if (q_lora_rank > 0) {
    list.linear("q_a", q_lora_rank, scope.input_width(), false);
    norm_of(list, "q_a_norm", q_lora_rank);
    list.linear("q_b", n_heads * head_dim, q_lora_rank, false);
  } else {
    list.linear("q", n_heads * head_dim, scope.input_width(), false, spec::Init::query(head_dim));
  }
  if (query_norm)
    query_norm.config->params_under(list, "query_norm", child_scope(scope, "query_norm"));
  list.linear("kv", head_dim, scope.input_width(), false);
  norm_of(list, "kv_norm", head_dim);
  if (block > 0) pool("pool", head_dim);
  if (indexed()) {
    list.linear("index_q", index.n_heads * index.head_dim, query_width(scope), false);
    list.linear("index_weights", index.n_heads, scope.input_width(), false);
    pool("index_pool", index.head_dim);
  }
  if (sinks)
    list.add({"sinks",
              {n_heads},
              spec::Init::normal(0.02),
              spec::ParamKind::structural,
              {spec::Role::head}});
  if (o_lora_rank > 0) {
    declare_grouped_linear(list, "o_a", {o_groups * o_lora_rank, n_heads * head_dim}, o_groups,
                           false);
    list.linear("o_b", scope.d_model, o_groups * o_lora_rank, false,
                spec::Init::into_stream(scope.n_layers));
  } else {
    list.linear("o", scope.d_model, n_heads * head_dim, false,
                spec::Init::into_stream(scope.n_layers));
  }
  if (position) position.config->params_under(list, "position", child_scope(scope, "position"));
}

std::vector<spec::StateDecl> CompressedAttentionConfig::state(const spec::Scope&) const {
  using Kind = spec::StateDecl::Kind;
  std::vector<spec::StateDecl> out{{"kv", Kind::per_token, {1, head_dim}, window}};
  // what the block under way, and with overlap the one before, will still be pooled from
  const auto pool = [&](const std::string& name, std::vector<int64_t> entry, int64_t width) {
    out.push_back({name + "_tokens", Kind::per_token, {2 * series() * width}, series() * block});
    out.push_back({name, Kind::per_token, std::move(entry)});
    out.back().every = block;
  };
  if (block > 0) pool("entries", {1, head_dim}, head_dim);
  if (indexed()) pool("index_keys", {index.head_dim}, index.head_dim);
  return out;
}

double CompressedAttentionConfig::extra_flops(const spec::Scope&, int64_t context) const {
  const int64_t entries = block > 0 ? context / block : 0;
  const int64_t read = indexed() ? std::min(entries, index.top_k) : entries;
  return 4.0 * static_cast<double>(n_heads * head_dim) *
             static_cast<double>(std::min(context, window) + read) +
         2.0 * static_cast<double>(index.n_heads * index.head_dim) * static_cast<double>(entries);
}

}  // namespace tessera::nn
