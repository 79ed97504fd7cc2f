// The verbs of `tessera`. It loads no libtorch, so that what needs no tensors answers at once; it
// hands the others to `tessera-tensors`, which lies in the same folder.
#include "tessera/cli/cli.h"

namespace tessera::cli {

const std::vector<Verb>& plain_verbs() {
  static const std::vector<Verb> verbs = {
#define TESSERA_PLAIN_VERB(name, typed, group, summary) {typed, group, summary, add_##name},
#define TESSERA_TENSOR_VERB(name, typed, group, summary) {typed, group, summary, nullptr},
#define TESSERA_SPLIT_VERB(name, typed, group, summary, add) {typed, group, summary, add_##name},
#include "tessera/cli/verbs.def"
  };
  return verbs;
}

}  // namespace tessera::cli
