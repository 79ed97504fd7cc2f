#include "tessera/cli/preset_tables.h"

#include <algorithm>
#include <functional>
#include <map>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/cli/presets.h"
#include "tessera/cli/zoo_files.h"
#include "tessera/model/model_spec.h"
#include "tessera/model/plan.h"
#include "tessera/nn/registry.h"
#include "tessera/spec/json.h"

namespace tessera::cli {
namespace {

using model::ModelSpec;
using spec::AnyPart;
using spec::Json;

/// A released model with its spec.
struct Released {
  const Preset* preset = nullptr;
  ModelSpec spec;
  model::Plan plan;
};

ModelSpec zoo_spec(const std::string& name) {
  const auto file = std::find_if(zoo_files().begin(), zoo_files().end(),
                                 [&](const ZooFile& one) { return one.name == name; });
  if (file == zoo_files().end())
    fail(ErrorKind::internal, "presets", "there is no zoo/{}.json", name);
  spec::JsonLimits limits;
  limits.comments = true;
  return model::read_model_spec(spec::parse_json(file->text, name, limits));
}

std::vector<Released> released() {
  std::vector<Released> out;
  for (const Preset& preset : presets()) {
    ModelSpec spec = zoo_spec(preset.spec);
    model::Plan plan = model::make_plan(spec, 1, 1);
    out.push_back({&preset, std::move(spec), plan});
  }
  return out;
}

// --- reading specs ---

/// Calls visit(branch, residual) for the branches of both stacks.
void for_each_branch(
    const ModelSpec& spec,
    const std::function<void(const model::BranchSpec&, const AnyPart& residual)>& visit) {
  if (spec.encoder) for_each_branch(*spec.encoder, visit);
  for (const model::LayerSpec& layer : spec.layers)
    for (const model::GroupSpec& group : layer.groups)
      for (const model::BranchSpec& branch : group.branches) visit(branch, group.residual);
}

/// Distinct texts in order of appearance, joined by commas.
class Texts {
 public:
  void add(const std::string& text) {
    if (!text.empty() && std::find(list_.begin(), list_.end(), text) == list_.end())
      list_.push_back(text);
  }
  std::string joined() const { return fmt::format("{}", fmt::join(list_, ", ")); }

