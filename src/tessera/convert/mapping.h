// Runs a family: foreign config and tensors to ours, and back.
#pragma once

#include <set>

#include "tessera/convert/checkpoint.h"
#include "tessera/convert/family.h"
#include "tessera/convert/key_options.h"

namespace tessera::convert {

/// A foreign checkpoint as its file format gives it.
struct Foreign {
  std::string dialect;
  Json config;
  const format::TensorFile* tensors = nullptr;
  std::string file;                                            // of the config, for messages
  const std::set<std::string, std::less<>>* packed = nullptr;  // quantized matrices, [out, in]
};

/// Whether the output matrix is the token embedding: as in the config, or never, if the file
/// has an output matrix of its own.
enum class Tied { as_configured, never };

/// What an import would meet, all of it instead of the first error.
struct DryRun {
  struct Key {
    std::string path;
    Json value;
    std::vector<std::string> readers;  // families that give it a meaning; empty = none does
  };
  std::vector<Key> keys;            // that the family does not claim
  std::vector<std::string> errors;  // of values, of the spec, of steps
  Json spec_json = nullptr;         // as the template gives it; null = it cannot be evaluated
  std::optional<model::ModelSpec> spec;
  /// A tensor that a rule asks for and the file lacks.
  struct Missing {
    std::string name;               // in the family's terms, before its renames
    std::vector<std::string> ours;  // the parameters that it gives, with others of its rule
    std::vector<std::vector<int64_t>> shapes;  // of these, by the spec; empty = not in it
    bool steps = false;                        // whether they are made of it by steps
    bool alone = true;                         // the only tensor of its rule
  };
  std::vector<Missing> missing;
  struct Misshapen {
    std::string source, ours;  // tensors of the file, in quotes; our parameter
    std::vector<int64_t> found, expected;
  };
  std::vector<Misshapen> misshapen;
  std::vector<std::string> unmapped;  // tensors of the file that no rule takes
  std::vector<std::string> ungiven;   // parameters of the spec that no rule gives
  size_t mapped = 0;                  // parameters with a tensor of their shape
  /// Of dry_run_of() where it is complete: why the model cannot be written again as a folder of
  /// its family, "" = it can; and what the family's file lacks for it, a line each.
  std::string why_not_written;
  std::vector<std::string> lacking;
  /// Of a user's file: keys of "keys" and patterns of "ignored_tensors" that nothing in the model
  /// has, a line each.
  std::vector<std::string> idle;

  /// Keys that other families give a meaning: an import refuses them.
  size_t refused_keys() const;
  /// Whether an import would succeed, judged by names and shapes.
  bool complete() const;
};

/// Spec JSON of a foreign config. A key that the family does not claim is read over where its value
/// switches off what it names (FamilySet::switched_off), and, with a line of remarks(), where no
/// family gives it a meaning. Throws Error(file) for any other, for a value that the family does
/// not support, a missing key.
class Importer {
 public:
  Importer(const Family& family,
           const Foreign& foreign,
           FamilySet& families,
           KeyOptions options = {},
           Tied tied = Tied::as_configured);

  /// As the family's template gives it, unresolved.
  Json spec_json();
  /// Fills tensors, kept and notes; the spec must be there.
  void read_tensors(Checkpoint& checkpoint);
  /// Spec and tensors without an end at the first error. Of an Importer that does nothing else.
  /// With `placed` errors name file and line of a family of the user's.
  DryRun dry_run(bool placed = false);
  /// A value of the family for this file; absent where it has none of that name or cannot be
  /// evaluated.
  Json value(std::string_view name);
  /// What of the config was read over, one line each.
  const std::vector<std::string>& remarks() const { return remarks_; }
  /// Throws Error(file) for a tensor that differs from the one that it is another name of.
  void check_same(const Checkpoint& checkpoint) const;
  /// Whether that is a head that the config ties to the token embedding.
  bool head_differs(const Checkpoint& checkpoint) const;

