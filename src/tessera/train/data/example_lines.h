// Files of examples that stand alone, such as conversations or pairs: JSON objects, one a line or
// in one list, or the rows of a table. Torch-free.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "tessera/base/cancel.h"
#include "tessera/base/sha256.h"
#include "tessera/train/recipe/recipe.h"

namespace tessera::train {

/// Visits the examples of a file in order: objects of JSON or rows of a table, whose values are
/// strings. `offset` is of its bytes in the file. Throws Error(file).
void for_each_example(
    const std::string& path,
    LabelFormat format,
    const std::function<void(const Json& object, const std::string& where, size_t offset)>& visit);

struct ExampleLine {
  Json object;
  std::string where;  // "FILE: line N"
  /// For evaluation: of data.valid, or of the last part of the bytes of train.
  bool held_out = false;
};

/// Every example of the data's files, in order. `key` takes in all of their bytes.
/// Throws Error(file) where one cannot be read, Error(cancelled) between lines.
void for_examples(const DataRecipe& data,
                  Sha256& key,
                  const CancelToken* cancel,
                  const std::function<void(const ExampleLine&)>& body);

/// Throws Error(input) where there is nothing to learn from, or nothing to evaluate on though the
/// recipe asks for some. `what` they are, such as "conversation".
void check_examples(const DataRecipe& data, size_t train, size_t valid, std::string_view what);

/// Throws Error(spec) where the recipe says what an objective of whole examples has no use for:
/// other data than files of them, windows that go on or grow, terms and routers that follow the
/// losses of single tokens.
void check_example_recipe(const Recipe& recipe, std::string_view type);

}  // namespace tessera::train
