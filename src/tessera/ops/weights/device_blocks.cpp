#include "tessera/ops/weights/device_blocks.h"

#include <algorithm>

#include "tessera/ops/form.h"
#include "tessera/ops/weights/packed_product.h"
#include "tessera/ops/weights/unpack.h"

namespace tessera::ops {
namespace {

/// Numbers of a tile: 64 MiB of float32, which keeps a device busy.
constexpr int64_t kDeviceTile = int64_t{1} << 24;

/// The inverse of the order of the columns of each matrix.
Tensor places_of(const int32_t* columns, int64_t matrices, int64_t width, at::Device device) {
  if (columns == nullptr) return {};
  const Tensor places = at::empty({matrices, width}, at::kLong);
  for (int64_t m = 0; m < matrices; ++m)
    for (int64_t c = 0; c < width; ++c)
      places.mutable_data_ptr<int64_t>()[m * width + columns[m * width + c]] = c;
  return places.to(device);
}

int64_t matrices_in(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (size_t axis = 0; axis + 2 < shape.size(); ++axis) n *= shape[axis];
  return n;
}

}  // namespace

DeviceBlocks::DeviceBlocks(DType dtype,
                           std::vector<int64_t> shape,
                           const Tensor& bytes,
                           ColumnsPtr columns)
    : Storage(dtype, std::move(shape)),
      rows_RB_(bytes.reshape({-1, storage_bytes(dtype, this->shape().back())})),
      columns_(std::move(columns)),
      place_MI_(places_of(
          columns_.get(), matrices_in(this->shape()), this->shape().back(), bytes.device())) {}

DeviceBlocks::DeviceBlocks(
    DType dtype, std::vector<int64_t> shape, Tensor rows, ColumnsPtr columns, Tensor at)
    : Storage(dtype, std::move(shape)),
      rows_RB_(std::move(rows)),
      columns_(std::move(columns)),
      place_MI_(std::move(at)) {}

int64_t DeviceBlocks::rows_of_matrix() const {
  return shape().size() < 2 ? 1 : shape()[shape().size() - 2];
}

Tensor DeviceBlocks::in_their_order(const Tensor& rows_RI, int64_t m) const {
  return place_MI_.defined() ? rows_RI.index_select(1, place_MI_.select(0, m)) : rows_RI;
}

Tensor DeviceBlocks::decode(int64_t begin, int64_t count, at::ScalarType type) const {
  const Tensor rows = unpacked(dtype(), rows_RB_.narrow(0, begin, count), type);
  if (!place_MI_.defined()) return rows;
  std::vector<Tensor> parts;
  for (int64_t at = begin; at < begin + count;) {
    const int64_t m = at / rows_of_matrix();
    const int64_t n = std::min(begin + count, (m + 1) * rows_of_matrix()) - at;
    parts.push_back(in_their_order(rows.narrow(0, at - begin, n), m));
    at += n;
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

template <class Body>
void DeviceBlocks::for_tiles(at::ScalarType type, Body body) const {
  const int64_t most = std::max<int64_t>(1, kDeviceTile / std::max<int64_t>(1, size(1)));
  for (int64_t first = 0; first < size(0); first += most)
    body(first, decode(first, std::min(most, size(0) - first), type));
}

Tensor DeviceBlocks::tensor() const {
  return decode(0, rows_RB_.size(0)).reshape(shape());
}

Tensor DeviceBlocks::matrix(at::Device device, at::ScalarType type) const {
  return device == this->device() ? decode(0, rows_RB_.size(0), type).reshape(shape())
                                  : Storage::matrix(device, type);
}

StoragePtr DeviceBlocks::slice(int64_t index) const {
  std::vector<int64_t> own(shape().begin() + 1, shape().end());
  require(columns_ == nullptr || shape().size() > 2, "weight", "a row of ordered columns");
  const int64_t rows = rows_RB_.size(0) / size(0);
  ColumnsPtr columns;
  Tensor places;
  if (columns_ != nullptr) {
    const int64_t matrices = place_MI_.size(0) / size(0);
    columns = {columns_, columns_.get() + index * matrices * own.back()};
    places = place_MI_.narrow(0, index * matrices, matrices);
  }
  return StoragePtr(new DeviceBlocks(dtype(), std::move(own),
                                     rows_RB_.narrow(0, index * rows, rows), std::move(columns),
                                     std::move(places)));
}

StoragePtr DeviceBlocks::to(at::Device device) const {
  if (device == this->device()) return shared_from_this();
  const auto bytes = std::make_shared<const Tensor>(rows_RB_.to(device).contiguous());
  if (on_host(device))
    return std::make_shared<const BlockStorage>(dtype(), shape(), bytes->const_data_ptr(), bytes,
                                                columns_);
  return std::make_shared<const DeviceBlocks>(dtype(), shape(), *bytes, columns_);
}

Tensor DeviceBlocks::unrecorded_product(const Tensor& x, const Tensor& bias_O) const {
  const at::NoGradGuard constant;
  const Tensor input = x.detach();
  if (!place_MI_.defined() && packed_product_serves(dtype(), input))
    return packed_product(dtype(), rows_RB_, input, bias_O);
  std::vector<Tensor> parts;
  for_tiles(x.scalar_type(), [&](int64_t first, const Tensor& tile_RI) {
    const Tensor b =
        bias_O.defined()
            ? bias_O.detach().narrow(0, first, tile_RI.size(0)).to(x.device(), x.scalar_type())
            : Tensor();
    parts.push_back(at::linear(input, tile_RI, b));
  });
  return parts.size() == 1 ? parts[0] : at::cat(parts, -1);
}

Tensor DeviceBlocks::product(const Tensor& x,
                             const SharedInput* shared,
                             const Tensor& bias_O,
                             const ProductSettings& settings) const {
  if (x.device() != device()) return Storage::product(x, shared, bias_O, settings);
  return at::GradMode::is_enabled() ? constant_product(x, bias_O) : unrecorded_product(x, bias_O);
}

Tensor DeviceBlocks::transposed(const Tensor& y) const {
  if (y.device() != device()) return Storage::transposed(y);
  Tensor x;
  for_tiles(y.scalar_type(), [&](int64_t first, const Tensor& tile_RI) {
    const Tensor part = y.narrow(-1, first, tile_RI.size(0)).matmul(tile_RI);
    x = x.defined() ? x + part : part;
  });
  return x;
}

Tensor DeviceBlocks::rows(const Tensor& ids_N) const {
  const Tensor own = rows_RB_.index_select(0, ids_N.to(device(), at::kLong).flatten());
  return in_their_order(unpacked(dtype(), own), 0);
}

}  // namespace tessera::ops
