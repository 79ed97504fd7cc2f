// What the tests of mixers share: one mixer with weights given by name, run over rows of inputs.
#pragma once

#include <map>

#include "tessera/nn/parts.h"
#include "tessera/nn/registry.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::nn {

struct MixerUnderTest {
  spec::Json json;
  spec::Scope scope;
  std::map<std::string, Tensor> values;
  spec::Part<spec::Slot::mixer> part;

  MixerUnderTest(const std::string& text, int64_t d_model, bool causal = true)
      : json(spec::parse_json(text, "test")) {
    register_mechanisms();
    scope.d_model = d_model;
    scope.width = d_model;
    scope.causal = causal;
    scope.path = "test";
    read();
  }
  void read() {
    static_cast<spec::AnyPart&>(part) = spec::read_part(spec::Slot::mixer, json, scope);
  }
  /// Every declared parameter with the values gen(shape; 0.37 + 0.06 i, 0.1 + 0.2 i) * size.
  void fill(double size = 0.5) {
    spec::ParamList list;
    part.config->params(list, scope);
    double i = 0;
    for (const spec::ParamDecl& decl : list.all()) {
      values[decl.name] = ops::gen(decl.shape, 0.37 + 0.06 * i, 0.1 + 0.2 * i) * size;
      i += 1;
    }
  }
  Builder builder(at::ScalarType type) const {
    const WeightSource source = [this, type](const std::string& name) -> WeightPtr {
      const auto found = values.find(name);
      return found == values.end()
                 ? nullptr
                 : std::make_shared<ops::Weight>(ops::Weight::dense(name, found->second.to(type)));
    };
    return {source, "", scope};
  }
  std::vector<spec::StateDecl> state() const { return part.config->state(scope); }

  /// One document x_TD in calls of the given lengths with a state, or whole.
  Tensor run(const Tensor& x_TD,
             at::ScalarType type,
             const std::vector<int64_t>& calls = {}) const {
    const auto mixer = build_mixer(part, builder(type));
    const Tensor x = x_TD.to(type);
    if (calls.empty()) return call(*mixer, x, 0, nullptr);
    RowState row(state(), 0, at::TensorOptions().dtype(type));
    std::vector<Tensor> out;
    int64_t at = 0;
    for (const int64_t n : calls) {
      out.push_back(call(*mixer, x.narrow(0, at, n), at, &row));
      at += n;
    }
    return at::cat(out);
  }

 private:
  Tensor call(const Mixer& mixer, const Tensor& x_TD, int64_t start, RowState* row) const {
    const int64_t t = x_TD.size(0);
    Batch batch;
    batch.segments = {{0, 0, t, start}};
    batch.ids_N = at::zeros({t}, at::kLong);
    batch.number();
    Context context;
    context.batch = &batch;
    context.causal = scope.causal;
    const StateRows rows{row};
    return run_mixer(mixer, x_TD, context, row != nullptr ? &rows : nullptr, false);
  }
};

/// x_TD and weights such that a projection named w of width o gives `want` [T, o] on the first T
/// unit vectors: the columns of the weight are the wanted rows, the rest is zero.
inline Tensor weight_giving(const Tensor& want_TO, int64_t d_model) {
  return at::constant_pad_nd(want_TO, {0, 0, 0, d_model - want_TO.size(0)}).t().contiguous();
}

}  // namespace tessera::nn
