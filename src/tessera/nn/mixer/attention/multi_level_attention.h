// Multi-level attention: recent tokens one by one, older ones as compressed blocks, the coarser the
// further back. One softmax covers all of them.
//   levels l = 0 .. N-1 of ratios r_0 = 1, r_l | r_{l+1}; entry b of level l pools the keys (and
//   values) of tokens [b r_l, (b + 1) r_l); its logit gains ln r_l (count_bias)
//   (combine gated: a softmax for each level, o = sum over levels of sigmoid(W_g x) o_level)
//   query i reads [s_l, e_l) of level l:  e_0 = i + 1,  e_{l+1} = s_l,  s_{N-1} = 0,
//   s_l = r_{l+1} floor(max(0, e_l - w_l) / r_{l+1})
// so that the levels tile [0, i] and only complete blocks of the past are read. tessera's own
// definition; relatives: Rae et al. 2019, arXiv:1911.05507; Yuan et al. 2025, arXiv:2502.11089.
// Golden: attention G10.
//
// Keys are pooled before they are rotated; a block has the position of its last token, for
// what a position adds to the scores, too. In an
// encoder level 0 is the window |i - j| <= w_0 / 2 and every other level all of its blocks, the
// last one perhaps shorter. Blocks are counted from the document's beginning.
//
// grid (encoders): a document is `first` tokens (a class token) and rows x columns patches of an
// image, row by row. r_l is the side of a window: entry b of level l pools the patches that there
// are in rows [y r_l, (y + 1) r_l) and columns [x r_l, (x + 1) r_l), b = y ceil(columns / r_l) + x,
// places in row-major order; its logit gains ln of their number. The query at row y and column x
// reads at level 0 the first tokens and the patches with |y - y'|, |x - x'| <= w_0 / 2 (all where
// it is the only level), a first token all of level 0, and everyone all windows of other levels.
// semantic (encoders): one level more, of n summaries of the document's S tokens (of its patches,
// where there is a grid), with a learned vector u for each of them and each kv head:
//   a_s = softmax_j(u_s . k_j / sqrt(D)),  k_s = sum_j a_sj k_j,  v_s = sum_j a_sj v_j
// over the keys and values of level 0; every query reads all n, and their logits gain ln(S / n).
// Windows and summaries have no place in a row, so that either goes without a position here.
#pragma once

#include "tessera/nn/mixer/attention/attention_bias.h"
#include "tessera/nn/mixer/heads.h"
#include "tessera/spec/fields.h"

