#include <filesystem>
#include <sstream>

#include <unistd.h>

#include "tessera/base/output_file.h"
#include "tessera/base/text_input.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/out_place.h"
#include "tessera/text/tokenizer/train_bpe.h"
#include "tessera/text/utf8.h"

namespace tessera::cli {
namespace {

struct TrainTokenizerArgs {
  std::vector<std::string> files, keys, special;
  std::string out;
  text::LearnBpeOptions bpe;
  bool json = false, force = false;
};

/// The texts of a file: its lines, or the values of the keys of JSON lines.
void count(text::WordCounts& counts,
           const std::string& file,
           const std::vector<std::string>& keys) {
  std::istringstream all(read_text_input(file, &cancel_token()));
  int64_t number = 0;
  for (std::string line; std::getline(all, line);) {
    const std::string place = fmt::format("{}:{}", file, ++number);
    if (!text::is_valid_utf8(line))
      fail(ErrorKind::file, place, "bytes that are no UTF-8; expected text");
    if (keys.empty()) {
      counts.add(line + "\n");
      continue;
    }
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Json json = spec::parse_json(line, place);
    for (const std::string& key : keys) {
      if (!json.is_object() || !json.contains(key) || !json[key].is_string())
        fail(ErrorKind::file, place,
             "no text under \"{}\"; expected an object that has one, or another --key", key);
      counts.add(json[key].get<std::string>());
    }
  }
}

int train_tokenizer(TrainTokenizerArgs& o) {
  namespace fs = std::filesystem;
  check_out_place("train-tokenizer", o.out, o.force);
  text::WordCounts counts;
  for (const std::string& file : o.files) count(counts, file, o.keys);
  if (counts.words().empty()) fail(ErrorKind::file, o.files.front(), "no text");
  if (isatty(STDERR_FILENO) != 0)
    o.bpe.progress = [](int64_t done, int64_t total) {
      if (done % 64 == 0) fmt::print(stderr, "\r{} of {} tokens", done, total);
    };
  o.bpe.special = {"<pad>", "<s>", "</s>", "<mask>"};
  o.bpe.special.insert(o.bpe.special.end(), o.special.begin(), o.special.end());
  const Json tokenizer = text::train_bpe(counts, o.bpe, &cancel_token());
  if (o.bpe.progress) fmt::print(stderr, "\r");
  const Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"pad_token", "<pad>"},
                       {"bos_token", "<s>"},
                       {"eos_token", "</s>"},
                       {"mask_token", "<mask>"}};
  std::error_code error;
  fs::create_directories(o.out, error);
  if (error) fail(ErrorKind::file, o.out, "cannot be made: {}", error.message());
  write_file_atomically(fs::path(o.out) / "tokenizer.json", tokenizer.dump(1));
  write_file_atomically(fs::path(o.out) / "tokenizer_config.json", config.dump(1));
  const auto tokens = std::ssize(tokenizer["model"]["vocab"]);
  if (o.json)
    print_json({{"tokens", tokens}, {"words", counts.words().size()}, {"folder", o.out}});
  else
    fmt::print("{} tokens from {} different words: {}\n", tokens, counts.words().size(),
               (fs::path(o.out) / "tokenizer.json").string());
  if (tokens < o.bpe.vocabulary && o.bpe.least_count > 1)
    fmt::print(stderr, "no further pair occurs {} times; --least-count 1 continues\n",
               o.bpe.least_count);
  return kExitOk;
}

}  // namespace

std::function<int()> add_train_tokenizer(CLI::App& app) {
  auto o = std::make_shared<TrainTokenizerArgs>();
  group(app, "Input");
  app.add_option("files", o->files, "training texts; - = standard input")->required();
  add_texts(app, "--key", o->keys,
            "the files are JSON lines with texts under this key; repeatable");
  group(app, "Vocabulary");
  app.add_option("--vocab,--vocab-size", o->bpe.vocabulary,
                 "vocabulary size, with the 256 bytes, <pad>, <s>, </s> and <mask>")
      ->capture_default_str();
  add_texts(app, "--special", o->special, "additional special token; repeatable");
  app.add_option("--least-count,--min-frequency", o->bpe.least_count,
                 "minimum frequency of a pair that is merged")
      ->capture_default_str()
      ->check(positive());
  group(app, "Output");
  add_out(app, o->out, "folder to write: tokenizer.json and tokenizer_config.json")->required();
  add_force(app, o->force);
  app.add_flag("--json", o->json, "result as JSON");
  examples(app, {"tessera train-tokenizer book.txt --vocab 8000 --out tokens",
                 "tessera train-tokenizer pairs.jsonl --key en --key de --vocab 8000 --out tokens",
                 "tessera train-tokenizer code.txt --special '<fim>' --out tokens"});
  return [o] { return train_tokenizer(*o); };
}

}  // namespace tessera::cli
