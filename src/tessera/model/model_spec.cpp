#include "tessera/model/model_spec.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "tessera/nn/head/head_list.h"
#include "tessera/nn/position/position_config.h"
#include "tessera/nn/registry.h"
#include "tessera/nn/residual/residual_config.h"

namespace tessera::model {
namespace {

using spec::Scope;

constexpr int64_t kMaxLayers = 10'000;
constexpr int64_t kMaxWidth = int64_t{1} << 24;

const std::vector<std::string> kTopKeys = {
    "tessera",  "arch",      "vocab",      "d_model", "context", "embed",
    "norm",     "residual",  "mixer",      "ffn",     "layers",  "cycles",
    "n_layers", "overrides", "final_norm", "head",    "heads"};
const std::vector<std::string> kLayerKeys = {"repeat",   "mixer",    "ffn",  "norm",
                                             "residual", "branches", "share"};
const std::vector<std::string> kBranchKeys = {"name", "mixer",    "ffn",
                                              "norm", "residual", "parallel"};

void check_keys(const Json& json, const std::vector<std::string>& known, const std::string& path) {
  if (!json.is_object())
    fail(ErrorKind::spec, path, "found {}; expected an object", spec::kind_of(json));
  for (const auto& [key, value] : json.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string near = spec::nearest_name(key, known);
    fail(ErrorKind::spec, path, "unknown key \"{}\"{}", key,
         near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near));
  }
}

int64_t read_integer(const Json& json,
                     const char* key,
                     int64_t low,
                     int64_t high,
                     std::optional<int64_t> fallback,
                     const std::string& path) {
  const auto found = json.find(key);
  const std::string where = path.empty() ? key : path + "." + key;
  if (found == json.end() || found->is_null()) {
    if (fallback) return *fallback;
    fail(ErrorKind::spec, where, "missing; expected an integer from {} to {}", low, high);
  }
  if (!found->is_number_integer())
    fail(ErrorKind::spec, where, "found {}; expected an integer", spec::kind_of(*found));
  const bool huge =
      found->is_number_unsigned() && found->get<uint64_t>() > static_cast<uint64_t>(high);
  const int64_t value = huge ? high : found->get<int64_t>();
  if (huge || value < low || value > high)
    fail(ErrorKind::spec, where, "found {}; expected {} to {}", found->dump(), low, high);
  return value;
}

const Json* get(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() ? nullptr : &*found;
}

/// What a layer uses when it says nothing itself.
struct Defaults {
  Json norm, residual;  // parts
  const Json* mixer = nullptr;
  const Json* ffn = nullptr;
};

class LayerReader {
 public:
  LayerReader(const Defaults& defaults, Scope scope)
      : defaults_(defaults), scope_(std::move(scope)) {}

