#include "tessera/nn/mixer/transform/fourier.h"

#include "tessera/nn/mixer/segments.h"
#include "tessera/ops/transform/dft.h"
#include "tessera/ops/documents.h"
#include "tessera/ops/random.h"

namespace tessera::nn {
namespace {

void check_lengths(const Batch& batch, int64_t max_length) {
  for (const Segment& s : batch.segments)
    if (max_length > 0 && s.length > max_length)
      fail(ErrorKind::input, "fourier",
           "a document has {} tokens; this layer mixes at most {} (max_length); shorten the input",
           s.length, max_length);
}

/// x [.., T, D] -> Re(F_T x F_D).
class Dft final : public Mixer {
 public:
  explicit Dft(const FourierConfig& config)
      : max_length_(config.max_length), each_(config.real == RealPart::each) {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows*) const override {
    check_lengths(*context.batch, max_length_);
    const Tensor y_ND = transformed(x_ND, context);
    // Re F_T Re(X F_D) has no product of two sines; that part changes its sign with the channel's
    return each_ ? ((y_ND + y_ND.flip(1).roll(1, 1)) * 0.5).to(x_ND.scalar_type())
                 : y_ND.to(x_ND.scalar_type());
  }

 private:
  Tensor transformed(const Tensor& x_ND, Context& context) const {
    const auto type = ops::wide(x_ND);
    if (at::GradMode::is_enabled())
      return ops::over_documents(lengths_of(*context.batch), [&](const auto& rows_of) {
        return ops::real_dft(rows_of(x_ND).to(type)).flatten(0, 1);
      });
    // each document alone: its bits must not depend on its neighbours
    const BySegment part(*context.batch);
    return over_segments(*context.batch, [&](size_t i, const Segment&) {
      return ops::real_dft(part(x_ND, i).to(type));
    });
  }

  int64_t max_length_;
  bool each_;
};

class MatrixMixing final : public Mixer {
 public:
  MatrixMixing(const FourierConfig& config, const Builder& builder) : config_(config) {
    if (config.learns()) {
      tokens_ = builder.weight("tokens.weight");
      channels_ = builder.weight("channels.weight");
      return;
    }
    const int64_t d = builder.scope().d_model;
    const RandomKey key =
        RandomKey(static_cast<uint64_t>(config.seed)).fold(builder.prefix() + ".fourier");
    const auto drawn = [&](const char* name, int64_t n) {
      const spec::ParamDecl decl{
          name, {n, n}, spec::Init::normal(1 / std::sqrt(static_cast<double>(n)))};
      return std::make_shared<ops::Weight>(
          ops::Weight::dense(name, ops::initial_values(decl, key, at::kFloat)));
    };
    tokens_ = drawn("tokens", config.max_length);
    channels_ = drawn("channels", d);
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows*) const override {
    check_lengths(*context.batch, config_.max_length);
    const Tensor h_ND = ops::linear(x_ND, *channels_, nullptr, context.products);
    const BySegment part(*context.batch);
    return over_segments(*context.batch, [&](size_t i, const Segment& s) {
      const Tensor w = tokens_->tensor(context.products)
                           .narrow(0, 0, s.length)
                           .narrow(1, 0, s.length)
                           .contiguous();
      const Tensor h_DT = part(h_ND, i).t();
      return ops::linear(h_DT, ops::Weight::dense("tokens", w), nullptr, context.products).t();
    });
  }

 private:
  FourierConfig config_;
  WeightPtr tokens_, channels_;
};

/// a of one mixing and 1 - a of another.
class Blend final : public Mixer {
 public:
  Blend(const FourierConfig& config, const Builder& builder)
      : share_(config.blend), fourier_(config), learned_(config, builder) {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows*) const override {
    return share_ * fourier_.forward(x_ND, context, nullptr) +
           (1 - share_) * learned_.forward(x_ND, context, nullptr);
  }

 private:
  double share_;
  Dft fourier_;
  MatrixMixing learned_;
};

}  // namespace

std::unique_ptr<Mixer> build(const FourierConfig& config, const Builder& builder) {
  if (config.transform == Transform::fourier && config.learns())
    return std::make_unique<Blend>(config, builder);
  if (config.transform == Transform::fourier) return std::make_unique<Dft>(config);
  return std::make_unique<MatrixMixing>(config, builder);
}

}  // namespace tessera::nn
