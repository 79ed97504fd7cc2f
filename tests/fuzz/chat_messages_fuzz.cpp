// A line of messages, as it is and in every format.
#include "fuzz.h"

#include "tessera/convert/tokenizer.h"
#include "tessera/text/chat_formats.h"
#include "tessera/train/chat_source.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(chat_messages) {
  static const text::Tokenizer bytes = convert::find_tokenizer("bytes");
  fuzz::run(
      [&] {
        const train::Conversation talk =
            train::read_conversation(fuzz::text_of(input), "messages", "line 1");
        for (const std::string& format : text::chat_format_names()) {
          const text::ChatPrompt prompts = train::prompts_of({.format = format}, bytes);
          const train::ChatTokens chat =
              train::chat_tokens(talk, train::ChatTurns::all, prompts, bytes, 1 << 12);
          fuzz::check(chat.ids.size() == chat.targets.size(), "a target for every input");
        }
      },
      {ErrorKind::file, ErrorKind::input});
}
