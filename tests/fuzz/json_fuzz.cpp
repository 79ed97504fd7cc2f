// The first byte says whether comments are allowed.
#include "fuzz.h"

#include "tessera/spec/json.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(json) {
  if (input.empty()) return;
  spec::JsonLimits limits;
  limits.comments = std::to_integer<int>(input[0]) % 2 == 1;
  fuzz::run([&] {
    const spec::Json json = spec::parse_json(fuzz::text_of(input.subspan(1)), "fuzz", limits);
    fuzz::check(spec::parse_json(json.dump(), "fuzz") == json, "what is written reads the same");
  });
}
