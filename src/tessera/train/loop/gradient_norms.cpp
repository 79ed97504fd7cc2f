#include "tessera/train/loop/gradient_norms.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/threads.h"

namespace tessera::train {
namespace {

using spec::Json;

/// Entries by layer, in the order of declaration.
std::vector<std::pair<std::string, std::vector<size_t>>> layers_of(const ParameterSet& parameters) {
  std::vector<std::pair<std::string, std::vector<size_t>>> out;
  for (size_t i = 0; i < parameters.trained().size(); ++i) {
    const std::string layer = layer_of(parameters.trained()[i].decl.name);
    auto found = std::find_if(out.begin(), out.end(),
                              [&](const auto& known) { return known.first == layer; });
    if (found == out.end()) found = out.insert(out.end(), {layer, {}});
    found->second.push_back(i);
  }
  return out;
}

double norm_of(const std::vector<size_t>& entries, const std::vector<Gradient>& all) {
  std::vector<Gradient> of;
  for (const size_t i : entries) of.push_back(all[i]);
  return train::norm_of(of);
}

}  // namespace

std::string layer_of(const std::string& parameter) {
  const auto leads = [](std::string_view word) {
    return word == "encoder" || word == "layers" || word == "predictors" ||
           word.find_first_not_of("0123456789") == std::string_view::npos;
  };
  size_t end = 0;
  for (size_t begin = 0; end != std::string::npos; begin = end + 1) {
    end = parameter.find('.', begin);
    if (!leads(std::string_view(parameter).substr(begin, end - begin))) break;
  }
  return parameter.substr(0, end);
}

std::pair<std::string, double> largest_gradient(const ParameterSet& parameters) {
  const std::vector<Gradient> gradients = parameters.host_gradients();
  std::pair<std::string, double> out{"", -1};
  for (const auto& [layer, entries] : layers_of(parameters))
    if (const double norm = norm_of(entries, gradients); norm > out.second) out = {layer, norm};
  return out;
}

std::string first_nonfinite(const ParameterSet& parameters) {
  const std::vector<Gradient> weights = parameters.host_values();
  for (size_t i = 0; i < weights.size(); ++i)
    if (!std::isfinite(train::norm_of({&weights[i], 1}))) return parameters.trained()[i].decl.name;
  return "";
}

GradientNorms::GradientNorms(const ParameterSet& parameters) : parameters_(parameters) {
  for (const Gradient& weight : parameters.host_values())
    before_.emplace_back(weight.data, weight.data + weight.elements);
}

Json GradientNorms::after() {
  const std::vector<Gradient> gradients = parameters_.host_gradients(),
                              weights = parameters_.host_values();
  std::vector<Gradient> updates;
  for (size_t i = 0; i < before_.size(); ++i) {
    float* w = before_[i].data();
    const float* now = weights[i].data;
    parallel_for(weights[i].elements, 16384, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) w[k] = now[k] - w[k];
    });
    updates.push_back({w, weights[i].elements});
  }
  Json json = Json::object();
  for (const auto& [layer, entries] : layers_of(parameters_))
    json[layer] = {{"gradient", norm_of(entries, gradients)},
                   {"weight", norm_of(entries, weights)},
                   {"update", norm_of(entries, updates)}};
  return json;
}

}  // namespace tessera::train
