// A model in one file, told apart by its content, through the families that are built in.
#include "files.h"

#include "tessera/convert/checkpoint.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(model_file) {
  static const fuzz::Folder folder;
  const auto file = folder.put("model", fuzz::text_of(input));
  fuzz::run(
      [&] {
        const auto checkpoint = convert::load_checkpoint(file);
        const auto parameters = model::parameters(checkpoint.spec);
        fuzz::check(checkpoint.tensors.size() == parameters.size(), "one tensor per parameter");
        for (size_t i = 0; i < parameters.size(); ++i)
          fuzz::check(checkpoint.tensors[i].name == parameters[i].name &&
                          checkpoint.tensors[i].shape == parameters[i].shape,
                      "tensors have the names and shapes of the spec");
      },
      {ErrorKind::file, ErrorKind::spec, ErrorKind::resource});
}
