#include "tessera/text/chat/chat_prompt.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::text {

ChatPrompt::ChatPrompt(Tokenizer tokenizer,
                       std::string source,
                       const std::string& where,
                       TemplateClock clock)
    : tokenizer_(std::move(tokenizer)),
      clock_(std::move(clock)),
      template_(std::move(source), where),
      reasoning_(
          thought_tags_of(template_.source()).value_or(ReasoningTags{"<think>", "</think>"})) {}

MarkedText ChatPrompt::render(Chat chat, bool goes_on) const {
  const auto add = [&](const char* name, std::optional<int32_t> id) {
    if (id) chat.variables[name] = std::string(tokenizer_.token(*id));
  };
  if (!chat.now) chat.now = clock_();
  for (const auto& [role, token] : tokenizer_.special_roles()) chat.variables[role] = token;
  add("bos_token", tokenizer_.bos());
  add("eos_token", tokenizer_.eos());
  add("pad_token", tokenizer_.pad());
  add("unk_token", tokenizer_.unk());
  MarkedText out = template_.render(chat);
  if (!goes_on) return out;
  std::string last = chat.messages.back().value("content", "");
  // templates strip contents
  while (!last.empty() && std::string_view(" \t\n\r").find(last.back()) != std::string_view::npos)
    last.pop_back();
  const size_t at = last.empty() ? std::string::npos : out.text.rfind(last);
  if (at == std::string::npos)
    fail(ErrorKind::input, "chat",
         "the chat template changes the last message; it cannot be continued");
  out.text.resize(at + last.size());
  out.input.resize(at + last.size());
  if (!out.answer.empty()) out.answer.resize(out.text.size());
  return out;
}

std::vector<int32_t> ChatPrompt::encode(const MarkedText& text) const {
  return tokenizer_.encode(text, template_.source());
}

std::vector<int64_t> ChatPrompt::ends(const TemplatePoll& poll) const {
  std::vector<int64_t> ids;
  if (tokenizer_.eos()) ids.push_back(*tokenizer_.eos());
  const std::string answer = "tessera answers";
  MarkedText text;
  try {
    text = render({.messages = spec::Json::array({{{"role", "user"}, {"content", "tessera asks"}},
                                                  {{"role", "assistant"}, {"content", answer}}}),
                   .add_generation_prompt = false,
                   .poll = poll});
  } catch (const Error&) {
    return ids;  // a template may refuse any conversation
  }
  const size_t at = text.text.rfind(answer);
  if (at == std::string::npos) return ids;
  const size_t begin = at + answer.size();
  const auto behind = encode({text.text.substr(begin), text.input.substr(begin)});
  if (!behind.empty() && tokenizer_.is_special(behind[0]) &&
      std::find(ids.begin(), ids.end(), behind[0]) == ids.end())
    ids.push_back(behind[0]);
  return ids;
}

bool ChatPrompt::thinks(const MarkedText& prompt) const {
  const size_t opened = prompt.text.rfind(reasoning_.open);
  return opened != std::string::npos && prompt.input[opened] == 0 &&
         prompt.text.find(reasoning_.close, opened) == std::string::npos;
}

}  // namespace tessera::text
