#include "tessera/ops/weights/lookup_tables.h"

#include <map>
#include <memory>
#include <mutex>

#include "tessera/base/float8.h"
#include "tessera/base/half.h"
#include "tessera/kernels/weights/block_codes.h"
#include "tessera/kernels/weights/blocks.h"
#include "tessera/kernels/weights/codebooks.h"

namespace tessera::ops {
namespace {

/// [rows, columns] of value(row, column), on the device.
template <class Value>
Tensor table(int64_t rows, int64_t columns, at::Device device, const Value& value) {
  const Tensor out = at::empty({rows, columns}, at::kFloat);
  auto* to = out.mutable_data_ptr<float>();
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column)
      *to++ = static_cast<float>(value(row, column));
  return out.to(device);
}

Tensor halves(const int8_t (&levels)[16], at::Device device) {
  return table(256, 2, device,
               [&](int64_t byte, int64_t half) { return levels[byte >> (4 * half) & 15]; });
}

template <class Word, size_t n>
Tensor book(const Word (&entries)[n], int divisor, at::Device device) {
  return table(n, sizeof(Word), device, [&](int64_t entry, int64_t e) {
    return static_cast<int8_t>(entries[entry] >> (8 * e)) / divisor;
  });
}

LookupTables made(at::Device device) {
  const kernels::CodeBooks& books = kernels::kCodeBooks;
  const auto sign = [](int64_t signs, int64_t e) { return (signs >> e & 1) != 0 ? -1 : 1; };
  return {
      .levels = halves(kernels::kLevels, device),
      .twice_e2m1 = halves(kernels::kTwiceE2m1, device),
      .half_of_e8m0 = table(
          256, 1, device,
          [](int64_t byte, int64_t) { return tessera::half_of_e8m0(static_cast<uint8_t>(byte)); }),
      .e4m3 =
          table(256, 1, device,
                [](int64_t byte, int64_t) { return e4m3_to_float(static_cast<uint8_t>(byte)); }),
      .iq2_xxs = book(books.iq2_xxs, 1, device),
      .iq2_xs = book(books.iq2_xs, 1, device),
      .iq2_s = book(books.iq2_s, 1, device),
      .iq1 = book(books.iq1, 8, device),
      .iq3_xxs = book(books.iq3_xxs, 1, device),
      .iq3_s = book(books.iq3_s, 1, device),
      .even_signs =
          table(128, 8, device,
                [&](int64_t index, int64_t e) { return sign(books.even_signs[index], e); }),
      .signs = table(256, 8, device, sign),
  };
}

}  // namespace

const LookupTables& lookup_tables(at::Device device) {
  static std::mutex mutex;
  // never freed: at the end of the process a device's allocator may be gone before
  static auto& known = *new std::map<std::pair<at::DeviceType, int>, LookupTables>;
  const std::lock_guard lock(mutex);
  const auto key = std::pair(device.type(), static_cast<int>(device.index()));
  const auto at = known.find(key);
  return at != known.end() ? at->second : known.emplace(key, made(device)).first->second;
}

}  // namespace tessera::ops
