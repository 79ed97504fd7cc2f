#include "tessera/model/predictor.h"

namespace tessera::model {

Predictor::Predictor(const PredictorSpec& spec,
                     const nn::WeightSource& source,
                     const ops::ProductSettings& products)
    : spec_(spec), stack_(*spec.stack, source, products) {
  if (!spec.token) return;
  const nn::Builder builder(source, spec.stack->stack, spec.stack->scope(0));
  if (spec.norm) {
    token_norm_ = nn::build_norm(spec.norm, builder.under("token_norm"));
    hidden_norm_ = nn::build_norm(spec.norm, builder.under("hidden_norm"));
  }
  join_ = nn::Linear(builder, "join");
}

Tensor Predictor::forward(const Tensor& hidden_ND, const Stack& trunk, nn::Context& context) const {
  if (!spec_.token) return stack_.forward(hidden_ND, context);
  const auto normed = [&](const std::unique_ptr<nn::Norm>& norm, const Tensor& x) {
    return norm ? norm->forward(x, context.products) : x;
  };
  const Tensor token_ND = trunk.embedded(context);
  return stack_.forward(
      join_(at::cat({normed(token_norm_, token_ND), normed(hidden_norm_, hidden_ND)}, -1), context),
      context);
}

}  // namespace tessera::model
