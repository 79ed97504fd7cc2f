// Images in the files of CIFAR-10 and CIFAR-100 (binary version) and in IDX format (MNIST), and as
// sequences of grey values, one byte a pixel. Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/format/image.h"
#include "tessera/train/data/data_file.h"

namespace tessera::train {

/// An image in a mapped file; copies keep the file open.
struct StoredImage {
  DataFile file;
  std::span<const std::byte> bytes;
  int64_t height = 0, width = 0, channels = 0;
  bool has_planes = false;  // the channels one after another
  std::string where;

  format::Image read() const;
};

/// Visits the images of a CIFAR file in colours. Records are a label and planes of red, green and
/// blue, 3,073 bytes, or with `fine` (CIFAR-100) a coarse and a fine label, 3,074 bytes. Throws
/// Error(file) for another size.
void for_each_cifar_record(const std::string& path,
                           bool fine,
                           const std::function<void(StoredImage image, int64_t label)>& visit);

/// Visits the images of an IDX file of bytes in three dimensions. Throws Error(file) for another
/// header or size.
void for_each_idx_record(const std::string& path,
                         const std::function<void(StoredImage image)>& visit);

/// Visits the images of a CIFAR-10 file, records of 3,073 bytes: the label and the planes of red,
/// green and blue. `pixels`: 1,024 grey values, floor((.2989 R + .5870 G + .1140 B) / 255 * 255.5).
/// Throws Error(file) for another size.
void for_each_cifar_image(
    const std::string& path,
    const std::function<void(std::string pixels, int64_t label, const std::string& where)>& visit);

/// Visits the images of an IDX file of bytes in three dimensions: the number, rows, columns. Throws
/// Error(file) for another header or size.
void for_each_idx_image(
    const std::string& path,
    const std::function<void(std::string pixels, const std::string& where)>& visit);

/// The labels of an IDX file of bytes in one dimension; nullopt for a file that is none. Throws
/// Error(file) for one of another size.
std::optional<std::vector<int64_t>> read_idx_labels(const std::string& path);

/// The bytes of IDX files. `side`: rows and columns.
std::string idx_images(const std::vector<std::vector<uint8_t>>& images, int64_t side);
std::string idx_labels(const std::vector<int64_t>& labels);

}  // namespace tessera::train
