#include "tessera/text/tokenizer/answer_windows.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/text/tokenizer/text_pair.h"

namespace tessera::text {

std::vector<AnswerWindow> answer_windows(const Tokenizer& tokenizer,
                                         std::string_view question,
                                         std::string_view context,
                                         int64_t length,
                                         int64_t stride) {
  const std::vector<int32_t> asked = tokenizer.encode(question, {.add_special = false});
  const std::vector<TokenSpan> all = token_spans(tokenizer, context);
  if (asked.empty() || all.empty())
    fail(ErrorKind::input, "answer", "the {} has no token; expected some",
         asked.empty() ? "question" : "context");
  const int64_t around = tokens_around(tokenizer, /*pair=*/true);
  const int64_t room = length - around - std::ssize(asked);
  if (room < 1 || (room <= stride && room < std::ssize(all)))
    fail(
        ErrorKind::input, "answer",
        "a question of {} tokens leaves {} of {} for the context, whose windows share {}; expected "
        "a shorter question, longer windows or a smaller stride",
        asked.size(), std::max<int64_t>(0, room), length, stride);
  std::vector<AnswerWindow> out;
  for (int64_t begin = 0;; begin += room - stride) {
    const int64_t n = std::min<int64_t>(room, std::ssize(all) - begin);
    AnswerWindow window;
    window.context.assign(all.begin() + begin, all.begin() + begin + n);
    std::vector<int32_t> ids;
    for (const TokenSpan& token : window.context) ids.push_back(token.id);
    ClassifierInput judged = classifier_input_of_tokens(tokenizer, asked, std::move(ids), 0);
    window.ids = std::move(judged.ids);
    window.second = window.context_begin = judged.second;
    out.push_back(std::move(window));
    if (begin + n == std::ssize(all)) return out;
  }
}

}  // namespace tessera::text
