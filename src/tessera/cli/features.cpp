#include "tessera/cli/features.h"

#include "tessera/format/wav.h"
#include "tessera/infer/encoders/log_mel.h"
#include "tessera/nn/embed/frames.h"

namespace tessera::cli {

const model::ModelSpec& reader_of(const model::ModelSpec& spec) {
  return spec.encoder ? *spec.encoder : spec;
}

const nn::FeatureEmbedConfig* features_of(const model::ModelSpec& spec) {
  return dynamic_cast<const nn::FeatureEmbedConfig*>(reader_of(spec).embed.config.get());
}

Tensor spectrogram(const std::string& path, const model::ModelSpec& spec, const char* verb) {
  const auto* frames = dynamic_cast<const nn::FramesConfig*>(features_of(spec));
  if (frames == nullptr)
    fail(ErrorKind::usage, verb, "--audio with a model that reads no sound; leave it out");
  infer::LogMelOptions options;
  options.mels = frames->channels;
  return infer::log_mel(format::mono(format::open_wav(path)), options);
}

}  // namespace tessera::cli
