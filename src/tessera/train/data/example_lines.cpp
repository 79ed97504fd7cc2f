#include "tessera/train/data/example_lines.h"

#include <algorithm>
#include <cmath>

#include "tessera/nn/router/router_config.h"
#include "tessera/train/data/data_file.h"

namespace tessera::train {
namespace {

/// Calls body(object, where, offset in all files together) for every example.
template <class Body>
void for_files(const std::vector<std::string>& paths, LabelFormat format, Sha256& key, Body body) {
  size_t before = 0;
  for (const std::string& path : paths) {
    const DataFile file(path);
    key.update(file.text());
    for_each_example(path, format,
                     [&](const Json& object, const std::string& where, size_t offset) {
                       body(object, where, before + offset);
                     });
    before += file.bytes();
  }
}

}  // namespace

void for_each_example(
    const std::string& path,
    LabelFormat format,
    const std::function<void(const Json& object, const std::string& where, size_t offset)>& visit) {
  if (format != LabelFormat::jsonl)
    return for_each_row(path, format,
                        [&](Record&& row) { visit(row.values, row.where, row.offset); });
  for_each_object(DataFile(path), [&](const ObjectText& object) {
    visit(parse_object(object), object.where, object.offset);
  });
}

void for_examples(const TextData& data,
                  Sha256& key,
                  const CancelToken* cancel,
                  const std::function<void(const ExampleLine&)>& body) {
  const LabelFormat format = label_format(data.format).value();
  const auto visit = [&](const Json& object, const std::string& where, bool held_out) {
    if (cancel != nullptr) cancel->check("data");
    body({object, where, held_out});
  };
  size_t bytes = 0;
  for (const std::string& path : data.train) bytes += DataFile(path).bytes();
  const auto border =
      static_cast<size_t>(std::floor((1 - data.valid_fraction) * static_cast<double>(bytes)));
  for_files(data.train, format, key,
            [&](const Json& object, const std::string& where, size_t offset) {
              visit(object, where, data.valid_fraction > 0 && offset >= border);
            });
  key.update("valid");
  for_files(data.valid, format, key, [&](const Json& object, const std::string& where, size_t) {
    visit(object, where, true);
  });
}

void check_examples(const TextData& data, size_t train, size_t valid, std::string_view what) {
  const bool wanted = !data.valid.empty() || data.valid_fraction > 0;
  for (const auto& [name, count, needed] :
       {std::tuple("train", train, true), std::tuple("valid", valid, wanted)})
    if (needed && count == 0)
      fail(ErrorKind::input, "data", "the {} split has no {}; expected at least one{}", name, what,
           needed && std::string_view(name) == "valid"
               ? ": more data, or another data.valid_fraction (--valid-fraction; 0 = no evaluation)"
               : "");
}

void check_example_recipe(const DataPlan& plan, std::string_view type) {
  const TrainRecipe& train = plan.train;
  const auto refuse = [&](bool given, const char* key, std::string_view what) {
    if (given)
      fail(ErrorKind::spec, key, "{} with objective \"{}\", whose examples are independent", what,
           type);
  };
  refuse(plan.data.task() != nullptr, "data.type", "a task; expected files of examples,");
  const TextData& data = plan.data.files();
  refuse(!data.mix.empty(), "data.mix", "several texts; expected files in train,");
  refuse(data.source_key.has_value(), "data.source_key", "given; leave it out");
  refuse(train.windows == WindowOrder::carried, "train.windows",
         "\"carried\"; expected \"isolated\"");
  refuse(train.curriculum.steps > 0, "train.curriculum",
         "examples have the length that they have; expected steps 0");
  const auto no_tokens = [&](bool given, const char* key, const char* expected) {
    if (given)
      fail(ErrorKind::spec, key,
           "a term of the losses of single tokens, which objective \"{}\" has not; expected {}",
           type, expected);
  };
  no_tokens(train.z_loss > 0, "train.z_loss", "0");
  no_tokens(train.l2_wrap > 0, "train.l2_wrap", "0");
  no_tokens(train.label_smoothing.share > 0, "train.label_smoothing", "share 0");
  no_tokens(train.early_exit.scale > 0, "train.early_exit", "scale 0");
  no_tokens(!plan.spec.predictors.empty() && train.predictors > 0, "train.predictors", "0");
  model::for_each_part(plan.spec, [&](const spec::AnyPart& part) {
    const auto* router = dynamic_cast<const nn::RouterConfig*>(part.config.get());
    if (router != nullptr && router->by_reward())
      fail(ErrorKind::spec, "spec",
           "router \"{}\" learns from the losses of its tokens, which objective \"{}\" has not; "
           "expected another router",
           part.type(), type);
  });
}

}  // namespace tessera::train
