#include "tessera/cli/cli.h"
#include "tessera/cli/load_flags.h"
#include "tessera/cli/model_source.h"
#include "tessera/convert/checkpoint.h"

namespace tessera::cli {
namespace {

struct ShowArgs {
  LoadFlags loading;
  std::string path;
  std::vector<std::string> overrides;
  bool resolved = false, parameters = false, metadata = false;
};

int show(const ShowArgs& o) {
  if (o.metadata) {
    const convert::Checkpoint checkpoint = convert::load_checkpoint(o.path, o.loading.options());
    if (checkpoint.gguf != nullptr) {
      for (const auto& entry : checkpoint.gguf->metadata.entries())
        fmt::print("{} = {}\n", entry.key, entry.value.text());
    } else {
      print_json(checkpoint.foreign_config);
    }
    return kExitOk;
  }
  const model::ModelSpec spec = spec_of(o.path, o.overrides, o.loading.options());
  if (o.parameters) {
    for (const auto& decl : model::parameters(spec))
      fmt::print("{:<44} {:<12} [{}]\n", decl.name, spec::name_of(decl.kind),
                 fmt::join(decl.shape, ", "));
    return kExitOk;
  }
  if (!o.resolved && is_spec_file(o.path) && o.overrides.empty()) {
    spec::JsonLimits limits;
    limits.comments = true;
    print_json(spec::read_json_file(o.path, limits));
  } else {
    print_json(model::resolve(spec));
  }
  return kExitOk;
}

}  // namespace

std::function<int()> add_show(CLI::App& app) {
  auto o = std::make_shared<ShowArgs>();
  group(app, "Output");
  names_model(app.add_option("spec", o->path, "spec (JSON), or model")->required(), o->path);
  app.add_flag("--resolved", o->resolved, "architecture with all defaults");
  app.add_flag("--parameters", o->parameters, "table of parameters: name, kind, shape");
  app.add_flag("--metadata", o->metadata, "metadata of the model file");
  group(app, "Input");
  add_overrides(app, o->overrides, "spec");
  o->loading.add(app);
  examples(app, {"tessera show zoo/llama/smollm2-135m.json --resolved",
                 "tessera show model.gguf --metadata"});
  return [o] { return show(*o); };
}

}  // namespace tessera::cli
