#include "tessera/model/kv_eviction.h"

namespace tessera::model {
namespace {

using spec::Json;

/// Replaces the field `name` of every mixer that sees everything and has it; returns how many there
/// were.
int64_t bound(Json& json, const std::string& name, const Json& to) {
  int64_t count = 0;
  if (json.is_array())
    for (Json& item : json) count += bound(item, name, to);
  if (!json.is_object()) return count;
  for (auto& [key, value] : json.items()) {
    const bool mixer = key == "mixer" && value.is_object() && value.contains("pattern") &&
                       value.contains(name) && value["pattern"].is_object() &&
                       value["pattern"].value("type", "") == "full";
    if (mixer) {
      value[name] = to;
      ++count;
    } else {
      count += bound(value, name, to);
    }
  }
  return count;
}

}  // namespace

Json with_kv_eviction(const ModelSpec& spec, int64_t first, int64_t last, int64_t heavy) {
  if (first < 0 || last < 1)
    fail(ErrorKind::usage, "keep-last",
         "{} first tokens and {} last ones; expected 0 and 1 at least", first, last);
  if (heavy < 0)
    fail(ErrorKind::usage, "keep-heavy", "{} keys of each head; expected 0 at least", heavy);
  if (spec.arch != Arch::decoder)
    fail(ErrorKind::usage, "keep-last",
         "only a decoder's text grows token by token; leave --keep-last out");
  if (const std::string reason = spec.no_state_reason(); !reason.empty())
    fail(ErrorKind::usage, "keep-last", "this model keeps no keys and values: {}; leave it out",
         reason);
  Json json = resolve(spec);
  const int64_t bounded =
      heavy > 0   ? bound(json["layers"], "heavy", {{"keep", heavy}, {"last", last}})
      : first > 0 ? bound(json["layers"], "pattern",
                          {{"type", "sink_window"}, {"first", first}, {"width", last}})
                  : bound(json["layers"], "pattern", {{"type", "window"}, {"width", last}});
  for (const BranchState& branch : state_layout(read_model_spec(json)))
    for (const spec::StateDecl& decl : branch.tensors)
      if (decl.kind == spec::StateDecl::Kind::per_token && decl.keep == 0)
        fail(ErrorKind::usage, "keep-last",
             "{} stores \"{}\" of every token: {}; expected a model of attention and of states of "
             "fixed size",
             branch.name, decl.name,
             heavy > 0 ? "only mixer \"attention\" evicts keys by their attention weight"
                       : "its mechanism supports no pattern that evicts keys");
  if (bounded == 0)
    fail(ErrorKind::usage, "keep-last",
         "every layer of this model keeps a bounded state already; leave --keep-last out");
  return json;
}

}  // namespace tessera::model
