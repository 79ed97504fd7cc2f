#include "tessera/train/loop/checkpoint.h"

#include <algorithm>
#include <cstring>

#include "tessera/base/mapped_file.h"
#include "tessera/convert/checkpoint.h"
#include "tessera/convert/checkpoint_place.h"
#include "tessera/convert/generation_config.h"
#include "tessera/convert/tokenizer.h"
#include "tessera/base/output_file.h"
#include "tessera/format/is_gguf.h"
#include "tessera/format/safetensors.h"
#include "tessera/infer/loading/adapter.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/train/objective/objective_config.h"
#include "tessera/train/runs/run_folder.h"
#include "tessera/base/sha256.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using format::TensorView;

constexpr const char* kModel = "model.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kObjective = "objective.safetensors";
constexpr const char* kTrainer = "trainer.json";
constexpr const char* kCarried = "carried.safetensors";

TensorView view_of(
    std::string name, std::vector<int64_t> shape, DType dtype, const void* data, int64_t bytes) {
  return {std::move(name),
          dtype,
          std::move(shape),
          {static_cast<const std::byte*>(data), static_cast<size_t>(bytes)},
          {}};
}

/// Views of tensors, in host memory: copies of those on another device.
class TensorViews {
 public:
  void add(const std::string& name, const Tensor& tensor) {
    const Tensor& here = owners_.emplace_back(tensor.detach().cpu().contiguous());
    views_.push_back(view_of(name, here.sizes().vec(), ops::dtype_of(here.scalar_type()),
                             here.const_data_ptr(), static_cast<int64_t>(here.nbytes())));
  }
  void add(const model::Model& model) {
    for (const auto& [decl, weight] : model.weights().all())
      if (weight->dense_tensor().defined())
        add(decl.name, weight->dense_tensor());
      else
        views_.push_back(
            view_of(decl.name, decl.shape, weight->dtype(), weight->data(), weight->bytes()));
  }
  const std::vector<TensorView>& all() const { return views_; }

 private:
  std::vector<TensorView> views_;
  std::vector<Tensor> owners_;
};

/// Copies a stored tensor over one of the same shape.
void restore(const format::TensorFile& file, const std::string& name, const Tensor& to) {
  const std::vector<int64_t> shape = to.sizes().vec();
  const DType dtype = ops::dtype_of(to.scalar_type());
  const TensorView& view = file.at(name);
  if (view.shape != shape || view.dtype != dtype)
    fail(ErrorKind::file, "checkpoint", "{}: tensor \"{}\" is {} {}; expected {} {}", file.file(),
         name, name_of(view.dtype), format::shape_text(view.shape), name_of(dtype),
         format::shape_text(shape));
  const Tensor here = to.is_cpu() ? to.detach() : at::empty(shape, to.scalar_type());
  std::memcpy(here.mutable_data_ptr(), view.data.data(), view.data.size());
  if (!to.is_cpu()) to.detach().copy_(here);
}

void restore_model(const format::TensorFile& file, const model::Model& model) {
  for (const auto& [decl, weight] : model.weights().all())
    restore(file, decl.name, weight->dense_tensor());
}

/// Copies the tokenizer's files next to the model; returns the name in the model's metadata.
std::string copy_tokenizer(const std::string& tokenizer, const fs::path& folder) {
  if (tokenizer == "bytes") return tokenizer;
  const fs::path path(tokenizer);
  const auto copy = [&](const fs::path& from) {
    const fs::path to =
        folder / (fs::is_directory(path) ? from.lexically_relative(path) : from.filename());
    create_folder(to.parent_path());
    write_file_atomically(to, read_text_file(from));
  };
  const auto text_files =
      fs::is_directory(path) ? text::tokenizer_files_in(path) : std::vector<fs::path>();
  for (const fs::path& file : text_files) copy(file);
  if (!text_files.empty()) return text_files.front().filename().string();
  // weights that a model stores in another form
  if (fs::is_directory(path) || format::is_gguf(path)) {
    convert::copy_tokenizer(path, folder);
    for (const char* name : {"tokenizer.gguf", "tokenizer.bin"})
      if (fs::exists(folder / name)) return name;
    if (const auto file = text::tokenizer_file_in(folder)) return file->filename().string();
    fail(ErrorKind::file, path.string(), "no file of a tokenizer in this folder");
  }
  copy(path);
  return path.filename().string();
}

model::ModelSpec spec_in(const format::TensorFile& file) {
  const auto text = file.metadata().find("tessera_spec");
  if (text == file.metadata().end())
    fail(ErrorKind::file, "checkpoint", "{}: no \"tessera_spec\" in its metadata", file.file());
  return model::read_model_spec(spec::parse_json(text->second, file.file()));
}

int64_t counter(const Json& json, const char* key, const fs::path& file) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_integer() || found->get<int64_t>() < 0)
    fail(ErrorKind::file, "checkpoint", "{}: \"{}\" is missing or not a count", file.string(), key);
  return found->get<int64_t>();
}

}  // namespace

