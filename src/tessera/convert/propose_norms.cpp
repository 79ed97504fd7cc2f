#include "tessera/convert/propose_norms.h"

#include <algorithm>
#include <map>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/convert/expr_node.h"
#include "tessera/convert/propose_forms.h"
#include "tessera/convert/propose_tensors.h"
#include "tessera/convert/tensor_roles.h"

namespace tessera::convert {
namespace {

constexpr size_t kWrongNorms = 3;  // doubts about a base whose norms are of another kind

bool has_norm(const Evidence& evidence, const char* kind) {
  return std::any_of(evidence.patterns().begin(), evidence.patterns().end(),
                     [&](const FilePattern& pattern) {
                       return (pattern.role == "norm1" || pattern.role == "norm2" ||
                               pattern.role == "final_norm") &&
                              pattern.pattern.ends_with(kind);
                     });
}

/// Layer norms have biases, or a key for their epsilon that is not of RMS norms.
void read_norms(Trial& trial, Draft& draft) {
  const Evidence& evidence = trial.evidence();
  const Json norm = trial.value(draft, "norm"), parts = trial.value(draft, "norm_parts");
  if (is_absent(norm) || !norm.is_object()) return;
  bool of_layers = false, of_rms = false;
  for (const auto& [key, value] : evidence.config().items()) {
    if (key.find("eps") == std::string::npos || !value.is_number()) continue;
    of_rms = of_rms || key.find("rms") != std::string::npos;
    of_layers = of_layers || key.find("layer_norm") != std::string::npos ||
                key.find("layernorm") != std::string::npos;
  }
  const bool bias = has_norm(evidence, ".bias"), weights = has_norm(evidence, ".weight");
  const bool layer_norm = bias || (of_layers && !of_rms) || (!weights && !of_rms);
  const bool is_layer_norm = norm.value("type", Json()) == "layer_norm",
             is_biased = is_layer_norm && norm.value("bias", Json(true)) == Json(true),
             has_weight = norm.value("weight", Json()) != "none";
  if (layer_norm == is_layer_norm && (!layer_norm || bias == is_biased) && weights == has_weight)
    return;
  Draft changed = draft;
  std::string why;
  if (bias) {
    changed.include("layer_norms");
  } else {
    Json own = {{"type", layer_norm ? "layer_norm" : "rms_norm"}, {"eps", "=eps"}};
    own["weight"] = weights ? "=norm_weight" : "none";
    if (layer_norm) own["bias"] = false;
    changed.set("norm", own);
    if (!is_absent(parts))
      changed.set("norm_parts", weights ? Json::array({"weight"}) : Json::array());
    if (!weights)
      why = fmt::format(
          "the file has no weights of norms: they are taken as {} norms without weights",
          layer_norm ? "layer" : "RMS");
    else if (layer_norm)
      why = "norms are layer norms without biases, by the key of their epsilon";
    else if (!of_rms)
      why = "norms without biases are taken as RMS norms";
    if (!weights && !of_rms && !of_layers) {
      changed.set("eps", 1e-5);
      why += ", of an epsilon of 1e-5";
    }
  }
  if (trial.take_if_sound(draft, std::move(changed)) && !why.empty()) draft.unsure.push_back(why);
}

size_t count_of_text(const std::string& text, std::string_view wanted) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(wanted, at)) != std::string::npos; at += wanted.size())
    ++count;
  return count;
}

/// The factor on the embedding, which nothing shows: as families have it whose norms hold w of
/// (1 + w) too, and whose activation is of the same kind.
void read_embed_scale(Trial& trial, Draft& draft) {
  const auto is_gelu = [](const Json& act) {
    return act.is_string() && act.get<std::string>().find("gelu") != std::string::npos;
  };
  const bool gelu = is_gelu(trial.value(draft, "act"));
  std::map<std::string, size_t> scales;
  size_t families = 0;
  for (const std::string& name : trial.bases()) {
    const Json family = trial.families().merged(name);
    Json values = family.value("let", Json::object());
    values.update(family.at("dialects").at(kHf).value("read", Json::object()));
    const Json scale = values.value("embed_scale", Json());
    if (values.value("norm_weight", Json()) != "plus_one" ||
        is_gelu(values.value("act", Json())) != gelu || scale.is_null())
      continue;
    ++scales[scale.is_string() ? scale.get<std::string>() : scale.dump()];
    ++families;
  }
  constexpr size_t kLeast = 2;
  for (const auto& [scale, count] : scales) {
    if (count < kLeast || 2 * count <= families || !scale.starts_with('=')) continue;
    const Json before = trial.value(draft, "embed_scale");
    Draft changed = draft;
    changed.set("embed_scale", scale);
    if (is_absent(before) || trial.value(changed, "embed_scale") == before) return;
    trial.take_if_no_worse(
        draft, std::move(changed),
        fmt::format("embeddings are multiplied by {}, as in {} of {} families whose norms are w of "
                    "(1 + w) with such an activation; \"embed_scale\": {} without a factor",
                    scale.substr(1), count, families, shown(before)));
    return;
  }
}