 private:
  void add_tensor_functions();
  bool exists(const std::string& name) const;
  void check_claims(const Json& config, const std::string& prefix);
  void check_key(const std::string& path, const Json& value);
  bool has_claims_below(const std::string& path) const;
  void report_unknown();
  void check_expected();
  void bind_rule(const TensorRule& rule, const Local* locals, Checkpoint& checkpoint);
  void bind_convert(const TensorRule& rule, const ForeignSide& side, const Local* locals);
  [[noreturn]] void refuse_turned(const std::string& name) const;
  std::string known_name(const std::vector<NamePattern>& spellings, const Local* locals);
  std::string other_name(const std::string& ours);
  void check_unused(Checkpoint& checkpoint);
  /// The family's reason for a tensor that no rule takes; "" = none.
  std::string reason_unused(const std::string& name, bool& head, std::string& glob) const;
  void check_dry(const Checkpoint& checkpoint);

  DryRun* dry_ = nullptr;  // what collects errors, of a dry run
  const Family& family_;
  const Dialect& dialect_;
  const Foreign& foreign_;
  FamilySet& families_;
  KeyOptions options_;
  Json config_;                       // with what the dialect lifts
  std::vector<std::string> unknown_;  // keys that no family gives a meaning
  std::vector<std::string> remarks_;
  Environment env_;
  struct FoundTensor {
    TensorView tensor;
    std::string source;  // the foreign names it came from
  };
  std::map<std::string, FoundTensor, std::less<>> found_;
  std::vector<std::string> widened_;  // ours, of quantized matrices, that became floats
  std::set<std::string, std::less<>> used_;
  std::set<std::string, std::less<>> own_;  // ours, that rules of the family itself give
  struct Same {
    std::string ours, foreign;
  };
  std::vector<Same> same_;
};

/// One rule bound to a model: matrices of a dialect, and those of ours that they give.
struct BoundRule {
  std::vector<std::string> foreign, ours;
  std::vector<std::vector<std::string>> spellings;  // of each foreign name, the written one first
  const TensorSteps& steps;
  /// The steps, foreign to ours and back.
  std::function<void(std::vector<TensorView>&tensors)> apply, invert;
};

/// Calls `body` with every rule that gives parameters of the checkpoint in a dialect that the
/// family writes, whatever the checkpoint's own. Throws as export_checkpoint() does.
void for_each_rule(const Family& family,
                   std::string_view dialect,
                   const Checkpoint& checkpoint,
                   const std::function<void(const BoundRule& rule)>& body);

/// Other names in a dialect of parameters of the checkpoint ("same_as": tied matrices), by the
/// spellings of each.
struct BoundAlias {
  std::vector<std::string> spellings;
  std::string ours;
};
std::vector<BoundAlias> aliases_of(const Family& family,
                                   std::string_view dialect,
                                   const Checkpoint& checkpoint);

/// The resolved spec of a checkpoint in the form that a dialect has (orders of rows, norms plus
/// one). Throws Error(spec) where the family cannot say the spec.
Json spec_in_form_of(const Family& family, std::string_view dialect, const Checkpoint& checkpoint);

/// A family's value of `name`, evaluated for a checkpoint; null if it has none.
Json family_value(const Family& family,
                  std::string_view dialect,
                  const Checkpoint& checkpoint,
                  std::string_view name);

struct Exported {
  Json config;
  std::vector<TensorView> tensors;
  std::string remark;  // what readers of the dialect make of it otherwise; "" = nothing
};

/// Why a family cannot say a checkpoint's spec in a dialect; "" where it can. Of tensors names and
/// shapes count, which follow from the spec. `lacking` gets the entries that the family's own file
/// needs for it, a line each, as far as they are known.
std::string why_not_exportable(const Family& family,
                               std::string_view dialect,
                               const Checkpoint& checkpoint,
                               FamilySet& families,
                               std::vector<std::string>* lacking = nullptr);

/// A checkpoint in another dialect's terms. Throws Error(spec) where the family cannot say the
/// spec.
Exported export_checkpoint(const Family& family,
                           std::string_view dialect,
                           const Checkpoint& checkpoint,
                           FamilySet& families,
                           bool float32);

/// A resolved spec as expressions see it: layers unfolded, and in each layer the branches by name:
/// layer.mixer, layer.mixer_norm, layer.mixer_residual. Where there are two stacks, in each of them
/// (spec.stacks.encoder.layers); predictors are a list of such stacks.
Json spec_view(const Json& resolved);

}  // namespace tessera::convert
