// Tokens on disk: index.json, ends.bin and the first shard.
#include "files.h"

#include "tessera/train/data/token_split.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(token_split) {
  static const fuzz::Folder folder;
  const auto parts = fuzz::parts_of<3>(input);
  folder.put("index.json", parts[0]);
  folder.put("ends.bin", parts[1]);
  folder.put("00000.bin", parts[2]);
  fuzz::run([&] {
    const auto split = train::TokenSplit::open(folder.path());
    fuzz::check(split.tokens() * 2 <= static_cast<int64_t>(parts[2].size()), "tokens lie in files");
    std::vector<int64_t> tokens(static_cast<size_t>(split.tokens()));
    split.read(0, tokens);
    int64_t before = 0;
    for (int64_t i = 0; i < split.documents(); ++i) {
      const auto [begin, length] = split.document(i);
      fuzz::check(begin == before && length > 0 && split.document_end(begin) == begin + length,
                  "documents follow one another");
      before = begin + length;
    }
    fuzz::check(before == split.tokens(), "documents hold all tokens");
  });
}
