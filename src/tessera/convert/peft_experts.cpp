#include "tessera/convert/peft_experts.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/convert/peft_names.h"
#include "tessera/format/file_source.h"

namespace tessera::convert::peft {
namespace {

constexpr std::string_view kBase = ".base_layer";

/// Products of E experts: A [E, r, I], B [E, O, r].
struct Products {
  int64_t experts, rank, outputs, inputs;
  std::vector<float> a, b;
  Products(int64_t e, int64_t r, int64_t o, int64_t i)
      : experts(e),
        rank(r),
        outputs(o),
        inputs(i),
        a(static_cast<size_t>(e * r * i), 0.0F),
        b(static_cast<size_t>(e * o * r), 0.0F) {}
  float& a_at(int64_t e, int64_t r, int64_t i) {
    return a[static_cast<size_t>((e * rank + r) * inputs + i)];
  }
  float& b_at(int64_t e, int64_t o, int64_t r) {
    return b[static_cast<size_t>((e * outputs + o) * rank + r)];
  }
};

float at(const TensorView& matrix, int64_t row, int64_t column) {
  return numbers_of(matrix)[static_cast<size_t>(row * matrix.shape[1] + column)];
}

AdapterTensors as_ours(const std::string& weight, Products products, double scale, bool rslora) {
  const auto& p = products;
  TensorView a = owned(kLoraA, {p.experts, p.rank, p.inputs}, std::move(products.a)),
             b = owned(kLoraB, {p.experts, p.outputs, p.rank}, std::move(products.b));
  return {weight, {{kLoraA, std::move(a)}, {kLoraB, std::move(b)}}, scale, rslora};
}

/// The parameter that a packed product is for, in our terms.
struct PackedParameter {
  std::string gate, up;  // or one matrix alone in `up`
  int64_t experts, outputs, inputs;
  const char* parameter;  // transformers' name
  bool turned;            // written for the transposed parameter
};

/// The stacks of experts of one layer.
struct Layer {
  std::string gate, up, down;
};

Layer layer_of(const std::string& module, const Shapes& stacks, const std::string& file) {
  Layer layer;
  const int64_t number = layer_in(module);
  for (const auto& [name, shape] : stacks) {
    if (layer_in(name) != number) continue;
    for (const auto& [end, place] : {std::pair(".experts.gate.weight", &layer.gate),
                                     std::pair(".experts.up.weight", &layer.up),
                                     std::pair(".experts.down.weight", &layer.down)}) {
      if (!name.ends_with(end)) continue;
      if (!place->empty())
        fail(ErrorKind::file, file, "module {} may be {} or {}; expected experts in one stack",
             module, *place, name);
      *place = name;
    }
  }
  return layer;
}

std::vector<PackedParameter> parameters_of(const std::string& module,
                                           const Shape& a,
                                           const Shape& b,
                                           const Shapes& stacks,
                                           const std::string& file) {
  const Layer layer = layer_of(module, stacks, file);
  std::vector<PackedParameter> out;
  const auto offer = [&](const std::string& gate, const std::string& up, const char* parameter) {
    if (up.empty()) return;
    const Shape& stack = stacks.at(up);
    const int64_t rows = (gate.empty() ? 1 : 2) * stack[1], columns = stack[2];
    for (const bool turned : {false, true})
      if (a[1] == (turned ? rows : columns) && b[0] == (turned ? columns : rows))
        out.push_back({gate, up, stack[0], rows, columns, parameter, turned});
  };
  offer(layer.gate, layer.up, layer.gate.empty() ? "up_proj" : "gate_up_proj");
  offer("", layer.down, "down_proj");
  return out;
}

/// The place of a packed product; of several by the version of PEFT that wrote the file.
PackedParameter parameter_of(const std::string& module,
                             const Shape& a,
                             const Shape& b,
                             const Shapes& stacks,
                             const PeftConfig& config,
                             const std::string& file) {
  std::vector<PackedParameter> places = parameters_of(module, a, b, stacks, file);
  if (places.empty())
    fail(ErrorKind::usage, "adapter",
         "{} was trained for another model: lora_A {} and lora_B {} of {} fit no experts here",
         file, format::shape_text(a), format::shape_text(b), module);
  if (places.size() > 1) {
    if (!config.at_least(0, 19, 1))
      fail(ErrorKind::file, file,
           "module {} has lora_A {} and lora_B {}, which are square, and PEFT before 0.19.1 turned "
           "some of them; expected one saved by a later PEFT (peft_version)",
           module, format::shape_text(a), format::shape_text(b));
    std::erase_if(places, [](const PackedParameter& place) { return place.turned; });
  }
  if (places.size() != 1)
    fail(ErrorKind::file, file, "module {} fits experts' {} and {}", module, places[0].parameter,
         places[1].parameter);
  return places.front();
}

Products unpacked(const PeftModule& parts, const PackedParameter& place) {
  const TensorView a = as_float32(*parts.a), b = as_float32(*parts.b);
  const int64_t e_n = place.experts, rank = a.shape[0] / e_n;
  Products out(e_n, rank, place.outputs, place.inputs);
  for (int64_t e = 0; e < e_n; ++e)
    for (int64_t r = 0; r < rank; ++r) {
      for (int64_t i = 0; i < place.inputs; ++i)
        out.a_at(e, r, i) = place.turned ? at(b, i, r * e_n + e) : at(a, e * rank + r, i);
      for (int64_t o = 0; o < place.outputs; ++o)
        out.b_at(e, o, r) = place.turned ? at(a, e * rank + r, o) : at(b, o, r * e_n + e);
    }
  return out;
}

/// Half of the outputs: of the gates or of the way up.
Products half_of(Products& both, bool second, bool pairs) {
  const int64_t half = both.outputs / 2;
  Products out(both.experts, both.rank, half, both.inputs);
  out.a = both.a;
  for (int64_t e = 0; e < both.experts; ++e)
    for (int64_t o = 0; o < half; ++o)
      for (int64_t r = 0; r < both.rank; ++r)
        out.b_at(e, o, r) = both.b_at(e, pairs ? 2 * o + second : o + second * half, r);
  return out;
}

}  // namespace

void check_rank(const PeftConfig& config,
                const std::string& module,
                int64_t found,
                int64_t experts,
                const std::string& file) {
  const int64_t rank = config.rank_of(module);
  if (found == rank * experts) return;
  const std::string each = experts == 1 ? "" : fmt::format(", of {} experts each", experts);
  fail(ErrorKind::file, file,
       "module {} has {} of rank {}; the config (r, rank_pattern) gives it rank {}{}", module,
       experts == 1 ? "a product" : "products", found, rank, each);
}

AdapterTensors read_each_expert(const BoundRule& rule,
                                const Shape& stack,
                                const PeftConfig& config,
                                const std::string& file,
                                std::map<std::string, PeftModule>& modules) {
  std::vector<std::pair<std::string, const PeftModule*>> experts;
  int64_t rank = 0;
  for (const std::string& name : rule.foreign) {
    const auto found = modules.find(module_of(name));
    experts.emplace_back(module_of(name), found == modules.end() ? nullptr : &found->second);
    if (found == modules.end()) continue;
    const PeftModule& parts = found->second;
    if (parts.a == nullptr || parts.magnitude != nullptr || parts.bias != nullptr)
      fail(ErrorKind::file, file,
           "module {} is one of {} experts; expected plain LoRA there (lora_A and lora_B)",
           found->first, rule.foreign.size());
    if (parts.a->shape[1] != stack[2] || parts.b->shape[0] != stack[1])
      of_another_model(file,
                       fmt::format("lora_A {} and lora_B {}", format::shape_text(parts.a->shape),
                                   format::shape_text(parts.b->shape)),
                       found->first, {stack[1], stack[2]});
    check_rank(config, found->first, parts.a->shape[0], 1, file);
    rank = std::max(rank, parts.a->shape[0]);
  }
  Products out(stack[0], rank, stack[1], stack[2]);
  // a factor that experts do not share goes into B
  for (int64_t e = 0; e < stack[0]; ++e) {
    const auto& [module, parts] = experts[static_cast<size_t>(e)];
    if (parts == nullptr) continue;
    const TensorView a = as_float32(*parts->a), b = as_float32(*parts->b);
    const int64_t own = a.shape[0];
    const auto scale = static_cast<float>(config.scale_of(module, own));
    for (int64_t r = 0; r < own; ++r) {
      for (int64_t i = 0; i < stack[2]; ++i) out.a_at(e, r, i) = at(a, r, i);
      for (int64_t o = 0; o < stack[1]; ++o) out.b_at(e, o, r) = scale * at(b, o, r);
    }
    modules.erase(module);
  }
  return as_ours(rule.ours.front(), std::move(out), 1, false);
}

std::vector<AdapterTensors> read_packed_experts(const std::string& module,
                                                const PeftModule& parts,
                                                const Shapes& stacks,
                                                bool pairs,
                                                const PeftConfig& config,
                                                const std::string& file) {
  if (parts.a == nullptr || parts.magnitude != nullptr || parts.bias != nullptr)
    fail(ErrorKind::file, file, "module {} is experts; expected plain LoRA there", module);
  const PackedParameter place =
      parameter_of(module, parts.a->shape, parts.b->shape, stacks, config, file);
  std::string name = module;
  if (name.ends_with(kBase)) name.resize(name.size() - kBase.size());
  name += std::string(".") + place.parameter;
  check_rank(config, name, parts.a->shape[0], place.experts, file);
  const double scale = config.scale_of(name, parts.a->shape[0] / place.experts);
  Products all = unpacked(parts, place);
  std::vector<AdapterTensors> out;
  if (place.gate.empty()) {
    out.push_back(as_ours(place.up, std::move(all), scale, config.rslora()));
  } else {
    out.push_back(as_ours(place.gate, half_of(all, false, pairs), scale, config.rslora()));
    out.push_back(as_ours(place.up, half_of(all, true, pairs), scale, config.rslora()));
  }
  return out;
}

}  // namespace tessera::convert::peft
