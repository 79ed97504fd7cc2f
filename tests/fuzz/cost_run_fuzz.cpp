// What `bench mixers --from` reads: a run that was written as JSON, and all that is made of it.
#include "fuzz.h"

#include "tessera/analysis/cost_report.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(cost_run) {
  fuzz::run([&] {
    const auto run =
        analysis::cost_run_from_json(spec::parse_json(fuzz::text_of(input), "fuzz"), "fuzz");
    const spec::Json json = analysis::to_json(run);
    fuzz::check(analysis::to_json(analysis::cost_run_from_json(json, "again")) == json,
                "what is written reads the same");
    analysis::cost_text(run);
    analysis::cost_markdown(run, {});
    analysis::cost_csv(run);
    for (const auto pass : {analysis::Pass::forward, analysis::Pass::backward})
      for (const bool memory : {false, true}) analysis::cost_svg(run, pass, memory);
  });
}
