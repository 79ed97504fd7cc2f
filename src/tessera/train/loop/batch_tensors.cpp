#include "tessera/train/loop/batch_tensors.h"

#include "tessera/infer/encoders/log_mel.h"

namespace tessera::train {
namespace {

Tensor feature_tensor(const FeatureInput& input) {
  if (input.sound == nullptr) return at::tensor(input.values, at::kFloat).reshape(input.shape);
  const int64_t rate = input.sound->rate;
  return infer::log_mel(*input.sound, {.rate = rate,
                                       .n_fft = rate / 40,
                                       .hop = rate / 100,
                                       .mels = input.mels,
                                       .samples = 0})
      .reshape(input.shape);
}

}  // namespace

nn::Batch batch_of(const PackedBatch& packed) {
  nn::Batch batch;
  int64_t row = -1, row_begin = 0;
  for (const PackedDocument& piece : packed.pieces) {
    if (piece.row != row) row = piece.row, row_begin = piece.begin;
    const size_t number = batch.segments.size();
    batch.segments.push_back({.row = static_cast<int64_t>(number),
                              .begin = piece.begin,
                              .length = piece.length,
                              .prefix = piece.prefix,
                              .order = packed.orders.empty() ? nullptr : packed.orders[number],
                              .sample = packed.first_sample + row,
                              .offset = piece.begin - row_begin});
  }
  batch.ids_N = at::tensor(packed.ids, at::kLong);
  for (const FeatureInput& input : packed.features) batch.features.push_back(feature_tensor(input));
  if (!packed.types.empty()) batch.types_N = at::tensor(packed.types, at::kLong);
  batch.number();
  return batch;
}

nn::Batch sources_of(const PackedBatch& packed) {
  nn::Batch sources = nn::Batch::of(packed.sources);
  int64_t row = -1, row_begin = 0;
  for (nn::Segment& s : sources.segments) {
    // sources of one row are adjacent, as their targets are
    const PackedDocument& piece = packed.pieces[static_cast<size_t>(s.row)];
    if (piece.row != row) row = piece.row, row_begin = s.begin;
    s.sample = packed.first_sample + row;
    s.offset = s.begin - row_begin;
  }
  return sources;
}

Tensor targets_of(const PackedBatch& packed) {
  return at::tensor(packed.targets, at::kLong);
}

std::vector<double> doubles_of(const Tensor& values) {
  const Tensor x = values.to(at::kCPU, at::kDouble).contiguous();
  return {x.const_data_ptr<double>(), x.const_data_ptr<double>() + x.numel()};
}

Tensor hidden_of(const model::Model& model,
                 const PackedBatch& packed,
                 const nn::Batch& batch,
                 model::ForwardOptions options,
                 nn::Encoded* encoded) {
  if (packed.sources.empty()) return model.hidden(batch, options);
  const nn::Encoded own = model.encode(sources_of(packed), options);
  options.encoded = &own;
  if (encoded != nullptr) *encoded = own;
  return model.hidden(batch, options);
}

}  // namespace tessera::train
