#include "capped_norm.h"

#include "tessera/nn/plugin.h"
#include "tessera/ops/basic/pointwise.h"

namespace capped_norm_plugin {

using namespace tessera;  // spec, ops
using namespace tessera::nn;

void CappedNormConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.add({"weight", {scope.width}, spec::Init::constant(1), spec::ParamKind::norm});
}

namespace {

class CappedNorm final : public nn::Norm {
 public:
  CappedNorm(const CappedNormConfig& config, const Builder& builder)
      : config_(config), weight_(builder.weight("weight")) {}

  /// x [..., C] -> same shape.
  Tensor forward(const Tensor& x, const ops::ProductSettings&) const override {
    return ops::softcap(ops::rms_norm(x, weight_->tensor(), 0, config_.eps), config_.cap);
  }

 private:
  CappedNormConfig config_;
  WeightPtr weight_;
};

}  // namespace

std::unique_ptr<Norm> build(const CappedNormConfig& config, const Builder& builder) {
  return std::make_unique<CappedNorm>(config, builder);
}

TESSERA_PLUGIN {
  add<spec::Slot::norm, CappedNormConfig>("capped_norm");
}

}  // namespace capped_norm_plugin
