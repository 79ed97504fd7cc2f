#include "fuzz.h"

#include "tessera/spec/json.h"

using namespace tessera;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  spec::JsonLimits limits;
  limits.comments = data[0] % 2 == 1;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  return fuzz::run([&] {
    const spec::Json json = spec::parse_json(text, "fuzz", limits);
    fuzz::check(spec::parse_json(json.dump(), "fuzz") == json, "what is written reads the same");
  });
}