std::optional<RecurrentStates> fresh_rows(const model::ModelSpec& spec,
                                          const TrainRecipe& how,
                                          at::Device device) {
  if (how.windows != WindowOrder::carried) return std::nullopt;
  return RecurrentStates(spec, how.batch * how.accumulate, how.carry_limit, device);
}

fs::path save_checkpoint(const fs::path& run, const RunState& state, const Progress& progress) {
  const Recipe& recipe = state.recipe;
  PendingCheckpoint pending(run, progress.step);
  const fs::path& folder = pending.folder();
  const ShownAverage average(state.optimizer);
  if (state.auxiliary.derive) state.auxiliary.derive();
  const Json resolved = resolve(recipe);

  const auto write_model = [&](const model::Model& model, const fs::path& to) {
    format::StringMap metadata{{"tessera_spec", model::resolve(model.spec()).dump()}};
    if (&model == &state.model) metadata.insert(state.origin.begin(), state.origin.end());
    if (recipe.data.task() == nullptr)
      metadata["tessera_tokenizer"] = copy_tokenizer(recipe.data.tokenizer(), to);
    TensorViews views;
    views.add(model);
    format::write_safetensors(to / kModel, views.all(), metadata);
  };
  if (state.adapters.empty()) {
    write_model(state.model, folder);
    // stop tokens and sampling settings of the initial model
    if (recipe.init)
      convert::copy_generation_config(convert::checkpoint_place(recipe.init->from), folder);
  } else {
    infer::write_adapter(folder, state.adapters, state.model);
  }
  recipe.objective->write_settings(recipe.model_plan(), folder);
  if (const Companion& other = state.auxiliary.companion; other.model != nullptr) {
    create_folder(folder / other.name);
    write_model(*other.model, folder / other.name);
  }
  TensorViews views;
  for (const Optimizer::StateTensor& kept : state.optimizer.state())
    views.add(kept.name, kept.tensor);
  format::write_safetensors(folder / kOptimizer, views.all());
  if (progress.carried) progress.carried->save(folder / kCarried);
  if (!state.auxiliary.parameters.empty()) {
    TensorViews auxiliary;
    for (const ParameterBeside& own : state.auxiliary.parameters)
      auxiliary.add(own.decl.name, own.tensor);
    format::write_safetensors(folder / kObjective, auxiliary.all());
  }

  Json trainer = {{"version", 1},
                  {"step", progress.step},
                  {"sample", progress.sample},
                  {"tokens", progress.tokens},
                  {"updates", state.optimizer.updates()},
                  {"seconds", progress.seconds},
                  {"random", {{"generator", "philox4x32-10"}, {"seed", recipe.train.seed}}},
                  {"data_sha256", state.data_key},
                  {"recipe_sha256", sha256(resolved.dump())},
                  {"recipe", resolved}};
  if (recipe.experts && recipe.experts->changes())
    trainer["expert_counts"] = progress.expert_counts.to_json();
  if (!progress.watch.is_null()) trainer["watch"] = progress.watch;
  if (progress.unreported) trainer["unreported"] = to_json(*progress.unreported);
  write_file_atomically(folder / kTrainer, trainer.dump(2) + "\n");
  return pending.commit(recipe.checkpoint.keep, progress.best);
}

namespace {

Json trainer_state(const fs::path& folder) {
  const fs::path file = folder / kTrainer;
  Json trainer = spec::read_json_file(file);
  const Json version = trainer.is_object() ? trainer.value("version", Json()) : Json();
  if (version != Json(1))
    fail(ErrorKind::file, "checkpoint", "{}: version {}; this program reads version 1",
         file.string(), version.dump());
  if (!trainer.contains("recipe"))
    fail(ErrorKind::file, "checkpoint", "{}: no \"recipe\"; expected a trainer state",
         file.string());
  return trainer;
}

/// True if a recipe has more steps than the one in a file.
bool is_longer(const Json& before, const Json& now) {
  const Json::json_pointer steps("/train/steps");
  return before.contains(steps) && before[steps].is_number_integer() && before[steps] < now[steps];
}

void check_recipe(const Json& trainer, const Recipe& recipe, const fs::path& folder) {
  Json before = with_present_defaults(trainer["recipe"]);
  const Json now = resolve(recipe);
  if (is_longer(before, now)) {
    // a warm-up may be a share of the steps
    for (const char* key : {"/train/steps", "/schedule/warmup"})
      if (const Json::json_pointer at(key); before.contains(at) && now.contains(at))
        before[at] = now[at];
  }
  if (const std::string key = differing_key(before, now); !key.empty())
    fail(ErrorKind::spec, "resume",
         "\"{}\" differs from the recipe of {}; expected the same recipe (train.steps may be "
         "larger), or another folder for a run that begins from {} as its model",
         key, folder.string(), folder.string());
}

}  // namespace

