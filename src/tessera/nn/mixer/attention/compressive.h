// Compressive Transformer: Transformer-XL whose memory, when it overflows, is compressed instead of
// forgotten, `rate` inputs into one slot.
//   keys, values = W [compressed; memory; x];   compressed = last n of f(blocks that left memory)
// Rae et al. 2019, arXiv:1911.05507.
//
// Blocks of `rate` tokens are counted from the document's beginning; a block stays in the memory
// until it has left it whole, so that nothing of the reach is lost. With n_compressed = 0 this is
// transformer_xl. Gradients stop at both memories. The compression, where it has parameters, learns
// from a loss of its own: what each segment reads, by content alone, from the compressed block
// should be what it would have read from the block,
//   sum over segments of |attend(x, old) - attend(x, f(old))|^2,
// with everything but f held fixed.
#pragma once

#include "tessera/nn/mixer/attention/segment_config.h"

namespace tessera::nn {

enum class Compression {
  mean,
  max,
  conv,          // a linear map of the block's inputs: a convolution of width and stride `rate`
  dilated_conv,  // the same of every `dilation`-th input up to the block's last, zero before the
                 // document
};
enum class SlotDistance {
  index,   // slots count as one token each
  scaled,  // slots stand where their blocks began
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::Compression> {
  using C = nn::Compression;
  static constexpr std::array names{std::pair{C::mean, "mean"}, std::pair{C::max, "max"},
                                    std::pair{C::conv, "conv"},
                                    std::pair{C::dilated_conv, "dilated_conv"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::SlotDistance> {
  using S = nn::SlotDistance;
  static constexpr std::array names{std::pair{S::index, "index"}, std::pair{S::scaled, "scaled"}};
};

namespace tessera::nn {

struct CompressiveConfig final : SegmentConfig {
  int64_t n_compressed = 0;
  int64_t rate = 3;
  Compression compression = Compression::conv;
  int64_t dilation = 1;
  SlotDistance distance = SlotDistance::index;
  double reconstruction = 1;

  static constexpr auto fields() {
    using C = CompressiveConfig;
    using spec::field;
    return std::tuple{
        field("n_heads", &C::n_heads, "heads", {.min = 1, .required = true}),
        field("head_dim", &C::head_dim, "width of one head; 0 = d_model / n_heads", {.min = 0}),
        field("segment", &C::segment, "tokens of a segment", {.min = 1, .required = true}),
        field("mem_len", &C::mem_len, "tokens before a segment that it sees; 0 = none",
              {.min = 0, .required = true}),
        field("n_compressed", &C::n_compressed, "slots of the compressed memory; 0 = none",
              {.min = 0, .required = true}),
        field("rate", &C::rate, "tokens that become one slot", {.min = 1}),
        field("compression", &C::compression, "how they become one"),
        field("dilation", &C::dilation, "tokens from one input of dilated_conv to the next",
              {.min = 1}),
        field("distance", &C::distance, "how far away a slot is"),
        field("position", &C::position, "what the scores gain", {.part = "xl"}),
        field("dropout", &C::dropout, "probability on the attention weights, in training",
              {.min = 0, .below = 1}),
        field("reconstruction", &C::reconstruction,
              "weight of the loss from which the compression learns", {.min = 0})};
  }
  static spec::Json example(const spec::Scope&, int64_t) {
    return {{"segment", 128}, {"mem_len", 128}, {"n_compressed", 64}};
  }
  static spec::Info info() {
    return {.summary =
                "Transformer-XL with a second memory of compressed blocks; gradients stop "
                "at both.",
            .paper =
                "Rae et al.: Compressive Transformers for Long-Range Sequence Modelling, "
                "arXiv:1911.05507",
            .year = 2019,
            .forms = {.recurrent = true}};
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
  int64_t reach() const override {
    const int64_t slots = distance == SlotDistance::scaled ? n_compressed * rate : n_compressed;
    return mem_len + segment + rate + slots;
  }

  bool learns() const {
    return n_compressed > 0 &&
           (compression == Compression::conv || compression == Compression::dilated_conv);
  }
  /// Tokens before its own block that a slot also reads.
  int64_t lead() const {
    return compression == Compression::dilated_conv ? (rate - 1) * (dilation - 1) : 0;
  }
  /// The first token that the segment beginning at `segment` sees uncompressed.
  int64_t first_in_memory(int64_t segment) const {
    const int64_t left = std::max<int64_t>(0, segment - mem_len);
    return n_compressed == 0 ? left : left / rate * rate;
  }
};

}  // namespace tessera::nn
