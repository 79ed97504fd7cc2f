// Parses and writes the layers of a spec: groups of branches with their inputs and shared parts.
#include <algorithm>
#include <map>
#include <set>

#include "tessera/model/spec_reader.h"
#include "tessera/nn/depth/depth_config.h"
#include "tessera/nn/residual/residual_config.h"
#include "tessera/nn/wide_output.h"

namespace tessera::model {
namespace {

using spec::Scope;

constexpr int64_t kMaxRank = 1 << 20;
const std::vector<std::string> kLayerKeys = {"repeat", "mixer",       "cross",    "ffn",
                                             "norm",   "residual",    "branches", "share",
                                             "depth",  "quantization"};
const std::vector<std::string> kBranchKeys = {"name",     "mixer",        "ffn",     "norm",
                                              "inputs",   "add",          "share",   "residual",
                                              "adapters", "quantization", "parallel"};
const std::vector<std::string> kParallelKeys = {
    "name", "mixer", "ffn", "norm", "inputs", "add", "share", "adapters", "quantization"};

/// A user-defined name, which becomes part of parameter names.
std::string read_id(const Json& json, const std::string& path) {
  if (!json.is_string())
    fail(ErrorKind::spec, path, "found {}; expected a string", spec::kind_of(json));
  const auto id = json.get<std::string>();
  if (id.empty() ||
      id.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") != std::string::npos)
    fail(ErrorKind::spec, path, "\"{}\"; expected lower-case letters, digits and _", id);
  return id;
}

std::vector<std::string> read_names(const Json& json, const std::string& path) {
  if (!json.is_array() || json.empty())
    fail(ErrorKind::spec, path, "found {}; expected a non-empty list of names",
         json.is_array() ? "an empty list" : spec::kind_of(json));
  std::vector<std::string> names;
  for (const Json& name : json) {
    if (!name.is_string())
      fail(ErrorKind::spec, path, "found {}; expected a name", spec::kind_of(name));
    names.push_back(name.get<std::string>());
  }
  return names;
}

std::vector<AdapterSpec> read_adapters(const Json& json, const std::string& path) {
  if (!json.is_array())
    fail(ErrorKind::spec, path, "found {}; expected a list of {{\"rank\": ..., \"of\": [...]}}",
         spec::kind_of(json));
  std::vector<AdapterSpec> adapters;
  std::set<std::string> known;
  for (size_t i = 0; i < json.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    check_keys(json[i], {"rank", "of"}, at);
    const int64_t rank = read_integer(json[i], "rank", 1, kMaxRank, std::nullopt, at);
    const Json* of = get(json[i], "of");
    adapters.push_back({rank, read_names(of == nullptr ? Json() : *of, at + ".of")});
    for (const std::string& name : adapters.back().of)
      if (!known.insert(name).second)
        fail(ErrorKind::spec, at + ".of", "\"{}\" has an adapter already", name);
  }
  return adapters;
}

/// The value of `key`, one of two words: whether it is the first, the default.
bool read_choice(const Json& json,
                 const char* key,
                 const char* first,
                 const char* second,
                 const std::string& path) {
  const Json value = json.value(key, Json(first));
  if (value != first && value != second)
    fail(ErrorKind::spec, path + "." + key, "found {}; expected \"{}\" or \"{}\"", value.dump(),
         first, second);
  return value == first;
}

std::optional<QuantizationSpec> read_quantization(const Json& json, const std::string& path) {
  if (json.is_null()) return std::nullopt;
  if (!json.is_object())
    fail(ErrorKind::spec, path,
         "found {}; expected {{\"weights\": \"ternary\", \"activations\": \"int8\"}} or null",
         spec::kind_of(json));
  check_keys(json, {"weights", "activations", "of"}, path);
  QuantizationSpec out;
  out.ternary = read_choice(json, "weights", "ternary", "stored", path);
  out.int8 = read_choice(json, "activations", "int8", "float", path);
  if (const Json* of = get(json, "of")) out.of = read_names(*of, path + ".of");
  if (!out.ternary && !out.int8)
    fail(ErrorKind::spec, path,
         "weights as stored and float activations round nothing; expected null, or one of them "
         "rounded");
  return out;
}

/// The matrices of a part whose operands may be rounded, without ".weight". Routers choose by
/// small differences of scores.
std::vector<std::string> roundable_products(const AnyPart& part, const Scope& scope) {
  constexpr std::string_view kWeight = ".weight", kRouter = "router.";
  spec::ParamList list;
  part.config->params(list, scope);
  std::vector<std::string> names;
  for (const spec::ParamDecl& decl : list.all())
    if (decl.adapts() && decl.name.ends_with(kWeight) && !decl.name.starts_with(kRouter))
      names.push_back(decl.name.substr(0, decl.name.size() - kWeight.size()));
  return names;
}

/// A branch in the JSON of a spec.
struct Written {
  Slot slot;
  std::string name;
  const Json& part;
  std::string path, part_path;
  const Json& norm;
  const Json& quantization;
  const Json& json;  // the branch, if given as an object
};

class LayerReader {
 public:
  LayerReader(const LayerDefaults& defaults, Scope scope, std::vector<spec::Placed>& before)
      : defaults_(defaults), scope_(std::move(scope)), before_(before) {}

  LayerSpec read(const Json& json) {
    check_keys(json, kLayerKeys, scope_.path);
    const Json norm = json.value("norm", defaults_.norm);
    const Json residual = json.value("residual", defaults_.residual);
    if (residual.is_null())
      fail(
          ErrorKind::spec, scope_.path + ".residual",
          "null for a whole layer; expected a residual, and null in branches that later ones read");
    const Json quantization = json.value("quantization", defaults_.quantization);
    if (const Json* share = get(json, "share"))
      layer_.share = read_id(*share, scope_.path + ".share");
    if (const Json depth = json.value("depth", defaults_.depth); !depth.is_null())
      layer_.depth = spec::read_part(Slot::depth, depth, scope_.at("depth"));
    if (const Json* branches = get(json, "branches")) {
      for (const char* key : {"mixer", "cross", "ffn"})
        if (get(json, key) != nullptr)
          fail(ErrorKind::spec, scope_.path, "\"branches\" and \"{}\" exclude each other", key);
      if (!branches->is_array() || branches->empty())
        fail(ErrorKind::spec, scope_.path + ".branches", "expected a non-empty list");
      for (size_t i = 0; i < branches->size(); ++i)
        read_group((*branches)[i], fmt::format("{}.branches[{}]", scope_.path, i),
                   {norm, residual, {}, quantization});
      check_asides();
    } else {
      read_short(json, {norm, residual, {}, quantization});
    }
    check_depth();
    check_rounded_names(json, {&layer_}, scope_.path);
    return std::move(layer_);
  }

 private:
  /// mixer, cross, then ffn; null leaves one out
  void read_short(const Json& json, const LayerDefaults& own) {
    std::vector<std::tuple<Slot, std::string, const Json*>> parts;
    for (const auto& [slot, key, fallback] : {std::tuple{Slot::mixer, "mixer", defaults_.mixer},
                                              std::tuple{Slot::mixer, "cross", defaults_.cross},
                                              std::tuple{Slot::ffn, "ffn", defaults_.ffn}}) {
      const Json* part = get(json, key);
      if (part == nullptr) part = fallback;
      if (part != nullptr && !part->is_null()) parts.emplace_back(slot, key, part);
    }
    if (parts.empty())
      fail(ErrorKind::spec, scope_.path, "a layer needs \"mixer\", \"ffn\" or \"branches\"");
    const AnyPart joined = read_residual(own.residual, scope_.path);
    const bool joins = joined.as<nn::ResidualConfig>().joins_branches();
    const Json none = Json::object();
    for (const auto& [slot, name, part] : parts) {
      if (layer_.groups.empty() || !joins) layer_.groups.push_back({joined, {}});
      const std::string path = scope_.path + "." + name;
      add_branch({slot, name, *part, path, path, own.norm, own.quantization, none});
    }
  }

  AnyPart read_residual(const Json& json, const std::string& path) {
    Scope scope = scope_;
    scope.path = path + ".residual";
    return spec::read_part(Slot::residual, json, scope);
  }

  void read_group(const Json& json, const std::string& path, const LayerDefaults& layer) {
    check_keys(json, kBranchKeys, path);
    const Json own = json.value("residual", layer.residual);
    const Json norm = json.value("norm", layer.norm),
               quantization = json.value("quantization", layer.quantization);
    GroupSpec group;
    group.aside = own.is_null();
    group.residual = read_residual(group.aside ? Json("pre_norm") : own, path);
    layer_.groups.push_back(std::move(group));
    const Json* parallel = get(json, "parallel");
    if (parallel == nullptr) return read_branch(json, path, norm, quantization);
    if (!layer_.groups.back().residual_config().joins_branches())
      fail(ErrorKind::spec, path,
           "\"parallel\" branches under residual \"{}\"; use residual \"parallel\"",
           layer_.groups.back().aside ? "null" : layer_.groups.back().residual.type());
    if (!parallel->is_array() || parallel->empty())
      fail(ErrorKind::spec, path + ".parallel", "expected a non-empty list");
    for (size_t i = 0; i < parallel->size(); ++i) {
      const std::string at = fmt::format("{}.parallel[{}]", path, i);
      check_keys((*parallel)[i], kParallelKeys, at);
      read_branch((*parallel)[i], at, (*parallel)[i].value("norm", norm),
                  (*parallel)[i].value("quantization", quantization));
    }
  }

  void read_branch(const Json& json,
                   const std::string& path,
                   const Json& norm,
                   const Json& quantization) {
    const Json* mixer = get(json, "mixer");
    const Json* ffn = get(json, "ffn");
    if ((mixer == nullptr) == (ffn == nullptr))
      fail(ErrorKind::spec, path, "expected exactly one of \"mixer\" and \"ffn\"");
    const Slot slot = mixer != nullptr ? Slot::mixer : Slot::ffn;
    const Json* given = get(json, "name");
    const std::string name =
        given == nullptr ? spec::name_of(slot) : read_id(*given, path + ".name");
    if (name == kStream || name == kEmbedding)
      fail(ErrorKind::spec, path + ".name", "\"{}\" names what branches read; take another", name);
    add_branch({slot, name, mixer != nullptr ? *mixer : *ffn, path,
                path + "." + spec::name_of(slot), norm, quantization, json});
  }

  void add_branch(const Written& written) {
    for (const GroupSpec& other : layer_.groups)
      for (const BranchSpec& b : other.branches)
        if (b.name == written.name)
          fail(ErrorKind::spec, written.part_path,
               "two branches are named \"{}\"; give one a \"name\"", written.name);
    BranchSpec branch;
    branch.name = written.name;
    branch.slot = written.slot;
    read_inputs(written, branch);
    if (const Json* share = get(written.json, "share")) {
      if (!layer_.share.empty())
        fail(ErrorKind::spec, written.path + ".share", "the whole layer is shared as \"{}\"",
             layer_.share);
      branch.share = read_id(*share, written.path + ".share");
    }
    if (const Json* adapters = get(written.json, "adapters"))
      branch.adapters = read_adapters(*adapters, written.path + ".adapters");
    Scope scope = scope_;
    scope.path = written.part_path;
    const int64_t streams = layer_.groups.back().residual_config().streams_read();
    scope.d_in = scope.d_model * static_cast<int64_t>(branch.inputs.size()) * streams;
    branch.part = spec::read_part(written.slot, written.part, scope);
    if (scope.d_in != scope.d_model && !branch.part.info().any_width)
      fail(ErrorKind::spec, written.part_path,
           "\"{}\" reads {} channels, and its {} inputs have {}; bring them to that width first by "
           "a branch {{\"ffn\": \"linear\"}}",
           branch.part.type(), scope.d_model, scope.d_in / scope.d_model, scope.d_in);
    if (branch.inputs.size() > 1 &&
        dynamic_cast<const nn::WideOutput*>(branch.part.config.get()) != nullptr)
      fail(ErrorKind::spec, written.part_path,
           "\"{}\" reads {} channels and adds to {}; expected one input", branch.part.type(),
           scope.d_in, scope.d_in / std::ssize(branch.inputs));
    for (const spec::Placed& placed : before_)
      if (placed.part.mechanism == branch.part.mechanism) ++scope.earlier;
    if (const auto* reads = dynamic_cast<const spec::ReadsEarlierParts*>(branch.part.config.get()))
      reads->check_behind(before_, scope);
    before_.push_back({branch.part, scope});
    read_rounding(written, scope, branch);
    read_norms(written, scope.d_in, branch);
    layer_.groups.back().branches.push_back(std::move(branch));
  }

  /// Names that a default lists are those of the parts that have them.
  void read_rounding(const Written& written, const Scope& scope, BranchSpec& branch) {
    const std::string path = written.path + ".quantization";
    auto given = read_quantization(written.quantization, path);
    if (!given) return;
    const std::vector<std::string> known = roundable_products(branch.part, scope);
    const auto is_known = [&](const std::string& name) {
      return std::find(known.begin(), known.end(), name) != known.end();
    };
    const bool own = written.json.contains("quantization");
    for (const std::string& name : given->of)
      if (own && !is_known(name))
        fail(ErrorKind::spec, path + ".of", "\"{}\" is no product of \"{}\"; expected {}", name,
             branch.part.type(),
             known.empty() ? "null: it has none" : fmt::format("{}", fmt::join(known, ", ")));
    const bool all = given->of.empty();
    std::erase_if(given->of, [&](const std::string& name) { return !is_known(name); });
    if (all ? !known.empty() : !given->of.empty()) branch.quantization = std::move(given);
  }

  void read_norms(const Written& written, int64_t width, BranchSpec& branch) {
    const GroupSpec& group = layer_.groups.back();
    const nn::ResidualConfig& residual = group.residual_config();
    if (!group.branches.empty() && residual.shares_norm()) return;
    Scope scope = scope_;
    scope.path = scope_.path + ".norm";
    scope.width = residual.norms_input() ? width : scope.d_model;
    scope.of_batch = true;
    const bool none = written.norm.is_null() && residual.norms_input();
    for (size_t i = 0; i < residual.norms().size(); ++i)
      branch.norms.push_back(none ? AnyPart() : spec::read_part(Slot::norm, written.norm, scope));
  }

  void read_inputs(const Written& written, BranchSpec& branch) {
    const std::string& path = written.path;
    if (const Json* inputs = get(written.json, "inputs"))
      branch.inputs = read_names(*inputs, path + ".inputs");
    if (const Json* add = get(written.json, "add")) branch.add = read_names(*add, path + ".add");
    const GroupSpec& group = layer_.groups.back();
    if (!branch.reads_stream_alone() && !group.residual_config().takes_inputs())
      fail(ErrorKind::spec, path,
           "residual \"{}\" lets a branch read the stream alone; \"inputs\" and \"add\" need "
           "residual \"pre_norm\", \"post_norm\", \"reordered\" or null",
           group.residual.type());
    if (!branch.add.empty() && branch.inputs.size() != 1)
      fail(ErrorKind::spec, path + ".add", "{} inputs side by side; expected one to add to",
           branch.inputs.size());
    std::vector<std::string> known = {kStream, kEmbedding};
    for (const GroupSpec& earlier : layer_.groups)
      for (const BranchSpec& b : earlier.branches) known.push_back(b.name);
    const auto check = [&](const std::vector<std::string>& names, const char* key) {
      for (const std::string& name : names)
        if (std::find(known.begin(), known.end(), name) == known.end())
          fail(ErrorKind::spec, path + "." + key,
               "\"{}\" is not known here; expected \"stream\", \"embedding\" or an earlier branch "
               "of the layer ({})",
               name, fmt::join(known.begin() + 2, known.end(), ", "));
    };
    check(branch.inputs, "inputs");
    check(branch.add, "add");
  }

  /// A branch that is not added to the stream must be read by another one.
  void check_asides() {
    for (size_t g = 0; g < layer_.groups.size(); ++g) {
      if (!layer_.groups[g].aside) continue;
      const std::string& name = layer_.groups[g].branches[0].name;
      bool is_read = false;
      for (size_t later = g + 1; later < layer_.groups.size(); ++later)
        for (const BranchSpec& b : layer_.groups[later].branches)
          for (const auto* names : {&b.inputs, &b.add})
            is_read = is_read || std::find(names->begin(), names->end(), name) != names->end();
      if (!is_read)
        fail(ErrorKind::spec, fmt::format("{}.branches[{}]", scope_.path, g),
             "\"{}\" has residual null, and no later branch of the layer reads it; name it in "
             "\"inputs\" or \"add\" of one, or give it a residual",
             name);
    }
  }

  /// Tokens that skip a layer contribute nothing to it, and get nothing from it.
  void check_depth() {
    if (!layer_.depth) return;
    for (const GroupSpec& group : layer_.groups) {
      if (!group.residual_config().carries().empty())
        fail(ErrorKind::spec, scope_.path + ".depth",
             "\"{}\" under residual \"{}\", whose streams run through all layers; expected one "
             "that carries x alone",
             layer_.depth.type(), group.residual.type());
      for (const BranchSpec& branch : group.branches)
        if (const auto* part =
                dynamic_cast<const spec::ReadsEarlierParts*>(branch.part.config.get());
            part != nullptr && part->shares())
          fail(ErrorKind::spec, scope_.path + ".depth",
               "\"{}\" with \"{}\", which shares values with other layers; take another mixer",
               layer_.depth.type(), branch.part.type());
      if (!layer_.depth_config()->selective()) continue;
      for (const BranchSpec& branch : group.branches)
        for (const spec::StateDecl& decl : branch.part.config->state(scope_))
          if (decl.kind == spec::StateDecl::Kind::per_source)
            fail(ErrorKind::spec, scope_.path + ".depth",
                 "\"{}\" with \"{}\", which keeps a row's source from its first call, of which no "
                 "token may be chosen; expected it in a layer that computes all tokens",
                 layer_.depth.type(), branch.part.type());
    }
    if (layer_.reads(kEmbedding))
      fail(ErrorKind::spec, scope_.path + ".depth",
           "\"{}\" in a layer that reads \"embedding\"; expected branches that read the stream",
           layer_.depth.type());
  }

  const LayerDefaults& defaults_;
  Scope scope_;
  std::vector<spec::Placed>& before_;
  LayerSpec layer_;
};

/// The properties that all branches of one share must have in common.
Json dump_shared(const BranchSpec& branch) {
  Json json = Json::object();
  json[spec::name_of(branch.slot)] = spec::dump_part(branch.part);
  json["norm"] = branch.norms.empty() ? Json() : spec::dump_part(branch.norms.front());
  json["inputs"] = branch.inputs.size();
  return json;
}

Json dump_branch(const BranchSpec& branch) {
  Json json = Json::object();
  json["name"] = branch.name;
  json[spec::name_of(branch.slot)] = spec::dump_part(branch.part);
  if (!branch.norms.empty()) json["norm"] = spec::dump_part(branch.norms.front());
  if (branch.inputs != BranchSpec().inputs) json["inputs"] = branch.inputs;
  if (!branch.add.empty()) json["add"] = branch.add;
  if (!branch.share.empty()) json["share"] = branch.share;
  for (const AdapterSpec& adapter : branch.adapters)
    json["adapters"].push_back({{"rank", adapter.rank}, {"of", adapter.of}});
  if (const auto& q = branch.quantization) {
    Json& out = json["quantization"];
    out = {{"weights", q->ternary ? "ternary" : "stored"},
           {"activations", q->int8 ? "int8" : "float"}};
    if (!q->of.empty()) out["of"] = q->of;
  }
  return json;
}

}  // namespace

LayerSpec read_layer(const Json& json,
                     const LayerDefaults& defaults,
                     const Scope& scope,
                     std::vector<spec::Placed>& before) {
  return LayerReader(defaults, scope, before).read(json);
}

void check_rounded_names(const Json& json,
                         const std::vector<const LayerSpec*>& layers,
                         const std::string& path) {
  const Json* given = get(json, "quantization");
  if (given == nullptr || !given->is_object() || !given->contains("of") ||
      !(*given)["of"].is_array())
    return;
  std::set<std::string> used;
  for (const LayerSpec* layer : layers)
    for (const GroupSpec& group : layer->groups)
      for (const BranchSpec& branch : group.branches)
        if (branch.quantization)
          used.insert(branch.quantization->of.begin(), branch.quantization->of.end());
  for (const Json& name : (*given)["of"])
    if (name.is_string() && !used.contains(name.get<std::string>()))
      fail(ErrorKind::spec, (path.empty() ? "" : path + ".") + "quantization.of",
           "{} is no product of the parts here; expected names of their matrices, such as \"q\" or "
           "\"gate\", without \".weight\"",
           name.dump());
}

Json dump_layer(const LayerSpec& layer) {
  Json json = Json::object();
  if (!layer.share.empty()) json["share"] = layer.share;
  if (layer.depth) json["depth"] = spec::dump_part(layer.depth);
  Json groups = Json::array();
  for (const GroupSpec& group : layer.groups) {
    Json branches = Json::array();
    for (const BranchSpec& branch : group.branches) branches.push_back(dump_branch(branch));
    if (group.residual_config().joins_branches()) {
      groups.push_back({{"parallel", branches}, {"residual", spec::dump_part(group.residual)}});
    } else {
      branches[0]["residual"] = group.aside ? Json() : spec::dump_part(group.residual);
      groups.push_back(branches[0]);
    }
  }
  json["branches"] = groups;
  return json;
}

void check_shared(const ModelSpec& spec, const std::string& path) {
  const auto at = [&](size_t layer) {
    return fmt::format("{}layers[{}]", path.empty() ? "" : path + ".", layer);
  };
  std::map<std::string, Json> layers, branches;  // by id; by prefix of parameters
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    if (!layer.share.empty()) {
      const Json dump = dump_layer(layer);
      const auto [known, is_new] = layers.emplace(layer.share, dump);
      if (!is_new && known->second != dump)
        fail(ErrorKind::spec, at(i) + ".share",
             "\"{}\" names two different layers; shared layers have one config", layer.share);
    }
    for (const GroupSpec& group : layer.groups)
      for (const BranchSpec& branch : group.branches) {
        if (layer.share.empty() && branch.share.empty()) continue;
        const Json dump = dump_shared(branch);
        const auto [known, is_new] =
            branches.emplace(spec.prefix(static_cast<int64_t>(i), branch), dump);
        if (!is_new && known->second != dump)
          fail(ErrorKind::spec, at(i),
               "two different branches \"{}\" are shared under one id; shared branches have one "
               "config, norm and number of inputs",
               branch.name);
      }
  }
}

std::vector<std::string> quantized_products(const ModelSpec& spec,
                                            int64_t layer,
                                            const BranchSpec& branch) {
  if (!branch.quantization) return {};
  return branch.quantization->of.empty()
             ? roundable_products(branch.part, spec.scope(layer, branch))
             : branch.quantization->of;
}

std::set<std::string> ternary_weights(const ModelSpec& spec) {
  std::set<std::string> names;
  for (int64_t i = 0; i < std::ssize(spec.layers); ++i)
    for (const GroupSpec& group : spec.layers[static_cast<size_t>(i)].groups)
      for (const BranchSpec& branch : group.branches)
        if (branch.quantization && branch.quantization->ternary)
          for (const std::string& product : quantized_products(spec, i, branch))
            names.insert(spec.kept_as(spec.prefix(i, branch) + "." + product + ".weight"));
  if (spec.encoder) names.merge(ternary_weights(*spec.encoder));
  for (const PredictorSpec& predictor : spec.predictors)
    names.merge(ternary_weights(*predictor.stack));
  return names;
}

spec::ParamList adapter_parameters(const ModelSpec& spec, int64_t layer, const BranchSpec& branch) {
  spec::ParamList all, part;
  if (branch.adapters.empty()) return all;
  branch.part.config->params(part, spec.scope(layer, branch));
  const auto product = [&](const std::string& name) -> const spec::ParamDecl* {
    for (const spec::ParamDecl& decl : part.all())
      if (decl.name == name + ".weight" && decl.adapts() && decl.shape.size() == 2) return &decl;
    return nullptr;
  };
  for (size_t k = 0; k < branch.adapters.size(); ++k) {
    const AdapterSpec& adapter = branch.adapters[k];
    const std::string where =
        fmt::format("{}layers[{}].{}.adapters[{}]",
                    spec.stack.empty() ? "" : "stacks." + spec.stack + ".", layer, branch.name, k);
    spec::ParamList list(spec.adapter_prefix(layer, branch, k));
    int64_t width = 0;
    for (const std::string& name : adapter.of) {
      const spec::ParamDecl* w = product(name);
      if (w == nullptr)
        fail(ErrorKind::spec, where,
             "\"{}\" is no product of \"{}\"; expected the name of one of "
             "its matrices, without \".weight\"",
             name, branch.part.type());
      if (width == 0) list.linear("a", adapter.rank, width = w->shape[1], false);
      if (w->shape[1] != width)
        fail(ErrorKind::spec, where,
             "\"{}\" reads {} channels, and \"{}\" {}; give them adapters of their own",
             adapter.of.front(), width, name, w->shape[1]);
      // initially the part is unchanged
      list.linear("b." + name, w->shape[0], adapter.rank, false, spec::Init::constant(0));
    }
    all.append(list);
  }
  return all;
}

}  // namespace tessera::model
