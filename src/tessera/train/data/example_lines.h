// Files of independent examples, such as conversations or pairs: JSON lines, one JSON list, or rows
// of a table. Torch-free.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "tessera/base/cancel.h"
#include "tessera/base/sha256.h"
#include "tessera/train/data/data_plan.h"

namespace tessera::train {

/// Visits the examples of a file in order: JSON objects, or rows of a table with string values.
/// `offset`: byte offset in the file. Throws Error(file).
void for_each_example(
    const std::string& path,
    LabelFormat format,
    const std::function<void(const Json& object, const std::string& where, size_t offset)>& visit);

struct ExampleLine {
  Json object;
  std::string where;  // "FILE: line N"
  /// For validation: from data.valid, or from the last part of the bytes of train.
  bool held_out = false;
};

/// Visits every example of the data's files in order. `key` hashes all of their bytes. Throws
/// Error(file) for an example that cannot be read, Error(cancelled) between lines.
void for_examples(const TextData& data,
                  Sha256& key,
                  const CancelToken* cancel,
                  const std::function<void(const ExampleLine&)>& body);

/// Throws Error(input) if there is no training example, or no validation example although the
/// recipe asks for some. `what`: for messages, such as "conversation".
void check_examples(const TextData& data, size_t train, size_t valid, std::string_view what);

/// Throws Error(spec) for recipe keys that do not apply to whole examples: other data than files of
/// them, carried or growing windows, auxiliary terms and routers that follow the losses of single
/// tokens.
void check_example_recipe(const DataPlan& plan, std::string_view type);

}  // namespace tessera::train
