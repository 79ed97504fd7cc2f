// PEFT's names of modules, and the names that a family has for them.
#pragma once

#include <map>
#include <set>

#include "tessera/convert/mapping.h"
#include "tessera/convert/peft_file.h"

namespace tessera::convert {

/// The tensors of the Hugging Face model of a checkpoint's family.
class PeftNames {
 public:
  PeftNames(const Family& family, const Checkpoint& base);

  /// The family's own name of a tensor that the file calls `name`: another spelling counts, and so
  /// do other words before the layer's number (a model without a head, another class). "" = none.
  std::string tensor(const std::string& name) const;
  /// The same of a module, by its ".weight".
  std::string module(const std::string& name) const;

  /// The token embedding, and the output matrix where it is one of the vocabulary; "" = none. Of
  /// tied ones the output matrix is another name of the embedding.
  const std::string& table() const { return table_; }
  const std::string& head() const { return head_; }
  bool tied() const { return tied_; }
  /// Whether the family gives the token embedding more names than these two.
  bool shared() const { return shared_; }

 private:
  void add(const std::vector<std::string>& spellings);

  std::map<std::string, std::string> names_;           // of every spelling: the written one
  std::map<std::string, std::set<std::string>> ends_;  // by end_of(): written ones
  std::string table_, head_;
  bool tied_ = false, shared_ = false;
};

/// A file's tensors under the family's own names. Those without a place keep theirs.
PeftFile renamed(PeftFile file, const PeftNames& names);

/// The first number among the words of a module's name: its layer; -1 = none.
int64_t layer_in(const std::string& name);

}  // namespace tessera::convert
