#include <ATen/Parallel.h>

#include "tessera/spec/settings.h"
#include "tessera/api/plugins.h"
#include "tessera/api/tessera.h"
#include "tessera/base/threads.h"
#include "tessera/base/version.h"
#include "tessera/convert/checkpoint.h"
#include "tessera/hub/find_model.h"
#include "tessera/model/outline.h"
#include "tessera/model/plan.h"
#include "tessera/ops/device_name.h"
#include "tessera/train/loop/trainer.h"

namespace tessera {
namespace {

model::ModelSpec spec_of_any(const std::string& given, const char* where) {
  api::load_plugins_of_environment();
  const size_t first = given.find_first_not_of(" \t\r\n");
  if (first == std::string::npos)
    fail(ErrorKind::usage, where, "an empty spec; expected JSON, a file or a model");
  if (given[first] == '{')
    return model::read_model_spec(spec::parse_json(given, "spec", {.comments = true}));
  if (given.ends_with(".json") && std::filesystem::is_regular_file(given))
    return model::load_model_spec(given);
  return convert::load_checkpoint(hub::find_model(given).path).spec;
}

}  // namespace

std::string version() {
  return kVersion;
}

void set_threads(int count) {
  constexpr int kMostThreads = 4096;
  if (count < 0 || count > kMostThreads)
    fail(ErrorKind::usage, "set_threads", "{} threads; expected 0 (all cores) to {}", count,
         kMostThreads);
  set_thread_count(count);
  at::set_num_threads(thread_count());
}

std::string plan(const std::string& spec, int64_t context) {
  constexpr int64_t kMostContext = int64_t{1} << 40;
  if (context < 0 || context > kMostContext)
    fail(ErrorKind::usage, "plan", "context {}; expected 0 (the usual one) to 2^40", context);
  const model::ModelSpec read = spec_of_any(spec, "plan");
  return model::to_json(model::make_plan(read, context > 0 ? context : model::usual_context(read)))
      .dump(2);
}

std::string outline(const std::string& spec) {
  const model::ModelSpec read = spec_of_any(spec, "outline");
  return model::outline(read, model::usual_context(read)).dump();
}

std::string train_recipe(const std::string& recipe,
                         const std::string& folder,
                         std::string_view text,
                         const OnStep& on_step) {
  api::load_plugins_of_environment();
  spec::Settings settings(text, "train");
  const std::vector<std::string> overrides = settings.texts("set");
  CancelToken stopped;
  train::TrainOptions options;
  options.resume = settings.flag("resume").value_or(false);
  options.device = ops::device_named(settings.text("device").value_or("cpu"));
  settings.done();
  options.cancel = &stopped;
  if (on_step)
    options.on_step = [&](const train::LogLine& line, int64_t steps) {
      if (!stopped.requested() && !on_step(train::to_json(line).dump(), steps)) stopped.request();
    };
  return train::train(train::load_recipe(recipe, overrides), folder, options).checkpoint.string();
}

}  // namespace tessera
