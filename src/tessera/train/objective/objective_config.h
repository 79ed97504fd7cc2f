// What a run learns, as data: the "objective" of a recipe. Each type is an entry of the table
// objectives.def. Torch-free.
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

namespace tessera::train {

struct Recipe;
class Dataset;

class ObjectiveConfig {
 public:
  virtual ~ObjectiveConfig() = default;
  /// What it is called in recipes and logs, such as "masked_lm".
  virtual std::string type() const = 0;
  /// Every default written out; null for what a recipe learns that says nothing.
  virtual spec::Json dump() const = 0;
  /// Throws Error(spec) where it does not fit the spec, the data or the rest of the recipe.
  virtual void check(const Recipe& recipe) const = 0;
  /// Samples of the recipe's data. `cache`: where tokens of files are kept. Throws Error(file) and
  /// Error(input) for data that it cannot learn from.
  virtual std::unique_ptr<Dataset> open(const Recipe& recipe,
                                        const std::filesystem::path& cache,
                                        const CancelToken* cancel) const = 0;
  /// Names of the losses of what it draws, by PackedBatch::kinds; none where it is one alone.
  virtual std::vector<std::string> kinds() const { return {}; }
  /// Keys of the recipe that name what else than the data it learns from: "objective.teacher".
  virtual std::vector<std::string> reads() const { return {}; }
  /// Puts beside a checkpoint's model and tokenizer what who runs it has to know.
  virtual void write_beside(const Recipe&, const std::filesystem::path& /*checkpoint*/) const {}
};

/// One type of the table.
struct ObjectiveKind {
  std::string type;
  /// `recipe`: its spec and data have been read.
  ObjectivePtr (*read)(const spec::Json& json, const spec::Scope& scope, const Recipe& recipe);
  /// JSON schema of its keys but "type".
  std::function<spec::Json()> schema;
  bool labelled = false;  // its data are labelled examples (label_data.h)
  /// Its keys that are paths, relative to the recipe's file.
  std::vector<std::string> paths = {};
  size_t row = 0;  // of objectives.def
};

/// Of a struct C of keys with C::kType: type(), dump(), and reading; unknown keys throw
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

/// The keys of a recipe's objective, whose type is that of C.
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

/// The entry of a class of objectives that is made of its keys C.
template <class Config, class C>
ObjectiveKind objective_kind() {
  return {C::kType,
          [](const spec::Json& json, const spec::Scope& scope, const Recipe&) -> ObjectivePtr {
            return std::make_shared<Config>(read_objective_keys<C>(json, scope));
          },
          [] { return spec::struct_schema<C>(); }};
}

/// What a recipe says; null = the next token, of pairs the answer, of a task what it asks. Unknown
/// types and keys throw Error(spec).
ObjectivePtr read_objective(const spec::Json& json, const Recipe& recipe);

/// The row of objectives.def that has a type; nullopt for one that no recipe names, such as that of
/// a synthetic task.
std::optional<size_t> objective_row(std::string_view type);

/// Calls `visit` with every path that an objective names, those of objectives within it among them.
void for_each_objective_path(spec::Json& objective, const std::function<void(spec::Json&)>& visit);
/// Whether the data of such an objective are labelled examples; false for what it cannot be.
bool learns_from_labels(const spec::Json& objective);

/// JSON schema of them all.
spec::Json objective_schema();

/// Throws Error(spec) unless the data are files of text alone.
void check_text_alone(const Recipe& recipe, std::string_view type);

}  // namespace tessera::train
