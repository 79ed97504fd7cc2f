#include "tessera/model/model_spec.h"

#include <iterator>
#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "tessera/model/kv_quantization.h"
#include "tessera/model/predictor_spec.h"
#include "tessera/model/spec_reader.h"
#include "tessera/nn/depth/depth_config.h"
#include "tessera/nn/head/head_config.h"
#include "tessera/nn/head/head_list.h"
#include "tessera/nn/init/init_config.h"
#include "tessera/nn/registry.h"
#include "tessera/nn/residual/residual_config.h"

namespace tessera::model {
namespace {

using spec::Scope;

constexpr int64_t kMaxLayers = 10'000;

const std::vector<std::string> kTopKeys = {
    "tessera",  "arch",      "vocab",      "d_model", "context", "embed",       "norm",
    "residual", "depth",     "mixer",      "cross",   "ffn",     "layers",      "cycles",
    "n_layers", "overrides", "final_norm", "head",    "heads",   "stacks",      "start",
    "mask",     "tokens",    "predictors", "mtp",     "init",    "quantization"};
const std::vector<std::string> kStackKeys = {
    "embed",  "norm",   "residual", "mixer",     "depth",      "cross",       "ffn",
    "layers", "cycles", "n_layers", "overrides", "final_norm", "quantization"};

/// A key within the stack `stack`, "" for a spec of one stack.
std::string at(const std::string& stack, const std::string& key) {
  return stack.empty() ? key : stack + "." + key;
}

/// The list of layers as JSON, one entry per invocation: repeat, cycles, n_layers and overrides
/// applied.
std::vector<Json> expand_layers(const Json& json, const std::string& stack) {
  const Json* layers = get(json, "layers");
  if (layers == nullptr || !layers->is_array() || layers->empty())
    fail(ErrorKind::spec, at(stack, "layers"), "found {}; expected a non-empty list of layers",
         layers == nullptr    ? "nothing"
         : layers->is_array() ? "an empty one"
                              : spec::kind_of(*layers));
  const int64_t cycles = read_integer(json, "cycles", 1, kMaxLayers, 1, stack);
  std::vector<Json> expanded;
  for (int64_t c = 0; c < cycles; ++c)
    for (size_t i = 0; i < layers->size(); ++i) {
      const std::string path = at(stack, fmt::format("layers[{}]", i));
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
  const int64_t n_layers = read_integer(json, "n_layers", 1, total, total, stack);
  expanded.resize(static_cast<size_t>(n_layers));
  if (const Json* overrides = get(json, "overrides")) {
    if (!overrides->is_array())
      fail(ErrorKind::spec, at(stack, "overrides"), "found {}; expected a list",
           spec::kind_of(*overrides));
    for (size_t i = 0; i < overrides->size(); ++i) {
      const std::string path = at(stack, fmt::format("overrides[{}]", i));
      const Json& entry = (*overrides)[i];
      if (!entry.is_object() || !entry.contains("at") || !entry["at"].is_array())
        fail(ErrorKind::spec, path, "expected {{\"at\": [layer, ...], ...}}");
      Json patch = entry;
      patch.erase("at");
      for (const Json& number : entry["at"]) {
        if (!number.is_number_integer())
          fail(ErrorKind::spec, path + ".at", "found {}; expected an integer",
               spec::kind_of(number));
        int64_t layer = number.get<int64_t>();
        if (layer < 0) layer += n_layers;
        if (layer < 0 || layer >= n_layers)
          fail(ErrorKind::spec, path + ".at", "layer {}; expected {} to {}", number.dump(),
               -n_layers, n_layers - 1);
        Json& target = expanded[static_cast<size_t>(layer)];
        // an override of a default changes all layers that inherit it
        for (const char* key :
             {"mixer", "cross", "ffn", "norm", "residual", "depth", "quantization"})
          if (patch.contains(key) && !target.contains(key) && json.contains(key))
            target[key] = json[key];
        target.merge_patch(patch);
      }
    }
  }
  return expanded;
}

}  // namespace

const char* name_of(Arch arch) {
  constexpr const char* kNames[] = {"decoder", "encoder", "encoder_decoder"};
  static_assert(std::size(kNames) == static_cast<size_t>(Arch::encoder_decoder) + 1);
  return kNames[static_cast<int>(arch)];
}

const Json* get(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() ? nullptr : &*found;
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
    fail(ErrorKind::spec, where, "{}; expected an integer from {} to {}",
         found == json.end() ? "missing" : "found null", low, high);
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

const std::vector<std::string>& stack_keys() {
  return kStackKeys;
}

void read_stack(const Json& json, const std::string& path, ModelSpec& out) {
  LayerDefaults defaults;
  defaults.norm = json.value("norm", Json("rms_norm"));
  defaults.residual = json.value("residual", Json("pre_norm"));
  defaults.depth = json.value("depth", Json());
  defaults.quantization = json.value("quantization", Json());
  defaults.mixer = get(json, "mixer");
  defaults.cross = get(json, "cross");
  defaults.ffn = get(json, "ffn");
  const std::vector<Json> layers = expand_layers(json, path);
  out.layers.resize(layers.size());  // scope() reports the depth
  std::vector<spec::Placed> before;
  for (size_t i = 0; i < layers.size(); ++i)
    out.layers[i] = read_layer(
        layers[i], defaults,
        out.scope(static_cast<int64_t>(i), at(path, fmt::format("layers[{}]", i))), before);
  check_streams(out, path);

  if (!out.is_predictor())
    out.embed = spec::read_part(Slot::embed, json.value("embed", Json("token")),
                                out.scope(0, at(path, "embed")));
  // the last group of the stack determines whether the stream still needs a norm
  const auto& last =
      dynamic_cast<const nn::ResidualConfig&>(*out.layers.back().groups.back().residual.config);
  const Json final_norm = json.contains("final_norm") ? json["final_norm"]
                          : last.wants_final_norm()   ? defaults.norm
                                                      : Json(nullptr);
  if (!final_norm.is_null()) {
    spec::Scope scope = out.scope_out(at(path, "final_norm"));
    scope.of_batch = true;
    out.final_norm = spec::read_part(Slot::norm, final_norm, scope);
  }
  check_shared(out, path);
}

ModelSpec read_model_spec(const Json& json) {
  nn::register_mechanisms();
  // before the keys, of which a later version may have others
  if (const Json version = json.is_object() ? json.value("tessera", Json()) : Json();
      version.is_number_integer() && version > 1)
    fail(ErrorKind::spec, "spec", "\"tessera\": {}; this program reads specs of version 1",
         version.dump());
  check_keys(json, kTopKeys, "spec");
  if (read_integer(json, "tessera", 1, 1, std::nullopt, "") != 1) return {};
  ModelSpec out;
  const std::string arch =
      json.contains("arch") && json["arch"].is_string() ? json["arch"].get<std::string>() : "";
  const std::vector<std::string> known = {"decoder", "encoder", "encoder_decoder"};
  const auto found = std::find(known.begin(), known.end(), arch);
  if (found == known.end())
    fail(ErrorKind::spec, "arch",
         "found {}; expected \"decoder\", \"encoder\" or \"encoder_decoder\"",
         json.contains("arch") ? json["arch"].dump() : "nothing");
  out.arch = static_cast<Arch>(found - known.begin());
  out.vocab = read_integer(json, "vocab", 1, kMaxWidth, std::nullopt, "");
  out.d_model = read_integer(json, "d_model", 1, kMaxWidth, std::nullopt, "");

  out.context = read_integer(json, "context", 0, std::numeric_limits<int64_t>::max(), 0, "");

  out.init =
      spec::read_part(Slot::init, json.value("init", Json("residual_scaled")), Scope().at("init"));
  if (!out.init) fail(ErrorKind::spec, "init", "found null; expected an initialisation");

  if (out.arch == Arch::encoder_decoder) {
    read_stacks(json, out);
  } else {
    for (const char* key : {"stacks", "start", "mask", "tokens"})
      if (json.contains(key))
        fail(ErrorKind::spec, key, "arch is \"{}\"; expected it in an \"encoder_decoder\" only",
             arch);
    read_stack(json, "", out);
  }
  std::vector<const LayerSpec*> own, of_encoder;
  for (const LayerSpec& layer : out.layers) own.push_back(&layer);
  if (out.encoder) {
    for (const LayerSpec& layer : out.encoder->layers) of_encoder.push_back(&layer);
    check_rounded_names(json["stacks"]["encoder"], of_encoder, "stacks.encoder");
    check_rounded_names(json["stacks"]["decoder"], own, "stacks.decoder");
    own.insert(own.end(), of_encoder.begin(), of_encoder.end());
  }
  check_rounded_names(json, own, "");
  read_predictors(json, out);
  const Json fallback = out.arch != Arch::encoder ? Json("tied") : Json(nullptr);
  const nn::HeadList heads = nn::read_heads(json, fallback, out.embed, out.scope_out());
  out.head = heads.logits;
  out.pooler = heads.pooler;
  if (out.arch == Arch::encoder_decoder && !out.head)
    fail(ErrorKind::spec, "head",
         "an encoder-decoder needs a head; expected \"tied\" or \"linear\"");

  if (const auto* head = dynamic_cast<const nn::HeadConfig*>(out.head.config.get());
      head != nullptr && head->of_vocabulary())
    out.init.as<nn::InitConfig>().check_head(head->tied(), head->scale, out.scope_out("head"));

  parameters(out);  // sizes overflow here, not later
  return out;
}

Json resolve_stack(const ModelSpec& spec) {
  Json json = Json::object();
  if (spec.embed) json["embed"] = spec::dump_part(spec.embed);
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
  return json;
}

Json resolve(const ModelSpec& spec) {
  Json json = Json::object();
  json["tessera"] = 1;
  json["arch"] = name_of(spec.arch);
  json["vocab"] = spec.vocab;
  json["d_model"] = spec.d_model;
  json["context"] = spec.context;
  json["init"] = spec::dump_part(spec.init);
  if (spec.encoder) {
    if (spec.mask)
      json["mask"] = *spec.mask;
    else
      json["start"] = spec.start;
    json["tokens"] = spec.shared_tokens ? "shared" : "own";
    json["stacks"] = resolve_stacks(spec);
  } else {
    json.update(resolve_stack(spec));
  }
  if (!spec.predictors.empty()) json["predictors"] = resolve_predictors(spec);
  nn::dump_heads({spec.head, spec.pooler}, json);
  return json;
}

std::vector<spec::ParamDecl> parameters(const ModelSpec& spec) {
  return parameter_table(spec).all;
}

ParamTable parameter_table(const ModelSpec& spec) {
  ParamTable table;
  std::vector<spec::ParamDecl>& all = table.all;
  std::map<std::string, std::vector<int64_t>> shapes;
  double share = 1;  // of the tokens in the current layer
  const auto& init = spec.init.as<nn::InitConfig>();
  const nn::InitSite site = spec.init_site();
  const auto add = [&](const spec::ParamList& list, const std::string& prefix, const Scope& scope) {
    for (spec::ParamDecl decl : list.all()) {
      decl.elements();
      decl.name = spec.kept_as(decl.name);
      decl.share *= share;
      decl.lr_factor = init.lr_factor(decl, site);
      if (decl.init.use != spec::Init::Use::own) decl.init = init.draw(decl, site);
      const auto [known, is_new] = shapes.emplace(decl.name, decl.shape);
      if (is_new)
        all.push_back(decl);
      else if (known->second != decl.shape)
        fail(ErrorKind::spec, scope.path.empty() ? prefix : scope.path,
             "\"{}\" is shared with another shape: [{}] and [{}]; use another share id", decl.name,
             fmt::join(known->second, ", "), fmt::join(decl.shape, ", "));
    }
    for (const std::string& name : list.absent()) table.absent.insert(spec.kept_as(name));
  };
  const auto take = [&](const AnyPart& part, const std::string& prefix, const Scope& scope) {
    if (!part) return;
    spec::ParamList list(prefix);
    part.config->params(list, scope);
    add(list, prefix, scope);
  };
  if (spec.encoder) {
    table = parameter_table(*spec.encoder);
    for (const spec::ParamDecl& decl : all) shapes.emplace(decl.name, decl.shape);
  }
  take(spec.embed, spec.under("embed"), spec.scope(0));
  for (int64_t i = 0; i < static_cast<int64_t>(spec.layers.size()); ++i) {
    const LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    take(layer.depth, spec.prefix(i) + ".depth", spec.scope(i));
    share = layer.share_of_tokens();
    for (const GroupSpec& group : layer.groups) {
      const auto norm_names = group.norm_names();
      for (const BranchSpec& branch : group.branches) {
        const std::string prefix = spec.prefix(i, branch);
        const Scope scope = spec.scope(i, branch);
        for (size_t n = 0; n < branch.norms.size(); ++n)
          take(branch.norms[n], prefix + "_" + norm_names[n], scope);
        take(branch.part, prefix, scope);
        if (!group.aside) {
          const Scope around = spec.residual_scope(i, branch);
          take(group.residual, prefix + "_residual", around);
          const nn::ResidualConfig& residual = group.residual_config();
          const GroupSpec::Run run = spec.run_of(group);
          const bool first = &branch == &group.branches.front();
          spec::ParamList own(prefix + "_residual"), entering(prefix + "_residual.enter"),
              leaving(prefix + "_residual.leave");
          residual.group_params(own, around);
          residual.enter_params(entering, around);
          residual.leave_params(leaving, around);
          for (const auto& [list, stands] :
               {std::pair{&own, first}, std::pair{&entering, first && run.begins},
                std::pair{&leaving, first && run.ends}}) {
            if (stands) {
              add(*list, prefix, around);
              continue;
            }
            for (const spec::ParamDecl& decl : list->all())
              table.absent.insert(spec.kept_as(decl.name));
          }
        }
        add(adapter_parameters(spec, i, branch), prefix, scope);
      }
    }
    share = 1;
  }
  take(spec.final_norm, spec.under("final_norm"), spec.scope_out());
  take(spec.head, spec.head_name("head"), spec.scope_out());
  take(spec.pooler, spec.head_name("pooler"), spec.scope_out());
  for (const PredictorSpec& predictor : spec.predictors) {
    const std::string& prefix = predictor.stack->stack;
    add(join_parameters(predictor), prefix, predictor.stack->scope(0, prefix));
    const ParamTable own = parameter_table(*predictor.stack);
    for (const spec::ParamDecl& decl : own.all)
      if (shapes.emplace(decl.name, decl.shape).second) all.push_back(decl);
    table.absent.insert(own.absent.begin(), own.absent.end());
  }
  return table;
}

std::vector<BranchState> state_layout(const ModelSpec& spec, spec::KvType type) {
  std::vector<BranchState> layout;
  bool any = false;
  if (spec.embed)
    if (auto tensors = spec.embed.config->state(spec.scope(0)); !tensors.empty())
      layout.push_back({"embed", std::move(tensors)});
  for (int64_t i = 0; i < static_cast<int64_t>(spec.layers.size()); ++i)
    for (const GroupSpec& group : spec.layers[static_cast<size_t>(i)].groups)
      for (const BranchSpec& branch : group.branches)
        if (auto tensors = branch.part.config->state(spec.scope(i, branch)); !tensors.empty()) {
          const std::string name = fmt::format("layers.{}.{}", i, branch.name);
          if (type != spec::KvType::f32 && can_quantize_kv(tensors)) {
            for (spec::StateDecl& decl : tensors) decl = stored_as(decl, type, name);
            any = true;
          }
          const LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
          layout.push_back({name, std::move(tensors),
                            layer.depth && layer.depth_config()->selective(),
                            layer.share_of_tokens()});
        }
  // as float32, which is exact for every id that a vocabulary may have
  if (const int64_t n = spec.ids_before(); n > 0)
    layout.push_back({kIds, {{.name = "id", .shape = {}, .keep = n}}});
  if (type != spec::KvType::f32 && !any) {
    const std::vector<std::string> full = kept_in_full(spec);
    fail(ErrorKind::spec, "kv-type",
         "{}, but no layer of this model keeps keys and values that may be rounded{}; expected f32",
         name_of(type),
         full.empty() ? "" : fmt::format(": all bits are needed in {}", some_of(full)));
  }
  return layout;
}

bool can_quantize_kv(const std::vector<spec::StateDecl>& decls) {
  bool any = false;
  for (const spec::StateDecl& decl : decls) {
    if (decl.kind == spec::StateDecl::Kind::fixed) continue;
    if (!decl.packs) return false;
    any = true;
  }
  return any;
}

bool can_quantize_kv(const std::vector<BranchState>& layout) {
  return std::any_of(layout.begin(), layout.end(),
                     [](const BranchState& branch) { return can_quantize_kv(branch.tensors); });
}

void check_kv_type(const ModelSpec& spec, spec::KvType type) {
  if (type == spec::KvType::f32) return;
  if (const std::string reason = spec.no_state_reason(); !reason.empty())
    fail(ErrorKind::usage, "kv-type",
         "{} for a model that keeps no keys and values: {}; leave it at f32", name_of(type),
         reason);
  state_layout(spec, type);
}

std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kMost = 4;
  if (names.size() <= kMost) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{} and {} more", fmt::join(names.begin(), names.begin() + kMost, ", "),
                     names.size() - kMost);
}

std::vector<std::string> kept_in_full(const ModelSpec& spec) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < static_cast<int64_t>(spec.layers.size()); ++i)
    for (const GroupSpec& group : spec.layers[static_cast<size_t>(i)].groups)
      for (const BranchSpec& branch : group.branches) {
        const auto tensors = branch.part.config->state(spec.scope(i, branch));
        const bool entries = std::any_of(
            tensors.begin(), tensors.end(),
            [](const spec::StateDecl& decl) { return decl.kind != spec::StateDecl::Kind::fixed; });
        if (entries && !can_quantize_kv(tensors))
          names.push_back(fmt::format("layers.{}.{} ({})", i, branch.name, branch.part.type()));
      }
  return names;
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
  const Json texts = {{"type", "array"}, {"items", {{"type", "string"}}}};
  const Json adapter = {{"type", "object"},
                        {"properties", {{"rank", integer}, {"of", texts}}},
                        {"required", {"rank", "of"}},
                        {"additionalProperties", false}};
  const Json quantization = {{"anyOf",
                              {{{"type", "object"},
                                {"properties",
                                 {{"weights", {{"enum", {"ternary", "stored"}}}},
                                  {"activations", {{"enum", {"int8", "float"}}}},
                                  {"of", texts}}},
                                {"additionalProperties", false}},
                               {{"type", "null"}}}}};
  const Json branch_properties = {{"name", {{"type", "string"}}},
                                  {"inputs", texts},
                                  {"add", texts},
                                  {"share", {{"type", "string"}}},
                                  {"adapters", {{"type", "array"}, {"items", adapter}}},
                                  {"quantization", quantization},
                                  {"mixer", ref("mixer")},
                                  {"ffn", ref("ffn")},
                                  {"norm", ref("norm")},
                                  {"residual", ref("residual")},
                                  {"parallel", {{"type", "array"}, {"items", ref("branch")}}}};
  defs["branch"] = {
      {"type", "object"}, {"properties", branch_properties}, {"additionalProperties", false}};
  const Json layer_properties = {{"repeat", integer},
                                 {"mixer", ref("mixer")},
                                 {"cross", ref("mixer")},
                                 {"ffn", ref("ffn")},
                                 {"norm", ref("norm")},
                                 {"residual", ref("residual")},
                                 {"depth", ref("depth")},
                                 {"quantization", quantization},
                                 {"branches", {{"type", "array"}, {"items", ref("branch")}}},
                                 {"share", {{"type", "string"}}}};
  defs["layer"] = {
      {"type", "object"}, {"properties", layer_properties}, {"additionalProperties", false}};
  const Json stack = {{"embed", ref("embed")},
                      {"norm", ref("norm")},
                      {"residual", ref("residual")},
                      {"depth", ref("depth")},
                      {"quantization", quantization},
                      {"mixer", ref("mixer")},
                      {"cross", ref("mixer")},
                      {"ffn", ref("ffn")},
                      {"layers", {{"type", "array"}, {"items", ref("layer")}}},
                      {"cycles", integer},
                      {"n_layers", integer},
                      {"overrides", {{"type", "array"}}},
                      {"final_norm", ref("norm")}};
  defs["stack"] = {{"type", "object"},
                   {"properties", stack},
                   {"required", {"layers"}},
                   {"additionalProperties", false}};
  const Json heads = {{"type", "array"}, {"items", ref("head")}};
  Json encoder_stack = defs["stack"];
  encoder_stack["properties"]["vocab"] = integer;
  encoder_stack["properties"]["head"] = ref("head");
  encoder_stack["properties"]["heads"] = heads;
  defs["encoder_stack"] = encoder_stack;
  const Json stacks = {
      {"type", "object"},
      {"properties", {{"encoder", ref("encoder_stack")}, {"decoder", ref("stack")}}},
      {"required", {"encoder", "decoder"}},
      {"additionalProperties", false}};
  Json properties = {{"tessera", {{"const", 1}}},
                     {"arch", {{"enum", {"decoder", "encoder", "encoder_decoder"}}}},
                     {"vocab", integer},
                     {"d_model", integer},
                     {"context", {{"type", "integer"}, {"minimum", 0}}},
                     {"init", ref("init")}};
  properties.update(stack);
  properties["predictors"] = properties["mtp"] = predictors_schema(stack);
  properties["head"] = ref("head");
  properties["heads"] = heads;
  properties["stacks"] = stacks;
  properties["start"] = {{"type", "integer"}, {"minimum", 0}};
  properties["mask"] = {{"type", "integer"}, {"minimum", 0}};
  properties["tokens"] = {{"enum", {"shared", "own"}}};
  return {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
          {"title", "tessera spec"},
          {"type", "object"},
          {"properties", properties},
          {"required", {"tessera", "arch", "vocab", "d_model"}},
          {"anyOf", {{{"required", {"layers"}}}, {{"required", {"stacks"}}}}},
          {"additionalProperties", false},
          {"$defs", defs}};
}

}  // namespace tessera::model
