#include <algorithm>

#include "tessera/cli/cli.h"
#include "tessera/cli/load_flags.h"
#include "tessera/cli/model_source.h"
#include "tessera/convert/checkpoint.h"
#include "tessera/convert/container.h"
#include "tessera/format/file_source.h"

namespace tessera::cli {
namespace {

struct ShowArgs {
  LoadFlags loading;
  std::string path;
  std::vector<std::string> overrides;
  bool resolved = false, parameters = false, metadata = false, tensors = false;
};

/// Name, type, shape and bytes of every tensor of a file or folder, as it lies there, by name.
int show_tensors(const std::string& path) {
  std::vector<std::string> notes;
  const format::TensorFile file = convert::open_container(path, &notes);
  for (const std::string& note : notes) fmt::print(stderr, "tessera: {}\n", note);
  struct Row {
    std::string_view name, type;
    const std::vector<int64_t>* shape;
    size_t bytes;
  };
  std::vector<Row> rows;
  for (const format::TensorView& tensor : file.tensors())
    rows.push_back({tensor.name, name_of(tensor.dtype), &tensor.shape, tensor.data.size()});
  for (const format::UnsupportedTensor& tensor : file.unsupported())
    rows.push_back({tensor.name, tensor.type, &tensor.shape, tensor.data.size()});
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.name < b.name; });
  size_t bytes = 0;
  for (const Row& row : rows) {
    fmt::print("{:<60} {:<12} {:<20} {:>14}\n", format::printable(row.name), row.type,
               format::shape_text(*row.shape), row.bytes);
    bytes += row.bytes;
  }
  fmt::print("{} tensors, {} bytes\n", rows.size(), bytes);
  return kExitOk;
}

int show(const ShowArgs& o) {
  if (o.tensors && !o.overrides.empty())
    fail(ErrorKind::usage, "--set", "changes specs, and --tensors lists a file as it is");
  if (o.tensors) return show_tensors(o.path);
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
  auto* resolved = app.add_flag("--resolved", o->resolved, "architecture with all defaults");
  auto* parameters =
      app.add_flag("--parameters", o->parameters, "table of parameters: name, kind, shape");
  auto* metadata = app.add_flag("--metadata", o->metadata, "metadata of the model file");
  app.add_flag(
         "--tensors", o->tensors,
         "table of the tensors of a file or folder, as they lie there: name, type, shape, bytes")
      ->excludes(resolved)
      ->excludes(parameters)
      ->excludes(metadata);
  group(app, "Input");
  add_overrides(app, o->overrides, "spec");
  o->loading.add(app);
  examples(app, {"tessera show zoo/llama/smollm2-135m.json --resolved",
                 "tessera show model.gguf --metadata", "tessera show pytorch_model.bin --tensors"});
  return [o] { return show(*o); };
}

}  // namespace tessera::cli
