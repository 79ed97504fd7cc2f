// The text that a run learns from: the first byte chooses files of text, lines of JSON, lines of
// pairs, tokens, tables of text or of pairs; the rest is the file.
#include "files.h"

#include "tessera/text/tokenizer/byte_tokenizer.h"
#include "tessera/train/data/token_cache.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(text_data) {
  static const fuzz::Folder folder;
  if (input.empty()) return;
  const int kind = std::to_integer<int>(input[0]) % 6;
  const std::string_view text = fuzz::text_of(input.subspan(1));
  train::TextData data;
  data.train = {folder.put("data", text).string()};
  constexpr train::DataFormat kFormats[] = {train::DataFormat::text,  train::DataFormat::jsonl,
                                            train::DataFormat::jsonl, train::DataFormat::tokens,
                                            train::DataFormat::csv,   train::DataFormat::tsv};
  data.format = kFormats[kind];
  data.text_key = "t";
  const bool pairs = kind == 2 || kind == 5;
  if (pairs) data.source_key = "s";
  std::filesystem::remove_all(folder.path() / "cache");
  fuzz::run(
      [&] {
        const auto tokens =
            train::prepare_tokens(data, text::byte_tokenizer(), 256, folder.path() / "cache");
        fuzz::check(tokens.train.tokens() > 0, "a text has tokens");
        fuzz::check(!pairs || tokens.train.documents() % 2 == 0, "pairs are whole");
      },
      {ErrorKind::file, ErrorKind::input});
}
