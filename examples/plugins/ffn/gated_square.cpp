#include "gated_square.h"

#include "tessera/nn/plugin.h"
#include "tessera/ops/basic/pointwise.h"

namespace gated_square_plugin {

using namespace tessera;  // spec, ops
using namespace tessera::nn;

void GatedSquareConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("gate", d_hidden, scope.input_width(), false, spec::Init::content());
  list.linear("up", d_hidden, scope.input_width(), false, spec::Init::content());
  list.linear("down", scope.d_model, d_hidden, false, spec::Init::into_stream(scope.n_layers));
}

namespace {

class GatedSquare final : public nn::Ffn {
 public:
  explicit GatedSquare(const Builder& builder)
      : gate_(builder, "gate"), up_(builder, "up"), down_(builder, "down") {}

  /// x_ND: the tokens of all documents of the batch.
  Tensor forward(const Tensor& x_ND, Context& context) const override {
    const Tensor h_NF =
        ops::gated(gate_(x_ND, context), up_(x_ND, context), ops::Activation::relu2);
    return down_(h_NF, context);
  }

 private:
  Linear gate_, up_, down_;
};

}  // namespace

std::unique_ptr<Ffn> build(const GatedSquareConfig&, const Builder& builder) {
  return std::make_unique<GatedSquare>(builder);
}

TESSERA_PLUGIN {
  add<spec::Slot::ffn, GatedSquareConfig>("gated_square");
}

}  // namespace gated_square_plugin
