#include "tessera/infer/engine/conversation.h"

#include <algorithm>

#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/format/file_source.h"

namespace tessera::infer {

using spec::Json;

namespace {

Json message_of(std::string_view line, const std::string& where, bool first) {
  Json message = spec::parse_json(line, where);
  if (!message.is_object() || message.size() != 2 || !message.contains("role") ||
      !message["role"].is_string() || !message.contains("content") ||
      !message["content"].is_string())
    fail(ErrorKind::file, where, "no message; expected {{\"role\": ..., \"content\": ...}}");
  const std::string role = message["role"];
  if (role != "user" && role != "assistant" && !(role == "system" && first))
    fail(ErrorKind::file, where, "role {}; expected user or assistant, or system on the first line",
         format::in_quotes(role));
  return message;
}

}  // namespace

bool Conversation::ends_with(const char* role) const {
  return !messages_.empty() && messages_.back()["role"] == role;
}

std::string Conversation::system() const {
  return !messages_.empty() && messages_[0]["role"] == "system"
             ? messages_[0]["content"].get<std::string>()
             : "";
}

void Conversation::set_system(const std::string& text) {
  if (!messages_.empty() && messages_[0]["role"] == "system") messages_.erase(0);
  if (!text.empty())
    messages_.insert(messages_.begin(), Json{{"role", "system"}, {"content", text}});
}

void Conversation::add(const char* role, const std::string& text) {
  messages_.push_back({{"role", role}, {"content", text}});
}

std::string Conversation::last() const {
  require(!messages_.empty(), "conversation", "there is no message");
  return messages_.back()["content"];
}

bool Conversation::remove_answer() {
  if (ends_with("assistant")) messages_.erase(messages_.size() - 1);
  return ends_with("user");
}

void Conversation::remove_question() {
  if (ends_with("user")) messages_.erase(messages_.size() - 1);
}

void Conversation::clear() {
  const std::string text = system();
  *this = {};
  set_system(text);
}

void Conversation::save(const std::filesystem::path& path) const {
  std::string text;
  for (const Json& message : messages_)
    text += message.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  write_file_atomically(path, text);
}

Conversation Conversation::load(const std::filesystem::path& path) {
  constexpr size_t kMostBytes = size_t{64} << 20;
  const std::string text = read_text_file(path, kMostBytes);
  Conversation out;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string where = fmt::format("{}: line {}", path.string(), ++number);
    if (end > begin)
      out.messages_.push_back(message_of(std::string_view(text).substr(begin, end - begin), where,
                                         out.messages_.empty()));
    begin = end + 1;
  }
  return out;
}

Conversation::Prompt Conversation::prompt(const text::ChatPrompt& prompts, const Context& context) {
  require(!messages_.empty(), "conversation", "there is no message");
  Json all = messages_;
  if (context.last) all.back()["content"] = *context.last;
  const size_t begin = system().empty() ? 0 : 1, most = messages_.size() - begin - 1;
  dropped_ = std::min(dropped_, most / 2 * 2);
  const size_t before = dropped_;
  for (int64_t room = context.longest;; room = context.longest / 2, dropped_ += 2) {
    Json messages = all;
    const auto first = messages.begin() + static_cast<std::ptrdiff_t>(begin);
    messages.erase(first, first + static_cast<std::ptrdiff_t>(dropped_));
    text::MarkedText text = prompts.render({.messages = messages, .add_generation_prompt = true});
    if (!context.shift || context.longest == 0 || std::ssize(prompts.encode(text)) <= room ||
        dropped_ + 2 > most)
      return {std::move(text), dropped_ > before};
  }
}

}  // namespace tessera::infer
