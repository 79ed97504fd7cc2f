// How a run keeps keys and values: the same two flags for every verb that makes states.
#pragma once

#include "tessera/cli/cli.h"
#include "tessera/spec/kv_type.h"

namespace tessera::cli {

struct KvFlags {
  std::string type = "f32";
  int64_t page = spec::kDefaultKvPage;

  void add(CLI::App& app) {
    app.add_option("--kv-type", type,
                   "how keys and values are kept: " + spec::kv_type_names() +
                       "; int8 and fp8 take a quarter of the memory")
        ->capture_default_str();
    app.add_option("--kv-page", page,
                   "tokens per page of keys and values, 0 = no pages; the text is the same")
        ->capture_default_str()
        ->check(not_negative());
  }
  spec::KvOptions options() const { return {spec::kv_type_named(type), page}; }
};

}  // namespace tessera::cli
