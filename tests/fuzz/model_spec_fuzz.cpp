// Specs are untrusted: any JSON either resolves to a spec that reads back as itself, or is refused
// with an Error.
#include "fuzz.h"

#include "tessera/model/plan.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(model_spec) {
  fuzz::run(
      [&] {
        spec::JsonLimits limits;
        limits.comments = true;
        limits.max_bytes = 1 << 16;
        const model::ModelSpec spec =
            model::read_model_spec(spec::parse_json(fuzz::text_of(input), "fuzz", limits));
        const spec::Json resolved = model::resolve(spec);
        fuzz::check(model::resolve(model::read_model_spec(resolved)) == resolved,
                    "a resolved spec reads back as itself");
        model::make_plan(spec, 100);
      },
      {ErrorKind::file, ErrorKind::spec});
}