namespace tessera::nn {

enum class LevelPool {
  mean,
  max,
  depthwise_conv,  // a learned weight for each place in the block, kv head and channel
  conv,            // a learned matrix over the places, kv heads and channels of a block
  mlp,             // of a kv head's channels, with a learned vector for each place in the block
};
enum class LevelSource {
  raw,      // blocks of tokens
  cascade,  // blocks of the entries one level below; mean and max are the same either way
};
enum class LevelCombine {
  softmax,  // one over all levels
  gated,    // one per level, and a gate for every level and head
};
enum class LevelMode {
  partition,  // every past token is read once
  overlap,    // every level reads its window of complete blocks, level 0 its window of tokens
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::LevelPool> {
  using P = nn::LevelPool;
  static constexpr std::array names{std::pair{P::mean, "mean"}, std::pair{P::max, "max"},
                                    std::pair{P::depthwise_conv, "depthwise_conv"},
                                    std::pair{P::conv, "conv"}, std::pair{P::mlp, "mlp"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::LevelSource> {
  using S = nn::LevelSource;
  static constexpr std::array names{std::pair{S::raw, "raw"}, std::pair{S::cascade, "cascade"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::LevelCombine> {
  using L = nn::LevelCombine;
  static constexpr std::array names{std::pair{L::softmax, "softmax"}, std::pair{L::gated, "gated"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::LevelMode> {
  using M = nn::LevelMode;
  static constexpr std::array names{std::pair{M::partition, "partition"},
                                    std::pair{M::overlap, "overlap"}};
};

namespace tessera::nn {

/// Tokens [begin, end), whole blocks of a level (but for the last one of an encoder); or entries.
struct LevelRange {
  int64_t begin = 0, end = 0;
};

/// The patches of an image, row by row after `first` other tokens.
struct PatchGrid {
  int64_t rows = 0, columns = 0, first = 0;
  static constexpr auto fields() {
    using C = PatchGrid;
    return std::tuple{spec::field("rows", &C::rows, "rows of patches; 0 = text", {.min = 0}),
                      spec::field("columns", &C::columns, "patches in a row", {.min = 0}),
                      spec::field("first", &C::first,
                                  "tokens before the patches that are never pooled: 1 = a class "
                                  "token, or 0",
                                  {.min = 0, .max = 1})};
  }
  explicit operator bool() const { return rows > 0; }
  int64_t patches() const { return rows * columns; }
};

struct MultiLevelAttentionConfig final : spec::Config, HeadsConfig {
  std::vector<int64_t> ratios{1, 4, 16};
  std::vector<int64_t> windows{128, 512};
  LevelPool pool = LevelPool::mean;
  int64_t pool_hidden = 0;
  LevelSource source = LevelSource::raw;
  LevelMode mode = LevelMode::partition;
  LevelCombine combine = LevelCombine::softmax;
  bool count_bias = true;
  PatchGrid grid;
  int64_t semantic = 0;
  AttentionBias bias;
  spec::Part<spec::Slot::position> position;

  static constexpr auto fields() {
    using C = MultiLevelAttentionConfig;
    using spec::field;
    return std::tuple_cat(
        HeadsConfig::fields("width of one head; 0 = d_model / n_heads",
                            "key/value heads, divides n_heads; 0 = n_heads"),
        std::tuple{
            field("ratios", &C::ratios,
                  "tokens per entry of each level, of a grid the side of its windows; the first is "
                  "1, "
                  "each divides the next",
                  {.min = 1}),
            field(
                "windows", &C::windows,
                "tokens that each level but the last covers; of a grid one number, the side of the "
                "square of patches that level 0 covers",
                {.min = 1}),
            field("pool", &C::pool, "how keys and values of a block become one"),
            field("pool_hidden", &C::pool_hidden, "hidden width of pool mlp; 0 = 2 head_dim",
                  {.min = 0}),
            field("source", &C::source, "what a block is made of"),
            field("mode", &C::mode, "whether levels share tokens"),
            field("combine", &C::combine, "how levels become one"),
            field("count_bias", &C::count_bias,
                  "add ln(ratio) to the logit of an entry, of a grid ln(patches in it)"),
            field("grid", &C::grid, "the image whose patches the tokens are; in encoders"),
            field("semantic", &C::semantic,
                  "entries of one level more, summaries by learned queries; 0 = none; in encoders",
                  {.min = 0}),
            field("bias", &C::bias, "which projections have a bias"),
            field("position", &C::position, "how order enters", {.part = "none"})});
  }
  static spec::Info info() {
    return {.summary =
                "Attention to recent tokens and to older ones as ever coarser blocks; to "
                "patches, windows of them and summaries of an image.",
            .paper =
                "tessera; after Rae et al., arXiv:1911.05507, and Yuan et al., "
                "arXiv:2502.11089",
            .year = 2025,
            .forms = {.recurrent = true},
            .time = spec::Growth::quadratic};
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view name) const {
    scope.width = width_of_head(scope.d_model);
    scope.n_heads = n_heads;
    if (name == "position") scope.places = {.rotation = true, .score_bias = true};
    return scope;
  }
  void complete(const spec::Scope& scope) override {
    complete_heads(scope.d_model, scope);
    if (pool == LevelPool::mlp && pool_hidden == 0) pool_hidden = 2 * head_dim;
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;

  size_t levels() const { return ratios.size(); }
  bool learned_pool() const { return pool != LevelPool::mean && pool != LevelPool::max; }
  /// Whether entries are pooled from those of the level below.
  bool cascades() const { return source == LevelSource::cascade && learned_pool(); }
  /// The levels and that of summaries.
  size_t all_levels() const { return levels() + (semantic > 0 ? 1 : 0); }
  /// The length, in a grid the side, of an entry of level l >= 1 in what it is pooled from: tokens,
  /// or entries of the level below.
  int64_t side_of(size_t l) const { return cascades() ? ratios[l] / ratios[l - 1] : ratios[l]; }
  /// How many of them it is pooled from.
  int64_t pooled_of(size_t l) const { return grid ? side_of(l) * side_of(l) : side_of(l); }
  /// Whether windows at the edges of the grid are smaller.
  bool cuts_windows() const {
    return grid && (grid.rows % ratios.back() != 0 || grid.columns % ratios.back() != 0);
  }
  /// Tokens in entry `b` of level `l`, in a document of `length` tokens or the patches of the grid.
  int64_t tokens_in(size_t l, int64_t b, int64_t length) const;
  /// What the logits of entry `b` of a level gain.
  double gain(size_t l, int64_t b, int64_t length) const;
  /// The entries that the query at `i` reads, by level.
  std::vector<std::vector<LevelRange>> read(int64_t i, int64_t length, bool causal) const;
  /// What the query at `i` of a decoder reads, per level.
  std::vector<LevelRange> causal_ranges(int64_t i) const;
  /// The same in an encoder's document of `length` tokens.
  std::vector<LevelRange> open_ranges(int64_t i, int64_t length) const;
};

}  // namespace tessera::nn
