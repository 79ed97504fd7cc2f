// Learned absolute positions: a table added to the token embeddings.
// Gehring et al. 2017, arXiv:1705.03122; GPT-2 `wpe`, BERT `position_embeddings`.
#pragma once

#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

struct LearnedPositionConfig final : PositionConfig {
  int64_t n_positions = 0;
  int64_t offset = 0;

  static constexpr auto fields() {
    using C = LearnedPositionConfig;
    return std::tuple{
        spec::field("n_positions", &C::n_positions, "rows of the table",
                    {.min = 1, .required = true}),
        spec::field("offset", &C::offset, "row of position 0 (RoBERTa and OPT: 2)", {.min = 0})};
  }
  static spec::Json example(const spec::Scope&, int64_t length) {
    return {{"n_positions", length}};
  }
  static spec::Info info() {
    return {
        .summary = "A learned vector per absolute position, added to the embedding.",
        .paper = "Gehring et al.: Convolutional Sequence to Sequence Learning, arXiv:1705.03122",
        .year = 2017,
        .forms = {.recurrent = true},
        .place = spec::Place::embedding};
  }
  void check(const spec::Scope& scope) const override {
    require_place(spec::Place::embedding, "learned", scope, "put it into \"embed\"");
    if (offset >= n_positions)
      fail(ErrorKind::spec, scope.path,
           "offset = {} leaves no row; expected less than n_positions = {}", offset, n_positions);
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.add({"weight",
              {n_positions, scope.width},
              spec::Init::normal(0.02),
              spec::ParamKind::embedding});
  }
  int64_t max_positions() const override { return n_positions - offset; }
};

}  // namespace tessera::nn
