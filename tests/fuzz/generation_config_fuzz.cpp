#include "files.h"

#include "tessera/infer/sampling/decoding_fields.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(generation_config) {
  static const fuzz::Folder folder;
  folder.put("generation_config.json", fuzz::text_of(input));
  fuzz::run([&] {
    constexpr int64_t kVocab = 100;
    const auto config =
        convert::read_generation_config(folder.path(), kVocab, infer::config_numbers());
    const auto known = [](int64_t id) {
      fuzz::check(id >= 0 && id < kVocab, "an id is one of the vocabulary");
    };
    for (const auto& id : {config.forced_begin, config.forced_end, config.start})
      if (id) known(*id);
    for (const auto* ids : {&config.ends, &config.suppressed, &config.suppressed_at_begin})
      for (const int64_t id : *ids) known(id);
    for (const auto& [sequence, bias] : config.sequence_bias) {
      fuzz::check(!sequence.empty() && !(bias > 1e308), "a bias of a sequence");
      for (const int64_t id : sequence) known(id);
    }
  });
}