 private:
  std::vector<std::string> list_;
};

Json dump(const AnyPart& part) {
  return part ? spec::dump_part(part) : Json();
}

std::string text_of(const Json& part, const char* key) {
  const auto at = part.is_object() ? part.find(key) : part.end();
  return !part.is_object() || at == part.end() || !at->is_string() ? "" : at->get<std::string>();
}

/// The part below a key; null where there is none.
Json part_of(const Json& part, const char* key) {
  return part.is_object() && part.contains(key) ? part.at(key) : Json();
}

double number_of(const Json& part, const char* key) {
  const Json value = part_of(part, key);
  return value.is_number() ? value.get<double>() : 0;
}

std::string norm_text(const Json& norm) {
  const std::string type = text_of(norm, "type");
  std::string out = type == "layer_norm" ? "LayerNorm" : type == "rms_norm" ? "RMSNorm" : type;
  const std::string weight = text_of(norm, "weight");
  if (weight == "none") return out + " without parameters";
  if (weight == "plus_one") out += " (1 + w)";
  if (type == "layer_norm" && !norm.at("bias").get<bool>()) out += " without bias";
  return out;
}

std::string placement_text(const Json& residual) {
  const std::string type = text_of(residual, "type");
  if (type == "pre_norm") return "pre-norm";
  if (type == "post_norm") return "post-norm";
  if (type == "sandwich") return "pre-norm and norm of the branch's output (sandwich)";
  if (type == "reordered") return "norm of the branch's output (reordered)";
  if (type == "parallel")
    return text_of(residual, "norms") == "one" ? "pre-norm, parallel branches with one norm"
                                               : "pre-norm, parallel branches with two norms";
  return type;
}

std::string position_text(const Json& mixer) {
  const Json position = part_of(mixer, "position");
  const std::string type = text_of(position, "type");
  static const std::map<std::string, std::string> names = {{"alibi", "ALiBi"},
                                                           {"none", ""},
                                                           {"xl", "relative (Transformer-XL)"},
                                                           {"t5", "relative (T5)"},
                                                           {"deberta", "relative (DeBERTa)"}};
  if (const auto name = names.find(type); name != names.end()) return name->second;
  if (type != "rope") return type;
  std::string out = "RoPE";
  const double rotary = number_of(position, "rotary_dim"), head = number_of(mixer, "head_dim");
  if (rotary > 0 && rotary < head) out += fmt::format(" {:.0f} %", 100 * rotary / head);
  if (const std::string scaling = text_of(part_of(position, "scaling"), "type"); !scaling.empty())
    out += " (" + scaling + ")";
  return out;
}

std::string positions_text(const ModelSpec& spec) {
  Texts out;
  const auto embedded = [&](const ModelSpec& stack) {
    const std::string type = text_of(part_of(dump(stack.embed), "position"), "type");
    out.add(type == "learned"      ? "learned"
            : type == "sinusoidal" ? "sinusoidal"
            : type == "none"       ? ""
                                   : type);
  };
  if (spec.encoder) embedded(*spec.encoder);
  embedded(spec);
  bool without = false;
  for_each_branch(spec, [&](const model::BranchSpec& branch, const AnyPart&) {
    if (branch.slot != spec::Slot::mixer) return;
    const Json mixer = dump(branch.part);
    without |=
        branch.part.type() == "attention" && text_of(part_of(mixer, "position"), "type") == "none";
    out.add(position_text(mixer));
  });
  if (out.joined().find("RoPE") != std::string::npos && without)
    out.add("none in some layers (NoPE)");
  return out.joined().empty() ? "none" : out.joined();
}

std::string activation_text(const Json& ffn) {
  const std::string type = text_of(ffn, "type");
  if (type == "moe") return activation_text(part_of(ffn, "expert"));
  const std::string act = text_of(ffn, "act");
  if (type == "glu") {
    if (act == "silu") return number_of(ffn, "limit") > 0 ? "gated unit, clamped" : "SwiGLU";
    return act.starts_with("gelu") ? "GEGLU" : "gated " + act;
  }
  if (act == "relu") return "ReLU";
  if (act == "relu2") return "squared ReLU";
  return act.starts_with("gelu") ? "GELU" : act.empty() ? type : act;
}

/// "GQA 8, window 4096": the mixers.
std::string mixers_text(const ModelSpec& spec) {
  Texts out;
  for_each_branch(spec, [&](const model::BranchSpec& branch, const AnyPart&) {
    if (branch.slot != spec::Slot::mixer) return;
    const Json mixer = dump(branch.part);
    const std::string& type = branch.part.type();
    if (type == "cross_attention") return;
    if (type == "latent_attention") return out.add("MLA");
    if (type == "compressed_attention") {
      const bool chosen = number_of(part_of(mixer, "index"), "n_heads") > 0;
      return out.add(chosen ? "CSA" : number_of(mixer, "block") > 0 ? "HCA" : "window");
    }
    if (type != "attention") return out.add(type);
    const auto heads = static_cast<int64_t>(number_of(mixer, "n_heads")),
               groups = static_cast<int64_t>(number_of(mixer, "n_kv_heads"));
    out.add(groups == heads ? "MHA" : groups == 1 ? "MQA" : fmt::format("GQA {}", groups));
    const Json pattern = part_of(mixer, "pattern");
    const std::string kind = text_of(pattern, "type");
    if (kind == "window")
      out.add(fmt::format("window {:g}", number_of(pattern, "width")));
    else if (kind == "chunked")
      out.add(fmt::format("chunks of {:g}", number_of(pattern, "size")));
    else if (kind != "full")
      out.add(kind);
  });
  return out.joined();
}

std::string stability_text(const ModelSpec& spec, const std::string& note) {
  Texts out;
  for_each_branch(spec, [&](const model::BranchSpec& branch, const AnyPart&) {
    const Json part = dump(branch.part);
    if (!part_of(part, "qk_norm").is_null()) out.add("QK-norm");
    if (const double cap = number_of(part, "softcap"); cap > 0)
      out.add(fmt::format("soft cap of scores {:g}", cap));
    if (part_of(part, "sinks") == Json(true)) out.add("attention sinks");
  });
  if (const double cap = number_of(dump(spec.head), "softcap"); cap > 0)
    out.add(fmt::format("soft cap of logits {:g}", cap));
  if (!part_of(dump(spec.embed), "norm").is_null()) out.add("norm of the embedding");
  out.add(note);
  return out.joined();
}

std::string grouped(int64_t n) {
  std::string out = std::to_string(n);
  for (auto at = static_cast<int64_t>(out.size()) - 3; at > 0; at -= 3)
    out.insert(static_cast<size_t>(at), ",");
  return out;
}

std::string layers_text(const ModelSpec& spec) {
  return spec.encoder ? fmt::format("{} + {}", spec.encoder->layers.size(), spec.layers.size())
                      : std::to_string(spec.layers.size());
}

const char* class_text(const ModelSpec& spec) {
  if (spec.encoder) return "encoder-decoder";
  return spec.arch == model::Arch::encoder ? "encoder" : "decoder";
}

// --- the tables ---

std::string architecture_table(std::vector<Released> models) {
  models.erase(std::remove_if(models.begin(), models.end(),
                              [](const Released& one) { return one.preset->model.empty(); }),
               models.end());
  std::stable_sort(models.begin(), models.end(), [](const Released& a, const Released& b) {
    return a.preset->year < b.preset->year;
  });
  std::string out =
      "| model | year | norm | placement | positions | activation | attention | stability, notes "
      "|\n|---|---|---|---|---|---|---|---|\n";
  for (const auto& [preset, spec, plan] : models) {
    Texts norms, placements, activations;
    for_each_branch(spec, [&](const model::BranchSpec& branch, const AnyPart& residual) {
      for (const AnyPart& norm : branch.norms) norms.add(norm_text(dump(norm)));
      placements.add(placement_text(dump(residual)));
      if (branch.slot == spec::Slot::ffn) activations.add(activation_text(dump(branch.part)));
    });
    out +=
        fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} |\n", preset->model, preset->year,
                    norms.joined(), placements.joined(), positions_text(spec), activations.joined(),
                    mixers_text(spec), stability_text(spec, preset->survey_note));
  }
  return out;
}

