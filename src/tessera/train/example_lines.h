// Files of which every line is an example that stands alone, such as a conversation or a pair.
// Torch-free.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "tessera/base/cancel.h"
#include "tessera/train/recipe.h"
#include "tessera/base/sha256.h"

namespace tessera::train {

struct ExampleLine {
  std::string_view text;
  std::string where;  // "FILE: line N"
  bool held_out =
      false;  // for evaluation: of data.valid, or of the last part of the bytes of train
};

/// Every line of the data's files that is not blank, in order. `key` takes in all of their bytes.
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
