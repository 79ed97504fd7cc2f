#include "tessera/convert/peft_config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <set>
#include <span>

#include "tessera/base/error.h"

namespace tessera::convert {
namespace {

namespace fs = std::filesystem;

constexpr double kDefaultRank = 8;     // of PEFT's LoraConfig
constexpr double kMostRank = 1 << 20;  // more is no rank
constexpr size_t kMostTokens = 1 << 24;

struct KindName {
  const char* name;
  PeftKind kind;
};
constexpr KindName kKinds[] = {{"LORA", PeftKind::lora},
                               {"IA3", PeftKind::ia3},
                               {"TRAINABLE_TOKENS", PeftKind::tokens},
                               {"PREFIX_TUNING", PeftKind::prefix},
                               {"PROMPT_TUNING", PeftKind::prompt},
                               {"P_TUNING", PeftKind::prompt}};

/// Keys that the tensors answer themselves, or that say nothing about the function.
constexpr const char* kSilent[] = {
    "target_modules", "exclude_modules", "modules_to_save", "task_type", "inference_mode",
    "auto_mapping",   "revision",        "peft_version",    "peft_type", "base_model_name_or_path",
    "fan_in_fan_out"};
constexpr const char* kSilentLora[] = {
    "r", "layers_to_transform", "layers_pattern", "lora_dropout", "lora_bias", "bias",
    "rank_pattern", "megatron_core", "qalora_group_size", "lora_alpha", "alpha_pattern",
    "use_rslora", "use_dora", "init_lora_weights", "target_parameters", "trainable_token_indices",
    "ensure_weight_tying",
    // how training begins, and what its backward pass keeps
    "eva_config", "velora_config"};
constexpr const char* kSilentIa3[] = {"feedforward_modules", "init_ia3_weights"};
constexpr const char* kSilentTokens[] = {"token_indices", "init_weights"};
constexpr const char* kSilentVirtual[] = {
    "num_virtual_tokens", "token_dim", "num_transformer_submodules", "num_attention_heads",
    "num_layers", "init_weights", "encoder_hidden_size", "encoder_num_layers", "encoder_dropout",
    "encoder_reparameterization_type", "prompt_tuning_init", "prompt_tuning_init_text",
    "prompt_tuning_init_state_dict_path", "tokenizer_name_or_path", "tokenizer_kwargs",
    "modules_to_save",
    // the file holds what the projection made
    "prefix_projection"};

/// Ways to begin that subtract from the base model what the adapter begins with.
constexpr std::string_view kChangedBase[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};

bool says_nothing(const Json& value) {
  return value.is_null() || value == Json(false) || value == Json("none") ||
         ((value.is_object() || value.is_array() || value.is_string()) && value.empty());
}

std::span<const char* const> silent_keys(PeftKind kind) {
  switch (kind) {
    case PeftKind::lora:
      return kSilentLora;
    case PeftKind::ia3:
      return kSilentIa3;
    case PeftKind::tokens:
      return kSilentTokens;
    default:
      return kSilentVirtual;
  }
}

bool ends_in(const std::string& module, const std::string& name) {
  return module == name || module.ends_with("." + name);
}

}  // namespace

bool PeftConfig::Pattern::names(const std::string& module) const {
  if (regex == nullptr) return ends_in(module, key);
  const auto spans = regex->spans(module);
  return spans.size() == 1 && spans.front().is_match;
}

PeftConfig::PeftConfig(const fs::path& path) : file_(path.string()) {
  config_ = spec::read_json_file(path);
  if (!config_.is_object())
    fail(ErrorKind::file, file_, "found {}; expected an object", spec::kind_of(config_));
  read_kind();
  check_begin();
  check_keys();
  if (kind_ == PeftKind::lora) read_products();
}

const Json& PeftConfig::at(const char* key) const {
  static const Json nothing;
  const auto found = config_.find(key);
  return found == config_.end() ? nothing : *found;
}

void PeftConfig::read_kind() {
  const Json& type = at("peft_type");
  for (const KindName& known : kKinds)
    if (type == Json(known.name)) {
      kind_ = known.kind;
      return;
    }
  fail(ErrorKind::file, file_,
       "peft_type = {}; expected \"LORA\", \"IA3\", \"TRAINABLE_TOKENS\", \"PREFIX_TUNING\", "
       "\"PROMPT_TUNING\" or \"P_TUNING\"",
       type.dump());
}

void PeftConfig::check_begin() const {
  const Json& begin = at("init_lora_weights");
  if (!begin.is_string()) return;
  std::string name = begin.get<std::string>();
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const std::string_view changed : kChangedBase)
    if (name.starts_with(changed))
      fail(ErrorKind::file, file_,
           "init_lora_weights = {} has changed the base model of this adapter; expected an adapter "
           "for the model as it is (PEFT writes one by save_pretrained(FOLDER, "
           "path_initial_model_for_weight_conversion=INITIAL_ADAPTER))",
           begin.dump());
}

