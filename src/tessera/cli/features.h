// Inputs of commands other than token ids: images, audio.
#pragma once

#include <string>

#include "tessera/model/model_spec.h"
#include "tessera/nn/embed/feature_embed.h"
#include "tessera/ops/tensor.h"

namespace tessera::cli {

/// The stack that reads the model's input: the encoder, if there is one.
const model::ModelSpec& reader_of(const model::ModelSpec& spec);

/// The features that this stack reads instead of ids, nullptr for ids.
const nn::FeatureEmbedConfig* features_of(const model::ModelSpec& spec);

/// The log-mel spectrogram [mels, frames] of a WAV file, for a model with embed "frames". Throws
/// Error(usage), in the name of `verb`, for a model without audio input.
Tensor spectrogram(const std::string& path, const model::ModelSpec& spec, const char* verb);

}  // namespace tessera::cli
