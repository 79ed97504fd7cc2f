#include <optional>

#include "tessera/model/plan.h"

#include "tessera/cli/cli.h"
#include "tessera/cli/full_layers.h"
#include "tessera/cli/load_flags.h"
#include "tessera/cli/model_source.h"

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
};

std::string scaled(double value, const char* unit) {
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  size_t i = 0;
  for (; value >= 1000 && i + 1 < std::size(kPrefixes); ++i) value /= 1000;
  return fmt::format("{:.4g} {}{}", value, kPrefixes[i], unit);
}

int plan(const PlanArgs& o) {
  const model::ModelSpec spec = spec_of(o.path, o.overrides, o.loading.options());
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
  if (o.json) {
    Json json = model::to_json(plan);
    if (!full.empty()) json["kept_in_full"] = model::kept_in_full(spec);
    print_json(json);
    return kExitOk;
  }
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
  return kExitOk;
}

}  // namespace

std::function<int()> add_plan(CLI::App& app) {
  auto o = std::make_shared<PlanArgs>();
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
  group(app, "Model");
  add_overrides(app, o->overrides, "spec");
  o->loading.add(app);
  group(app, "Output");
  app.add_flag("--json", o->json, "as JSON");
  examples(app, {"tessera plan zoo/llama/smollm2-135m.json --context 8192",
                 "tessera plan model.gguf --context 32768 --kv-type int8",
                 "tessera plan zoo/mamba2/mamba2-130m.json --snapshot-every 256",
                 "tessera plan config.json --context 8192", "tessera plan model.gguf --json"});
  return [o] { return plan(*o); };
}

}  // namespace tessera::cli