void PeftConfig::check_keys() const {
  const auto in = [](std::span<const char* const> keys, const std::string& key) {
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  };
  for (const auto& [key, value] : config_.items())
    if (!in(kSilent, key) && !in(silent_keys(kind_), key) && !says_nothing(value))
      fail(ErrorKind::file, file_, "{} = {} is not supported; expected {} without it", key,
           shown(value), at("peft_type").get<std::string>());
}

void PeftConfig::read_products() {
  alpha_ = number(config_, "lora_alpha");
  rank_ = config_.contains("r") ? number(config_, "r") : kDefaultRank;
  alphas_ = patterns("alpha_pattern");
  ranks_ = patterns("rank_pattern");
}

std::vector<PeftConfig::Pattern> PeftConfig::patterns(const char* key) const {
  const Json& object = at(key);
  if (object.is_null()) return {};
  if (!object.is_object())
    fail(ErrorKind::file, file_, "{} is {}; expected an object", key, spec::kind_of(object));
  std::vector<Pattern> out;
  for (const auto& [name, value] : object.items()) {
    Pattern pattern{name, nullptr, number(object, name)};
    if (name.find_first_of("*+?()[]{}|^$\\") != std::string::npos)
      pattern.regex = std::make_shared<const text::Regex>("\\A(?:.*\\.)?(?:" + name + ")\\z",
                                                          file_ + ": " + key);
    out.push_back(std::move(pattern));
  }
  return out;
}

double PeftConfig::number(const Json& of, const std::string& key) const {
  const auto found = of.find(key);
  if (found == of.end() || !found->is_number())
    fail(ErrorKind::file, file_, "{} is {}; expected a number", key,
         found == of.end() ? "missing" : spec::kind_of(*found));
  return found->get<double>();
}

namespace {

/// The first pattern that names the module, as PEFT chooses.
template <class Patterns>
double of_module(const Patterns& patterns, const std::string& module, double otherwise) {
  const auto found = std::find_if(patterns.begin(), patterns.end(),
                                  [&](const auto& pattern) { return pattern.names(module); });
  return found == patterns.end() ? otherwise : found->value;
}

}  // namespace

int64_t PeftConfig::rank_of(const std::string& module) const {
  const double rank = of_module(ranks_, module, rank_);
  if (!(rank >= 1 && rank <= kMostRank && rank == std::floor(rank)))
    fail(ErrorKind::file, file_, "module {} has rank {}; expected a whole number of at least 1",
         module, rank);
  return static_cast<int64_t>(rank);
}

double PeftConfig::scale_of(const std::string& module, int64_t rank) const {
  const auto r = static_cast<double>(rank);
  return of_module(alphas_, module, alpha_) / (rslora() ? std::sqrt(r) : r);
}

bool PeftConfig::saves(const std::string& tensor) const {
  const Json& modules = at("modules_to_save");
  if (!modules.is_array()) return false;
  const std::string module = tensor.substr(0, tensor.rfind('.'));
  return std::any_of(modules.begin(), modules.end(), [&](const Json& name) {
    if (!name.is_string()) return false;
    const std::string own = name.get<std::string>();
    return !own.empty() &&
           (ends_in(module, own) || module.find("." + own + ".") != std::string::npos ||
            module.starts_with(own + "."));
  });
}

std::vector<int64_t> PeftConfig::token_list(const Json& list) const {
  const auto refuse = [&](const std::string& found) {
    fail(ErrorKind::file, file_, "token indices are {}; expected a list of different whole numbers",
         found);
  };
  if (!list.is_array() || list.empty() || list.size() > kMostTokens) refuse(shown(list));
  std::vector<int64_t> ids;
  std::set<int64_t> known;
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || !known.insert(id.get<int64_t>()).second)
      refuse(shown(id));
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

std::vector<int64_t> PeftConfig::tokens_of(const std::string& module) const {
  const Json& indices = at(kind_ == PeftKind::tokens ? "token_indices" : "trainable_token_indices");
  if (!indices.is_object()) return token_list(indices);
  for (const auto& [name, list] : indices.items())
    if (ends_in(module, name)) return token_list(list);
  fail(ErrorKind::file, file_, "trainable_token_indices names no tokens of module {}", module);
}

bool PeftConfig::at_least(int major, int minor, int patch) const {
  const Json& version = at("peft_version");
  std::array<int, 3> found{0, 0, 0};
  if (!version.is_string() || std::sscanf(version.get<std::string>().c_str(), "%d.%d.%d", &found[0],
                                          &found[1], &found[2]) < 2)
    return false;
  return found >= std::array<int, 3>{major, minor, patch};
}

}  // namespace tessera::convert
