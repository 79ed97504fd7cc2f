#include "tessera/model/plan.h"

#include "tessera/cli/cli.h"
#include "tessera/cli/full_layers.h"
#include "tessera/cli/model_source.h"

namespace tessera::cli {
namespace {

struct PlanArgs {
  std::string path, families;
  std::vector<std::string> overrides;
  int64_t context = 2048, snapshot_every = 0;
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
  const model::ModelSpec spec = spec_of(o.path, o.overrides, o.families);
  const spec::KvType kv = spec::kv_type_named(o.kv_type);
  model::check_kv_type(spec, kv);
  const std::string full = full_layers(spec, kv);
  model::Plan plan = model::make_plan(spec, o.context, -1, kv);
  if (o.snapshot_every > 0) model::add_snapshots(plan, spec, o.snapshot_every, kv);
  if (o.json) {
    Json json = model::to_json(plan);
    if (!full.empty()) json["kept_in_full"] = model::kept_in_full(spec);
    print_json(json);
    return kExitOk;
  }
  fmt::print("parameters            {:>16}  ({})\n", plan.parameters,
             scaled(static_cast<double>(plan.parameters), ""));
  fmt::print("  in matrix products  {:>16}\n", plan.matrix_parameters);
  fmt::print("flops per token       {:>16}  (forward, at {} tokens)\n",
             scaled(plan.flops_per_token, "FLOP"), o.context);
  fmt::print("state per token       {:>16}  (keys and values {})\n",
             scaled(static_cast<double>(plan.state_bytes_per_token), "B"), o.kv_type);
  if (!full.empty()) fmt::print("                        {}\n", full);
  fmt::print("state, fixed part     {:>16}\n",
             scaled(static_cast<double>(plan.state_bytes_fixed), "B"));
  fmt::print("state at {:>6} tokens {:>16}\n", o.context,
             scaled(static_cast<double>(plan.state_bytes), "B"));
  if (o.snapshot_every > 0)
    fmt::print("prefix snapshots      {:>16}  ({} of them)\n",
               scaled(static_cast<double>(plan.snapshot_bytes), "B"), plan.snapshots);
  return kExitOk;
}

}  // namespace

std::function<int()> add_plan(CLI::App& app) {
  auto o = std::make_shared<PlanArgs>();
  app.add_option("spec", o->path, "a spec file, or a model")->required();
  app.add_option("--context", o->context, "tokens before the one that is counted")
      ->capture_default_str()
      ->check(not_negative());
  app.add_option("--snapshot-every", o->snapshot_every,
                 "what a prefix cache keeps of one row with a snapshot after so many tokens")
      ->check(positive());
  app.add_option("--set", o->overrides, "path.to.key=value, changes the spec first");
  app.add_option("--kv-type", o->kv_type, "how keys and values are kept: " + spec::kv_type_names())
      ->capture_default_str();
  app.add_option("--families", o->families, "a folder of further family files");
  app.add_flag("--json", o->json, "as JSON");
  examples(app, {"tessera plan zoo/llama/smollm2-135m.json --context 8192",
                 "tessera plan model.gguf --context 32768 --kv-type int8",
                 "tessera plan zoo/mamba2/mamba2-130m.json --snapshot-every 256",
                 "tessera plan model.gguf --json"});
  return [o] { return plan(*o); };
}

}  // namespace tessera::cli
