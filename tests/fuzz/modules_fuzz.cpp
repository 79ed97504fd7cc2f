// What a folder of sentence-transformers says: modules.json, sentence_bert_config.json and the
// config.json of 1_Pooling.
#include "files.h"

#include "tessera/infer/encoders/embed.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(modules) {
  static const fuzz::Folder folder;
  const auto parts = fuzz::parts_of<3>(input);
  folder.put("modules.json", parts[0]);
  folder.put("sentence_bert_config.json", parts[1]);
  folder.put("1_Pooling/config.json", parts[2]);
  fuzz::run([&] {
    const infer::EmbedOptions options = infer::embed_options_of(folder.path());
    fuzz::check(options.max_tokens >= 0, "a length is not negative");
  });
}
