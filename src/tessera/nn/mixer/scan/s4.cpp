#include "tessera/nn/mixer/scan/s4.h"

#include "tessera/nn/mixer/scan/s4d.h"
#include "tessera/nn/mixer/segments.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/form.h"
#include "tessera/ops/scan/lti_scan.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::nn {
namespace {

/// What S4 and S4D share: the three ways to run a system, and the layer around it.
class LtiMixer : public Mixer {
 public:
  LtiMixer(int64_t d_state, const Builder& builder)
      : pairs_(d_state / 2),
        out_(builder, "out"),
        log_dt_(builder.weight("log_dt")),
        a_log_(builder.weight("a_log")),
        a_im_(builder.weight("a_im")),
        c_(builder.weight("c")),
        d_(builder.weight("d")) {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const Tensor y_ND = ops::activate(mixed(x_ND, *context.batch, rows), ops::Activation::gelu);
    const auto halves = out_(y_ND, context).chunk(2, -1);
    return ops::gated(halves[1], halves[0], ops::Activation::sigmoid);
  }

 protected:
  /// Tokens one after another, by `stepped`.
  virtual Tensor recurrence(const Tensor& u_ND,
                            const Batch& batch,
                            const StateRows* rows) const = 0;
  /// The system's response to one input, [length, H] in double.
  virtual Tensor response(int64_t length) const = 0;

  template <class System>
  Tensor stepped(const System& lti,
                 const Tensor& u_ND,
                 const Batch& batch,
                 const StateRows* rows) const {
    const bool kernels = ops::kernel_serves(ops::Op::lti_scan, u_ND);
    using Constants = decltype(ops::constants_of(lti));
    const Constants constants = kernels ? ops::constants_of(lti) : Constants();
    const ops::LtiChunk chunk = kernels ? ops::LtiChunk() : ops::chunk_of(lti);
    const BySegment part(batch);
    return over_segments(batch, kernels, [&](size_t i, const Segment&) {
      const Tensor u = part(u_ND, i);
      if (kernels) {
        Tensor state = rows != nullptr ? (*rows)[i]->fixed_in_place(0)
                                       : at::zeros({2, pairs_, u.size(1)}, u.options());
        return ops::lti_kernel(constants, u, state);
      }
      Tensor& state = (*rows)[i]->fixed(0);
      const auto [y, after] = ops::lti_chunked(lti, chunk, u, state);
      state = after.to(state.scalar_type());
      return y;
    });
  }

  int64_t pairs_;
  Linear out_;
  WeightPtr log_dt_, a_log_, a_im_, c_, d_;

 private:
  Tensor mixed(const Tensor& u_ND, const Batch& batch, const StateRows* rows) const {
    if (rows == nullptr && !ops::kernel_serves(ops::Op::lti_scan, u_ND)) {
      const auto lengths = lengths_of(batch);
      const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
      const Tensor skip = ops::spread(d_->tensor().to(ops::wide(u_ND)), u_ND) * u_ND;
      return (ops::fft_conv(u_ND, response(longest), lengths) + skip).to(u_ND.scalar_type());
    }
    return recurrence(u_ND, batch, rows);
  }
};

class S4d final : public LtiMixer {
 public:
  S4d(const S4dConfig& config, const Builder& builder)
      : LtiMixer(config.d_state, builder),
        bilinear_(config.discretisation == Discretisation::bilinear) {}

 private:
  ops::LtiSystem system() const {
    return ops::discretised(ops::DiagonalSystem{log_dt_->tensor(), a_log_->tensor(),
                                                a_im_->tensor(), c_->tensor(), d_->tensor(),
                                                bilinear_});
  }
  Tensor response(int64_t length) const override { return ops::diagonal_kernel(system(), length); }
  Tensor recurrence(const Tensor& u_ND, const Batch& batch, const StateRows* rows) const override {
    return stepped(system(), u_ND, batch, rows);
  }
  bool bilinear_;
};

class S4 final : public LtiMixer {
 public:
  S4(const S4Config& config, const Builder& builder)
      : LtiMixer(config.d_state, builder),
        held_(config.discretisation == Discretisation::zoh),
        p_(builder.weight("p")),
        b_(builder.weight("b")) {}

 private:
  ops::DplrSystem continuous() const {
    return {log_dt_->tensor(), a_log_->tensor(), a_im_->tensor(), p_->tensor(),
            b_->tensor(),      c_->tensor(),     d_->tensor()};
  }
  Tensor response(int64_t length) const override {
    return held_ ? ops::dense_kernel(ops::held(continuous()), length)
                 : ops::dplr_kernel(continuous(), length);
  }
  Tensor recurrence(const Tensor& u_ND, const Batch& batch, const StateRows* rows) const override {
    return held_ ? stepped(ops::held(continuous()), u_ND, batch, rows)
                 : stepped(ops::discretised(continuous()), u_ND, batch, rows);
  }
  bool held_;
  WeightPtr p_, b_;
};

}  // namespace

std::unique_ptr<Mixer> build(const S4dConfig& config, const Builder& builder) {
  return std::make_unique<S4d>(config, builder);
}
std::unique_ptr<Mixer> build(const S4Config& config, const Builder& builder) {
  return std::make_unique<S4>(config, builder);
}

}  // namespace tessera::nn
