// The index of a model in shards: the index, then two shards.
#include "files.h"

#include "tessera/format/safetensors.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(safetensors_folder) {
  static const fuzz::Folder folder;
  const auto parts = fuzz::parts_of<3>(input);
  folder.put("model.safetensors.index.json", parts[0]);
  folder.put("a.safetensors", parts[1]);
  folder.put("b.safetensors", parts[2]);
  fuzz::run([&] {
    const format::TensorFile file = format::open_safetensors_folder(folder.path());
    size_t bytes = 0;
    for (const format::TensorView& tensor : file.tensors()) {
      fuzz::check(file.find(tensor.name) == &tensor, "every tensor is found by its name");
      bytes += tensor.data.size();
    }
    fuzz::check(bytes <= parts[1].size() + parts[2].size(), "tensors lie in their shards");
  });
}
