#include "tessera/nn/mixer/bidirectional.h"

#include "tessera/nn/parts.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::nn {
namespace {

constexpr const char* kReversed = "reversed:";

/// The token in each one's place when every document is reversed within itself.
const Tensor& reversal(Context& context) {
  return context.once<Tensor>("bidirectional.reversal", [&] {
    const Batch& batch = *context.batch;
    Tensor from_N = at::empty({batch.n_tokens()}, at::kLong);
    auto* from = from_N.data_ptr<int64_t>();
    for (const Segment& s : batch.segments)
      for (int64_t t = 0; t < s.length; ++t) from[s.begin + t] = s.begin + s.length - 1 - t;
    return from_N;
  });
}

/// A causal reading within an encoder's call; what the second reading leaves for later layers is
/// kept apart from what the first one does.
class Reading {
 public:
  Reading(Context& context, bool reversed)
      : context_(context), causal_(context.causal), reversed_(reversed) {
    context_.causal = true;
    if (reversed_) turn();
  }
  ~Reading() {
    if (reversed_) turn();
    context_.causal = causal_;
  }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  /// Names of values gain the prefix or lose it.
  void turn() {
    const std::string prefix = kReversed;
    std::map<std::string, Tensor> turned;
    for (auto& [name, value] : context_.values.all())
      turned[name.starts_with(prefix) ? name.substr(prefix.size()) : prefix + name] =
          std::move(value);
    context_.values.all() = std::move(turned);
  }

  Context& context_;
  bool causal_, reversed_;
};

class Bidirectional final : public Mixer {
 public:
  Bidirectional(const BidirectionalConfig& config, const Builder& builder)
      : combine_(config.combine),
        forward_(build_mixer(config.inner, direction(config, builder, "forward"))),
        backward_(build_mixer(config.inner, direction(config, builder, "backward"))) {
    if (combine_ == Directions::concat) projection_ = Linear(builder, "out");
    if (combine_ == Directions::gate) projection_ = Linear(builder, "gate");
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows*) const override {
    const Tensor from_N = reversal(context).to(x_ND.device());
    const Tensor f_ND = [&] {
      const Reading reading(context, false);
      return forward_->forward(x_ND, context, nullptr);
    }();
    const Tensor b_ND = [&] {
      const Reading reading(context, true);
      return backward_->forward(x_ND.index_select(0, from_N), context, nullptr)
          .index_select(0, from_N);
    }();
    switch (combine_) {
      case Directions::sum:
        return f_ND + b_ND;
      case Directions::mean:
        return (f_ND + b_ND) * 0.5;
      case Directions::concat:
        return projection_(at::cat({f_ND, b_ND}, -1), context);
      case Directions::gate:
        break;
    }
    const Tensor g_ND = ops::activate(projection_(x_ND, context), ops::Activation::sigmoid);
    return b_ND + g_ND * (f_ND - b_ND);
  }

 private:
  /// Where a direction finds its weights: those that both use lie under "both".
  static Builder direction(const BidirectionalConfig& config,
                           const Builder& builder,
                           const std::string& name) {
    const spec::Scope scope = config.child_scope(builder.scope().at("inner"), "inner");
    const std::string own = builder.under(name).prefix() + ".",
                      both = builder.under("both").prefix() + ".";
    const WeightSource source = [config, builder, own, both](const std::string& full) {
      if (!full.starts_with(own)) return builder.absolute(full);
      const std::string local = full.substr(own.size());
      return builder.absolute(config.shared(local) ? both + local : full);
    };
    return Builder(source, builder.prefix(), builder.scope()).under(name, scope);
  }

  Directions combine_;
  std::unique_ptr<Mixer> forward_, backward_;
  Linear projection_;
};

}  // namespace

std::unique_ptr<Mixer> build(const BidirectionalConfig& config, const Builder& builder) {
  return std::make_unique<Bidirectional>(config, builder);
}

}  // namespace tessera::nn