std::string size_table(const std::vector<Released>& models) {
  std::string out =
      "| preset | class | family | layers | d_model | vocabulary | parameters | active | notes "
      "|\n|---|---|---|---|---|---|---|---|---|\n";
  for (const auto& [preset, spec, plan] : models)
    out += fmt::format(
        "| `{}` | {} | {} | {} | {} | {} | {} | {} | {} |\n", preset->spec, class_text(spec),
        preset->family.empty() ? "" : "`" + preset->family + "`", layers_text(spec), spec.d_model,
        grouped(spec.vocab), grouped(plan.parameters),
        plan.active_parameters == plan.parameters ? "" : grouped(plan.active_parameters),
        preset->note);
  return out;
}

std::string router_text(const Json& router) {
  const std::string type = text_of(router, "type");
  if (type != "top_k") return type;
  const std::string score = text_of(router, "score");
  std::string out = score == "sigmoid"             ? "sigmoid"
                    : score == "softmax_of_chosen" ? "softmax of the chosen"
                    : score == "sqrt_softplus"     ? "sqrt(softplus)"
                                                   : "softmax";
  if (score == "softmax" && number_of(router, "norm") > 0) out += ", renormalized";
  if (const double groups = number_of(router, "n_groups"); groups > 1)
    out += fmt::format(", {:g} of {:g} groups", number_of(router, "keep_groups"), groups);
  if (router.value("balance", false)) out += ", balancing bias";
  return out;
}

std::string expert_table(const std::vector<Released>& models) {
  std::string out =
      "| model | parameters | active | layers with experts | experts | per token | d_ff of an "
      "expert "
      "| shared d_ff | router | attention |\n|---|---|---|---|---|---|---|---|---|---|\n";
  for (const auto& [preset, spec, plan] : models) {
    int64_t layers = 0;
    Json moe;
    for_each_branch(spec, [&](const model::BranchSpec& branch, const AnyPart&) {
      if (branch.slot != spec::Slot::ffn || branch.part.type() != "moe") return;
      moe = dump(branch.part);
      ++layers;
    });
    if (layers == 0) continue;
    const Json router = part_of(moe, "router"), shared = part_of(moe, "shared");
    const double k = text_of(router, "type") == "switch" ? 1 : number_of(router, "k");
    out +=
        fmt::format("| {} | {} | {} | {} of {} | {:g} | {:g} | {:g} | {} | {} | {} |\n",
                    preset->name(), short_count(plan.parameters),
                    short_count(plan.active_parameters), layers, layers_text(spec),
                    number_of(moe, "n_experts"), k, number_of(part_of(moe, "expert"), "d_hidden"),
                    shared.is_null() ? "" : fmt::format("{:g}", number_of(shared, "d_hidden")),
                    router_text(router), mixers_text(spec));
  }
  return out;
}

