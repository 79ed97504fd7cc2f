// A file of a conversation: what is read is written and read again as the same messages.
#include "files.h"

#include "tessera/infer/engine/conversation.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(conversation) {
  static const fuzz::Folder folder;
  const std::string path = folder.put("chat", fuzz::text_of(input)).string();
  fuzz::run(
      [&] {
        infer::Conversation chat = infer::Conversation::load(path);
        chat.save(path);
        fuzz::check(infer::Conversation::load(path).messages() == chat.messages(),
                    "the same messages");
        if (chat.remove_answer()) chat.remove_question();
        chat.clear();
        fuzz::check(chat.messages().size() <= 1, "the system message alone");
      },
      {ErrorKind::file, ErrorKind::input});
}
