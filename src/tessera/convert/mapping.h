// Runs a family: foreign config and tensors to ours, and back.
#pragma once

#include <set>

#include "tessera/convert/checkpoint.h"
#include "tessera/convert/family.h"

namespace tessera::convert {

/// A foreign checkpoint as its file format gives it.
struct Foreign {
  std::string dialect;
  Json config;
  const format::TensorFile* tensors = nullptr;
  std::string file;  // of the config, for messages
  const std::set<std::string, std::less<>>* packed = nullptr;  // quantised matrices, [out, in]
};

/// Spec JSON of a foreign config. Throws Error(file) for a key that nobody claims, a value that the
/// family does not support, a missing key.
class Importer {
 public:
  Importer(const Family& family,
           const Foreign& foreign,
           const std::vector<std::string>& unmathematical);

  /// As the family's template gives it, unresolved.
  Json spec_json();
  /// Fills tensors, kept and notes; the spec must be there.
  void read_tensors(Checkpoint& checkpoint);

 private:
  void add_tensor_functions();
  bool exists(const std::string& name) const;
  void check_claims(const Json& config, const std::string& prefix);
  void check_expected();
  void bind_rule(const TensorRule& rule, const Local* locals, Checkpoint& checkpoint);
  void bind_convert(const TensorRule& rule, const ForeignSide& side, const Local* locals);
  [[noreturn]] void refuse_turned(const std::string& name) const;
  std::string known_name(const std::vector<NamePattern>& spellings, const Local* locals);
  void check_unused(Checkpoint& checkpoint);

  const Family& family_;
  const Dialect& dialect_;
  const Foreign& foreign_;
  const std::vector<std::string>& unmathematical_;
  Json config_;  // with what the dialect lifts
  Environment env_;
  struct Found {
    TensorView tensor;
    std::string source;  // the foreign names it came from
  };
  std::map<std::string, Found, std::less<>> found_;
  std::vector<std::string> widened_;  // ours, of quantised matrices, that became floats
  std::set<std::string, std::less<>> used_;
  struct Same {
    std::string ours, foreign;
  };
  std::vector<Same> same_;
};

/// One rule as it stands for a model: matrices of a dialect, and those of ours that they give.
struct BoundRule {
  std::vector<std::string> foreign, ours;
  const TensorSteps& steps;
  /// The steps, foreign to ours and back.
  std::function<void(std::vector<TensorView>& tensors)> apply, invert;
};

/// Calls `body` with every rule that gives parameters of the checkpoint in a dialect that the
/// family writes, whatever the checkpoint's own. Throws as export_checkpoint() does.
void for_each_rule(const Family& family,
                   std::string_view dialect,
                   const Checkpoint& checkpoint,
                   const std::function<void(const BoundRule& rule)>& body);

struct Exported {
  Json config;
  std::vector<TensorView> tensors;
};

/// A checkpoint in another dialect's terms. Throws Error(spec) where the family cannot say the
/// spec.
Exported export_checkpoint(const Family& family,
                           std::string_view dialect,
                           const Checkpoint& checkpoint,
                           const std::vector<std::string>& unmathematical,
                           bool float32);

/// A resolved spec as expressions see it: layers unfolded, and in each layer the branches by name:
/// layer.mixer, layer.mixer_norm, layer.mixer_residual. Where there are two stacks, in each of them
/// (spec.stacks.encoder.layers); predictors are a list of such stacks.
Json spec_view(const Json& resolved);

}  // namespace tessera::convert
