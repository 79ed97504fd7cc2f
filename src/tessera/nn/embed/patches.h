// Patches of images: what a patch of p x p pixels holds, projected, is a token; patches may
// overlap.
//   x_i = W vec(patch_i) + b,  patches row by row;  x = dropout(N([class; x] + P))
// which is a convolution of kernel p and step s. A learned class token may stand at the front, in
// the middle (after floor(n / 2) patches) or at the end. Dosovitskiy et al. 2020, arXiv:2010.11929
// (ViT); in the middle: Zhu et al. 2024, arXiv:2401.09417; overlapping, of spectrograms: Gong et
// al. 2021, arXiv:2104.01778. Golden: tools/golden/features.py.
#pragma once

#include "tessera/nn/embed/feature_embed.h"

namespace tessera::nn {

enum class ClassToken { none, first, middle, last };

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::ClassToken> {
  using C = nn::ClassToken;
  static constexpr std::array names{std::pair{C::none, "none"}, std::pair{C::first, "first"},
                                    std::pair{C::middle, "middle"}, std::pair{C::last, "last"}};
};

namespace tessera::nn {

struct PatchesConfig final : FeatureEmbedConfig {
  int64_t channels = 3;
  int64_t patch = 16;
  int64_t patch_width = 0;
  int64_t stride = 0;
  int64_t stride_width = 0;
  int64_t height = 0;
  int64_t width = 0;
  bool bias = true;
  ClassToken class_token = ClassToken::none;

  static constexpr auto fields() {
    using C = PatchesConfig;
    using spec::field;
    return std::tuple_cat(
        std::tuple{
            field("channels", &C::channels, "colours of a pixel", {.min = 1}),
            field("patch", &C::patch, "height of a patch, in pixels", {.min = 1}),
            field("patch_width", &C::patch_width, "its width; 0 = patch", {.min = 0}),
            field("stride", &C::stride, "rows from one patch to the next; 0 = patch", {.min = 0}),
            field("stride_width", &C::stride_width,
                  "columns from one to the next; 0 = stride where that is given, else patch_width",
                  {.min = 0}),
            field("height", &C::height, "rows of pixels that every image has; 0 = any number",
                  {.min = 0}),
            field("width", &C::width, "columns that every image has; 0 = any number", {.min = 0}),
            field("bias", &C::bias, "whether the projection has a bias"),
            field("class_token", &C::class_token, "where a learned token stands among them")},
        common_fields<C>());
  }
  static spec::Info info() {
    return {.summary = "Patches of images, each projected to a token.",
            .paper = "Dosovitskiy et al.: An Image is Worth 16x16 Words, arXiv:2010.11929",
            .year = 2020,
            .causality = spec::Causality::none,
            .forms = {}};
  }
  void complete(const spec::Scope&) override {
    if (patch_width == 0) patch_width = patch;
    if (stride_width == 0) stride_width = stride > 0 ? stride : patch_width;
    if (stride == 0) stride = patch;
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;

  std::string input() const override { return "pixel_values"; }
  std::string shape_text() const override {
    if (height > 0 && width > 0) return fmt::format("[{}, {}, {}]", channels, height, width);
    const auto side = [](int64_t fixed, const char* name) {
      return fixed > 0 ? std::to_string(fixed) : std::string(name);
    };
    return fmt::format("[{}, {}, {}], no smaller than {} x {}", channels, side(height, "height"),
                       side(width, "width"), patch, patch_width);
  }
  int64_t tokens(const std::vector<int64_t>& shape) const override;
  std::vector<int64_t> shape_of(int64_t n) const override;
  /// Numbers of a patch.
  int64_t pixels() const { return channels * patch * patch_width; }
};

}  // namespace tessera::nn
