// Expressions of family files: whatever the bytes are, parsing and evaluating them ends with a
// value or an Error.
#include "fuzz.h"

#include "tessera/convert/environment.h"

using namespace tessera;
using namespace tessera::convert;

TESSERA_FUZZ_TARGET(family_expr) {
  fuzz::run(
      [&] {
        const Expr expr = Expr::parse(fuzz::text_of(input), "fuzz");
        std::set<std::string> paths;
        expr.collect_paths("config", paths);
        Environment env;
        env.constant(
            "config",
            {{"a", 1}, {"b", {{"c", {1.5, "x", nullptr}}}}, {"s", "gated-gelu"}, {"t", true}});
        env.constant("n", 7);
        expr.evaluate(env);
      },
      {ErrorKind::file, ErrorKind::spec, ErrorKind::resource});
}
