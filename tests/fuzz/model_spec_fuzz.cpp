// Specs are untrusted: any JSON either resolves to a spec that reads back as itself, or is refused
// with an Error.
#include <cstdint>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/model/plan.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  try {
    spec::JsonLimits limits;
    limits.comments = true;
    limits.max_bytes = 1 << 16;
    const model::ModelSpec spec = model::read_model_spec(
        spec::parse_json({reinterpret_cast<const char*>(data), size}, "fuzz", limits));
    const spec::Json resolved = model::resolve(spec);
    if (model::resolve(model::read_model_spec(resolved)) != resolved) __builtin_trap();
    model::make_plan(spec, 100);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::internal) __builtin_trap();
  }
  return 0;
}
