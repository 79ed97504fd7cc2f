// A checkpoint that a run goes on from: trainer.json, model.safetensors, optimizer.safetensors and
// carried.safetensors, under a manifest that fits.
#include "files.h"
#include "tiny_model.h"

#include "tessera/train/loop/checkpoint.h"
#include "tessera/base/sha256.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(train_checkpoint) {
  static const model::Model model = fuzz::tiny_model();
  static const train::Recipe recipe = train::read_recipe(
      {{"spec", model::resolve(model.spec())},
       {"data", {{"train", {"fuzz.txt"}}}},
       {"train",
        {{"steps", 2}, {"batch", 1}, {"length", 4}, {"windows", "carried"}, {"carry_limit", 8}}}},
      "");
  static const train::ParameterSet parameters(model, recipe.optimizer);
  static const auto optimizer = train::make_optimizer(recipe.optimizer, parameters);
  static const std::vector<model::WeightAdapter> no_adapters;
  static const train::AuxiliaryParameters nothing_beside;
  const format::StringMap no_origin;
  static const fuzz::Folder folder;
  const auto parts = fuzz::parts_of<4>(input);
  spec::Json manifest = {{"version", 1}, {"files", spec::Json::array()}};
  const char* names[] = {"trainer.json", "model.safetensors", "optimizer.safetensors",
                         "carried.safetensors"};
  for (size_t i = 0; i < parts.size(); ++i) {
    folder.put(names[i], parts[i]);
    manifest["files"].push_back(
        {{"name", names[i]}, {"bytes", parts[i].size()}, {"sha256", sha256(parts[i])}});
  }
  folder.put("manifest.json", manifest.dump());
  fuzz::run(
      [&] {
        const at::NoGradGuard no_gradients;
        train::load_checkpoint(folder.path(), {recipe, "fuzz", model, parameters, *optimizer,
                                               no_adapters, nothing_beside, no_origin});
      },
      {ErrorKind::file, ErrorKind::spec});
  fuzz::run([&] { train::load_model(folder.path()); }, {ErrorKind::file, ErrorKind::spec});
}
