// Axial positions: a table of positions as the product of two small ones; position t reads its row
// and its column of a grid, each giving a part of the channels.
//   x_t += [ W1[floor(t / columns)], W2[t mod columns] ]
// Kitaev, Kaiser, Levskaya 2020, arXiv:2001.04451 (Reformer). Attention 13.2.
#pragma once

#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

struct AxialConfig final : PositionConfig {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t d_row = 0;

  static constexpr auto fields() {
    using C = AxialConfig;
    return std::tuple{
        spec::field("rows", &C::rows, "rows of the grid", {.min = 1, .required = true}),
        spec::field("columns", &C::columns, "columns of the grid; rows * columns positions",
                    {.min = 1, .required = true}),
        spec::field("d_row", &C::d_row, "channels that tell the row; 0 = half", {.min = 0})};
  }
  static spec::Json example(const spec::Scope&, int64_t length) {
    return {{"rows", (length + 63) / 64}, {"columns", 64}};
  }
  static spec::Info info() {
    return {
        .summary = "Learned vectors of a row and a column, side by side, added to the embedding.",
        .paper = "Kitaev, Kaiser, Levskaya: Reformer: The Efficient Transformer, arXiv:2001.04451",
        .year = 2020,
        .forms = {.recurrent = true},
        .place = spec::Place::embedding};
  }
  void complete(const spec::Scope& scope) override {
    if (d_row == 0) d_row = scope.width / 2;
  }
  void check(const spec::Scope& scope) const override {
    require_place(spec::Place::embedding, "axial", scope, "put it into \"embed\"");
    if (d_row < 1 || d_row >= scope.width)
      fail(ErrorKind::spec, scope.path,
           "d_row = {}; expected 1 to {}: rows and columns share the {} channels", d_row,
           scope.width - 1, scope.width);
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.add({"row.weight",
              {rows, d_row},
              spec::Init::normal(1),
              spec::ParamKind::embedding,
              {spec::Role::position, spec::Role::none}});
    list.add({"column.weight",
              {columns, scope.width - d_row},
              spec::Init::normal(1),
              spec::ParamKind::embedding,
              {spec::Role::position, spec::Role::none}});
  }
  int64_t max_positions() const override { return rows * columns; }
};

}  // namespace tessera::nn
