#include <algorithm>
#include <cmath>

#include "tessera/nn/mixer/attention/multi_level_attention.h"
#include "tessera/nn/mixer/heads.h"
#include "tessera/nn/position/position_config.h"

namespace tessera::nn {
namespace {

void check_grid(const MultiLevelAttentionConfig& config, const spec::Scope& scope) {
  const auto& [rows, columns, first] = config.grid;
  if (rows == 0 && columns == 0 && first == 0) return;
  if (rows == 0 && columns == 0)
    fail(ErrorKind::spec, scope.path,
         "grid.first = {} without rows and columns: text has no tokens before its patches; give "
         "them, or leave it out",
         first);
  if (rows == 0 || columns == 0)
    fail(ErrorKind::spec, scope.path, "grid of {} rows and {} columns; expected both or none", rows,
         columns);
  if (scope.causal)
    fail(ErrorKind::spec, scope.path,
         "grid needs an encoder: a window of patches holds rows that a decoder has not read yet");
  const std::vector<int64_t>& ratios = config.ratios;
  if (ratios.back() > std::max(rows, columns))
    fail(ErrorKind::spec, scope.path,
         "ratios = [{}] with a grid of {} x {}: windows of {} are larger than it",
         fmt::join(ratios, ", "), rows, columns, ratios.back());
  if (config.learned_pool() && config.cuts_windows())
    fail(ErrorKind::spec, scope.path,
         "pool {} needs whole windows, but a grid of {} x {} cuts those of side {}; use ratios "
         "that divide both, or pool mean or max",
         spec::enum_name(config.pool), rows, columns, ratios.back());
}

}  // namespace

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
  check_grid(*this, scope);
  if (const size_t expected = grid ? std::min<size_t>(1, levels() - 1) : levels() - 1;
      windows.size() != expected)
    fail(ErrorKind::spec, scope.path, "windows has {} numbers; expected {}, {}", windows.size(),
         expected, grid ? "for the level of patches if there are others" : "one less than ratios");
  if (semantic > 0 && scope.causal)
    fail(ErrorKind::spec, scope.path,
         "semantic = {} needs an encoder: summaries are made of the whole document", semantic);
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
  if (combine == LevelCombine::gated && !count_bias && !cuts_windows())
    fail(ErrorKind::spec, scope.path,
         "count_bias = false with combine gated: each level's own softmax does not see what all of "
         "its entries gain; leave it out");
  if (mode == LevelMode::overlap && !scope.causal)
    fail(ErrorKind::spec, scope.path,
         "mode overlap in an encoder, whose levels always overlap; leave it out");
  if (position && position.type() != "none" && (grid || semantic > 0))
    fail(ErrorKind::spec, scope.path,
         "position {} with {}, whose entries have no place in a row; leave it out, and give the "
         "embedding one such as learned",
         position.type(), grid ? "a grid" : "semantic");
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
    list.linear("gate", static_cast<int64_t>(all_levels()) * n_heads, scope.d_model, true);
  if (semantic > 0)
    list.add({"semantic",
              {semantic, n_kv_heads, head_dim},
              spec::Init::normal(1),
              spec::ParamKind::structural});
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

int64_t MultiLevelAttentionConfig::tokens_in(size_t l, int64_t b, int64_t length) const {
  const int64_t r = ratios[l];
  if (!grid) return std::min(r, length - b * r);
  const int64_t across = (grid.columns + r - 1) / r, y = b / across, x = b % across;
  return std::min(r, grid.rows - y * r) * std::min(r, grid.columns - x * r);
}

double MultiLevelAttentionConfig::gain(size_t l, int64_t b, int64_t length) const {
  if (!count_bias || l == 0) return 0;
  if (l == levels())
    return std::log(static_cast<double>(grid ? grid.patches() : length) /
                    static_cast<double>(semantic));
  return std::log(static_cast<double>(grid ? tokens_in(l, b, length) : ratios[l]));
}

std::vector<std::vector<LevelRange>> MultiLevelAttentionConfig::read(int64_t i,
                                                                     int64_t length,
                                                                     bool causal) const {
  std::vector<std::vector<LevelRange>> out(all_levels());
  if (semantic > 0) out.back() = {{0, semantic}};
  if (!grid) {
    const std::vector<LevelRange> ranges = causal ? causal_ranges(i) : open_ranges(i, length);
    for (size_t l = 0; l < levels(); ++l)
      out[l] = {{ranges[l].begin / ratios[l], (ranges[l].end + ratios[l] - 1) / ratios[l]}};
    return out;
  }
  const auto& [rows, columns, first] = grid;
  for (size_t l = 1; l < levels(); ++l)
    out[l] = {{0, ((rows + ratios[l] - 1) / ratios[l]) * ((columns + ratios[l] - 1) / ratios[l])}};
  if (levels() == 1 || i < first) {
    out[0] = {{0, length}};
    return out;
  }
  const int64_t y = (i - first) / columns, x = (i - first) % columns, reach = windows[0] / 2;
  if (first > 0) out[0].push_back({0, first});
  for (int64_t row = std::max<int64_t>(0, y - reach); row <= std::min(rows - 1, y + reach); ++row) {
    const int64_t start = first + row * columns;
    out[0].push_back(
        {start + std::max<int64_t>(0, x - reach), start + std::min(columns, x + reach + 1)});
  }
  return out;
}

std::vector<spec::StateDecl> MultiLevelAttentionConfig::state(const spec::Scope&) const {
  using Kind = spec::StateDecl::Kind;
  std::vector<spec::StateDecl> out;
  if (grid || semantic > 0) return out;  // of encoders alone
  int64_t reach = 0;                     // tokens before a query that this level may still read
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
  const auto pairs = [&](int64_t heads, double entries) {
    return 4.0 * static_cast<double>(heads * head_dim) * entries;
  };
  double entries = static_cast<double>(semantic);
  if (grid) {
    // a patch in the middle
    const int64_t middle = grid.first + grid.rows / 2 * grid.columns + grid.columns / 2;
    const auto ranges = read(middle, grid.first + grid.patches(), false);
    for (size_t l = 0; l < levels(); ++l)
      for (const LevelRange& range : ranges[l])
        entries += static_cast<double>(range.end - range.begin);
  } else {
    const std::vector<LevelRange> ranges = causal_ranges(std::max<int64_t>(0, context - 1));
    for (size_t l = 0; l < levels(); ++l)
      entries += static_cast<double>((ranges[l].end - ranges[l].begin) / ratios[l]);
  }
  // every token is read by the queries, and by the vectors of the summaries
  return pairs(n_heads, entries) + pairs(n_kv_heads, static_cast<double>(semantic));
}

}  // namespace tessera::nn
