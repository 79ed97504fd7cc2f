// What `plan` does with tensors: whether a model or a training run fits a device.
#include <algorithm>
#include <optional>

#include "tessera/base/temporary_folder.h"
#include "tessera/cli/amount.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/model_source.h"
#include "tessera/cli/plan.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/model/memory_plan.h"
#include "tessera/model/placement.h"
#include "tessera/ops/device_memory.h"
#include "tessera/ops/device_name.h"
#include "tessera/train/loop/find_batch.h"
#include "tessera/train/loop/memory_plan.h"

namespace tessera::cli {
namespace {

using model::MemoryPlan;

/// What is planned for.
struct Target {
  std::string name;
  int64_t bytes = 0;
  at::DeviceType forms = at::kCUDA;  // whose forms of attention compute
  bool fits(const MemoryPlan& plan) const { return plan.total() <= ops::usable_memory(bytes); }
};

Target target_of(const FitArgs& o) {
  Target target{.name = o.memory};
  if (!o.device.empty()) {
    const at::Device device = ops::device_named(o.device);
    target.name = device.str();
    target.bytes = train::available_bytes(device);
    // the CPU's kernels hold no scores, as fused kernels of a GPU
    target.forms = device.is_cpu() ? at::kCUDA : device.type();
  }
  if (!o.memory.empty()) target.bytes = bytes_of(kFitMemory, o.memory);
  if (target.bytes == 0)
    fail(ErrorKind::usage, "plan",
         "{} does not report its memory; expected --memory, such as 24GiB", target.name);
  return target;
}

/// A change, and the plan with it.
struct Remedy {
  std::string change;
  MemoryPlan plan;
};

Json json_of(const Target& target, const MemoryPlan& plan, const std::vector<Remedy>& remedies) {
  Json out{{"device", target.name},
           {"memory_bytes", target.bytes},
           {"usable_bytes", ops::usable_memory(target.bytes)},
           {"weight_bytes", plan.weights},
           {"state_bytes", plan.state},
           {"gradient_bytes", plan.gradients},
           {"optimizer_bytes", plan.optimizer},
           {"average_bytes", plan.average}};
  out["activation_bytes"] = plan.unknown.empty() ? Json(plan.activations) : Json();
  if (!plan.unknown.empty()) out["activations_unknown"] = plan.unknown;
  out["total_bytes"] = plan.total();
  // without activations, only what does not fit is known
  out["fits"] = !target.fits(plan) ? Json(false) : plan.unknown.empty() ? Json(true) : Json();
  out["remedies"] = Json::array();
  for (const Remedy& remedy : remedies)
    out["remedies"].push_back({{"change", remedy.change}, {"total_bytes", remedy.plan.total()}});
  return out;
}

// --- training

class TrainingPlans {
 public:
  TrainingPlans(const FitArgs& o, const Target& target)
      : o_(o), target_(target), recipe_(recipe_with({})), plan_(memory_of(recipe_)) {}
  const train::Recipe& recipe() const { return recipe_; }
  const MemoryPlan& plan() const { return plan_; }

  /// Changes that fit, each alone; if none does, all of them together, if that fits.
  std::vector<Remedy> remedies() const {
    std::vector<Remedy> out;
    std::vector<std::string> all;
    const auto consider = [&](const std::vector<std::string>& change) {
      all.insert(all.end(), change.begin(), change.end());
      add(out, change);
    };
    if (recipe_.train.recompute.of == nn::RecomputeOf::none)
      consider({R"(train.recompute={"of": "layers"})"});
    if (const int64_t batch = largest_batch({}); batch > 0) add(out, batch_change(batch));
    if (has_float_moments()) consider({R"(optimizer.moments="int8")"});
    if (!out.empty()) return out;
    if (const int64_t batch = largest_batch(all); batch > 0) {
      std::vector<std::string> change = all;
      if (batch < recipe_.train.batch)
        for (std::string& key : batch_change(batch)) change.push_back(std::move(key));
      add(out, change);
    }
    return out;
  }