std::string check_resumed(const fs::path& folder, const Recipe& recipe) {
  const Json trainer = trainer_state(folder);
  check_recipe(trainer, recipe, folder);
  if (!is_longer(trainer["recipe"], resolve(recipe))) return "";
  return fmt::format(
      "train.steps = {} instead of {}: the learning-rate schedule of {} steps applies from step {} "
      "on",
      recipe.train.steps, trainer["recipe"]["train"]["steps"].get<int64_t>(), recipe.train.steps,
      counter(trainer, "step", folder / kTrainer));
}

Progress load_checkpoint(const fs::path& folder, const RunState& state) {
  const Recipe& recipe = state.recipe;
  verify_checkpoint(folder);
  const fs::path file = folder / kTrainer;
  const Json trainer = trainer_state(folder);
  check_recipe(trainer, recipe, folder);
  if (trainer.value("data_sha256", Json()) != Json(state.data_key)) {
    std::string others;
    for (const std::string& key : recipe.objective->reads()) others += "\"" + key + "\", ";
    fail(ErrorKind::spec, "resume",
         "{}\"data.train\" or \"data.valid\" differs in content from what {} was trained on",
         others, folder.string());
  }

  const ShownAverage average(state.optimizer);
  const bool adapts = !state.adapters.empty();
  const format::TensorFile weights = format::open_safetensors(
                               folder / (adapts ? infer::kAdapterFile : kModel)),
                           kept = format::open_safetensors(folder / kOptimizer);
  if (adapts) infer::check_adapter_base(folder, state.model.weights());
  const AuxiliaryParameters& auxiliary = state.auxiliary;
  const auto of_objective = [&](const ParameterSet::Entry& entry) {
    return std::any_of(
        auxiliary.parameters.begin(), auxiliary.parameters.end(),
        [&](const ParameterBeside& own) { return own.decl.name == entry.decl.name; });
  };
  if (adapts) {
    for (const ParameterSet::Entry& entry : state.parameters.trained())
      if (!of_objective(entry)) restore(weights, entry.decl.name, entry.tensor);
  } else {
    restore_model(weights, state.model);
  }
  if (!auxiliary.parameters.empty()) {
    const format::TensorFile file = format::open_safetensors(folder / kObjective);
    for (const ParameterBeside& own : auxiliary.parameters)
      restore(file, own.decl.name, own.tensor);
  }
  if (auxiliary.companion.model != nullptr)
    restore_model(format::open_safetensors(folder / auxiliary.companion.name / kModel),
                  *auxiliary.companion.model);
  for (const Optimizer::StateTensor& tensor : state.optimizer.state())
    restore(kept, tensor.name, tensor.tensor);

  Progress progress;
  progress.step = counter(trainer, "step", file);
  progress.sample = counter(trainer, "sample", file);
  progress.tokens = counter(trainer, "tokens", file);
  const Json seconds = trainer.value("seconds", Json());
  progress.seconds = seconds.is_number() ? seconds.get<double>() : 0;
  if (trainer.contains("unreported"))
    progress.unreported = log_line_of(trainer["unreported"], file.string());
  // checkpoints without it are of runs without skipped updates
  state.optimizer.restore_updates(trainer.contains("updates") ? counter(trainer, "updates", file)
                                                              : progress.step);
  if (recipe.experts && recipe.experts->changes())
    progress.expert_counts =
        ExpertCounts::of(trainer.value("expert_counts", Json()), file.string());
  progress.watch = trainer.value("watch", Json());
  progress.carried = fresh_rows(recipe.spec, recipe.train, state.parameters.device());
  if (progress.carried) progress.carried->load(folder / kCarried);
  return progress;
}

format::StringMap origin_of(const fs::path& checkpoint) {
  const fs::path file = checkpoint / kModel;
  if (!fs::exists(file)) return {};
  return convert::origin_of(format::open_safetensors(file).metadata());
}

model::ModelSpec spec_of(const fs::path& checkpoint) {
  return spec_in(format::open_safetensors(checkpoint / kModel));
}

model::Model load_model(const fs::path& checkpoint, bool trainable) {
  const format::TensorFile file = format::open_safetensors(checkpoint / kModel);
  model::ModelSpec spec = spec_in(file);
  std::map<std::string, model::WeightPtr> weights;
  for (const TensorView& view : file.tensors()) {
    ops::Weight weight = ops::Weight::stored(view);
    if (trainable)
      weight = ops::Weight::dense(view.name, weight.tensor().clone().requires_grad_(true));
    weights[view.name] = std::make_shared<ops::Weight>(std::move(weight));
  }
  auto checked = model::Weights::check(spec, std::move(weights));
  return model::Model(std::move(spec), std::move(checked));
}

}  // namespace tessera::train
