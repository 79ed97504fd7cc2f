#include "files.h"

#include "tessera/convert/generation_config.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(generation_config) {
  static const fuzz::Folder folder;
  folder.put("generation_config.json", fuzz::text_of(input));
  fuzz::run([&] {
    constexpr int64_t kVocab = 100;
    const auto config = convert::read_generation_config(folder.path(), kVocab);
    for (const auto& id : {config.forced_begin, config.forced_end})
      fuzz::check(!id || (*id >= 0 && *id < kVocab), "an id is one of the vocabulary");
  });
}