 private:
  train::Recipe recipe_with(const std::vector<std::string>& change) const {
    std::vector<std::string> overrides = o_.overrides;
    overrides.insert(overrides.end(), change.begin(), change.end());
    return train::load_recipe(o_.path, overrides, o_.loading.keys.ignore);
  }
  MemoryPlan memory_of(const train::Recipe& recipe) const {
    return train::training_memory(recipe, cache_.path(), target_.forms, &cancel_token());
  }
  void add(std::vector<Remedy>& out, const std::vector<std::string>& change) const {
    const MemoryPlan plan = memory_of(recipe_with(change));
    if (!plan.unknown.empty() || !target_.fits(plan)) return;
    std::string text;
    for (const std::string& key : change)
      text += fmt::format("{}--set '{}'", text.empty() ? "" : " ", key);
    out.push_back({std::move(text), plan});
  }
  std::vector<std::string> batch_change(int64_t batch) const {
    const int64_t sequences = recipe_.train.batch * recipe_.train.accumulate;
    return {fmt::format("train.batch={}", batch),
            fmt::format("train.accumulate={}", sequences / batch)};
  }
  /// The largest divisor of the update's sequences that fits with these changes, at most the
  /// recipe's; 0 = none. Memory grows with it.
  int64_t largest_batch(const std::vector<std::string>& with) const {
    const int64_t sequences = recipe_.train.batch * recipe_.train.accumulate;
    const int64_t most = with.empty() ? recipe_.train.batch - 1 : recipe_.train.batch;
    std::vector<int64_t> sizes;
    for (int64_t batch = 1; batch <= most; ++batch)
      if (sequences % batch == 0) sizes.push_back(batch);
    const auto over = std::partition_point(sizes.begin(), sizes.end(), [&](int64_t batch) {
      std::vector<std::string> change = batch_change(batch);
      change.insert(change.end(), with.begin(), with.end());
      const MemoryPlan plan = memory_of(recipe_with(change));
      return plan.unknown.empty() && target_.fits(plan);
    });
    return over == sizes.begin() ? 0 : *(over - 1);
  }
  bool has_float_moments() const {
    const auto is_float = [](const train::AdamWKeys& keys) {
      return keys.moments == train::MomentStorage::float32;
    };
    if (const auto* adam = std::get_if<train::AdamKeys>(&recipe_.optimizer.rule))
      return is_float(*adam);
    const auto* adamw = std::get_if<train::AdamWKeys>(&recipe_.optimizer.rule);
    return adamw != nullptr && is_float(*adamw);
  }

  const FitArgs& o_;
  const Target& target_;
  TemporaryFolder cache_;
  train::Recipe recipe_;
  MemoryPlan plan_;
};

Json plan_training(const FitArgs& o, const Target& target) {
  const TrainingPlans plans(o, target);
  Json out = json_of(target, plans.plan(),
                     target.fits(plans.plan()) ? std::vector<Remedy>() : plans.remedies());
  const train::TrainRecipe& how = plans.recipe().train;
  out["for"] = fmt::format("training, micro-batch of {} x {} tokens", how.batch, how.length);
  return out;
}

// --- inference

/// A model with its weights, or one of its spec in float32 where there are none.
model::Model model_of(const FitArgs& o) {
  const std::filesystem::path config = std::filesystem::path(o.path) / "config.json";
  const bool without_weights = is_spec_file(o.path) || (std::filesystem::is_regular_file(config) &&
                                                        !lacking_weights(o.path).empty());
  if (without_weights) return model::planned_model(spec_of(o.path, o.overrides, o.loading));
  if (!o.overrides.empty()) spec_of(o.path, o.overrides, o.loading);  // refuses them
  return infer::load_model(o.path, o.loading).model;
}

Json plan_inference(const FitArgs& o, const Target& target) {
  const model::Model model = model_of(o);
  model::PlannedCalls calls{
      .context = o.context, .sequences = o.sequences, .kv = spec::kv_type_named(o.kv_type)};
  const auto memory_of = [&](const model::PlannedCalls& of) {
    return model::inference_memory(model, of, target.forms);
  };
  const MemoryPlan plan = memory_of(calls);
  std::vector<Remedy> remedies;
  const auto add = [&](std::string change, const MemoryPlan& changed) {
    if (changed.unknown.empty() && target.fits(changed))
      remedies.push_back({std::move(change), changed});
  };
  if (!target.fits(plan)) {
    for (const spec::KvType kv : {spec::KvType::f16, spec::KvType::int8}) {
      if (plan.state == 0 || kv <= calls.kv) continue;
      model::PlannedCalls small = calls;
      small.kv = kv;
      try {
        add(fmt::format("--kv-type {}", spec::name_of(kv)), memory_of(small));
      } catch (const Error& error) {
        // states that have no keys and values stay as they are
        if (error.kind() != ErrorKind::spec) throw;
      }
    }
    for (model::PlannedCalls shorter = calls; shorter.context > 256 && plan.state > 0;) {
      shorter.context /= 2;
      const MemoryPlan changed = memory_of(shorter);
      if (!target.fits(changed)) continue;
      add(fmt::format("--context {}", shorter.context), changed);
      break;
    }
    for (const auto& [type, command] :
         {std::pair{DType::q8_0, "tessera quantize --type Q8_0"},
          std::pair{DType::q4_0, "tessera quantize --type Q4_0 --pure"}}) {
      MemoryPlan packed = plan;
      packed.weights = model::bytes_on_device(model, type);
      // a tile of a matrix is decoded at a time
      packed.activations += int64_t{64} << 20;
      if (packed.weights < plan.weights) add(command, packed);
    }
  }
  Json out = json_of(target, plan, remedies);
  out["for"] =
      fmt::format("inference, {} x {} tokens, KV cache {}", o.sequences, o.context, o.kv_type);
  return out;
}

Json plan_memory(const FitArgs& o) {
  const Target target = target_of(o);
  return is_recipe_file(o.path) ? plan_training(o, target) : plan_inference(o, target);
}

}  // namespace

std::function<int()> add_fitting_plan(CLI::App& app) {
  return add_plan(app, plan_memory);
}

}  // namespace tessera::cli
