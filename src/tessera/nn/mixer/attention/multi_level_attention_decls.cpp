#include <algorithm>
#include <cmath>

#include "tessera/nn/mixer/attention/multi_level_attention.h"
#include "tessera/nn/mixer/heads.h"

namespace tessera::nn {

void MultiLevelAttentionConfig::check(const spec::Scope& scope) const {
  require_groups(n_kv_heads, n_heads, scope);
  if (ratios.empty() || ratios[0] != 1)
    fail(ErrorKind::spec, scope.path, "ratios = [{}]; expected a list that begins with 1",
         fmt::join(ratios, ", "));
  for (size_t l = 1; l < ratios.size(); ++l)
    if (ratios[l] <= ratios[l - 1] || ratios[l] % ratios[l - 1] != 0)
      fail(ErrorKind::spec, scope.path,
           "ratios = [{}]: {} is no larger multiple of {}; each must divide the next",
           fmt::join(ratios, ", "), ratios[l], ratios[l - 1]);
  if (windows.size() + 1 != ratios.size())
    fail(ErrorKind::spec, scope.path, "windows has {} numbers; expected {}, one less than ratios",
         windows.size(), ratios.size() - 1);
  if (pool != LevelPool::mlp && pool_hidden != 0)
    fail(ErrorKind::spec, scope.path,
         "pool_hidden = {} with pool {}, which has no hidden layer; set pool to mlp, or leave it "
         "out",
         pool_hidden, spec::enum_name(pool));
  if (source == LevelSource::cascade && !learned_pool())
    fail(
        ErrorKind::spec, scope.path,
        "source cascade with pool {}, which is the same of tokens and of entries; leave it out, or "
        "use a learned pool",
        spec::enum_name(pool));
  if (combine == LevelCombine::gated && !count_bias)
    fail(ErrorKind::spec, scope.path,
         "count_bias = false with combine gated: each level's own softmax does not see what all of "
         "its entries gain; leave it out");
  if (mode == LevelMode::overlap && !scope.causal)
    fail(ErrorKind::spec, scope.path,
         "mode overlap in an encoder, whose levels always overlap; leave it out");
  if (position) {
    const auto& scheme = position.as<PositionConfig>();
    if (scheme.angles_change())
      fail(ErrorKind::spec, scope.path,
           "the angles of this position change with the length, but pooled keys are rotated once; "
           "use a scaling such as yarn or llama3");
    PositionConfig::refuse_pooled(position, scope);
  }
}

void MultiLevelAttentionConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("q", n_heads * head_dim, scope.d_model, bias.q, spec::Init::query(head_dim));
  list.linear("k", n_kv_heads * head_dim, scope.d_model, bias.k);
  list.linear("v", n_kv_heads * head_dim, scope.d_model, bias.v, spec::Init::content());
  list.linear("o", scope.d_model, n_heads * head_dim, bias.o,
              spec::Init::into_stream(scope.n_layers));
  if (position) position.config->params_under(list, "position", child_scope(scope, "position"));
  if (combine == LevelCombine::gated)
    list.linear("gate", static_cast<int64_t>(levels()) * n_heads, scope.d_model, true);
  if (!learned_pool()) return;
  const int64_t kv = n_kv_heads * head_dim;
  for (size_t l = 1; l < levels(); ++l)
    for (const char* of : {"k", "v"}) {
      const std::string name = fmt::format("level{}.{}", l, of);
      const int64_t r = pooled_of(l);
      if (pool == LevelPool::depthwise_conv) {
        list.add({name,
                  {r, n_kv_heads, head_dim},
                  spec::Init::constant(1 / static_cast<double>(r)),
                  spec::ParamKind::structural});
      } else if (pool == LevelPool::conv) {
        const double bound = 1 / std::sqrt(static_cast<double>(r * kv));
        list.linear(name, kv, r * kv, false, spec::Init::uniform(-bound, bound));
      } else {
        spec::ParamList mlp = list.under(name);
        mlp.add({"place", {r, head_dim}, spec::Init::normal(0.02), spec::ParamKind::structural});
        mlp.linear("up", pool_hidden, r * head_dim, true);
        // no bias: the same on all keys of a level, its softmax would not see it
        mlp.linear("down", head_dim, pool_hidden, false);
        list.append(mlp);
      }
    }
}

std::vector<LevelRange> MultiLevelAttentionConfig::causal_ranges(int64_t i) const {
  std::vector<LevelRange> out(levels());
  int64_t end = i + 1;
  for (size_t l = 0; l < levels(); ++l) {
    const int64_t r = ratios[l];
    if (mode == LevelMode::overlap) {
      // complete blocks whose last token lies within the window
      end = (i + 1) / r * r;
      const int64_t first =
          l + 1 == levels() ? 0 : std::max<int64_t>(0, i + 1 - windows[l]) / r * r;
      out[l] = {std::min(first, end), end};
      continue;
    }
    const int64_t begin =
        l + 1 == levels() ? 0
                          : std::max<int64_t>(0, end - windows[l]) / ratios[l + 1] * ratios[l + 1];
    out[l] = {begin, end};
    end = begin;
  }
  return out;
}

std::vector<LevelRange> MultiLevelAttentionConfig::open_ranges(int64_t i, int64_t length) const {
  std::vector<LevelRange> out(levels(), LevelRange{0, length});
  if (levels() > 1)
    out[0] = {std::max<int64_t>(0, i - windows[0] / 2), std::min(length, i + windows[0] / 2 + 1)};
  return out;
}

std::vector<spec::StateDecl> MultiLevelAttentionConfig::state(const spec::Scope&) const {
  using Kind = spec::StateDecl::Kind;
  std::vector<spec::StateDecl> out;
  int64_t reach = 0;  // tokens behind a query that this level may still read
  for (size_t l = 0; l < levels(); ++l) {
    const bool last = l + 1 == levels();
    if (!last) reach += windows[l] + ratios[l + 1];
    int64_t keep = last ? 0 : reach / ratios[l] + 1;
    // raw tokens are also what the open block of every level is pooled from
    if (l == 0 && !last) keep = std::max(keep, ratios.back());
    for (const char* of : {"k", "v"}) {
      spec::StateDecl decl{l == 0 ? of : fmt::format("level{}.{}", l, of),
                           Kind::per_token,
                           {n_kv_heads, head_dim},
                           keep};
      decl.every = ratios[l];
      out.push_back(decl);
    }
  }
  return out;
}

double MultiLevelAttentionConfig::extra_flops(const spec::Scope&, int64_t context) const {
  double entries = 0;
  const std::vector<LevelRange> ranges = causal_ranges(std::max<int64_t>(0, context - 1));
  for (size_t l = 0; l < levels(); ++l)
    entries += static_cast<double>((ranges[l].end - ranges[l].begin) / ratios[l]);
  return 4.0 * static_cast<double>(n_heads * head_dim) * entries;
}

}  // namespace tessera::nn