  LayerSpec read(const Json& json) {
    check_keys(json, kLayerKeys, scope_.path);
    Json norm = json.value("norm", defaults_.norm);
    Json residual = json.value("residual", defaults_.residual);
    LayerSpec layer;
    if (const Json* share = get(json, "share")) {
      if (!share->is_string())
        fail(ErrorKind::spec, scope_.path + ".share", "found {}; expected a string",
             spec::kind_of(*share));
      layer.share = share->get<std::string>();
      if (layer.share.empty() || layer.share.find_first_not_of(
                                     "abcdefghijklmnopqrstuvwxyz0123456789_") != std::string::npos)
        fail(ErrorKind::spec, scope_.path + ".share",
             "id \"{}\"; expected lower-case letters, digits and _", layer.share);
    }
    if (const Json* branches = get(json, "branches")) {
      if (get(json, "mixer") != nullptr || get(json, "ffn") != nullptr)
        fail(ErrorKind::spec, scope_.path, "\"branches\" and \"mixer\"/\"ffn\" exclude each other");
      if (!branches->is_array() || branches->empty())
        fail(ErrorKind::spec, scope_.path + ".branches", "expected a non-empty list");
      for (size_t i = 0; i < branches->size(); ++i)
        read_group((*branches)[i], fmt::format("{}.branches[{}]", scope_.path, i), norm, residual,
                   layer);
      return layer;
    }
    // the short form: mixer, then ffn; null leaves one out
    std::vector<std::pair<Slot, const Json*>> parts;
    for (const auto& [slot, key, fallback] : {std::tuple{Slot::mixer, "mixer", defaults_.mixer},
                                              std::tuple{Slot::ffn, "ffn", defaults_.ffn}}) {
      const Json* part = get(json, key);
      if (part == nullptr) part = fallback;
      if (part != nullptr && !part->is_null()) parts.emplace_back(slot, part);
    }
    if (parts.empty())
      fail(ErrorKind::spec, scope_.path, "a layer needs \"mixer\", \"ffn\" or \"branches\"");
    const AnyPart joined = read_residual(residual, scope_.path);
    const bool joins = dynamic_cast<const nn::ResidualConfig&>(*joined.config).joins_branches();
    for (const auto& [slot, part] : parts) {
      if (layer.groups.empty() || !joins) layer.groups.push_back({joined, {}});
      add_branch(layer, slot, spec::name_of(slot), *part, scope_.path + "." + spec::name_of(slot),
                 norm);
    }
    return layer;
  }

 private:
  AnyPart read_residual(const Json& json, const std::string& path) {
    Scope scope = scope_;
    scope.path = path + ".residual";
    return spec::read_part(Slot::residual, json, scope);
  }

  void read_group(const Json& json,
                  const std::string& path,
                  const Json& norm,
                  const Json& residual,
                  LayerSpec& layer) {
    check_keys(json, kBranchKeys, path);
    layer.groups.push_back({read_residual(json.value("residual", residual), path), {}});
    if (const Json* parallel = get(json, "parallel")) {
      if (!dynamic_cast<const nn::ResidualConfig&>(*layer.groups.back().residual.config)
               .joins_branches())
        fail(ErrorKind::spec, path,
             "\"parallel\" branches under residual \"{}\"; use residual \"parallel\"",
             layer.groups.back().residual.type());
      if (!parallel->is_array() || parallel->empty())
        fail(ErrorKind::spec, path + ".parallel", "expected a non-empty list");
      for (size_t i = 0; i < parallel->size(); ++i) {
        const std::string at = fmt::format("{}.parallel[{}]", path, i);
        check_keys((*parallel)[i], {"name", "mixer", "ffn", "norm"}, at);
        read_branch((*parallel)[i], at, (*parallel)[i].value("norm", json.value("norm", norm)),
                    layer);
      }
      return;
    }
    read_branch(json, path, json.value("norm", norm), layer);
  }

