// Expressions of family files: whatever the bytes are, parsing and evaluating them ends with a
// value or an Error.
#include <cstdint>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/convert/environment.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera::convert;
  try {
    const Expr expr = Expr::parse({reinterpret_cast<const char*>(data), size}, "fuzz");
    std::set<std::string> paths;
    expr.collect_paths("config", paths);
    Environment env;
    env.constant("config",
                 {{"a", 1}, {"b", {{"c", {1.5, "x", nullptr}}}}, {"s", "gated-gelu"}, {"t", true}});
    env.constant("n", 7);
    expr.evaluate(env);
  } catch (const tessera::Error&) {
  }
  return 0;
}
