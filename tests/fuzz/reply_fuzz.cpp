// What a model answers, by each format of calls: however it is cut, it says the same.
#include "fuzz.h"

#include "tessera/text/chat/reply.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(reply) {
  const auto parts = fuzz::parts_of<2>(input);
  const std::string_view answer = parts[1].substr(0, 4096);
  fuzz::run([&] {
    const text::ReplyParser::Options options{
        .format = text::tool_call_format_named(parts[0]),
        .reasoning = text::ReasoningTags{"<think>", "</think>"},
        .thinking = answer.size() % 2 == 1};
    const text::Reply whole = text::read_reply(answer, options);
    text::ReplyParser reader(options);
    text::Reply joined;
    const auto take = [&](const text::Reply& more) {
      joined.reasoning += more.reasoning;
      joined.content += more.content;
      joined.calls.insert(joined.calls.end(), more.calls.begin(), more.calls.end());
    };
    for (size_t i = 0; i < answer.size(); i += 3) take(reader.push(answer.substr(i, 3)));
    take(reader.finish());
    fuzz::check(joined.reasoning == whole.reasoning && joined.content == whole.content &&
                    joined.calls == whole.calls,
                "an answer says the same in pieces");
  });
}