  void read_branch(const Json& json, const std::string& path, const Json& norm, LayerSpec& layer) {
    const Json* mixer = get(json, "mixer");
    const Json* ffn = get(json, "ffn");
    if ((mixer == nullptr) == (ffn == nullptr))
      fail(ErrorKind::spec, path, "expected exactly one of \"mixer\" and \"ffn\"");
    const Slot slot = mixer != nullptr ? Slot::mixer : Slot::ffn;
    std::string name = spec::name_of(slot);
    if (const Json* given = get(json, "name")) {
      if (!given->is_string())
        fail(ErrorKind::spec, path + ".name", "found {}; expected a string", spec::kind_of(*given));
      name = given->get<std::string>();
    }
    if (name.empty() ||
        name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") != std::string::npos)
      fail(ErrorKind::spec, path + ".name", "\"{}\"; expected lower-case letters, digits and _",
           name);
    add_branch(layer, slot, name, mixer != nullptr ? *mixer : *ffn,
               path + "." + spec::name_of(slot), norm);
  }

  void add_branch(LayerSpec& layer,
                  Slot slot,
                  const std::string& name,
                  const Json& part,
                  const std::string& path,
                  const Json& norm) {
    GroupSpec& group = layer.groups.back();
    const auto& residual = dynamic_cast<const nn::ResidualConfig&>(*group.residual.config);
    BranchSpec branch;
    branch.name = name;
    branch.slot = slot;
    for (const GroupSpec& other : layer.groups)
      for (const BranchSpec& b : other.branches)
        if (b.name == name)
          fail(ErrorKind::spec, path, "two branches are named \"{}\"; give one a \"name\"", name);
    Scope scope = scope_;
    scope.path = path;
    branch.part = spec::read_part(slot, part, scope);
    if (group.branches.empty() || !residual.shares_norm()) {
      scope.path = scope_.path + ".norm";
      scope.width = scope.d_model;
      for (size_t i = 0; i < residual.norms().size(); ++i)
        branch.norms.push_back(spec::read_part(Slot::norm, norm, scope));
    }
    group.branches.push_back(std::move(branch));
  }

  const Defaults& defaults_;
  Scope scope_;
};

/// The list of layers as JSON, one entry per invocation: repeat, cycles, n_layers and overrides
/// applied.
std::vector<Json> expand_layers(const Json& json) {
  const Json* layers = get(json, "layers");
  if (layers == nullptr || !layers->is_array() || layers->empty())
    fail(ErrorKind::spec, "layers", "expected a non-empty list of layers");
  const int64_t cycles = read_integer(json, "cycles", 1, kMaxLayers, 1, "");
  std::vector<Json> expanded;
  for (int64_t c = 0; c < cycles; ++c)
    for (size_t i = 0; i < layers->size(); ++i) {
      const std::string path = fmt::format("layers[{}]", i);
      if (!(*layers)[i].is_object())
        fail(ErrorKind::spec, path, "found {}; expected an object", spec::kind_of((*layers)[i]));
      Json layer = (*layers)[i];
      const int64_t repeat = read_integer(layer, "repeat", 1, kMaxLayers, 1, path);
      layer.erase("repeat");
      if (static_cast<int64_t>(expanded.size()) + repeat > kMaxLayers)
        fail(ErrorKind::spec, path, "more than {} layers", kMaxLayers);
      expanded.insert(expanded.end(), static_cast<size_t>(repeat), layer);
    }
  const auto total = static_cast<int64_t>(expanded.size());
  const int64_t n_layers = read_integer(json, "n_layers", 1, total, total, "");
  expanded.resize(static_cast<size_t>(n_layers));
  if (const Json* overrides = get(json, "overrides")) {
    if (!overrides->is_array())
      fail(ErrorKind::spec, "overrides", "found {}; expected a list", spec::kind_of(*overrides));
    for (size_t i = 0; i < overrides->size(); ++i) {
      const std::string path = fmt::format("overrides[{}]", i);
      const Json& entry = (*overrides)[i];
      if (!entry.is_object() || !entry.contains("at") || !entry["at"].is_array())
        fail(ErrorKind::spec, path, "expected {{\"at\": [layer, ...], ...}}");
      Json patch = entry;
      patch.erase("at");
      for (const Json& at : entry["at"]) {
        if (!at.is_number_integer())
          fail(ErrorKind::spec, path + ".at", "found {}; expected an integer", spec::kind_of(at));
        int64_t layer = at.get<int64_t>();
        if (layer < 0) layer += n_layers;
        if (layer < 0 || layer >= n_layers)
          fail(ErrorKind::spec, path + ".at", "layer {}; expected {} to {}", at.dump(), -n_layers,
               n_layers - 1);
        Json& target = expanded[static_cast<size_t>(layer)];
        // what the layer inherits is what the override changes
        for (const char* key : {"mixer", "ffn", "norm", "residual"})
          if (patch.contains(key) && !target.contains(key) && json.contains(key))
            target[key] = json[key];
        target.merge_patch(patch);
      }
    }
  }
  return expanded;
}

Json dump_layer(const LayerSpec& layer) {
  Json json = Json::object();
  if (!layer.share.empty()) json["share"] = layer.share;
  Json groups = Json::array();
  for (const GroupSpec& group : layer.groups) {
    Json branches = Json::array();
    for (const BranchSpec& branch : group.branches) {
      Json b = Json::object();
      b["name"] = branch.name;
      b[spec::name_of(branch.slot)] = spec::dump_part(branch.part);
      if (!branch.norms.empty()) b["norm"] = spec::dump_part(branch.norms.front());
      branches.push_back(std::move(b));
    }
    if (dynamic_cast<const nn::ResidualConfig&>(*group.residual.config).joins_branches()) {
      groups.push_back({{"parallel", branches}, {"residual", spec::dump_part(group.residual)}});
    } else {
      branches[0]["residual"] = spec::dump_part(group.residual);
      groups.push_back(branches[0]);
    }
  }
  json["branches"] = groups;
  return json;
}

void for_each_part(const ModelSpec& spec, const std::function<void(const AnyPart&)>& visit) {
  spec::for_each_part(spec.embed, visit);
  for (const LayerSpec& layer : spec.layers)
    for (const GroupSpec& group : layer.groups)
      for (const BranchSpec& branch : group.branches) spec::for_each_part(branch.part, visit);
}

template <class Visit>
void for_each_position(const ModelSpec& spec, Visit visit) {
  for_each_part(spec, [&](const AnyPart& part) {
    if (const auto* position = dynamic_cast<const nn::PositionConfig*>(part.config.get()))
      visit(*position);
  });
}

}  // namespace

const char* name_of(Arch arch) {
  return arch == Arch::decoder ? "decoder" : "encoder";
}

Scope ModelSpec::scope(int64_t layer, std::string path) const {
  Scope scope;
  scope.d_model = d_model;
  scope.vocab = vocab;
  scope.width = d_model;
  scope.n_layers = static_cast<int64_t>(layers.size());
  scope.layer = layer;
  scope.causal = causal();
  scope.path = std::move(path);
  return scope;
}

std::string ModelSpec::prefix(int64_t layer) const {
  const std::string& share = layers[static_cast<size_t>(layer)].share;
  return share.empty() ? fmt::format("layers.{}", layer) : "shared." + share;
}

int64_t ModelSpec::max_positions() const {
  int64_t max = 0;
  for_each_position(*this, [&](const nn::PositionConfig& position) {
    const int64_t limit = position.max_positions();
    if (limit > 0) max = max == 0 ? limit : std::min(max, limit);
  });
  return max;
}

int64_t ModelSpec::longest_sequence() const {
  const int64_t positions = max_positions();
  return context == 0 ? positions : positions == 0 ? context : std::min(context, positions);
}

int64_t ModelSpec::switch_length() const {
  int64_t at = 0;
  for_each_position(*this, [&](const nn::PositionConfig& position) {
    at = std::max(at, position.switch_length());
  });
  return at;
}

std::string ModelSpec::no_state_reason() const {
  if (!causal()) return "an encoder reads its whole input at once";
  std::string reason;
  for_each_position(*this, [&](const nn::PositionConfig& position) {
    if (position.depends_on_length())
      reason = "its position scheme changes every angle as the sequence grows";
  });
  for_each_part(*this, [&](const AnyPart& part) {
    if (const std::string why = part.config->no_state_reason(); !why.empty()) reason = why;
    const Slot slot = part.mechanism->slot;
    if ((slot == Slot::mixer || slot == Slot::position || slot == Slot::pattern) &&
        !part.info().forms.recurrent)
      reason = fmt::format("{} offers no recurrent form", part.type());
  });
  return reason;
}

ModelSpec read_model_spec(const Json& json) {
  nn::register_mechanisms();
  check_keys(json, kTopKeys, "spec");
  if (read_integer(json, "tessera", 1, 1, std::nullopt, "") != 1) return {};
  ModelSpec out;
  const std::string arch =
      json.contains("arch") && json["arch"].is_string() ? json["arch"].get<std::string>() : "";
  if (arch == "decoder") {
    out.arch = Arch::decoder;
  } else if (arch == "encoder") {
    out.arch = Arch::encoder;
  } else {
    fail(ErrorKind::spec, "arch", "found {}; expected \"decoder\" or \"encoder\"",
         json.contains("arch") ? json["arch"].dump() : "nothing");
  }
  out.vocab = read_integer(json, "vocab", 1, kMaxWidth, std::nullopt, "");
  out.d_model = read_integer(json, "d_model", 1, kMaxWidth, std::nullopt, "");

  out.context = read_integer(json, "context", 0, std::numeric_limits<int64_t>::max(), 0, "");

  Defaults defaults;
  defaults.norm = json.value("norm", Json("rms_norm"));
  defaults.residual = json.value("residual", Json("pre_norm"));
  defaults.mixer = get(json, "mixer");
  defaults.ffn = get(json, "ffn");
  const std::vector<Json> layers = expand_layers(json);
  out.layers.resize(layers.size());  // scope() reports the depth
  for (size_t i = 0; i < layers.size(); ++i)
    out.layers[i] =
        LayerReader(defaults, out.scope(static_cast<int64_t>(i), fmt::format("layers[{}]", i)))
            .read(layers[i]);

  out.embed =
      spec::read_part(Slot::embed, json.value("embed", Json("token")), out.scope(0, "embed"));
  // the last group of the stack says whether the stream still needs a norm
  const auto& last =
      dynamic_cast<const nn::ResidualConfig&>(*out.layers.back().groups.back().residual.config);
  const Json final_norm = json.contains("final_norm") ? json["final_norm"]
                          : last.wants_final_norm()   ? defaults.norm
                                                      : Json(nullptr);
  if (!final_norm.is_null())
    out.final_norm = spec::read_part(Slot::norm, final_norm, out.scope(0, "final_norm"));
  const Json fallback = out.causal() ? Json("tied") : Json(nullptr);
  const nn::HeadList heads = nn::read_heads(json, fallback, out.embed, out.scope(0));
  out.head = heads.logits;
  out.pooler = heads.pooler;
  if (out.causal() && !out.head)
    fail(ErrorKind::spec, "head", "a decoder needs a head; expected \"tied\" or \"linear\"");

  // shared layers must be the same layer
  std::map<std::string, Json> shared;
  for (size_t i = 0; i < out.layers.size(); ++i) {
    if (out.layers[i].share.empty()) continue;
    const Json dump = dump_layer(out.layers[i]);
    const auto [at, is_new] = shared.emplace(out.layers[i].share, dump);
    if (!is_new && at->second != dump)
      fail(ErrorKind::spec, fmt::format("layers[{}].share", i),
           "\"{}\" names two different layers; shared layers have one config", out.layers[i].share);
  }
  parameters(out);  // sizes overflow here, not later
  return out;
}

void apply_override(Json& json, std::string_view assignment) {
  const size_t equals = assignment.find('=');
  if (equals == std::string_view::npos || equals == 0)
    fail(ErrorKind::usage, "set", "\"{}\"; expected path.to.key=value", assignment);
  const std::string_view path = assignment.substr(0, equals), text = assignment.substr(equals + 1);
  Json value;
  try {
    value = spec::parse_json(text, "set");
  } catch (const Error&) {
    value = std::string(text);  // --set ffn.act=gelu
  }
  Json* at = &json;
  for (size_t begin = 0; begin < path.size();) {
    if (path[begin] == '[') {
      const size_t close = path.find(']', begin);
      const std::string index(
          path.substr(begin + 1, close == std::string_view::npos ? 0 : close - begin - 1));
      if (index.empty() || index.size() > 6 ||
          index.find_first_not_of("0123456789") != std::string::npos)
        fail(ErrorKind::usage, "set", "\"{}\": expected [number]", path);
      if (!at->is_array() || std::stoul(index) >= at->size())
        fail(ErrorKind::usage, "set", "\"{}\": there is no element [{}]", path, index);
      at = &(*at)[std::stoul(index)];
      begin = close + 1;
    } else {
      const size_t end = std::min(path.find_first_of(".[", begin), path.size());
      if (at->is_string()) *at = Json{{"type", *at}};  // the short form of a part
      if (!at->is_object() && !at->is_null())
        fail(ErrorKind::usage, "set", "\"{}\": {} is not an object", path, path.substr(0, begin));
      at = &(*at)[std::string(path.substr(begin, end - begin))];
      begin = end;
    }
    if (begin < path.size() && path[begin] == '.') ++begin;
  }
  *at = std::move(value);
}

ModelSpec load_model_spec(const std::filesystem::path& path,
                          const std::vector<std::string>& overrides) {
  spec::JsonLimits limits;
  limits.comments = true;
  Json json = spec::read_json_file(path, limits);
  for (const std::string& assignment : overrides) apply_override(json, assignment);
  return read_model_spec(json);
}

Json resolve(const ModelSpec& spec) {
  Json json = Json::object();
  json["tessera"] = 1;
  json["arch"] = name_of(spec.arch);
  json["vocab"] = spec.vocab;
  json["d_model"] = spec.d_model;
  json["context"] = spec.context;
  json["embed"] = spec::dump_part(spec.embed);
  Json layers = Json::array();
  for (const LayerSpec& layer : spec.layers) {
    Json dump = dump_layer(layer);
    if (!layers.empty()) {
      Json last = layers.back();
      last.erase("repeat");
      if (last == dump) {
        layers.back()["repeat"] = layers.back().value("repeat", 1) + 1;
        continue;
      }
    }
    layers.push_back(std::move(dump));
  }
  json["layers"] = layers;
  json["final_norm"] = spec::dump_part(spec.final_norm);
  nn::dump_heads({spec.head, spec.pooler}, json);
  return json;
}

std::vector<spec::ParamDecl> parameters(const ModelSpec& spec) {
  std::vector<spec::ParamDecl> all;
  std::map<std::string, std::vector<int64_t>> shapes;
  const auto take = [&](const AnyPart& part, const std::string& prefix, const Scope& scope) {
    if (!part) return;
    spec::ParamList list(prefix);
    part.config->params(list, scope);
    for (const spec::ParamDecl& decl : list.all()) {
      decl.elements();
      const auto [known, is_new] = shapes.emplace(decl.name, decl.shape);
      if (is_new)
        all.push_back(decl);
      else if (known->second != decl.shape)
        fail(ErrorKind::spec, scope.path.empty() ? prefix : scope.path,
             "\"{}\" is shared with another shape: [{}] and [{}]; use another share id", decl.name,
             fmt::join(known->second, ", "), fmt::join(decl.shape, ", "));
    }
  };
  take(spec.embed, "embed", spec.scope(0));
  for (int64_t i = 0; i < static_cast<int64_t>(spec.layers.size()); ++i) {
    const std::string prefix = spec.prefix(i);
    for (const GroupSpec& group : spec.layers[static_cast<size_t>(i)].groups) {
      const auto norm_names =
          dynamic_cast<const nn::ResidualConfig&>(*group.residual.config).norms();
      for (const BranchSpec& branch : group.branches) {
        for (size_t n = 0; n < branch.norms.size(); ++n)
          take(branch.norms[n], fmt::format("{}.{}_{}", prefix, branch.name, norm_names[n]),
               spec.scope(i));
        take(branch.part, prefix + "." + branch.name, spec.scope(i));
      }
    }
  }
  take(spec.final_norm, "final_norm", spec.scope(0));
  take(spec.head, "head", spec.scope(0));
  take(spec.pooler, "pooler", spec.scope(0));
  return all;
}

std::vector<BranchState> state_layout(const ModelSpec& spec) {
  std::vector<BranchState> layout;
  for (int64_t i = 0; i < static_cast<int64_t>(spec.layers.size()); ++i)
    for (const GroupSpec& group : spec.layers[static_cast<size_t>(i)].groups)
      for (const BranchSpec& branch : group.branches)
        if (auto tensors = branch.part.config->state(spec.scope(i)); !tensors.empty())
          layout.push_back({i, branch.name, std::move(tensors)});
  return layout;
}

Json spec_schema() {
  nn::register_mechanisms();
  Json defs = Json::object();
  for (int s = 0; s < spec::kSlotCount; ++s) {
    Json choices = Json::array();
    for (const spec::Mechanism& mechanism : spec::mechanisms()) {
      if (mechanism.slot != static_cast<Slot>(s)) continue;
      Json schema = mechanism.schema();
      Json properties = {{"type", {{"const", mechanism.name}}}};
      for (const auto& [key, value] : schema["properties"].items()) properties[key] = value;
      schema["properties"] = properties;
      schema["required"].insert(schema["required"].begin(), "type");
      schema["description"] = mechanism.info.summary;
      choices.push_back(schema);
      if (schema["required"].size() == 1) choices.push_back({{"const", mechanism.name}});
    }
    choices.push_back({{"type", "null"}});
    defs[spec::name_of(static_cast<Slot>(s))] = {{"anyOf", choices}};
  }
  const auto ref = [](const char* name) { return Json{{"$ref", std::string("#/$defs/") + name}}; };
  const Json integer = {{"type", "integer"}, {"minimum", 1}};
  const Json branch_properties = {{"name", {{"type", "string"}}},
                                  {"mixer", ref("mixer")},
                                  {"ffn", ref("ffn")},
                                  {"norm", ref("norm")},
                                  {"residual", ref("residual")},
                                  {"parallel", {{"type", "array"}, {"items", ref("branch")}}}};
  defs["branch"] = {
      {"type", "object"}, {"properties", branch_properties}, {"additionalProperties", false}};
  const Json layer_properties = {{"repeat", integer},
                                 {"mixer", ref("mixer")},
                                 {"ffn", ref("ffn")},
                                 {"norm", ref("norm")},
                                 {"residual", ref("residual")},
                                 {"branches", {{"type", "array"}, {"items", ref("branch")}}},
                                 {"share", {{"type", "string"}}}};
  defs["layer"] = {
      {"type", "object"}, {"properties", layer_properties}, {"additionalProperties", false}};
  const Json properties = {{"tessera", {{"const", 1}}},
                           {"arch", {{"enum", {"decoder", "encoder"}}}},
                           {"vocab", integer},
                           {"d_model", integer},
                           {"context", {{"type", "integer"}, {"minimum", 0}}},
                           {"embed", ref("embed")},
                           {"norm", ref("norm")},
                           {"residual", ref("residual")},
                           {"mixer", ref("mixer")},
                           {"ffn", ref("ffn")},
                           {"layers", {{"type", "array"}, {"items", ref("layer")}}},
                           {"cycles", integer},
                           {"n_layers", integer},
                           {"overrides", {{"type", "array"}}},
                           {"final_norm", ref("norm")},
                           {"head", ref("head")},
                           {"heads", {{"type", "array"}, {"items", ref("head")}}}};
  return {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
          {"title", "tessera spec"},
          {"type", "object"},
          {"properties", properties},
          {"required", {"tessera", "arch", "vocab", "d_model", "layers"}},
          {"additionalProperties", false},
          {"$defs", defs}};
}

}  // namespace tessera::model
