#include "fuzz.h"

#include <cmath>

#include "tessera/format/wav.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(wav) {
  fuzz::run([&] {
    const format::Sound sound = format::read_wav(input, "fuzz");
    fuzz::check(sound.channels > 0 && sound.rate > 0, "a sound has channels and a rate");
    fuzz::check(sound.samples.size() <= input.size() &&
                    sound.samples.size() % static_cast<size_t>(sound.channels) == 0,
                "samples lie in the file, as many of every channel");
    fuzz::check(std::all_of(sound.samples.begin(), sound.samples.end(),
                            [](float x) { return std::isfinite(x); }),
                "samples are finite");
    const size_t moments = sound.samples.size() / static_cast<size_t>(sound.channels);
    fuzz::check(format::mono(sound).samples.size() == moments, "the mean has a number a moment");
  });
}
