// Images as sequences of grey values, one byte a pixel, from the files of CIFAR-10 (binary version)
// and in IDX format (MNIST). Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tessera::train {

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