/// Weights around 0 are w of (1 + w); those around 1 are factors.
void read_norm_centre(Trial& trial, Draft& draft) {
  const Json weight = trial.value(draft, "norm_weight");
  const bool around_0 = trial.evidence().norm_centre() < 0.5;
  Draft changed = draft;
  if (weight == Json("plain") && around_0) {
    changed.set("norm_weight", "plus_one");
    if (trial.take_if_no_worse(draft, std::move(changed),
                               "the weights of norms lie around 0: they are taken as w of (1 + w)"))
      read_embed_scale(trial, draft);
  } else if (weight == Json("plus_one") && !around_0) {
    // rules of some bases add the 1 of their files to plain weights in any case
    const std::string base = trial.families().merged(draft.base).dump();
    if (count_of_text(base, "norm_weight == 'plain'") !=
        count_of_text(base, "hf_norm_plus_one and norm_weight == 'plain'")) {
      changed.doubtful += kWrongNorms;
      trial.update(changed);
      draft = std::move(changed);
      return;
    }
    changed.set("norm_weight", "plain");
    changed.set("hf_norm_plus_one", false);
    trial.take_if_no_worse(draft, std::move(changed),
                           "the weights of norms lie around 1: they are taken as factors; those of "
                           "the base are w of (1 + w)");
  }
}

/// Norms of queries and keys: of each head or of all, by their width.
void read_head_norms(Trial& trial, Draft& draft) {
  const Json over = trial.value(draft, "qk_norm_over");
  if (is_absent(over)) return;
  const FilePattern* norm = trial.evidence().in_layers("q_norm");
  Draft changed = draft;
  if (norm == nullptr) {
    if (over.is_null()) return;
    changed.set("qk_norm_over", nullptr);
    trial.take_if_sound(draft, std::move(changed));
    return;
  }
  const int64_t heads = trial.size(draft, "n_heads"), width = trial.size(draft, "head_dim");
  if (norm->shape.size() != 1 || heads <= 0 || width <= 0) return;
  const Json wanted = norm->shape[0] == width           ? Json("head")
                      : norm->shape[0] == heads * width ? Json("projection")
                                                        : Json();
  if (wanted.is_null()) return;
  if (over != wanted) changed.set("qk_norm_over", wanted);
  const bool bias = trial.evidence().in_layers("q_norm", "bias") != nullptr;
  const Json form = trial.value(draft, "qk_norm");
  if (bias && !is_absent(form) && form.is_object() && form.value("bias", Json()) != Json(true))
    changed.set("qk_norm", Json{{"type", "layer_norm"}, {"eps", "=eps"}, {"bias", true}});
  if (changed.family == draft.family || !trial.take_if_sound(draft, std::move(changed))) return;
  include_rules(trial, draft);
}

/// Where the norms of a layer stand, by their names.
struct NormPlaces {
  Json residual;
  std::string parallel_key;                  // the key for parallel branches; "" = none
  std::map<std::string, std::string> files;  // "mixer_norm" -> the file's pattern
};

bool has_word(const std::string& name, std::initializer_list<const char*> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](const char* word) { return name.find(word) != std::string::npos; });
}

