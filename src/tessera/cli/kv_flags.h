// How a run keeps keys and values: the same two flags for every verb that makes states.
#pragma once

#include "tessera/cli/cli.h"
#include "tessera/model/kept_bits.h"
#include "tessera/spec/kv_type.h"

namespace tessera::cli {

/// "f32 stays in layers.1.mixer (hyena), ...", "" where nothing else than `type` is kept per token.
inline std::string full_layers(const model::ModelSpec& spec, spec::KvType type) {
  if (type == spec::KvType::f32) return "";
  const std::vector<std::string> names = model::kept_in_full(spec);
  return names.empty() ? "" : fmt::format("f32 stays in {}", model::some_of(names));
}

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
  /// Refuses a type that nothing would be kept in; else one line to stderr names the layers that
  /// keep all bits all the same.
  void check(const model::ModelSpec& spec) const {
    model::check_kv_type(spec, options().type);
    const std::string full = full_layers(spec, options().type);
    if (!full.empty()) fmt::print(stderr, "kv-type {}: {}\n", type, full);
  }
};

}  // namespace tessera::cli
