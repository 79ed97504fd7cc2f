// What the tests of the recurrent mixers share: a mixer with the parameters of
// tools/golden/sequence_mixers.py, and its output by every path.
#pragma once

#include <map>

#include "tessera/nn/parts.h"
#include "tessera/nn/registry.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::nn {

class TestMixer {
 public:
  /// The i-th declared parameter is sin((0.37 + 0.13 i) n + 0.2 i) over its elements n, unless
  /// `values` holds it.
  TestMixer(const spec::Json& json,
            int64_t d_model,
            std::map<std::string, Tensor> values = {},
            bool causal = true)
      : values_(std::move(values)) {
    register_mechanisms();
    scope_.d_model = d_model;
    scope_.causal = causal;
    scope_.path = "test";
    part_ = spec::read_part(spec::Slot::mixer, json, scope_);
    spec::ParamList list;
    part_.config->params(list, scope_);
    for (size_t i = 0; i < list.all().size(); ++i) {
      const spec::ParamDecl& decl = list.all()[i];
      const auto n = static_cast<double>(i);
      values_.emplace(decl.name, ops::gen(decl.shape, 0.37 + 0.13 * n, 0.2 * n));
    }
  }

  std::unique_ptr<Mixer> built(at::ScalarType type) const {
    const WeightSource source = [this, type](const std::string& name) -> WeightPtr {
      const auto found = values_.find(name);
      return found == values_.end()
                 ? nullptr
                 : std::make_shared<ops::Weight>(ops::Weight::dense(name, found->second.to(type)));
    };
    return build_mixer(part_, Builder(source, "", scope_));
  }

  /// Whole documents of the given lengths, without a state.
  Tensor whole(const Tensor& x_ND, const std::vector<int64_t>& lengths) const {
    Batch batch;
    int64_t begin = 0;
    for (const int64_t length : lengths) {
      batch.segments.push_back({static_cast<int64_t>(batch.segments.size()), begin, length, 0});
      begin += length;
    }
    batch.number();
    Context context;
    context.batch = &batch;
    context.causal = scope_.causal;
    return built(x_ND.scalar_type())->forward(x_ND, context, nullptr);
  }

  /// One document from a state, in calls of the given lengths; `row` receives the state.
  Tensor split(const Tensor& x_ND,
               const std::vector<int64_t>& lengths,
               std::unique_ptr<RowState>* row = nullptr) const {
    auto state = std::make_unique<RowState>(part_.config->state(scope_), 0,
                                            at::TensorOptions().dtype(x_ND.scalar_type()));
    const auto mixer = built(x_ND.scalar_type());
    std::vector<Tensor> out;
    int64_t begin = 0;
    for (const int64_t length : lengths) {
      Batch batch;
      batch.segments.push_back({0, 0, length, begin});
      batch.number();
      Context context;
      context.batch = &batch;
      context.causal = scope_.causal;
      const StateRows rows{state.get()};
      out.push_back(
          run_mixer(*mixer, x_ND.narrow(0, begin, length), context, &rows, /*pending=*/false));
      begin += length;
    }
    if (row != nullptr) *row = std::move(state);
    return at::cat(out);
  }

  const std::map<std::string, Tensor>& values() const { return values_; }
  bool recurrent() const { return part_.info().forms.recurrent; }

 private:
  std::map<std::string, Tensor> values_;
  spec::Scope scope_;
  spec::AnyPart part_;
};

/// `want` is what `mixer` makes of x_TD [T, D], by every path: the plain form in double, the forms
/// of float32 training and inference, alone and behind another document, whole and in calls.
inline void expect_everywhere(const TestMixer& mixer,
                              const Tensor& x_TD,
                              const Tensor& want,
                              double tolerance) {
  const int64_t t = x_TD.size(0);
  const double float_tolerance = 5e-6 * std::max(1.0, want.abs().max().item<double>());
  const auto expect_forms = [&](at::ScalarType type, double within, const char* what) {
    const Tensor x = x_TD.to(type);
    ops::expect_near(mixer.whole(x, {t}), want, within, what);
    const Tensor behind = mixer.whole(at::cat({x.narrow(0, 0, 2), x}), {2, t});
    ops::expect_near(behind.narrow(0, 2, t), want, within, what);
    ops::expect_near(mixer.whole(at::cat({x, x}), {t, t}).narrow(0, t, t), want, within, what);
    if (!mixer.recurrent()) return;
    for (const std::vector<int64_t>& lengths :
         {std::vector<int64_t>{t}, {1, t - 1}, {t - 2, 1, 1}, std::vector<int64_t>(t, 1)})
      ops::expect_near(mixer.split(x, lengths), want, within, what);
  };
  expect_forms(at::kDouble, tolerance, "double");
  expect_forms(at::kFloat, float_tolerance, "float32, with gradients");
  const at::NoGradGuard no_gradients;
  expect_forms(at::kFloat, float_tolerance, "float32 kernels");
}

/// The input of tools/golden/sequence_mixers.py.
inline Tensor golden_input(int64_t t, int64_t d) {
  return ops::gen({t, d}, 0.41, 0.2);
}

}  // namespace tessera::nn
