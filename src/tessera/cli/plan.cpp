#include "tessera/cli/plan.h"

#include <optional>

#include "tessera/base/output_file.h"
#include "tessera/cli/amount.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/full_layers.h"
#include "tessera/cli/load_flags.h"
#include "tessera/cli/model_source.h"
#include "tessera/cli/out_place.h"
#include "tessera/model/solve.h"

namespace tessera::cli {
namespace {

struct PlanArgs {
  LoadFlags loading;
  std::string path;
  std::vector<std::string> overrides;
  std::optional<int64_t> context;  // nothing: model::kUsualContext, or what the model takes
  int64_t snapshot_every = 0;
  std::string kv_type = "f32";
  bool json = false;
  std::string key, parameters, flops, state_bytes, out;  // of --solve
  int64_t multiple = 1;
  double tolerance = 0.01;
  bool force = false;
  std::string device, memory;  // whether it fits
  int64_t sequences = 1;
  FitPlanner planner;
};

/// The goal of --solve; nothing without.
std::optional<model::SolveGoal> goal_of(const PlanArgs& o) {
  using enum model::PlanCost;
  std::optional<model::SolveGoal> goal;
  int goals = 0;
  for (const auto& [option, text, cost] :
       {std::tuple{"--parameters", &o.parameters, parameters},
        std::tuple{"--flops", &o.flops, flops},
        std::tuple{"--state-bytes", &o.state_bytes, state_bytes}}) {
    if (text->empty()) continue;
    ++goals;
    goal = {.key = o.key, .cost = cost, .target = amount_of(option, *text)};
  }
  if (o.key.empty()) {
    if (goals > 0 || !o.out.empty())
      fail(ErrorKind::usage, "plan",
           "{} without --solve; expected --solve KEY, such as ffn.d_hidden",
           goals > 0 ? "--parameters, --flops or --state-bytes" : "--out");
    return std::nullopt;
  }
  if (goals != 1)
    fail(ErrorKind::usage, "plan",
         "--solve {} with {}; expected one of --parameters, --flops and "
         "--state-bytes",
         o.key, goals == 0 ? "no goal" : "several goals");
  goal->multiple = o.multiple;
  goal->tolerance = o.tolerance;
  goal->context = o.context.value_or(0);
  goal->kv = spec::kv_type_named(o.kv_type);
  return goal;
}

std::string scaled(double value, const char* unit) {
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  size_t i = 0;
  for (; value >= 1000 && i + 1 < std::size(kPrefixes); ++i) value /= 1000;
  return fmt::format("{:.4g} {}{}", value, kPrefixes[i], unit);
}

std::string text_of_bytes(const Json& bytes) {
  return scaled(bytes.get<double>(), "B");
}

/// Bytes by part, whether they fit, and what would.
void print_fit(const Json& fit) {
  fmt::print("\nmemory on {} ({})\n", fit["device"].get<std::string>(),
             fit["for"].get<std::string>());
  for (const auto& [name, key] : {std::pair{"weights", "weight_bytes"},
                                  {"KV cache and state", "state_bytes"},
                                  {"gradients", "gradient_bytes"},
                                  {"optimizer state", "optimizer_bytes"},
                                  {"weight average", "average_bytes"}})
    if (fit[key] != 0) fmt::print("  {:<19} {:>16}\n", name, text_of_bytes(fit[key]));
  const bool known = !fit.contains("activations_unknown");
  if (known)
    fmt::print("  {:<19} {:>16}\n", "activations", text_of_bytes(fit["activation_bytes"]));
  else
    fmt::print("  {:<19} {:>16}  ({})\n", "activations", "unknown",
               fit["activations_unknown"].get<std::string>());
  const std::string needs = text_of_bytes(fit["total_bytes"]),
                    has = fmt::format("{} (four fifths of {})", text_of_bytes(fit["usable_bytes"]),
                                      text_of_bytes(fit["memory_bytes"]));
  if (fit["fits"].is_null())
    fmt::print("fits without activations, which are unknown: {} of {}\n", needs, has);
  else if (fit["fits"].get<bool>())
    fmt::print("fits: {} of {}\n", needs, has);
  else
    fmt::print("does not fit: needs {}{}, has {}\n", needs, known ? "" : " and activations", has);
  for (const Json& remedy : fit["remedies"])
    fmt::print("  fits with {}: {}\n", remedy["change"].get<std::string>(),
               text_of_bytes(remedy["total_bytes"]));
  if (fit["fits"] == false && fit["remedies"].empty())
    fmt::print(
        "  no change of batch, precision of moments, recomputation, context or storage type "
        "that was tried fits\n");
}

int plan(const PlanArgs& o) {
  const std::optional<model::SolveGoal> goal = goal_of(o);
  check_out_place("plan", o.out, o.force);
  std::optional<model::Solution> solved;
  if (goal) solved = model::solve(spec_json_of(o.path, o.overrides, o.loading.options()), *goal);
  const model::ModelSpec spec = solved ? model::read_model_spec(solved->spec)
                                       : spec_of(o.path, o.overrides, o.loading.options());
  const spec::KvType kv = spec::kv_type_named(o.kv_type);
  model::check_kv_type(spec, kv);
  const std::string full = full_layers(spec, kv);
  // of an image, or the longest sound
  const int64_t features = model::feature_tokens(spec.encoder ? *spec.encoder : spec);
  const int64_t context =
      features > 0 && !spec.encoder ? features : o.context.value_or(model::usual_context(spec));
  model::Plan plan =
      model::make_plan(spec, context, features > 0 && spec.encoder ? features : -1, kv);
  if (o.snapshot_every > 0) model::add_snapshots(plan, spec, o.snapshot_every, kv);
  if (!o.out.empty()) write_file_atomically(o.out, solved->spec.dump(2) + "\n");
  Json fit;
  if (!o.device.empty() || !o.memory.empty()) {
    if (goal)
      fail(ErrorKind::usage, "plan", "{} with --solve; expected one of them",
           o.device.empty() ? kFitMemory : kFitDevice);
    fit = o.planner({.path = o.path,
                     .overrides = o.overrides,
                     .loading = o.loading.options(),
                     .device = o.device,
                     .memory = o.memory,
                     .context = context,
                     .sequences = o.sequences,
                     .kv_type = o.kv_type});
  }
  if (o.json) {
    Json json = model::to_json(plan);
    if (solved) json["solved"] = {{"key", o.key}, {"value", solved->value}};
    if (!full.empty()) json["kept_in_full"] = model::kept_in_full(spec);
    if (!fit.is_null()) json["memory"] = fit;
    print_json(json);
    return kExitOk;
  }
  if (solved) fmt::print("{:<21} {:>16}  (solved)\n", o.key, solved->value);
  fmt::print("parameters            {:>16}  ({})\n", plan.parameters,
             scaled(static_cast<double>(plan.parameters), ""));
  fmt::print("  in matrices         {:>16}\n", plan.matrix_parameters);
  fmt::print("FLOPs per token       {:>16}  (forward, at {} tokens{})\n",
             scaled(plan.flops_per_token, "FLOP"), context,
             features == 0  ? ""
             : spec.encoder ? fmt::format(", of a source of {}", features)
                            : ", those of one input");
  fmt::print("KV cache per token    {:>16}  ({})\n",
             scaled(static_cast<double>(plan.state_bytes_per_token), "B"), o.kv_type);
  if (!full.empty()) fmt::print("                        {}\n", full);
  fmt::print("fixed state           {:>16}\n",
             scaled(static_cast<double>(plan.state_bytes_fixed), "B"));
  fmt::print("memory per sequence   {:>16}  (KV cache and state at {} tokens)\n",
             scaled(static_cast<double>(plan.state_bytes), "B"), context);
  if (o.snapshot_every > 0)
    fmt::print("prefix-cache states   {:>16}  ({} snapshots)\n",
               scaled(static_cast<double>(plan.snapshot_bytes), "B"), plan.snapshots);
  if (!fit.is_null()) print_fit(fit);
  return kExitOk;
}

}  // namespace

std::function<int()> add_plan(CLI::App& app) {
  // the options are known; tessera-tensors runs the command with them
  return add_plan(app, FitPlanner{});
}

std::function<int()> add_plan(CLI::App& app, FitPlanner planner) {
  auto o = std::make_shared<PlanArgs>();
  o->planner = std::move(planner);
  names_model(app.add_option("spec", o->path, "spec (JSON), model, or config.json of Hugging Face")
                  ->required(),
              o->path);
  group(app, "Context and KV cache");
  app.add_option("--context,-c,--ctx-size,--max-model-len", o->context,
                 "context length, tokens; default: 2048, or what the model takes if that is less. "
                 "An encoder of images counts those of its image")
      ->check(not_negative());
  app.add_option("--snapshot-every", o->snapshot_every,
                 "prefix cache: memory of state snapshots every N tokens")
      ->check(positive());
  app.add_option("--kv-type,--cache-type-k,--cache-type-v", o->kv_type,
                 "KV cache type: " + spec::kv_type_names() +
                     "; generate and serve use f16 for weights of at most 16 bits")
      ->capture_default_str();
  group(app, "Whether it fits a device");
  app.add_option(
      kFitDevice, o->device,
      "memory of a recipe's training, or of a model's inference, on cpu, cuda or cuda:N, "
      "and whether its free memory is enough");
  app.add_option(kFitMemory, o->memory,
                 "the same for a GPU with this memory, such as 24GiB, which need not be there");
  app.add_option("--sequences", o->sequences, "inference: sequences with a KV cache at a time")
      ->capture_default_str()
      ->check(positive());
  group(app, "Solving for a size");
  app.add_option("--solve", o->key,
                 "find the integer of this key of the spec that reaches a goal, such as "
                 "ffn.d_hidden, in all layers");
  app.add_option("--parameters", o->parameters, "goal of --solve: parameters, such as 10M");
  app.add_option("--flops", o->flops, "goal of --solve: FLOPs per token at --context, such as 20M");
  app.add_option("--state-bytes", o->state_bytes,
                 "goal of --solve: bytes of KV cache and state of a sequence of --context tokens");
  app.add_option("--multiple-of", o->multiple, "--solve: the value is a multiple of this")
      ->capture_default_str()
      ->check(positive());
  app.add_option("--tolerance", o->tolerance, "--solve: largest relative distance from the goal")
      ->capture_default_str()
      ->check(fraction());
  add_out(app, o->out, "--solve: write the spec to this file");
  add_force(app, o->force);
  group(app, "Model");
  add_overrides(app, o->overrides, "spec");
  o->loading.add(app);
  group(app, "Output");
  app.add_flag("--json", o->json, "as JSON");
  examples(app, {"tessera plan zoo/llama/smollm2-135m.json --context 8192",
                 "tessera plan model.gguf --context 32768 --kv-type int8",
                 "tessera plan zoo/mamba2/mamba2-130m.json --snapshot-every 256",
                 "tessera plan recipe.json --memory 24GiB",
                 "tessera plan model.gguf --device cuda --context 32768 --sequences 8",
                 "tessera plan spec.json --solve ffn.d_hidden --parameters 10M --out spec-10m.json",
                 "tessera plan config.json --context 8192", "tessera plan model.gguf --json"});
  return [o] { return plan(*o); };
}

}  // namespace tessera::cli
