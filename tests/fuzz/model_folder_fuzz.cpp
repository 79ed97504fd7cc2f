// A model in a folder: its model.safetensors (one of ours when its metadata hold a spec), then
// config.json.
#include "files.h"

#include "tessera/convert/checkpoint.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(model_folder) {
  static const fuzz::Folder folder;
  const auto parts = fuzz::parts_of<2>(input);
  folder.put("model.safetensors", parts[0]);
  folder.put("config.json", parts[1]);
  fuzz::run(
      [&] {
        const auto checkpoint = convert::load_checkpoint(folder.path());
        fuzz::check(checkpoint.tensors.size() == model::parameters(checkpoint.spec).size(),
                    "one tensor per parameter");
        for (const auto& tensor : checkpoint.tensors)
          fuzz::check(layout_of(tensor.dtype).is_float || is_block_type(tensor.dtype),
                      "parameters are floating-point numbers");
      },
      {ErrorKind::file, ErrorKind::spec, ErrorKind::resource});
}
