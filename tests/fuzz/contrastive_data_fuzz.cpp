// A file of texts that belong together: the first byte says whether it is a table, quoted or not,
// or JSON lines, the rest is the file, as data to learn from and to be measured on.
#include "files.h"

#include "tessera/convert/tokenizer.h"
#include "tessera/nn/registry.h"
#include "tessera/train/objective/contrastive/contrastive_source.h"
#include "tessera/train/recipe/recipe.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(contrastive_data) {
  static const fuzz::Folder folder;
  static const text::Tokenizer bytes = convert::find_tokenizer("bytes");
  if (input.empty()) return;
  constexpr const char* kNames[] = {"data.tsv", "data.csv", "data.jsonl"};
  const std::string file =
      folder.put(kNames[std::to_integer<int>(input[0]) % 3], fuzz::text_of(input.subspan(1)))
          .string();
  train::Recipe recipe;
  recipe.spec.vocab = 256;
  recipe.train.length = 64;
  for (const bool learns : {true, false})
    fuzz::run(
        [&] {
          train::TextData data;
          data.train = {learns ? file
                               : folder
                                     .put("good.jsonl",
                                          "{\"text\": \"a\", \"positive\": \"b\"}\n"
                                          "{\"text\": \"c\", \"positive\": \"d\"}\n")
                                     .string()};
          if (!learns) data.valid = {file};
          recipe.data = {data};
          const auto source = train::open_contrastive(recipe.data_plan(), {}, bytes, nullptr);
          std::vector<int64_t> begun;
          const train::PackedBatch two = source->train(0, 2, begun);
          fuzz::check(two.items.size() == two.pieces.size() && two.pieces.size() >= 4,
                      "a text and its positive for each of two");
          for (const train::PackedDocument& piece : two.pieces)
            fuzz::check(piece.length > 0 && piece.length <= recipe.train.length,
                        "a text fits its room");
          for (int64_t i = 0; i < source->valid_samples(); ++i)
            fuzz::check(source->valid({i}).pieces.size() >= 2, "a held-out text has a positive");
        },
        {ErrorKind::file, ErrorKind::input, ErrorKind::spec});
}