/// Null where names do not say.
std::optional<NormPlaces> norm_places(const Evidence& evidence, int64_t d_model) {
  std::vector<std::string> norms;
  for (const FilePattern& pattern : evidence.patterns()) {
    if (pattern.shape != std::vector<int64_t>{d_model} || !pattern.pattern.ends_with(".weight") ||
        std::count(pattern.pattern.begin(), pattern.pattern.end(), '*') != 1 ||
        pattern.role == "q_norm" || pattern.role == "k_norm")
      continue;
    if (has_word(pattern.pattern, {"norm", "ln", "Norm"})) norms.push_back(pattern.pattern);
  }
  const auto in_attention = [](const std::string& n) { return has_word(n, {"attn", "attention"}); };
  const auto in_ffn = [](const std::string& n) {
    return has_word(n, {"mlp", "ffn", "feedforward", "feed_forward", ".ff", "_ff"});
  };
  // of a name without its layer
  const auto own = [](const std::string& n) { return n.substr(n.find('*')); };
  std::vector<std::string> before, after_attention, before_ffn, after_ffn;
  for (const std::string& norm : norms) {
    const std::string n = own(norm);
    if (has_word(n, {"post"})) {
      (in_ffn(n) ? after_ffn : in_attention(n) ? after_attention : before).push_back(norm);
    } else if (in_ffn(n)) {
      before_ffn.push_back(norm);
    } else {
      before.push_back(norm);
    }
  }
  NormPlaces places;
  for (const auto& [key, value] : evidence.config().items())
    if (key.find("parallel") != std::string::npos && value == Json(true)) places.parallel_key = key;
  if (norms.size() == 1) {
    places.residual = {{"type", "parallel"}, {"norms", "one"}};
    places.files["mixer_norm"] = norms.front();
    return places;
  }
  if (norms.size() == 2 && after_attention.size() == 1 && after_ffn.size() == 1) {
    places.residual = "reordered";
    places.files = {{"mixer_norm", after_attention[0]}, {"ffn_norm", after_ffn[0]}};
    return places;
  }
  if (norms.size() == 2 && before.size() == 1 && after_attention.size() + before_ffn.size() == 1) {
    places.residual = "pre_norm";
    if (!places.parallel_key.empty()) places.residual = {{"type", "parallel"}, {"norms", "each"}};
    places.files = {{"mixer_norm", before[0]},
                    {"ffn_norm", before_ffn.empty() ? after_attention[0] : before_ffn[0]}};
    return places;
  }
  if (norms.size() != 4 || before.size() != 1 || after_ffn.size() != 1) return {};
  places.residual = "sandwich";
  places.files = {{"mixer_norm", before[0]}, {"ffn_post_norm", after_ffn[0]}};
  if (after_attention.size() == 1 && before_ffn.size() == 1) {
    places.files["mixer_post_norm"] = after_attention[0];
    places.files["ffn_norm"] = before_ffn[0];
    return places;
  }
  if (after_attention.size() != 2) return {};
  // Llama's name of the norm before the feed-forward layer, and another for the one after attention
  const size_t plain = has_word(own(after_attention[0]), {"post_attention"}) ? 0 : 1;
  places.files["ffn_norm"] = after_attention[plain];
  places.files["mixer_post_norm"] = after_attention[1 - plain];
  return places;
}

void place_norms(Trial& trial, Draft& draft) {
  const Json residual = trial.value(draft, "residual"), norm = trial.value(draft, "norm");
  const int64_t d_model = trial.size(draft, "d_model"), n_layers = trial.size(draft, "n_layers");
  if (is_absent(residual) || is_absent(norm) || d_model <= 0 || residual == "post_norm") return;
  const std::optional<NormPlaces> places = norm_places(trial.evidence(), d_model);
  if (!places) return;
  const Json wanted = places->residual;
  const Json type = residual.is_object() ? residual.value("type", Json()) : residual;
  const bool same = type == (wanted.is_object() ? wanted.at("type") : wanted) &&
                    (!wanted.is_object() || residual.value("norms", Json()) == wanted.at("norms"));
  Draft changed = draft;
  const bool claimed = places->parallel_key.empty() || !wanted.is_object() ||
                       trial.claims(trial.dialect_of(draft.base), places->parallel_key);
  if (!same || !claimed) {
    if (claimed)
      changed.set("residual", wanted);
    else
      changed.set("residual",
                  fmt::format("={{type: 'parallel', norms: '{}'}} if config.{} else 'pre_norm'",
                              wanted.at("norms").get<std::string>(), places->parallel_key));
    for (const char* name : {"mixer_norm", "mixer_post_norm", "ffn_norm", "ffn_post_norm"})
      if (!places->files.contains(name)) changed.drop(fmt::format("layers.*.{}.*", name));
  }
  // the base's names of these norms, where it asks for them
  std::map<std::string, std::string> base_names;
  for (const DryRun::Missing& missing : draft.dry.missing)
    if (missing.ours.size() == 1 && missing.alone)
      base_names[numbered(missing.ours.front()).pattern] = numbered(missing.name).pattern;
  const bool biases = has_norm(trial.evidence(), ".bias");
  for (const auto& [name, file] : places->files)
    for (const char* part : {"weight", "bias"}) {
      if (std::string_view(part) == "bias" && !biases) continue;
      const std::string ours = fmt::format("layers.*.{}.{}", name, part),
                        from = file.substr(0, file.size() - 6) + part;
      std::vector<int64_t> numbers;
      for (const format::TensorView& tensor : trial.evidence().tensors().tensors())
        if (const NumberedName one = numbered(tensor.name); one.pattern == from)
          numbers.push_back(one.numbers.front());
      std::sort(numbers.begin(), numbers.end());
      const bool missing = base_names.contains(ours);
      if (same && !missing) continue;
      if (same && missing)
        changed.hf()["names"][base_names.at(ours)] = from;
      else
        add_rule(changed, n_layers, numbers, {ours}, from, Json::array());
    }
  if (changed.family == draft.family) return;
  trial.take_if_no_worse(draft, std::move(changed),
                         same ? ""
                              : fmt::format("the norms of a layer are {}, by their names; the base "
                                            "has {}",
                                            shown(wanted), shown(residual)));
}

}  // namespace

void adapt_norms(Trial& trial, Draft& draft) {
  read_norms(trial, draft);
  read_head_norms(trial, draft);
  place_norms(trial, draft);
  read_norm_centre(trial, draft);
}

}  // namespace tessera::convert
