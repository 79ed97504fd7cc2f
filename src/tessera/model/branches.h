// Weights, adapters and inputs of the branches in a stack's layers. Internal to model/.
#pragma once

#include "tessera/model/model_spec.h"
#include "tessera/nn/parts.h"

namespace tessera::model {

/// Gives the part of a branch its weights, with their adapters; `layer_builder` finds any of them.
nn::Builder part_builder(const ModelSpec& spec,
                         int64_t layer,
                         const BranchSpec& branch,
                         const nn::Builder& layer_builder);
/// The same for the norm `name` of the branch.
nn::Builder norm_builder(const ModelSpec& spec,
                         int64_t layer,
                         const BranchSpec& branch,
                         const std::string& name,
                         const nn::Builder& layer_builder);

/// The same for the residual's parameters of the branch: "mixer_residual".
nn::Builder residual_builder(const ModelSpec& spec,
                             int64_t layer,
                             const BranchSpec& branch,
                             const nn::Builder& layer_builder);

/// Branch::read of a branch; null if it reads only the stream.
std::function<Tensor(const Tensor& x_ND, nn::Context&)> reader_of(const ModelSpec& spec,
                                                                  const BranchSpec& branch);
/// Stores the embedding, or the output of a branch, for branches that read it.
void keep(nn::Context& context, const ModelSpec& spec, const std::string& name, const Tensor& x_ND);

/// A residual that does not change the stream: other branches read the output.
std::unique_ptr<nn::Residual> build_aside();

}  // namespace tessera::model
