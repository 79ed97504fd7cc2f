// What verbs read in place of token ids: images, sound.
#pragma once

#include <string>

#include "tessera/model/model_spec.h"
#include "tessera/nn/embed/feature_embed.h"
#include "tessera/ops/tensor.h"

namespace tessera::cli {

/// The stack that reads what a model is given: the encoder, where there are two.
const model::ModelSpec& reader_of(const model::ModelSpec& spec);

/// What that stack reads instead of ids, nullptr where it reads ids.
const nn::FeatureEmbedConfig* features_of(const model::ModelSpec& spec);

/// The log-mel spectrogram [mels, frames] of a WAV file, as a model with embed "frames" reads it.
/// Throws Error(usage), in the name of `verb`, for a model that reads no sound.
Tensor spectrogram(const std::string& path, const model::ModelSpec& spec, const char* verb);

}  // namespace tessera::cli
