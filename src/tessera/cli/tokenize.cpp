#include <algorithm>
#include <limits>

#include "tessera/base/text_input.h"
#include "tessera/cli/cli.h"
#include "tessera/convert/tokenizer.h"
#include "tessera/text/tokenizer/raw_prompt.h"

namespace tessera::cli {
namespace {

struct TokenizeArgs {
  std::string path, text, file;
  std::vector<int64_t> ids;
  bool decode = false, special = false, no_parse_special = false, no_special = false, json = false;
};

int tokenize(const TokenizeArgs& o) {
  const text::Tokenizer tokenizer = convert::find_tokenizer(o.path);
  for (const std::string& note : tokenizer.notes()) fmt::print(stderr, "tessera: {}\n", note);
  if (o.decode) {
    std::vector<int32_t> ids;
    for (const int64_t id : o.ids) {
      ids.push_back(
          static_cast<int32_t>(std::min<int64_t>(id, std::numeric_limits<int32_t>::max())));
      tokenizer.token(ids.back());  // refuses what is none
    }
    const std::string text = tokenizer.decode(ids, !o.special);
    if (o.json)
      print_json({{"ids", o.ids}, {"text", text}});
    else
      fmt::print("{}\n", text);
    return kExitOk;
  }
  const std::string text = o.file.empty() ? o.text : read_text_input(o.file, &cancel_token());
  const auto [ids, warning] = text::encode_raw_prompt(
      tokenizer, text, {.add_special = !o.no_special, .parse_special = !o.no_parse_special});
  if (!warning.empty()) fmt::print(stderr, "warning: {}\n", warning);
  if (o.json) {
    Json tokens = Json::array();
    for (const int32_t id : ids) tokens.push_back(std::string(tokenizer.of_source().token(id)));
    print_json({{"ids", ids}, {"tokens", tokens}});
  } else {
    fmt::print("{}\n", fmt::join(ids, " "));
  }
  return kExitOk;
}

}  // namespace

std::function<int()> add_tokenize(CLI::App& app) {
  auto o = std::make_shared<TokenizeArgs>();
  group(app, "Input");
  names_model(app.add_option("tokenizer,-m,--model", o->path, "model, tokenizer file, or \"bytes\"")
                  ->required(),
              o->path);
  auto* text = app.add_option("text,--text,-p,--prompt", o->text, "text to tokenize");
  auto* file = app.add_option("--file,-f", o->file, "file with the text; - = standard input");
  auto* ids = add_ids(app, "--ids", o->ids, "token ids to decode: 1,2,3");
  app.add_flag("--decode", o->decode, "decode --ids to text")->needs(ids);
  text->excludes(file);
  for (CLI::Option* option : {text, file}) ids->excludes(option);
  auto* parse =
      app.add_flag("--parse-special", o->special,
                   "parse special tokens in the text, the default; print them when decoding");
  app.add_flag("--no-parse-special", o->no_parse_special, "read special tokens in the text as text")
      ->excludes(parse);
  app.add_flag("--no-special", o->no_special, "do not add special tokens (BOS, EOS)");
  group(app, "Output");
  app.add_flag("--json", o->json, "ids and tokens as JSON");
  examples(app, {"tessera tokenize model.gguf 'Hello world'",
                 "tessera tokenize folder --decode --ids 1,2,3"});
  return [o, text, file, ids] {
    if (!o->decode && !ids->empty())
      fail(ErrorKind::usage, "tokenize", "--ids are there to decode; expected --decode");
    if (!o->decode && text->empty() && file->empty())
      fail(ErrorKind::usage, "tokenize",
           "nothing to do; expected a text (--text), --file or --decode --ids");
    return tokenize(*o);
  };
}

}  // namespace tessera::cli
