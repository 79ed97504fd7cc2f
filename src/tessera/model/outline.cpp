#include "tessera/model/outline.h"

#include <algorithm>
#include <map>
#include <set>

#include "tessera/model/plan.h"

namespace tessera::model {
namespace {

using spec::AnyPart;
using spec::Json;
using spec::ParamDecl;

/// The parameters of a model by name, and the node of those seen.
class Places {
 public:
  explicit Places(std::vector<ParamDecl> all) : all_(std::move(all)) {
    for (const ParamDecl& decl : all_) by_name_[decl.name] = &decl;
  }

  /// Adds those that begin with `prefix` to a node, without the first `cut` bytes of their names;
  /// they are of `place`, unless they are norms'.
  void take(Json& node, const std::string& prefix, size_t cut, const std::string& place) {
    for (auto at = by_name_.lower_bound(prefix);
         at != by_name_.end() && at->first.starts_with(prefix); ++at) {
      const ParamDecl& decl = *at->second;
      node["tensors"].push_back({{"name", decl.name.substr(cut)},
                                 {"shape", decl.shape},
                                 {"kind", spec::name_of(decl.kind)}});
      node["parameters"] = node["parameters"].get<int64_t>() + decl.elements();
      if (met_.insert(decl.name).second)
        sums_[decl.kind == spec::ParamKind::norm ? "norms" : place] += decl.elements();
    }
  }
  void take(Json& node, const std::string& prefix, const std::string& place) {
    take(node, prefix, prefix.size(), place);
  }

  Json by_place() const {
    std::map<std::string, int64_t> sums = sums_;
    for (const ParamDecl& decl : all_)
      if (!met_.contains(decl.name))
        sums[decl.name.starts_with("predictors.") ? "predictors" : "other"] += decl.elements();
    return listed(sums);
  }
  Json by_kind() const {
    std::map<std::string, int64_t> sums;
    for (const ParamDecl& decl : all_) sums[name_of(decl.kind)] += decl.elements();
    return listed(sums);
  }

 private:
  static Json listed(const std::map<std::string, int64_t>& sums) {
    std::vector<std::pair<std::string, int64_t>> rows(sums.begin(), sums.end());
    std::stable_sort(rows.begin(), rows.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    Json out = Json::array();
    for (const auto& [name, n] : rows)
      if (n > 0) out.push_back({{"name", name}, {"parameters", n}});
    return out;
  }

  std::vector<ParamDecl> all_;
  std::map<std::string, const ParamDecl*> by_name_;
  std::set<std::string> met_;
  std::map<std::string, int64_t> sums_;
};

Json node_of(const char* kind, const std::string& name, const AnyPart& part) {
  return {{"kind", kind},        {"name", name},
          {"parameters", 0},     {"tensors", Json::array()},
          {"type", part.type()}, {"config", spec::dump_part(part)}};
}

/// Layers as nodes with repetitions folded: "a a b a a b" is twice (twice a, b).
class Folded {
 public:
  static Json of(const std::vector<Json>& layers, int64_t first = 0) {
    Json nodes = Json::array();
    for (size_t i = 0; i < layers.size();) {
      const auto [period, times] = best(layers, i);
      const auto begin = layers.begin() + static_cast<std::ptrdiff_t>(i);
      const int64_t from = first + static_cast<int64_t>(i);
      if (period == 1) {
        Json node = layers[i];
        node["kind"] = "layers";
        node["times"] = times;
        node["first"] = from;
        node["last"] = from + static_cast<int64_t>(times) - 1;
        nodes.push_back(std::move(node));
      } else {
        const std::vector<Json> once(begin, begin + static_cast<std::ptrdiff_t>(period));
        Json inner = of(once, from);
        // layer numbers are those of the first repetition
        for (Json& node : inner) node.erase("first"), node.erase("last");
        nodes.push_back({{"kind", "cycle"},
                         {"times", times},
                         {"first", from},
                         {"last", from + static_cast<int64_t>(period * times) - 1},
                         {"nodes", std::move(inner)}});
      }
      i += period * times;
    }
    return nodes;
  }

