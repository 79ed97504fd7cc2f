// What a run that goes on reads besides tensors: manifest.json of a checkpoint, the recipe and the
// line that its trainer.json holds, and log.jsonl.
#include "files.h"

#include "tessera/train/recipe/recipe.h"
#include "tessera/train/runs/run_folder.h"
#include "tessera/train/runs/run_log.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(run_folder) {
  static const fuzz::Folder folder;
  const auto parts = fuzz::parts_of<4>(input);
  folder.put("manifest.json", parts[0]);
  folder.put("listed", "abc");
  folder.put("log.jsonl", parts[3]);
  fuzz::run([&] { train::verify_checkpoint(folder.path()); });
  fuzz::run([&] {
    const spec::Json now = {{"schedule", {{"type", "constant"}}}, {"train", {{"steps", 3}}}};
    train::differing_key(spec::parse_json(parts[1], "recipe"), now);
  });
  fuzz::run(
      [&] { train::to_json(train::log_line_of(spec::parse_json(parts[2], "line"), "line")); });
  fuzz::run([&] { train::RunLog log(folder.path(), 2); });
}
