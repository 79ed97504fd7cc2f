#include "tessera/train/example_lines.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/mapped_file.h"
#include "tessera/nn/router/router_config.h"

namespace tessera::train {
namespace {

/// Calls body(line, where, offset in all files together) for every line that is not blank.
template <class Body>
void for_lines(const std::vector<std::string>& paths, Sha256& key, Body body) {
  size_t before = 0;
  for (const std::string& path : paths) {
    const auto file = MappedFile::open(path);
    key.update(file->bytes());
    const std::string_view text(reinterpret_cast<const char*>(file->bytes().data()),
                                file->bytes().size());
    int64_t number = 0;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const std::string_view line = text.substr(begin, end - begin);
      ++number;
      if (line.find_first_not_of(" \t\r") != std::string_view::npos)
        body(line, fmt::format("{}: line {}", path, number), before + begin);
      begin = end + 1;
    }
    before += text.size();
  }
}

}  // namespace

void for_examples(const DataRecipe& data,
                  Sha256& key,
                  const CancelToken* cancel,
                  const std::function<void(const ExampleLine&)>& body) {
  const auto visit = [&](std::string_view line, std::string where, bool held_out) {
    if (cancel != nullptr) cancel->check("data");
    body({line, std::move(where), held_out});
  };
  size_t bytes = 0;
  for (const std::string& path : data.train) bytes += MappedFile::open(path)->bytes().size();
  const auto border =
      static_cast<size_t>(std::floor((1 - data.valid_fraction) * static_cast<double>(bytes)));
  for_lines(data.train, key, [&](std::string_view line, std::string where, size_t offset) {
    visit(line, std::move(where), data.valid_fraction > 0 && offset >= border);
  });
  key.update("valid");
  for_lines(data.valid, key, [&](std::string_view line, std::string where, size_t) {
    visit(line, std::move(where), true);
  });
}

void check_examples(const DataRecipe& data, size_t train, size_t valid, std::string_view what) {
  const bool wanted = !data.valid.empty() || data.valid_fraction > 0;
  for (const auto& [name, count, needed] :
       {std::tuple("train", train, true), std::tuple("valid", valid, wanted)})
    if (needed && count == 0)
      fail(ErrorKind::input, "data", "the {} split has no {}; expected at least one", name, what);
}

void check_example_recipe(const Recipe& recipe, std::string_view type) {
  const DataRecipe& data = recipe.data;
  const TrainRecipe& train = recipe.train;
  const auto refuse = [&](bool given, const char* key, std::string_view what) {
    if (given)
      fail(ErrorKind::spec, key, "{} with objective \"{}\", whose examples stand alone", what,
           type);
  };
  refuse(recipe.task.has_value(), "data.type", "a task; expected files of examples,");
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
  no_tokens(!recipe.spec.predictors.empty() && train.predictors > 0, "train.predictors", "0");
  model::for_each_part(recipe.spec, [&](const spec::AnyPart& part) {
    const auto* router = dynamic_cast<const nn::RouterConfig*>(part.config.get());
    if (router != nullptr && router->by_reward())
      fail(ErrorKind::spec, "spec",
           "router \"{}\" learns from the losses of its tokens, which objective \"{}\" has not; "
           "expected another router",
           part.type(), type);
  });
}

}  // namespace tessera::train
