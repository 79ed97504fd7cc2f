#include "tessera/base/text_input.h"
#include "tessera/cli/cli.h"
#include "tessera/convert/tokenizer.h"

namespace tessera::cli {
namespace {

struct TokenizeArgs {
  std::string path, text, file;
  std::vector<int32_t> ids;
  bool decode = false, special = false, no_special = false, json = false;
};

int tokenize(const TokenizeArgs& o) {
  const text::Tokenizer tokenizer = convert::find_tokenizer(o.path);
  if (o.decode) {
    for (const int32_t id : o.ids) tokenizer.token(id);  // refuses what is none
    const std::string text = tokenizer.decode(o.ids, !o.special);
    if (o.json)
      print_json({{"ids", o.ids}, {"text", text}});
    else
      fmt::print("{}\n", text);
    return kExitOk;
  }
  const std::string text = o.file.empty() ? o.text : read_text_input(o.file, &cancel_token());
  const auto ids =
      tokenizer.encode(text, {.add_special = !o.no_special, .parse_special = o.special});
  if (o.json) {
    Json tokens = Json::array();
    for (const int32_t id : ids) tokens.push_back(std::string(tokenizer.token(id)));
    print_json({{"ids", ids}, {"tokens", tokens}});
  } else {
    fmt::print("{}\n", fmt::join(ids, " "));
  }
  return kExitOk;
}

}  // namespace

std::function<int()> add_tokenize(CLI::App& app) {
  auto o = std::make_shared<TokenizeArgs>();
  app.add_option("tokenizer", o->path, "a model, a tokenizer file, or \"bytes\"")->required();
  auto* text = app.add_option("--text", o->text, "the text");
  auto* file = app.add_option("--file", o->file, "a file with the text; - = standard input");
  auto* ids = app.add_option("--ids", o->ids, "ids to decode, with commas")
                  ->delimiter(',')
                  ->check(not_negative());
  app.add_flag("--decode", o->decode, "ids to text")->needs(ids);
  text->excludes(file);
  for (CLI::Option* option : {text, file}) ids->excludes(option);
  app.add_flag("--parse-special", o->special,
               "special tokens written in the text become those tokens; shown when decoding");
  app.add_flag("--no-special", o->no_special, "add nothing around the text");
  app.add_flag("--json", o->json, "ids and tokens as JSON");
  examples(app, {"tessera tokenize model.gguf --text 'Hello world'",
                 "tessera tokenize folder --decode --ids 1,2,3"});
  return [o, text, file, ids] {
    if (!o->decode && !ids->empty())
      fail(ErrorKind::usage, "tokenize", "--ids are there to decode; expected --decode");
    if (!o->decode && text->empty() && file->empty())
      fail(ErrorKind::usage, "tokenize",
           "nothing to do; expected --text, --file or --decode --ids");
    return tokenize(*o);
  };
}

}  // namespace tessera::cli
