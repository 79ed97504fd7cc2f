#include "tessera/nn/embed/patches.h"

namespace tessera::nn {

void PatchesConfig::check(const spec::Scope& scope) const {
  require_encoder("patches", scope);
  if ((height > 0 && height < patch) || (width > 0 && width < patch_width))
    fail(ErrorKind::spec, scope.path,
         "images of {} x {} pixels hold no patch of {} x {}; expected larger ones", height, width,
         patch, patch_width);
}

void PatchesConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("patch", scope.d_model, pixels(), bias);
  if (class_token != ClassToken::none)
    list.add({"class", {scope.d_model}, spec::Init::table(), spec::ParamKind::structural});
  declare_position_and_norm(list, scope);
}

int64_t PatchesConfig::tokens(const std::vector<int64_t>& shape) const {
  if (shape.size() != 3 || shape[0] != channels || shape[1] < patch || shape[2] < patch_width)
    return 0;
  if ((height > 0 && shape[1] != height) || (width > 0 && shape[2] != width)) return 0;
  const int64_t rows = (shape[1] - patch) / stride + 1,
                columns = (shape[2] - patch_width) / stride_width + 1;
  return rows * columns + (class_token != ClassToken::none ? 1 : 0);
}

std::vector<int64_t> PatchesConfig::shape_of(int64_t n) const {
  const int64_t patches = std::max<int64_t>(1, n - (class_token != ClassToken::none ? 1 : 0));
  const int64_t rows = ((height > 0 ? height : patch) - patch) / stride + 1,
                columns = (patches + rows - 1) / rows;
  return {channels, height > 0 ? height : patch,
          width > 0 ? width : patch_width + (columns - 1) * stride_width};
}

}  // namespace tessera::nn
