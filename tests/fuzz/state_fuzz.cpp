// The saved state of two rows.
#include "files.h"
#include "tiny_model.h"

#include "tessera/model/state.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(state) {
  static const model::Model model = fuzz::tiny_model();
  static const fuzz::Folder folder;
  const auto file = folder.put("state", fuzz::text_of(input));
  model::State state(model.spec(), 2);
  fuzz::run([&] {
    state.load(file, "fuzz");
    const model::State::Packed packed = state.pack("fuzz");
    fuzz::check(!packed.views.empty() && state.length(0) >= 0 && state.length(1) >= 0,
                "a state that was read can be written");
  });
}
