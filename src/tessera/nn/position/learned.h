// Learned absolute positions: a table added to the token embeddings.
// Gehring et al. 2017, arXiv:1705.03122; GPT-2 `wpe`, BERT `position_embeddings`.
// An encoder may stretch the table over a document of T tokens that is longer than its P rows:
//   token t reads the table at u = (t + 1/2) P / T - 1/2, clamped to its rows, linearly between two
#pragma once

#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

enum class LongerThanTable { refuse, interpolate };

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::LongerThanTable> {
  static constexpr std::array names{std::pair{nn::LongerThanTable::refuse, "refuse"},
                                    std::pair{nn::LongerThanTable::interpolate, "interpolate"}};
};

namespace tessera::nn {

struct LearnedPositionConfig final : PositionConfig {
  int64_t n_positions = 0;
  int64_t offset = 0;
  LongerThanTable longer = LongerThanTable::refuse;

  static constexpr auto fields() {
    using C = LearnedPositionConfig;
    return std::tuple{
        spec::field("n_positions", &C::n_positions, "rows of the table",
                    {.min = 1, .required = true}),
        spec::field("offset", &C::offset, "row of position 0 (RoBERTa and OPT: 2)", {.min = 0}),
        spec::field(
            "longer", &C::longer,
            "what becomes of documents longer than the table: an encoder may interpolate it")};
  }
  static spec::Json example(const spec::Scope&, int64_t length) {
    return {{"n_positions", length}};
  }
  static spec::Info info() {
    return {
        .summary = "A learned vector per absolute position, added to the embedding.",
        .paper = "Gehring et al.: Convolutional Sequence to Sequence Learning, arXiv:1705.03122",
        .year = 2017,
        .forms = {.recurrent = true, .recorded = true},
        .place = spec::Place::embedding};
  }
  void check(const spec::Scope& scope) const override {
    require_place(spec::Place::embedding, "learned", scope, "put it into \"embed\"");
    if (offset >= n_positions)
      fail(ErrorKind::spec, scope.path,
           "offset = {} leaves no row; expected less than n_positions = {}", offset, n_positions);
    if (longer == LongerThanTable::interpolate && scope.causal)
      fail(ErrorKind::spec, scope.path,
           "longer interpolate needs an encoder: in a decoder every position would move as the "
           "sequence grows; use refuse, or a relative position");
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.add({"weight",
              {n_positions, scope.width},
              spec::Init::table(),
              spec::ParamKind::embedding,
              {spec::Role::position, spec::Role::none}});
  }
  int64_t rows() const { return n_positions - offset; }
  int64_t max_positions() const override {
    return longer == LongerThanTable::interpolate ? 0 : rows();
  }
};

}  // namespace tessera::nn
