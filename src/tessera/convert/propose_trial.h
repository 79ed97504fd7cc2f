// Drafts of family files and their trials: dry runs against a checkpoint. Torch-free.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tessera/convert/mapping.h"
#include "tessera/convert/propose.h"
#include "tessera/convert/propose_evidence.h"

namespace tessera::convert {

/// A family file on a base, as far as it is known.
struct Draft {
  std::string base;
  Json family;
  DryRun dry;
  double cost = 0;                  // what it leaves over, and how much it changes its base
  size_t doubtful = 0;              // matches by shape alone, or of unlike parts
  std::vector<std::string> unsure;  // what neither keys nor shapes show

  Json& hf() { return family["dialects"][kHf]; }
  /// Tensors and keys without a place.
  size_t left_over() const;
  /// Whether every tensor has a place; keys may be left.
  bool fits() const;
  /// By which drafts are ordered: the cost, after those that fit the others. One key that a base
  /// does not read outweighs no form that tensors show.
  double rank() const;
  /// Reads a value of the base by an expression of the draft's own.
  void set(const std::string& value, Json expression);
  void include(const std::string& fragment);
  /// Leaves out rules of the base for parameters ("layers.*.ffn_norm.*").
  void drop(const std::string& ours);
};

/// Keys of configs by which families read each value, and how many do.
using KeysOfValues = std::map<std::string, std::map<std::string, int>>;
void add_keys_of(const Family& family, KeysOfValues& to);
/// Keys that an expression is, or falls back on: "config.a ?? config.b ?? 1" is a and b.
std::vector<std::string> direct_keys(const std::string& text);

/// The checkpoint and the families that a draft is tried with.
class Trial {
 public:
  /// Throws Error(usage) for a type that a family reads.
  Trial(const Evidence& evidence, const ProposeOptions& options);

  const Evidence& evidence() const { return evidence_; }
  FamilySet& families() { return set_; }
  const std::string& name() const { return name_; }  // of the drafted family
  const std::vector<std::string>& bases() const { return bases_; }
  const KeysOfValues& keys_of_values() const { return keys_of_values_; }

  const Dialect& dialect_of(const std::string& base) { return set_.named(base).dialect(kHf); }
  /// Whether a dialect has a key of the config, or takes no notice of it.
  bool claims(const Dialect& dialect, const std::string& key) const;
  /// Families that give a key a meaning, without the drafted one.
  std::vector<std::string> readers_of(const std::string& key);

  /// Dry run and cost of a draft as it is.
  void update(Draft& draft);
  /// Whether another value of a key of the config, or none, gives another spec or asks for other
  /// tensors: a key that a draft reads without effect would be swallowed.
  bool takes_effect(const Draft& draft, const std::string& path);
  /// A value of the draft's family for this checkpoint; absent where it has none.
  Json value(const Draft& draft, const std::string& name);
  /// The same, where it is a whole number; else -1.
  int64_t size(const Draft& draft, const std::string& name);
  /// Takes a changed draft that costs less.
  bool take_if_better(Draft& draft, Draft&& changed);
  /// Takes a changed draft that leaves no more over and adds no error; `why` joins what it is
  /// unsure of, if any.
  bool take_if_no_worse(Draft& draft, Draft&& changed, const std::string& why);
  /// Takes a changed draft whose spec can be built and that adds no error: what tensors show holds
  /// for any names that are left.
  bool take_if_sound(Draft& draft, Draft&& changed);
  /// Leaves out entries of a draft that are without effect, which a family file may not have.
  void tidy(Draft& draft);
  /// Drops rules of the base for parameters that the spec of a draft lacks.
  void drop_unneeded(Draft& draft);

 private:
  /// Compiles a family for the checkpoint; null and the error's text where it cannot be.
  Importer* compile(const Json& family, std::string& error);
  double cost_of(const Draft& draft);
  double shared_shapes(const DryRun& dry) const;

  const Evidence& evidence_;
  std::string name_;
  FamilySet set_;
  std::vector<std::string> bases_;
  KeysOfValues keys_of_values_;
  Foreign foreign_;
  Json compiled_;  // the family that the importer is of
  std::unique_ptr<Importer> importer_;
};

}  // namespace tessera::convert