 private:
  /// The repetition that covers most layers from `at` on, with the shortest period; one layer if
  /// nothing repeats.
  static std::pair<size_t, size_t> best(const std::vector<Json>& layers, size_t at) {
    constexpr size_t kLongest = 16;
    std::pair<size_t, size_t> found{1, 1};
    for (size_t period = 1; period <= kLongest && at + 2 * period <= layers.size(); ++period) {
      size_t times = 1;
      while (at + (times + 1) * period <= layers.size() &&
             std::equal(layers.begin() + static_cast<std::ptrdiff_t>(at),
                        layers.begin() + static_cast<std::ptrdiff_t>(at + period),
                        layers.begin() + static_cast<std::ptrdiff_t>(at + times * period)))
        ++times;
      if (times > 1 && period * times > found.first * found.second) found = {period, times};
    }
    return found;
  }
};

class Outliner {
 public:
  Outliner(const ModelSpec& spec, int64_t context, spec::KvType kv)
      : places_(parameters(spec)), context_(context) {
    if (spec.no_state_reason().empty())
      for (const BranchState& branch : state_layout(spec, kv))
        state_[branch.name] = spec::state_bytes(
            branch.tensors, static_cast<int64_t>(branch.share * static_cast<double>(context)),
            spec.encoder ? context : 0);
  }

  Json stack(const ModelSpec& spec) {
    Json nodes = Json::array();
    if (spec.embed) {
      Json node = node_of("embed", "embed", spec.embed);
      const std::string table = spec.under(kTokenTable), kept = spec.kept_as(table);
      if (kept != table) places_.take(node, kept, std::string("embed.").size(), "embed");
      places_.take(node, spec.under("embed."), "embed");
      nodes.push_back(std::move(node));
    }
    std::vector<Json> layers;
    for (size_t i = 0; i < spec.layers.size(); ++i)
      layers.push_back(layer(spec, static_cast<int64_t>(i)));
    for (Json& node : Folded::of(layers)) nodes.push_back(std::move(node));
    const auto part = [&](const char* kind, const char* name, const AnyPart& of,
                          const std::string& prefix) {
      if (!of) return;
      Json node = node_of(kind, name, of);
      places_.take(node, prefix + ".", name);
      nodes.push_back(std::move(node));
    };
    part("norm", "final_norm", spec.final_norm, spec.under("final_norm"));
    part("head", "head", spec.head, "head");
    part("head", "pooler", spec.pooler, "pooler");
    return {{"name", spec.stack}, {"nodes", std::move(nodes)}};
  }
  Json by_place() const { return places_.by_place(); }
  Json by_kind() const { return places_.by_kind(); }

 private:
  Json layer(const ModelSpec& spec, int64_t index) {
    const LayerSpec& layer = spec.layers[static_cast<size_t>(index)];
    Json groups = Json::array();
    for (const GroupSpec& group : layer.groups) {
      Json branches = Json::array();
      for (const BranchSpec& each : group.branches)
        branches.push_back(branch(spec, index, group, each));
      groups.push_back({{"residual", group.aside ? "aside" : group.residual.type()},
                        {"aside", group.aside},
                        {"branches", std::move(branches)}});
    }
    Json node = {{"groups", std::move(groups)}};
    if (layer.depth) {
      node["depth"] = layer.depth.type();
      Json own = {{"parameters", 0}, {"tensors", Json::array()}};
      places_.take(own, spec.prefix(index) + ".depth.", "depth");
      node["depth_parameters"] = own["parameters"];
    }
    if (!layer.share.empty()) node["share"] = layer.share;
    return node;
  }