/// Of at least `kLarge` parameters, the larger ones first.
std::string large_table(std::vector<Released> models) {
  constexpr int64_t kLarge = 30'000'000'000;
  models.erase(std::remove_if(models.begin(), models.end(),
                              [](const Released& one) { return one.plan.parameters < kLarge; }),
               models.end());
  std::stable_sort(models.begin(), models.end(), [](const Released& a, const Released& b) {
    return a.plan.parameters > b.plan.parameters;
  });
  std::string out =
      "| model | parameters | layers | d_model | d_model / layers | heads x head_dim | KV heads | "
      "d_ff / d_model | vocabulary | context | KV cache per token (f16) "
      "|\n|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const auto& [preset, spec, plan] : models) {
    Json attention, ffn;
    for_each_branch(spec, [&](const model::BranchSpec& branch, const AnyPart&) {
      const Json part = dump(branch.part);
      if (branch.slot == spec::Slot::mixer && attention.is_null() && part.contains("n_heads") &&
          (part.contains("n_kv_heads") || branch.part.type() == "latent_attention" ||
           branch.part.type() == "compressed_attention"))
        attention = part;
      if (branch.slot == spec::Slot::ffn && ffn.is_null() && branch.part.type() != "moe")
        ffn = part;
      if (branch.slot == spec::Slot::ffn && branch.part.type() == "moe" && ffn.is_null())
        ffn = part_of(part, "expert");
    });
    const double head = attention.contains("head_dim") ? number_of(attention, "head_dim")
                                                       : number_of(attention, "v_head_dim");
    out += fmt::format(
        "| {} | {} | {} | {} | {:.0f} | {:g} x {:g} | {} | {:.2f} | {} | {} | {} |\n",
        preset->name(), short_count(plan.parameters), layers_text(spec), spec.d_model,
        static_cast<double>(spec.d_model) / static_cast<double>(spec.layers.size()),
        number_of(attention, "n_heads"), head,
        attention.contains("n_kv_heads") ? fmt::format("{:g}", number_of(attention, "n_kv_heads"))
        : text_of(attention, "type") == "compressed_attention" ? "1"
                                                               : "latent",
        number_of(ffn, "d_hidden") / static_cast<double>(spec.d_model), grouped(spec.vocab),
        spec.longest_sequence() > 0 ? grouped(spec.longest_sequence()) : "",
        plan.state_bytes_per_token == 0
            ? ""
            : fmt::format("{:.1f} KB", static_cast<double>(plan.state_bytes_per_token) / 2 / 1000));
  }
  return out;
}

/// Calls visit with every part of a stack and of its encoder.
void for_each_part_of(const ModelSpec& spec, const std::function<void(const AnyPart&)>& visit) {
  const auto add = [&](const AnyPart& part) {
    if (part) spec::for_each_part(part, visit);
  };
  if (spec.encoder) for_each_part_of(*spec.encoder, visit);
  for (const AnyPart* part : {&spec.init, &spec.embed, &spec.final_norm, &spec.head, &spec.pooler})
    add(*part);
  for (const model::LayerSpec& layer : spec.layers) add(layer.depth);
  for_each_branch(spec, [&](const model::BranchSpec& branch, const AnyPart& residual) {
    add(branch.part);
    add(residual);
    for (const AnyPart& norm : branch.norms) add(norm);
  });
}

std::string mechanism_table(const std::vector<Released>& models) {
  std::map<const spec::Mechanism*, std::vector<std::string>> users;
  for (const Released& one : models)
    for_each_part_of(one.spec, [&](const AnyPart& part) {
      std::vector<std::string>& names = users[part.mechanism];
      if (names.empty() || names.back() != one.preset->name()) names.push_back(one.preset->name());
    });
  constexpr size_t kShown = 8;
  std::string out = "| slot | mechanism | presets |\n|---|---|---|\n";
  for (const spec::Mechanism& mechanism : spec::mechanisms()) {
    const std::vector<std::string>& names = users[&mechanism];
    if (names.empty()) continue;
    std::string list = fmt::format(
        "{}", fmt::join(names.begin(),
                        names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kShown)),
                        ", "));
    if (names.size() > kShown) list += fmt::format(" and {} more", names.size() - kShown);
    out += fmt::format("| {} | `{}` | {} |\n", spec::name_of(mechanism.slot), mechanism.name, list);
  }
  return out;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> preset_tables() {
  nn::register_mechanisms();
  const std::vector<Released> models = released();
  return {{"architectures", architecture_table(models)},
          {"expert_models", expert_table(models)},
          {"large_models", large_table(models)},
          {"mechanism_presets", mechanism_table(models)},
          {"presets", size_table(models)}};
}

}  // namespace tessera::cli
