// The three files of an index of passages.
#include "files.h"

#include "tessera/retrieve/index_file.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(passage_index) {
  static const fuzz::Folder folder;
  const auto parts = fuzz::parts_of<3>(input);
  folder.put("index.json", parts[0]);
  folder.put("passages-1.jsonl", parts[1]);
  folder.put("vectors-1.safetensors", parts[2]);
  fuzz::run([&] {
    const retrieve::IndexFile index = retrieve::open_index(folder.path());
    fuzz::check(index.vectors.shape[0] == std::ssize(index.passages), "a vector for each passage");
    fuzz::check(
        index.vectors.data.size() == index.passages.size() * 4 * static_cast<size_t>(index.width),
        "the numbers of all vectors");
    for (const retrieve::Passage& passage : index.passages)
      fuzz::check(!index.source(passage).empty(), "a place for each passage");
  });
}