  Json branch(const ModelSpec& spec,
              int64_t index,
              const GroupSpec& group,
              const BranchSpec& branch) {
    Json node = node_of("branch", branch.name, branch.part);
    const std::string slot = spec::name_of(branch.slot), prefix = spec.prefix(index, branch);
    const size_t cut = prefix.size() - branch.name.size();  // "mixer_norm.weight"
    node["slot"] = slot;
    places_.take(node, prefix + ".", slot);
    // what parts share by an id of their own
    spec::ParamList list(prefix);
    branch.part.config->params(list, spec.scope(index, branch));
    for (const ParamDecl& decl : list.all())
      if (!decl.name.starts_with(prefix + ".")) places_.take(node, decl.name, 0, slot);
    Json norms = Json::array();
    const std::vector<std::string> norm_names = group.norm_names();
    for (size_t n = 0; n < branch.norms.size(); ++n) {
      if (!branch.norms[n]) continue;
      norms.push_back(branch.norms[n].type());
      places_.take(node, prefix + "_" + norm_names[n] + ".", cut, "norms");
    }
    places_.take(node, prefix + "_residual.", cut, "residual");
    // those of a shared branch are elsewhere
    for (size_t a = 0; a < branch.adapters.size(); ++a)
      if (const std::string own = spec.adapter_prefix(index, branch, a) + ".";
          !own.starts_with(prefix + "."))
        places_.take(node, own, slot);
    node["norms"] = std::move(norms);
    Json reads = Json::array();
    if (!branch.reads_stream_alone()) {
      for (const std::string& name : branch.inputs) reads.push_back(name);
      for (const std::string& name : branch.add) reads.push_back("+ " + name);
    }
    node["reads"] = std::move(reads);
    const std::string& share =
        branch.share.empty() ? spec.layers[static_cast<size_t>(index)].share : branch.share;
    if (!share.empty()) node["share"] = share;
    node["flops"] = branch_flops(spec, index, branch, context_);
    const auto state = state_.find(fmt::format("layers.{}.{}", index, branch.name));
    node["state_bytes"] = state == state_.end() || spec.stack == "encoder" ? 0 : state->second;
    return node;
  }

  Places places_;
  int64_t context_;
  std::map<std::string, int64_t> state_;
};

}  // namespace

spec::Json outline(const ModelSpec& spec, int64_t longest, spec::KvType kv) {
  longest = std::max<int64_t>(1, longest);
  Outliner outliner(spec, longest, kv);
  Json stacks = Json::array();
  if (spec.encoder) stacks.push_back(outliner.stack(*spec.encoder));
  stacks.push_back(outliner.stack(spec));
  Json mixers = Json::array();
  const ModelSpec& reader = spec.encoder ? *spec.encoder : spec;
  for (size_t i = 0; i < reader.layers.size(); ++i)
    for (const GroupSpec& group : reader.layers[i].groups)
      for (const BranchSpec& branch : group.branches)
        if (branch.slot == spec::Slot::mixer)
          mixers.push_back({{"name", reader.under(fmt::format("layers.{}.{}", i, branch.name))},
                            {"type", branch.part.type()}});
  Json contexts = Json::array();
  const auto add = [&](int64_t tokens) {
    const Plan plan = make_plan(spec, tokens, -1, kv);
    contexts.push_back({{"tokens", tokens},
                        {"state_bytes", plan.state_bytes},
                        {"flops_per_token", plan.flops_per_token}});
  };
  constexpr int64_t kShortest = 256, kMost = 8;
  int64_t tokens = std::min(kShortest, longest);
  while (tokens < longest && longest / tokens >= int64_t{1} << kMost) tokens *= 2;
  for (; tokens < longest; tokens *= 2) add(tokens);
  add(longest);
  return {{"arch", name_of(spec.arch)},
          {"d_model", spec.d_model},
          {"vocab", spec.vocab},
          {"context", spec.longest_sequence()},
          {"kv_type", spec::name_of(kv)},
          {"plan", to_json(make_plan(spec, longest, -1, kv))},
          {"by_place", outliner.by_place()},
          {"by_kind", outliner.by_kind()},
          {"stacks", std::move(stacks)},
          {"mixers", std::move(mixers)},
          {"contexts", std::move(contexts)}};
}

}  // namespace tessera::model
