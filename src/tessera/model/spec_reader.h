// Shared by parsing a single stack and a pair of stacks. Internal to model/.
#pragma once

#include <optional>

#include "tessera/model/model_spec.h"
#include "tessera/spec/names.h"
#include "tessera/spec/placed.h"

namespace tessera::model {

using spec::check_keys;

/// Most tokens of a vocabulary, and channels.
inline constexpr int64_t kMaxWidth = int64_t{1} << 24;

/// The integer at `key`, from low to high; `fallback` if it is absent or null.
int64_t read_integer(const Json& json,
                     const char* key,
                     int64_t low,
                     int64_t high,
                     std::optional<int64_t> fallback,
                     const std::string& path);

/// The member of an object, or nullptr.
const Json* get(const Json& json, const char* key);

/// Defaults of a layer.
struct LayerDefaults {
  Json norm, residual, depth;  // parts; depth may be null
  Json quantization;           // or null
  const Json* mixer = nullptr;
  const Json* cross = nullptr;
  const Json* ffn = nullptr;
};
/// One invocation of a layer; `scope` has its position and path, `before` the parts before it in
/// its stack: its own mixers and feed-forward parts are appended.
LayerSpec read_layer(const Json& json,
                     const LayerDefaults& defaults,
                     const spec::Scope& scope,
                     std::vector<spec::Placed>& before);
Json dump_layer(const LayerSpec& layer);
/// `json` may have "quantization", a default of these layers; throws Error(spec) if it names a
/// product that none of their parts has. `path` is that of `json`.
void check_rounded_names(const Json& json,
                         const std::vector<const LayerSpec*>& layers,
                         const std::string& path);
/// Throws Error(spec) if one id names two different layers or branches.
void check_shared(const ModelSpec& spec, const std::string& path);

/// The keys of a stack: embed, layers and their defaults, final_norm.
const std::vector<std::string>& stack_keys();
/// Parses them into `out`, whose arch, widths and encoder are set; `path` is "" for the spec
/// itself.
void read_stack(const Json& json, const std::string& path, ModelSpec& out);
/// Throws Error(spec) if a branch would get more streams than it reads.
void check_streams(const ModelSpec& spec, const std::string& path);
/// The stack with every default; equal neighbouring layers are folded with `repeat`.
Json resolve_stack(const ModelSpec& spec);

/// Parses `stacks` and `start` of an encoder-decoder.
void read_stacks(const Json& json, ModelSpec& out);
Json resolve_stacks(const ModelSpec& spec);

}  // namespace tessera::model
