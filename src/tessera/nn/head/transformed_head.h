// A head of tokens or documents with a layer of its own before its logits: x = N(act(T h + t)),
// with t and N optional. ModernBERT's classifiers have it.
#pragma once

#include "tessera/nn/activation.h"
#include "tessera/nn/head/head_config.h"

namespace tessera::nn {

struct TransformedHeadConfig : HeadConfig {
  bool transform = false;
  Activation act = Activation::gelu;
  bool transform_bias = true;
  spec::Part<spec::Slot::norm> norm;

  spec::Scope child_scope(spec::Scope scope, std::string_view) const {
    scope.width = scope.d_model;
    return scope;
  }

 protected:
  template <class C>
  static constexpr auto transform_fields() {
    return std::tuple{
        spec::field<C>("transform", static_cast<bool C::*>(&C::transform),
                       "whether a layer stands before the logits"),
        spec::field<C>("act", static_cast<Activation C::*>(&C::act), "activation of that layer"),
        spec::field<C>("transform_bias", static_cast<bool C::*>(&C::transform_bias),
                       "bias of that layer"),
        spec::field<C>("norm", static_cast<spec::Part<spec::Slot::norm> C::*>(&C::norm),
                       "norm of that layer's output")};
  }
  void check_transform(const spec::Scope& scope) const {
    if (norm && !transform)
      fail(ErrorKind::spec, scope.at("norm").path,
           "a norm without the layer that it belongs to; give \"transform\": true");
  }
  void declare_transform(spec::ParamList& list, const spec::Scope& scope) const {
    if (!transform) return;
    list.linear("transform", scope.d_model, scope.d_model, transform_bias);
    if (norm) norm.config->params_under(list, "norm", child_scope(scope, "norm"));
  }
};

}  // namespace tessera::nn
