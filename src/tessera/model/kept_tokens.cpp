#include "tessera/model/kept_tokens.h"

namespace tessera::model {
namespace {

using spec::Json;

/// Replaces the pattern of every mixer that sees everything; returns how many there were.
int64_t bound(Json& json, const Json& pattern) {
  int64_t count = 0;
  if (json.is_array())
    for (Json& item : json) count += bound(item, pattern);
  if (!json.is_object()) return count;
  for (auto& [key, value] : json.items()) {
    const bool mixer = key == "mixer" && value.is_object() && value.contains("pattern") &&
                       value["pattern"].is_object() && value["pattern"].value("type", "") == "full";
    if (mixer) {
      value["pattern"] = pattern;
      ++count;
    } else {
      count += bound(value, pattern);
    }
  }
  return count;
}

}  // namespace

Json with_kept_tokens(const ModelSpec& spec, int64_t first, int64_t last) {
  if (first < 0 || last < 1)
    fail(ErrorKind::usage, "keep-last",
         "{} first tokens and {} last ones; expected 0 and 1 at least", first, last);
  if (spec.arch != Arch::decoder)
    fail(ErrorKind::usage, "keep-last",
         "only a decoder's text grows token by token; leave --keep-last out");
  if (const std::string reason = spec.no_state_reason(); !reason.empty())
    fail(ErrorKind::usage, "keep-last", "this model keeps no keys and values: {}; leave it out",
         reason);
  Json json = resolve(spec);
  const Json pattern = first == 0
                           ? Json{{"type", "window"}, {"width", last}}
                           : Json{{"type", "sink_window"}, {"first", first}, {"width", last}};
  const int64_t bounded = bound(json["layers"], pattern);
  for (const BranchState& branch : state_layout(read_model_spec(json)))
    for (const spec::StateDecl& decl : branch.tensors)
      if (decl.kind == spec::StateDecl::Kind::per_token && decl.keep == 0)
        fail(ErrorKind::usage, "keep-last",
             "{} keeps \"{}\" of every token, whatever pattern: its mechanism takes none that "
             "lets go of some; expected a model of attention and of states of fixed size",
             branch.name, decl.name);
  if (bounded == 0)
    fail(ErrorKind::usage, "keep-last",
         "every layer of this model keeps a bounded state already; leave --keep-last out");
  return json;
}

}  // namespace tessera::model
