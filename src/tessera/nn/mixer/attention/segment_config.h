// What the configs of mixers over segments (transformer_xl, compressive, memorizing) share.
#pragma once

#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

struct SegmentConfig : spec::Config {
  int64_t n_heads = 0;
  int64_t head_dim = 0;
  int64_t segment = 0;
  int64_t mem_len = 0;
  spec::Part<spec::Slot::position> position;
  double dropout = 0;

  spec::Scope child_scope(spec::Scope scope, std::string_view name) const {
    scope.width = head_dim > 0 ? head_dim : n_heads > 0 ? scope.d_model / n_heads : 0;
    scope.n_heads = n_heads;
    if (name == "position") scope.places = {.score_bias = true};
    return scope;
  }
  void complete(const spec::Scope& scope) override;
  void check(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;

  /// The longest distance from a query to a key that it sees, with the query's own token.
  virtual int64_t reach() const { return mem_len + segment; }
  /// Whether the position scheme looks places of the document up in a table.
  bool by_place() const { return position.as<PositionConfig>().max_positions() > 0; }

 protected:
  /// q, k, v, o and those of the position.
  void declare(spec::ParamList& list, const spec::Scope& scope) const;
  /// Inputs, keys and values of the last `keep` tokens.
  std::vector<spec::StateDecl> kept_inputs(const spec::Scope& scope, int64_t keep) const;
};

}  // namespace tessera::nn
