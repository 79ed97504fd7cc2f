#include "tessera/cuda/packed.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/cuda/kernels.h"

namespace tessera::cuda {
namespace {

/// Calls body(Format()) with the format of a type.
template <class Body>
void with_format(DType type, const Body& body) {
  switch (type) {
#define TESSERA_PACKED_FORMAT(name, Format) \
  case DType::name:                         \
    return body(Format());
#include "tessera/cuda/packed_formats.def"
#undef TESSERA_PACKED_FORMAT
    default:
      fail(ErrorKind::internal, "cuda", "no kernel reads {}", name_of(type));
  }
}

template <class Kernel>
void launch_unpack(const typename Kernel::Arguments& in, const Stream& stream) {
  const int64_t stretches = in.rows * blocks_of(in.width, kStretch);
  launch<Kernel>({blocks_of(stretches, Kernel::kStretches)}, in, stream);
}

}  // namespace

bool reads_packed(DType type) {
  return std::ranges::find(kPackedTypes, type) != std::end(kPackedTypes);
}

void packed_product(DType type, const PackedProductArguments& in, const Stream& stream) {
  require(in.rows >= 0 && in.rows <= kMostPackedRows, "cuda",
          "a packed product of {} rows; expected 0 to {}", in.rows, kMostPackedRows);
  if (in.rows == 0) return;
  with_format(type, [&](auto format) {
    using Format = decltype(format);
    static_assert(PackedProductOfFew<Format>::kRows == kMostPackedRows);
    const Grid grid{blocks_of(in.outputs, PackedProductOfOne<Format>::kOutputs)};
    if (in.rows == 1)
      launch<PackedProductOfOne<Format>>(grid, in, stream);
    else
      launch<PackedProductOfFew<Format>>(grid, in, stream);
  });
}

void unpack(DType type, const UnpackArguments<float>& in, const Stream& stream) {
  with_format(type, [&](auto format) { launch_unpack<UnpackFloat<decltype(format)>>(in, stream); });
}

void unpack(DType type, const UnpackArguments<uint16_t>& in, const Stream& stream) {
  with_format(type, [&](auto format) { launch_unpack<UnpackBf16<decltype(format)>>(in, stream); });
}

}  // namespace tessera::cuda
