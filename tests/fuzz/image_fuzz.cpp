#include "fuzz.h"

#include "tessera/format/image.h"
#include "tessera/format/png.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(image) {
  fuzz::run([&] {
    const format::Image image = format::read_image(input, "fuzz");
    fuzz::check(image.height > 0 && image.width > 0 && (image.channels == 1 || image.channels == 3),
                "an image has pixels");
    fuzz::check(
        image.pixels.size() == static_cast<size_t>(image.height * image.width * image.channels),
        "an image has all of its pixels");
    fuzz::check(format::is_png(input) || image.pixels.size() <= input.size(),
                "pixels that are not compressed lie in the file");
    const std::string again = format::pnm_of(image);
    fuzz::check(format::read_image(std::as_bytes(std::span(again)), "again").pixels == image.pixels,
                "an image reads back");
  });
}
