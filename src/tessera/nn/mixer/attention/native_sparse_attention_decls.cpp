#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/nn/mixer/attention/native_sparse_attention.h"

#include "tessera/nn/mixer/causal.h"
#include "tessera/nn/mixer/heads.h"
#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

void NativeSparseAttentionConfig::check(const spec::Scope& scope) const {
  require_causal(scope, "native_sparse_attention", "attention");
  require_groups(n_kv_heads, n_heads, scope);
  if (block % stride != 0)
    fail(ErrorKind::spec, scope.path, "block = {} is no multiple of stride = {}", block, stride);
  if (select_block % stride != 0)
    fail(ErrorKind::spec, scope.path, "select_block = {} is no multiple of stride = {}",
         select_block, stride);
  if (n_initial > n_selected || n_local > n_selected - n_initial)
    fail(ErrorKind::spec, scope.path,
         "n_initial = {} and n_local = {} are more than n_selected = {} together", n_initial,
         n_local, n_selected);
  if (position && position.as<PositionConfig>().angles_change())
    fail(ErrorKind::spec, scope.path,
         "the angles of this position change with the length, but compressed keys are rotated "
         "once; use a scaling such as yarn or llama3");
  PositionConfig::refuse_pooled(position, scope);
}

void NativeSparseAttentionConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  const int64_t kv = n_kv_heads * head_dim;
  list.linear("q", n_heads * head_dim, scope.d_model, bias.q, spec::Init::query(head_dim));
  list.linear("k", kv, scope.d_model, bias.k);
  list.linear("v", kv, scope.d_model, bias.v);
  if (!shared_kv) {
    list.linear("k_window", kv, scope.d_model, bias.k);
    list.linear("v_window", kv, scope.d_model, bias.v);
  }
  list.linear("gate", 3 * n_heads, scope.d_model, gate_bias);
  list.linear("o", scope.d_model, n_heads * head_dim, bias.o,
              spec::Init::into_stream(scope.n_layers));
  if (position) position.config->params_under(list, "position", child_scope(scope, "position"));
  if (pool != BlockPool::mlp) return;
  for (const char* of : {"compress_k", "compress_v"}) {
    spec::ParamList mlp = list.under(of);
    mlp.add({"place", {block, head_dim}, spec::Init::normal(0.02), spec::ParamKind::structural});
    mlp.linear("up", 2 * head_dim, block * head_dim, true);
    // no bias: the same on all keys, it would leave their softmax as it is
    mlp.linear("down", head_dim, 2 * head_dim, false);
    list.append(mlp);
  }
}

std::vector<spec::StateDecl> NativeSparseAttentionConfig::state(const spec::Scope&) const {
  using Kind = spec::StateDecl::Kind;
  const std::vector<int64_t> shape{n_kv_heads, head_dim};
  std::vector<spec::StateDecl> out{{"k", Kind::per_token, shape}, {"v", Kind::per_token, shape}};
  if (!shared_kv) {
    out.push_back({"k_window", Kind::per_token, shape, window});
    out.push_back({"v_window", Kind::per_token, shape, window});
  }
  // the block that ends with each stride; those that would begin before the document are empty
  for (const char* name : {"k_block", "v_block"}) {
    out.push_back({name, Kind::per_token, shape});
    out.back().every = stride;
  }
  return out;
}

double NativeSparseAttentionConfig::extra_flops(const spec::Scope&, int64_t context) const {
  const int64_t keys = visible_blocks(context - 1) + std::min(context, n_selected * select_block) +
                       std::min(context, window);
  return 4.0 * static_cast<double>(n_heads * head_dim) * static_cast<double>(keys);
}

std::vector<int64_t> NativeSparseAttentionConfig::selected(
    int64_t position, const std::vector<double>& weights) const {
  const int64_t blocks = position / select_block + 1;
  std::vector<int64_t> out(static_cast<size_t>(blocks));
  std::iota(out.begin(), out.end(), 0);
  if (blocks <= n_selected) return out;
  // each compressed block gives its weight to the selection block of every stride it covers
  std::vector<double> importance(static_cast<size_t>(blocks), 0.0);
  for (size_t i = 0; i < weights.size(); ++i)
    for (int64_t unit = 0; unit < block / stride; ++unit) {
      const int64_t token = (static_cast<int64_t>(i) + unit) * stride;
      importance[static_cast<size_t>(token / select_block)] += weights[i];
    }
  const auto forced = [&](int64_t b) { return b < n_initial || b >= blocks - n_local; };
  std::stable_sort(out.begin(), out.end(), [&](int64_t a, int64_t b) {
    if (forced(a) != forced(b)) return forced(a);
    return importance[static_cast<size_t>(a)] > importance[static_cast<size_t>(b)];
  });
  out.resize(static_cast<size_t>(n_selected));
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace tessera::nn
