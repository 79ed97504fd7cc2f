// A chat template, and what somebody said.
#include "fuzz.h"

#include "tessera/text/chat/chat_template.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(chat_template) {
  const auto parts = fuzz::parts_of<2>(input);
  const std::string_view said = parts[1].substr(0, 4096);
  fuzz::run(
      [&] {
        const text::ChatTemplate chat(std::string{parts[0]}, "fuzz");
        const text::MarkedText out = chat.render(
            {.messages = spec::Json::array({{{"role", "system"}, {"content", "s"}},
                                            {{"role", "user"}, {"content", std::string(said)}}}),
             .variables = {{"bos_token", "<s>"}, {"eos_token", "</s>"}}});
        fuzz::check(out.text.size() == out.input.size(), "every byte is marked");
      },
      {ErrorKind::file, ErrorKind::input});
}
