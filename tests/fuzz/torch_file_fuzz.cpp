#include "tensors.h"

#include <map>
#include <string>
#include <vector>

#include "tessera/format/torch_file.h"

using namespace tessera;

// Views lie in the file; copies of other strides are bounded.
TESSERA_FUZZ_TARGET(torch_file) {
  fuzz::run([&] {
    std::vector<std::string> notes;
    const format::TensorFile file = format::read_torch_file(input, "fuzz", nullptr, &notes);
    std::map<const void*, size_t> copies;  // equal views share one
    for (const format::TensorView& tensor : file.tensors()) {
      if (tensor.owner == nullptr)
        fuzz::check_tensor(tensor, input);
      else
        copies[tensor.owner.get()] = tensor.data.size();
      fuzz::check(file.find(tensor.name) == &tensor, "every tensor is found by its name");
    }
    size_t copied = 0;
    for (const auto& [owner, bytes] : copies) copied += bytes;
    fuzz::check(copied <= std::max(size_t{64} << 20, 4 * input.size()), "copies are bounded");
  });
}
