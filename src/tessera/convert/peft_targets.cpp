#include "tessera/convert/peft_targets.h"

#include <algorithm>
#include <cctype>

#include "tessera/base/error.h"

namespace tessera::convert {
namespace {

bool empty(const Json& value) {
  return value.is_null() || ((value.is_array() || value.is_string()) && value.empty());
}

/// A list of ends of names, or a regular expression of whole names.
class Names {
 public:
  Names(const PeftConfig& config, const char* key) : names_(config.at(key)) {
    if (names_.is_string() && !names_.empty() && !all_linear())
      regex_ = std::make_unique<text::Regex>("\\A(?:" + names_.get<std::string>() + ")\\z",
                                             config.file() + ": " + key);
    const auto text = [](const Json& name) { return name.is_string(); };
    if (!names_.is_null() && !names_.is_string() &&
        !(names_.is_array() && std::all_of(names_.begin(), names_.end(), text)))
      fail(ErrorKind::file, config.file(),
           "{} is {}; expected a list of names or one regular "
           "expression",
           key, shown(names_));
  }

  bool all_linear() const {
    if (!names_.is_string()) return false;
    std::string name = names_.get<std::string>();
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return name == "all-linear";
  }
  bool is_list() const { return names_.is_array(); }
  bool whole(const std::string& module) const {
    return is_list() && std::find(names_.begin(), names_.end(), Json(module)) != names_.end();
  }
  bool match(const std::string& module) const {
    if (regex_ != nullptr) {
      const auto spans = regex_->spans(module);
      return spans.size() == 1 && spans.front().is_match;
    }
    return is_list() && std::any_of(names_.begin(), names_.end(), [&](const Json& name) {
             const std::string end = name.get<std::string>();
             return module == end || module.ends_with("." + end);
           });
  }

 private:
  const Json& names_;
  std::unique_ptr<text::Regex> regex_;
};

std::vector<std::string> words_of(const std::string& name) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t dot = std::min(name.find('.', begin), name.size());
    words.push_back(name.substr(begin, dot - begin));
    begin = dot + 1;
  }
  return words;
}

bool is_number(const std::string& word) {
  return !word.empty() && word.size() < 10 &&
         std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// layers_to_transform: a number or a list of numbers; those of a module follow a word of
/// layers_pattern, or any word but the first. PEFT takes the first number of a name, and
/// before 0.18 took the last (the expert's), which is accepted as well.
bool in_layers(const PeftConfig& config, const std::string& module) {
  const Json &layers = config.at("layers_to_transform"), &pattern = config.at("layers_pattern");
  if (layers.is_null() || (layers.is_array() && layers.empty())) return true;
  const auto wanted = [&](const std::string& word) {
    const Json number(std::stoll(word));
    return layers == number ||
           (layers.is_array() && std::find(layers.begin(), layers.end(), number) != layers.end());
  };
  const auto follows = [&](const std::vector<std::string>& words, size_t i) {
    if (empty(pattern)) return i >= 2;
    const auto is_word = [&](const Json& name) { return name == Json(words[i - 1]); };
    return pattern.is_array() ? std::any_of(pattern.begin(), pattern.end(), is_word)
                              : is_word(pattern);
  };
  const std::vector<std::string> words = words_of(module);
  std::vector<std::string> numbers;
  for (size_t i = 1; i + 1 < words.size(); ++i)
    if (is_number(words[i]) && follows(words, i)) numbers.push_back(words[i]);
  return !numbers.empty() && (wanted(numbers.front()) || wanted(numbers.back()));
}

/// Whether the module's last word is that of the module of one of target_parameters
/// ("mlp.experts.gate_up_proj"); the words before it change with transformers' versions.
bool of_parameters(const PeftConfig& config, const std::string& module) {
  const Json& parameters = config.at("target_parameters");
  if (!parameters.is_array()) return false;
  std::vector<std::string> words = words_of(module);
  std::erase(words, "base_layer");
  return std::any_of(parameters.begin(), parameters.end(), [&](const Json& name) {
    if (!name.is_string() || words.empty()) return false;
    const std::vector<std::string> parts = words_of(name.get<std::string>());
    return parts.size() > 1 && parts[parts.size() - 2] == words.back();
  });
}

/// The key that leaves the module out; null of one that PEFT makes.
const char* left_out_by(const PeftConfig& config,
                        const Names& targets,
                        const Names& excluded,
                        const std::string& module,
                        bool linear) {
  if (excluded.match(module)) return "exclude_modules";
  if (targets.all_linear()) return linear ? nullptr : "target_modules";
  if (!targets.match(module)) return "target_modules";
  if (targets.is_list() && !targets.whole(module) && !in_layers(config, module))
    return "layers_to_transform";
  return nullptr;
}

}  // namespace

void check_targets(const PeftFile& file,
                   const PeftConfig& config,
                   const std::string& tensors_file,
                   const std::string& head) {
  if (config.kind() != PeftKind::lora && config.kind() != PeftKind::ia3) return;
  const Names targets(config, "target_modules"), excluded(config, "exclude_modules");
  if (config.at("target_modules").is_null() && empty(config.at("target_parameters"))) return;
  for (const auto& [module, parts] : file.modules) {
    const format::TensorView* const tensor = parts.a != nullptr         ? parts.a
                                             : parts.table_a != nullptr ? parts.table_a
                                                                        : parts.factors;
    if (tensor == nullptr || of_parameters(config, module)) continue;
    const bool linear = parts.table_a == nullptr && module != head;
    // the other one of two tied tables is adapted with the one that is named
    if (!linear && config.ties_tables()) continue;
    const char* const key = left_out_by(config, targets, excluded, module, linear);
    if (key == nullptr) continue;
    fail(ErrorKind::file, "adapter",
         "tensor without a place: {} has {}, and {} = {} of adapter_config.json leaves its module "
         "out, so that PEFT ignores it; expected a config that names the module, or a file without "
         "the tensor",
         tensors_file, format::in_quotes(tensor->name), key, shown(config.at(key)));
  }
}

}  // namespace tessera::convert
