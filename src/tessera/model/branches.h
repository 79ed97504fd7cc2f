// What the layers of a stack say of a branch beyond its part: where its weights are kept, what
// adapts them, and what it reads. Internal to model/.
#pragma once

#include "tessera/model/model_spec.h"
#include "tessera/nn/parts.h"

namespace tessera::model {

/// Hands the part of a branch its weights, with their adapters; `layer_builder` finds any of them.
nn::Builder part_builder(const ModelSpec& spec,
                         int64_t layer,
                         const BranchSpec& branch,
                         const nn::Builder& layer_builder);
/// The same for the norm that stands beside the branch under `name`.
nn::Builder norm_builder(const ModelSpec& spec,
                         int64_t layer,
                         const BranchSpec& branch,
                         const std::string& name,
                         const nn::Builder& layer_builder);

/// The same for what its residual keeps for it: "mixer_residual".
nn::Builder residual_builder(const ModelSpec& spec,
                             int64_t layer,
                             const BranchSpec& branch,
                             const nn::Builder& layer_builder);

/// Branch::read of a branch; null where it reads the stream alone.
std::function<Tensor(const Tensor& x_ND, nn::Context&)> reader_of(const ModelSpec& spec,
                                                                  const BranchSpec& branch);
/// Keeps the embedding, or the output of a branch, for branches that read it.
void keep(nn::Context& context, const ModelSpec& spec, const std::string& name, const Tensor& x_ND);

/// Leaves the stream as it is: the output of the branch is for others to read.
std::unique_ptr<nn::Residual> build_aside();

}  // namespace tessera::model
