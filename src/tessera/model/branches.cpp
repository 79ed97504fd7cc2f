#include "tessera/model/branches.h"

#include "tessera/ops/weights/quantized_operands.h"

namespace tessera::model {
namespace {

std::string key_of(const ModelSpec& spec, const std::string& name) {
  return "output of " + spec.under(name);
}

class Aside final : public nn::Residual {
 public:
  nn::Stream forward(nn::Stream stream,
                     std::span<const nn::Branch> branches,
                     nn::Context& context) const override {
    branches[0].run(branches[0].input(stream.front(), context), context);
    return stream;
  }
};

}  // namespace

nn::Builder part_builder(const ModelSpec& spec,
                         int64_t layer,
                         const BranchSpec& branch,
                         const nn::Builder& layer_builder) {
  const std::string prefix = spec.prefix(layer, branch);
  // parameter names of a product, by product name
  std::map<std::string, std::pair<std::string, std::string>> adapters;
  for (size_t k = 0; k < branch.adapters.size(); ++k)
    for (const std::string& product : branch.adapters[k].of) {
      const std::string home = spec.adapter_prefix(layer, branch, k);
      adapters[prefix + "." + product + ".weight"] = {home + ".a.weight",
                                                      home + ".b." + product + ".weight"};
    }
  ops::OperandRounding rounding;
  std::set<std::string> rounded;
  for (const std::string& product : quantized_products(spec, layer, branch)) {
    rounding = {branch.quantization->ternary, branch.quantization->int8};
    rounded.insert(prefix + "." + product + ".weight");
  }
  const nn::WeightSource source = [layer_builder, adapters, rounded,
                                   rounding](const std::string& name) {
    nn::WeightPtr weight = layer_builder.absolute(name);
    if (rounded.contains(name)) weight = ops::with_rounding(weight, rounding);
    const auto found = adapters.find(name);
    if (found == adapters.end()) return weight;
    return std::make_shared<const ops::Weight>(
        ops::Weight::adapted(weight, layer_builder.absolute(found->second.first),
                             layer_builder.absolute(found->second.second)));
  };
  return {source, prefix, spec.scope(layer, branch)};
}

nn::Builder norm_builder(const ModelSpec& spec,
                         int64_t layer,
                         const BranchSpec& branch,
                         const std::string& name,
                         const nn::Builder& layer_builder) {
  const nn::WeightSource source = [layer_builder](const std::string& weight) {
    return layer_builder.absolute(weight);
  };
  return {source, spec.prefix(layer, branch) + "_" + name, spec.scope(layer, branch)};
}

nn::Builder residual_builder(const ModelSpec& spec,
                             int64_t layer,
                             const BranchSpec& branch,
                             const nn::Builder& layer_builder) {
  const nn::WeightSource source = [layer_builder](const std::string& weight) {
    return layer_builder.absolute(weight);
  };
  return {source, spec.prefix(layer, branch) + "_residual", spec.residual_scope(layer, branch)};
}

std::function<Tensor(const Tensor& x_ND, nn::Context&)> reader_of(const ModelSpec& spec,
                                                                  const BranchSpec& branch) {
  if (branch.reads_stream_alone()) return nullptr;
  const auto keys = [&](std::vector<std::string> names) {
    for (std::string& name : names) name = name == kStream ? "" : key_of(spec, name);
    return names;
  };
  return [inputs = keys(branch.inputs), add = keys(branch.add)](const Tensor& x_ND,
                                                                nn::Context& context) {
    const auto get = [&](const std::string& key) {
      return key.empty() ? x_ND : context.values.at(key);
    };
    std::vector<Tensor> side_by_side;
    for (const std::string& key : inputs) side_by_side.push_back(get(key));
    Tensor x = side_by_side.size() == 1 ? side_by_side[0] : at::cat(side_by_side, -1);
    for (const std::string& key : add) x = x + get(key);
    return x;
  };
}

void keep(nn::Context& context,
          const ModelSpec& spec,
          const std::string& name,
          const Tensor& x_ND) {
  context.values.put(key_of(spec, name), x_ND);
}

std::unique_ptr<nn::Residual> build_aside() {
  return std::make_unique<Aside>();
}

}  // namespace tessera::model
