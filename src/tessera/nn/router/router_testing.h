// Routers and mixtures of experts under test: a part with its weights, and one call of it.
#pragma once

#include "tessera/base/testing.h"
#include "tessera/nn/registry.h"
#include "tessera/nn/weights_testing.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::nn {

/// A part of `slot` with weights as given, else drawn; `d` channels, `n_experts` for routers.
struct TestedPart {
  Values values;
  spec::AnyPart part;
  spec::Scope scope;

  TestedPart(spec::Slot slot,
             const std::string& json,
             int64_t d,
             int64_t n_experts,
             Values given = {},
             bool causal = true,
             at::ScalarType type = at::kDouble)
      : values(std::move(given)) {
    register_mechanisms();
    scope.d_model = d;
    scope.vocab = 11;
    scope.n_experts = n_experts;
    scope.causal = causal;
    scope.path = "part";
    part = spec::read_part(slot, spec::parse_json(json, "test"), scope);
    spec::ParamList list;
    part.config->params(list, scope);
    draw_weights(list.all(), values, {.phase_step = 0.7, .size = 1});
    for (auto& [name, value] : values) value = value.to(type).requires_grad_(true);
  }
  Builder builder() const { return {weights_from(values), "", scope}; }
};

/// Losses and statistics that parts report to a call.
struct Heard {
  std::map<std::string, Tensor> losses, statistics;
  void listen(Context& context) {
    const auto add = [](std::map<std::string, Tensor>& to) {
      return [&to](const std::string& name, const Tensor& value) {
        const auto [known, added] = to.emplace(name, value);
        if (!added) known->second = known->second + value;
      };
    };
    context.add_loss = add(losses);
    context.add_statistic = add(statistics);
  }
};

inline Batch batch_of_lengths(const std::vector<int64_t>& lengths) {
  std::vector<std::vector<int64_t>> rows;
  int64_t id = 0;
  for (const int64_t n : lengths) {
    rows.emplace_back();
    for (int64_t i = 0; i < n; ++i) rows.back().push_back(id++ * 7 % 11);
  }
  return Batch::of(rows);
}

}  // namespace tessera::nn
