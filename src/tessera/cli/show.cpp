#include "tessera/cli/cli.h"
#include "tessera/cli/model_source.h"
#include "tessera/convert/checkpoint.h"

namespace tessera::cli {
namespace {

struct ShowArgs {
  std::string path, families;
  std::vector<std::string> overrides;
  bool resolved = false, parameters = false, metadata = false;
};

int show(const ShowArgs& o) {
  if (o.metadata) {
    const convert::Checkpoint checkpoint = convert::load_checkpoint(o.path, {o.families});
    if (checkpoint.gguf != nullptr) {
      for (const auto& entry : checkpoint.gguf->metadata.entries())
        fmt::print("{} = {}\n", entry.key, entry.value.text());
    } else {
      print_json(checkpoint.foreign_config);
    }
    return kExitOk;
  }
  const model::ModelSpec spec = spec_of(o.path, o.overrides, o.families);
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
  app.add_option("spec", o->path, "a spec file, or a model")->required();
  app.add_flag("--resolved", o->resolved, "with every default written out");
  app.add_flag("--parameters", o->parameters, "the table of parameters instead");
  app.add_flag("--metadata", o->metadata, "the model file's own metadata instead");
  app.add_option("--set", o->overrides, "path.to.key=value, changes the spec first");
  app.add_option("--families", o->families, "a folder of further family files");
  examples(app, {"tessera show zoo/llama/smollm2-135m.json --resolved",
                 "tessera show model.gguf --metadata"});
  return [o] { return show(*o); };
}

}  // namespace tessera::cli
