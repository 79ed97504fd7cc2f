// adapter_config.json of PEFT: the kind of adapter, and what its tensors do not say themselves.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/convert/expr_node.h"
#include "tessera/text/tokenizer/regex.h"

namespace tessera::convert {

/// Files of p-tuning hold the vectors that its encoder made: a prompt.
enum class PeftKind { lora, ia3, tokens, prefix, prompt };

class PeftConfig {
 public:
  /// Throws Error(file) for another kind, for a key that asks for something that is not here, and
  /// for adapters of a base model that PEFT has changed (PiSSA, OLoRA, CorDA, LoftQ, LoRA-GA).
  explicit PeftConfig(const std::filesystem::path& path);

  const std::string& file() const { return file_; }
  PeftKind kind() const { return kind_; }
  bool has_virtual_tokens() const { return kind_ == PeftKind::prefix || kind_ == PeftKind::prompt; }
  bool dora() const { return flag("use_dora"); }
  bool rslora() const { return flag("use_rslora"); }
  bool ties_tables() const { return flag("ensure_weight_tying"); }
  const Json& at(const char* key) const;

  /// r of a module, or the first of rank_pattern that names it.
  int64_t rank_of(const std::string& module) const;
  /// The factor on the product of a module whose rank is `rank`.
  double scale_of(const std::string& module, int64_t rank) const;
  /// Whether modules_to_save names the module of a tensor: a copy of it was trained.
  bool saves(const std::string& tensor) const;
  /// The tokens whose rows of the table of `module` were trained. Throws Error(file) where the
  /// config names none.
  std::vector<int64_t> tokens_of(const std::string& module) const;
  /// Whether the config was written by PEFT `major.minor.patch` or later.
  bool at_least(int major, int minor, int patch) const;

 private:
  /// A key of rank_pattern or alpha_pattern: (.*\.)?(key)$
  struct Pattern {
    std::string key;
    std::shared_ptr<const text::Regex> regex;  // null of a plain name
    double value;
    bool names(const std::string& module) const;
  };

  bool flag(const char* key) const { return at(key) == Json(true); }
  void read_kind();
  void check_begin() const;
  void check_keys() const;
  void read_products();
  std::vector<Pattern> patterns(const char* key) const;
  double number(const Json& of, const std::string& key) const;
  std::vector<int64_t> token_list(const Json& list) const;

  std::string file_;
  Json config_;
  PeftKind kind_ = PeftKind::lora;
  double alpha_ = 0;
  double rank_ = 0;
  std::vector<Pattern> alphas_, ranks_;
};

}  // namespace tessera::convert
