// Embeddings whose tokens come from dense features (pixels, frames of sound) instead of ids: the
// properties known without computing. Features reach a call by nn::Batch::features, one tensor a
// document; the embedding determines their number of tokens.
#pragma once

#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

struct FeatureEmbedConfig : spec::Config {
  spec::Part<spec::Slot::position> position;
  spec::Part<spec::Slot::norm> norm;
  double dropout = 0;

  /// The name of a call's features, [B, ...]: "pixel_values".
  virtual std::string input() const = 0;
  /// What those of one document are, in messages: "[3, height, width]".
  virtual std::string shape_text() const = 0;
  /// Tokens of a document whose features have this shape; 0 = it can have none.
  virtual int64_t tokens(const std::vector<int64_t>& shape) const = 0;
  /// The shape of the smallest features with at least `n` tokens; where all have one shape, that.
  virtual std::vector<int64_t> shape_of(int64_t n) const = 0;

  spec::Scope child_scope(spec::Scope scope, std::string_view name) const {
    scope.width = scope.d_model;
    if (name == "position") scope.places = {.embedding = true};
    return scope;
  }

 protected:
  /// The fields above, which follow those of the embedding.
  template <class C>
  static constexpr auto common_fields() {
    using spec::field;
    return std::tuple{
        field<C>("position", static_cast<spec::Part<spec::Slot::position> C::*>(&C::position),
                 "absolute positions added to the tokens", {.part = "none"}),
        field<C>("norm", static_cast<spec::Part<spec::Slot::norm> C::*>(&C::norm),
                 "norm of the sum"),
        field<C>("dropout", static_cast<double C::*>(&C::dropout), "probability, in training",
                 {.min = 0, .below = 1})};
  }
  static void require_encoder(std::string_view name, const spec::Scope& scope) {
    if (scope.causal)
      fail(ErrorKind::spec, scope.path,
           "\"{}\" needs an encoder: its document is read whole, and no id continues it; in a "
           "decoder use \"token\"",
           name);
  }
  void declare_position_and_norm(spec::ParamList& list, const spec::Scope& scope) const {
    if (position) position.config->params_under(list, "position", child_scope(scope, "position"));
    if (norm) norm.config->params_under(list, "norm", child_scope(scope, "norm"));
  }
};

}  // namespace tessera::nn
