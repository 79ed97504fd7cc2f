// A file of conversations, whatever their layout, in every format of messages and without one.
#include "files.h"

#include "tessera/convert/tokenizer.h"
#include "tessera/text/chat/chat_formats.h"
#include "tessera/train/data/data_file.h"
#include "tessera/train/objective/chat/chat_source.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(chat_messages) {
  static const text::Tokenizer bytes = convert::find_tokenizer("bytes");
  static const fuzz::Folder folder;
  const std::string path = folder.put("data", fuzz::text_of(input)).string();
  std::vector<std::string> formats = text::chat_format_names();
  formats.emplace_back("none");
  for (const std::string& format : formats)
    fuzz::run(
        [&] {
          const train::ChatReader reader({.format = format}, bytes, 1 << 12);
          train::for_each_object(train::DataFile(path), [&](const train::ObjectText& object) {
            const auto chat = reader.of(train::parse_object(object), object.where);
            fuzz::check(chat.ids.size() == chat.targets.size(), "a target for every input");
          });
        },
        {ErrorKind::file, ErrorKind::input});
}
