#include "tessera/convert/propose_forms.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/convert/expr_node.h"
#include "tessera/convert/propose_keys.h"
#include "tessera/convert/propose_norms.h"
#include "tessera/convert/propose_tensors.h"

namespace tessera::convert {
namespace {

bool is_word_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

/// Where a text names a key of the config first.
size_t find_key(const std::string& text, const std::string& key) {
  const std::string wanted = "config." + key;
  for (size_t at = 0; (at = text.find(wanted, at)) != std::string::npos; at += wanted.size())
    if (at + wanted.size() == text.size() || !is_word_char(text[at + wanted.size()])) return at;
  return std::string::npos;
}

// --- keys that the config lacks -----------------------------------------------------------------

/// Keys of the config that a template names at its top.
std::set<std::string> keys_of_text(const std::string& text) {
  std::set<std::string> keys;
  constexpr std::string_view kConfig = "config.";
  for (size_t at = 0; (at = text.find(kConfig, at)) != std::string::npos;) {
    at += kConfig.size();
    size_t end = at;
    while (end < text.size() && is_word_char(text[end])) ++end;
    keys.insert(text.substr(at, end - at));
  }
  return keys;
}

/// The text of a value with keys that the config lacks as their values where they ask for nothing:
/// 1 of a factor, null of what has another default, false, or true where the key's absence means
/// that.
std::string without_keys(Trial& trial, std::string text, const std::set<std::string>& absent_keys) {
  for (const std::string& key : absent_keys) {
    const std::string wanted = "config." + key;
    const auto has = [&](const char* before, const char* after) {
      return text.find(before + wanted + after) != std::string::npos;
    };
    // whether there is a head shows in tensors
    if (key == "tie_word_embeddings") continue;
    const bool is_off = trial.families().switched_off(kHf, key, false);
    const char* value = trial.families().switched_off(kHf, key, 1) ? "1"
                        : has("", " ?? true") && is_off            ? "false"
                        : has("", " ?? false") && !is_off          ? "true"
                        : has("get(", ",")                         ? "null"
                                                                   : nullptr;
    if (value == nullptr) continue;
    for (size_t at; (at = find_key(text, key)) != std::string::npos;)
      text.replace(at, wanted.size(), value);
  }
  return text;
}

/// A class writes every key that it reads. So a key that the config lacks is one that the type does
/// not read: what the base assumes without it (a soft cap of 50, a window, half of each head) is
/// off, or as plain as where a family does not mention it.
void switch_off_absent(Trial& trial, Draft& draft) {
  const Json& config = trial.evidence().config();
  const Json base = trial.families().merged(draft.base);
  const Json renamed = draft.hf().value("keys", Json::object());
  const Json read = base.at("dialects").at(kHf).value("read", Json::object()),
             plain = base.value("let", Json::object());
  struct Assumed {
    std::string name;
    Json body, value;
    std::set<std::string> keys;  // that the config lacks
    bool alone;                  // no other key is read, nor a value that reads one
  };
  std::vector<Assumed> list;
  for (const auto& [name, body] : read.items()) {
    if (!body.is_string() || draft.hf().value("read", Json::object()).contains(name)) continue;
    Assumed one = {name, body, Json(), {}, true};
    for (const std::string& key : keys_of_text(body.get<std::string>()))
      if (config.contains(key) || renamed.contains(key))
        one.alone = false;
      else
        one.keys.insert(key);
    if (one.keys.empty()) continue;
    for (const std::string& part : identifiers_of(body))
      one.alone = one.alone && !read.contains(part);
    one.value = trial.value(draft, name);
    if (!is_absent(one.value)) list.push_back(std::move(one));
  }
  for (const Assumed& one : list) {
    const auto try_as = [&](const Json& value, bool must_help) {
      if (value == one.body) return false;
      Draft changed = draft;
      changed.set(one.name, value);
      const Json after = trial.value(changed, one.name);
      if (is_absent(after) || one.value == after) return false;
      trial.update(changed);
      // a part that is off takes a flag of its own with it
      for (const auto& [flag, on] : plain.items()) {
        if (changed.dry.spec || !draft.dry.spec) break;
        if (on != Json(true)) continue;
        Draft without = changed;
        without.set(flag, false);
        trial.update(without);
        if (without.dry.spec) changed = std::move(without);
      }
      trial.drop_unneeded(changed);
      if (must_help && changed.left_over() >= draft.left_over()) return false;
      return trial.take_if_no_worse(draft, std::move(changed),
                                    fmt::format("the config lacks the keys of the base's {}: it is "
                                                "{}; the base assumes {}",
                                                one.name, shown(after), shown(one.value)));
    };
    if (one.alone && plain.contains(one.name) && try_as(plain.at(one.name), false)) continue;
    if (try_as(without_keys(trial, one.body.get<std::string>(), one.keys), false)) continue;
    if (one.alone && one.value.is_number_integer()) try_as(0, true);
  }
  // the factor of scores is read from a key that is not there
  if (trial.value(draft, "scale") == Json("rsqrt_of") && read.contains("scale_value")) {
    const std::set<std::string> keys = keys_of_text(read.at("scale_value").dump());
    if (std::any_of(keys.begin(), keys.end(),
                    [&](const std::string& key) { return config.contains(key); }))
      return;
    Draft changed = draft;
    changed.set("scale", "rsqrt_head_dim");
    trial.take_if_no_worse(draft, std::move(changed),
                           "the config has no scale of scores: it is that of the width of heads");
  }
}

// --- windows ------------------------------------------------------------------------------------

bool is_list_of_windows(const Json& types) {
  return types.is_array() && !types.empty() &&
         std::all_of(types.begin(), types.end(), [](const Json& type) {
           return type == "sliding_attention" || type == "full_attention";
         });
}

size_t count_windows(const Json& patterns) {
  return static_cast<size_t>(std::count_if(patterns.begin(), patterns.end(), [](const Json& p) {
    return p.is_object() && p.value("type", Json()) == "window";
  }));
}

void read_windows(Trial& trial, Draft& draft) {
  const Evidence& evidence = trial.evidence();
  const Json patterns = trial.value(draft, "patterns");
  const bool broken = !draft.dry.spec;
  if (!broken && (is_absent(patterns) || !patterns.is_array())) return;
  const Json types = evidence.at("layer_types"), width = evidence.at("sliding_window");
  const size_t windows = patterns.is_array() ? count_windows(patterns) : 0;
  Draft changed = draft;
  const auto refused = [&](const char* key) {
    return std::any_of(draft.dry.keys.begin(), draft.dry.keys.end(),
                       [&](const DryRun::Key& one) { return one.path == key; });
  };
  if (is_list_of_windows(types)) {
    const auto sliding = std::count(types.begin(), types.end(), Json("sliding_attention"));
    if (!broken && static_cast<size_t>(sliding) == windows && !refused("layer_types")) return;
    changed.include("window_types");
    changed.set("patterns",
                "=hf_patterns(config.layer_types, config.sliding_window ?? null, n_layers)");
    trial.take_if_no_worse(draft, std::move(changed), "");
  } else if (width.is_number_integer() && width > 0 &&
             evidence.at("use_sliding_window") != Json(false)) {
    if (windows > 0 || !refused("sliding_window")) return;
    changed.set("patterns",
                "=[{type: 'window', width: config.sliding_window} for i in range(n_layers)]");
    trial.take_if_no_worse(
        draft, std::move(changed),
        "\"sliding_window\" without a list of layers: every layer is taken to have the window");
  } else if (windows > 0 || broken) {
    changed.set("patterns", "=[{type: 'full'} for i in range(n_layers)]");
    trial.take_if_no_worse(
        draft, std::move(changed),
        "the config has no window: all layers attend to everything; the base has "
        "windows");
  }
}

/// A model whose layers have neither positions nor windows cannot tell the order of its tokens.
void keep_positions(Trial& trial, Draft& draft) {
  const Json positions = trial.value(draft, "positions");
  if (is_absent(positions) || !positions.is_array() || positions.empty() ||
      std::any_of(positions.begin(), positions.end(), [](const Json& position) {
        return !position.is_object() || position.value("type", Json()) != "none";
      }))
    return;
  Draft changed = draft;
  changed.set(
      "positions",
      "=[{type: 'rope', theta: theta, layout: rope_layout, rotary_dim: rotary_dim, scaling: "
      "scaling} for i in range(n_layers)]");
  trial.take_if_no_worse(draft, std::move(changed),
                         "no layer would have positions: all are taken to rotate, as those of the "
                         "base that have a window do");
}

/// A list of 0 and 1 for each layer under a key of rotary positions: layers without any. An
/// interval under a key of the same kind shows which of the two they are; without one those that
/// are fewer.
void read_bare_layers(Trial& trial, Draft& draft) {
  const Json positions = trial.value(draft, "positions");
  const int64_t n_layers = trial.size(draft, "n_layers");
  if (is_absent(positions) || !positions.is_array() || n_layers <= 1) return;
  const auto of_positions = [](const std::string& key) {
    return key.find("rope") != std::string::npos || key.find("rotary") != std::string::npos ||
           key.find("nope") != std::string::npos;
  };
  for (const DryRun::Key& key : std::vector<DryRun::Key>(draft.dry.keys)) {
    if (!of_positions(key.path) || !key.value.is_array() || std::ssize(key.value) != n_layers)
      continue;
    std::vector<bool> bits;
    for (const Json& one : key.value)
      if (one == 0 || one == 1 || one.is_boolean()) bits.push_back(one == 1 || one == true);
    if (std::ssize(bits) != n_layers) continue;
    const auto ones = std::count(bits.begin(), bits.end(), true);
    if (ones == 0 || ones == n_layers) continue;
    bool rotates = 2 * ones >= n_layers;  // what a 1 means
    Draft changed = draft;
    for (const DryRun::Key& other : draft.dry.keys) {
      if (!of_positions(other.path) || !other.value.is_number_integer() || other.value < 2)
        continue;
      const auto period = other.value.get<int64_t>();
      const auto every = [&](bool bit) {
        for (int64_t i = 0; i < n_layers; ++i)
          if ((bits[static_cast<size_t>(i)] == bit) != ((i + 1) % period == 0)) return false;
        return true;
      };
      if (!every(true) && !every(false)) continue;
      rotates = every(false);
      changed.hf()["ignored_keys"][other.path] = fmt::format("as \"{}\"", key.path);
    }
    const char* const is = key.value.front().is_boolean() ? "" : " == 1";
    const std::string rotary =
        "{type: 'rope', theta: theta, layout: rope_layout, rotary_dim: rotary_dim, scaling: "
        "scaling}";
    changed.set("positions", fmt::format("=[{0} if config.{1}[i]{2} else {3} for i in "
                                         "range(n_layers)]",
                                         rotates ? rotary : "{type: 'none'}", key.path, is,
                                         rotates ? "{type: 'none'}" : rotary));
    trial.take_if_no_worse(
        draft, std::move(changed),
        fmt::format("\"{}\": layers with {} are taken to have no positions; in \"positions\" the "
                    "two change places if it is the other way round",
                    key.path, rotates ? 0 : 1));
  }
}

/// Tables of an encoder that its base lacks: learned positions, and a bias by classes of distances.
void read_position_tables(Trial& trial, Draft& draft) {
  const Json learned = trial.value(draft, "embed_position"),
             of_layers = trial.value(draft, "position");
  const int64_t heads = trial.size(draft, "n_heads");
  if (is_absent(learned) || is_absent(of_layers) || !learned.is_object()) return;
  const auto is_unmapped = [&](const FilePattern& file) {
    return std::find(draft.dry.unmapped.begin(), draft.dry.unmapped.end(), file.pattern) !=
           draft.dry.unmapped.end();
  };
  for (const FilePattern& file : trial.evidence().patterns()) {
    if (file.count != 1 || file.shape.size() != 2 || !is_unmapped(file)) continue;
    Draft changed = draft;
    std::string why;
    if (file.role == "position" && learned.value("type", Json()) == "none") {
      changed.set("embed_position",
                  Json{{"type", "learned"}, {"n_positions", file.shape[0]}, {"offset", 0}});
      changed.set("position", Json::object({{"type", "none"}}));
      add_rule(changed, 0, {}, {"embed.position.weight"}, file.pattern, Json::array());
      why = fmt::format(
          "\"{}\" is a table of positions, counted from 0: layers have none of their own",
          file.pattern);
    } else if (file.pattern.find("relative") != std::string::npos && file.shape[1] == heads) {
      constexpr int64_t kDistance = 128;
      std::string buckets = std::to_string(file.shape[0]);
      for (const DryRun::Key& key : draft.dry.keys)
        if (key.value == file.shape[0] && key.path.find("relative") != std::string::npos) {
          buckets = "config." + key.path;
          changed.hf()["expect"][key.path] = Json::array({key.value});
        }
      changed.set("position", Json{{"type", "t5"},
                                   {"n_buckets", "=" + buckets},
                                   {"max_distance", kDistance},
                                   {"share", "relative"}});
      add_rule(changed, 0, {}, {"shared.relative.weight"}, file.pattern, Json::array());
      why = fmt::format(
          "\"{}\" is taken as a bias by classes of distances, as in T5, to a distance of "
          "{} (\"max_distance\")",
          file.pattern, kDistance);
    } else {
      continue;
    }
    trial.take_if_no_worse(draft, std::move(changed), why);
  }
}

/// Classes that rotate whole heads ignore the key; a config that gives a share most often means it.
void read_rotary_share(Trial& trial, Draft& draft) {
  const auto share = trial.evidence().number(
      {"rope_parameters.partial_rotary_factor", "rope_scaling.partial_rotary_factor",
       "partial_rotary_factor", "rotary_pct", "rotary_percentage"});
  const int64_t rotary = trial.size(draft, "rotary_dim"), head = trial.size(draft, "head_dim");
  if (!share || share->second <= 0 || share->second >= 1 || head <= 0) return;
  if (draft.dry.spec && rotary != head) return;
  Draft changed = draft;
  changed.set("rotary_dim", fmt::format("=int(head_dim * config.{})", share->first));
  trial.take_if_no_worse(
      draft, std::move(changed),
      fmt::format("\"{}\" = {}: that share of each head rotates; the base rotates whole heads",
                  share->first, share->second));
}

// --- biases, gates ------------------------------------------------------------------------------

void read_biases(Trial& trial, Draft& draft) {
  struct Switch {
    const char* name;
    std::vector<const char*> roles;
  };
  static const std::vector<Switch> switches = {{"qkv_bias", {"q", "k", "v", "qkv"}},
                                               {"o_bias", {"o"}},
                                               {"mlp_bias", {"up", "down", "gate_up"}}};
  const auto& patterns = trial.evidence().patterns();
  Draft changed = draft;
  bool any = false;
  const auto set = [&](const char* name, bool has) {
    const Json value = trial.value(draft, name);
    if (is_absent(value) || !value.is_boolean() || value == has) return;
    changed.set(name, has);
    any = true;
  };
  for (const Switch& one : switches) {
    const auto in_file = [&](const char* kind) {
      return std::any_of(one.roles.begin(), one.roles.end(), [&](const char* role) {
        return trial.evidence().in_layers(role, kind) != nullptr;
      });
    };
    if (in_file("weight")) set(one.name, in_file("bias"));
  }
  set("head_bias", std::any_of(patterns.begin(), patterns.end(), [](const FilePattern& pattern) {
        return pattern.role == "head" && pattern.pattern.ends_with(".bias");
      }));
  if (any) trial.take_if_sound(draft, std::move(changed));
}

void read_gate(Trial& trial, Draft& draft) {
  const Evidence& evidence = trial.evidence();
  if (trial.value(draft, "gated") != Json(true) || evidence.in_layers("up") == nullptr ||
      evidence.in_layers("gate") != nullptr || evidence.in_layers("gate_up") != nullptr)
    return;
  Draft changed = draft;
  changed.include("ungated");
  trial.take_if_sound(draft, std::move(changed));
}

}  // namespace

void adapt(Trial& trial, Draft& draft) {
  read_windows(trial, draft);
  read_rotary_share(trial, draft);
  if (!draft.dry.spec) return;
  switch_off_absent(trial, draft);
  read_biases(trial, draft);
  read_gate(trial, draft);
  adapt_norms(trial, draft);
  read_bare_layers(trial, draft);
  read_position_tables(trial, draft);
  borrow_keys(trial, draft);
  keep_positions(trial, draft);
}

// --- switches -----------------------------------------------------------------------------------

namespace {

constexpr int kSwitchRounds = 4;
constexpr size_t kSwitchesMapped = 3;  // of a round, whose tensors are matched

/// A draft with one boolean of the base flipped, or one part of a decoder more.
std::vector<Draft> variations(Trial& trial,
                              const Draft& draft,
                              const std::set<std::string>& switches) {
  std::vector<Draft> list;
  std::map<std::string, bool> flags;
  for (const std::string& name : switches)
    if (const Json value = trial.value(draft, name); !is_absent(value) && value.is_boolean())
      flags[name] = value.get<bool>();
  for (const auto& [name, value] : flags) {
    list.push_back(draft);
    list.back().set(name, !value);
  }
  struct FragmentSwitch {
    const char* fragment;
    Json read = Json::object();
  };
  static const std::vector<FragmentSwitch> parts = {
      {"head_norms", {{"qk_norm_over", "head"}}},
      {"head_norms", {{"qk_norm_over", "projection"}}},
      {"late_windows"},
      {"layer_norms"},
      {"ungated"}};
  for (const auto& [fragment, read] : parts) {
    const Json included = draft.family.value("include", Json::array());
    if (std::find(included.begin(), included.end(), fragment) != included.end()) continue;
    list.push_back(draft);
    list.back().include(fragment);
    for (const auto& [name, value] : read.items()) list.back().set(name, value);
  }
  return list;
}

}  // namespace

void try_switches(Trial& trial, Draft& draft) {
  const Json merged = trial.families().merged(draft.base);
  std::set<std::string> switches;
  for (const Json& values : {merged.value("let", Json::object()),
                             merged.at("dialects").at(kHf).value("read", Json::object())})
    for (const auto& [name, value] : values.items()) switches.insert(name);
  for (int round = 0; round < kSwitchRounds && !draft.dry.complete(); ++round) {
    std::vector<Draft> list = variations(trial, draft, switches);
    for (Draft& changed : list) trial.update(changed);
    std::stable_sort(list.begin(), list.end(),
                     [](const Draft& a, const Draft& b) { return a.cost < b.cost; });
    bool taken = false;
    for (size_t i = 0; i < std::min(kSwitchesMapped, list.size()) && !taken; ++i) {
      Draft& changed = list[i];
      if (changed.cost >= draft.cost) break;
      while (!changed.dry.complete() &&
             (infer_keys(trial, changed) || map_tensors(trial, changed))) {
      }
      taken = changed.left_over() < draft.left_over();
      if (taken) draft = std::move(changed);
    }
    if (!taken) return;
  }
}

}  // namespace tessera::convert
