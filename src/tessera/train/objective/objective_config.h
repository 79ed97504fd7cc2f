// The "objective" of a recipe as data. Each type is an entry of the table objectives.def.
// Torch-free.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/cancel.h"
#include "tessera/spec/fields.h"
#include "tessera/train/objective/objective_ptr.h"
#include "tessera/train/recipe/model_plan.h"

namespace tessera::train {

class Dataset;

class ObjectiveConfig {
 public:
  virtual ~ObjectiveConfig() = default;
  /// Type in recipes and logs, such as "masked_lm".
  virtual std::string type() const = 0;
  /// The keys with every default; null for the default objective.
  virtual spec::Json dump() const = 0;
  /// Throws Error(spec) if it does not fit the spec, the data or the rest of the recipe.
  virtual void check(const ModelPlan& plan) const = 0;
  /// The dataset of the plan's data. `cache`: folder of tokenized files. Throws Error(file) and
  /// Error(input) for data that it does not support.
  virtual std::unique_ptr<Dataset> open(const DataPlan& plan,
                                        const std::filesystem::path& cache,
                                        const CancelToken* cancel) const = 0;
  /// Names of the losses of a mixture, by PackedBatch::kinds; empty for a single one.
  virtual std::vector<std::string> kinds() const { return {}; }
  /// Recipe keys of further inputs apart from the data: "objective.teacher".
  virtual std::vector<std::string> reads() const { return {}; }
  /// Writes settings for inference next to a checkpoint's model and tokenizer.
  virtual void write_settings(const ModelPlan&, const std::filesystem::path& /*checkpoint*/) const {
  }
};

/// One type of the table.
struct ObjectiveKind {
  std::string type;
  /// Reads the keys. Throws Error(spec).
  ObjectivePtr (*read)(const spec::Json& json,
                       const spec::Scope& scope,
                       const model::ModelSpec& spec,
                       const DataRecipe& data);
  /// JSON schema of its keys except "type".
  std::function<spec::Json()> schema;
  bool labelled = false;  // its data are labelled examples (label_data.h)
  /// Its keys that are paths, relative to the recipe's file.
  std::vector<std::string> paths = {};
  size_t row = 0;  // in objectives.def
};

/// Implements type(), dump() and reading for a struct C of keys with C::kType; unknown keys throw
/// Error(spec).
template <class C>
class ObjectiveOf : public ObjectiveConfig {
 public:
  explicit ObjectiveOf(C keys) : keys_(std::move(keys)) {}
  std::string type() const override { return C::kType; }
  spec::Json dump() const override {
    spec::Json json = spec::dump_struct(keys_);
    json["type"] = C::kType;
    return json;
  }
  const C& keys() const { return keys_; }

 protected:
  C keys_;
};

/// The keys of a recipe's objective of type C.
template <class C>
const C& keys_of(const ObjectiveConfig& objective) {
  return dynamic_cast<const ObjectiveOf<C>&>(objective).keys();
}

template <class C>
C read_objective_keys(const spec::Json& json, const spec::Scope& scope) {
  C keys;
  spec::detail::read_object(json, &keys, spec::detail::object_type<C>(), scope, true);
  return keys;
}

/// The table entry of an objective class with keys C.
template <class Config, class C>
ObjectiveKind objective_kind() {
  return {C::kType,
          [](const spec::Json& json, const spec::Scope& scope, const model::ModelSpec&,
             const DataRecipe&) -> ObjectivePtr {
            return std::make_shared<Config>(read_objective_keys<C>(json, scope));
          },
          [] { return spec::struct_schema<C>(); }};
}

/// Reads a recipe's objective; null = next token, for pairs the target, for a task its answers.
/// Unknown types and keys throw Error(spec).
ObjectivePtr read_objective(const spec::Json& json,
                            const model::ModelSpec& spec,
                            const DataRecipe& data);

/// The row of a type in objectives.def; nullopt for types that recipes cannot name, such as a
/// synthetic task.
std::optional<size_t> objective_row(std::string_view type);

/// Calls `visit` with every path of an objective, nested objectives included.
void for_each_objective_path(spec::Json& objective, const std::function<void(spec::Json&)>& visit);
/// True if the data of the objective are labelled examples; false for an invalid one.
bool learns_from_labels(const spec::Json& objective);

/// JSON schema of all types.
spec::Json objective_schema();

/// Throws Error(spec) unless the data are text files.
void check_text_alone(const DataRecipe& data, std::string_view type);

}  // namespace tessera::train
