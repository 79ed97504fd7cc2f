#include "tessera/text/chat_format.h"

#include <array>

#include <fmt/ranges.h>

#include "tessera/base/error.h"

namespace tessera::text {
namespace {

constexpr std::array kFormats = {
    ChatFormat{.name = "chatml",
               .begin = "",
               .open = "<|im_start|>",
               .behind = "\n",
               .end = "<|im_end|>",
               .gap = "\n"},
    ChatFormat{.name = "llama3",
               .begin = "<|begin_of_text|>",
               .open = "<|start_header_id|>",
               .behind = "<|end_header_id|>\n\n",
               .end = "<|eot_id|>",
               .gap = "",
               .trimmed = true},
    ChatFormat{.name = "gemma",
               .begin = "<bos>",
               .open = "<start_of_turn>",
               .behind = "\n",
               .end = "<end_of_turn>",
               .gap = "\n",
               .assistant = "model",
               .system = false,
               .trimmed = true},
    ChatFormat{
        .name = "zephyr", .begin = "", .open = "<|", .behind = "|>\n", .end = "</s>", .gap = "\n"},
};

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n\f\v";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

void check_turn(const std::vector<ChatMessage>& messages, size_t i) {
  const std::string& role = messages[i].role;
  const auto refuse = [&](std::string_view expected) {
    fail(ErrorKind::input, "chat", "message {}: role \"{}\"; expected {}", i + 1, role, expected);
  };
  if (role != "system" && role != "user" && role != "assistant")
    refuse("\"system\", \"user\" or \"assistant\"");
  if (role == "system") {
    if (i > 0) refuse("\"system\" as the first alone");
    return;
  }
  const bool behind_user = i > 0 && messages[i - 1].role == "user";
  if (behind_user != (role == "assistant"))
    refuse(behind_user ? "\"assistant\" behind \"user\"" : "\"user\"");
}

}  // namespace

std::vector<std::string> chat_format_names() {
  std::vector<std::string> names;
  for (const ChatFormat& format : kFormats) names.emplace_back(format.name);
  return names;
}

const ChatFormat& chat_format(std::string_view name) {
  for (const ChatFormat& format : kFormats)
    if (format.name == name) return format;
  fail(ErrorKind::usage, "chat", "unknown format \"{}\"; expected one of {}", name,
       fmt::join(chat_format_names(), ", "));
}

ChatText render_chat(const ChatFormat& format,
                     const std::vector<ChatMessage>& messages,
                     bool answer_next) {
  ChatText out;
  out.text = format.begin;
  std::string system;
  const auto open = [&](std::string_view role) {
    out.text += format.open;
    out.text += role;
    out.text += format.behind;
  };
  for (size_t i = 0; i < messages.size(); ++i) {
    check_turn(messages, i);
    const ChatMessage& message = messages[i];
    const std::string_view content = format.trimmed ? trimmed(message.content) : message.content;
    const bool answer = message.role == "assistant";
    if (message.role == "system" && !format.system) {
      system = std::string(content) + "\n\n";
      continue;
    }
    open(answer ? format.assistant : std::string_view(message.role));
    const size_t begin = out.text.size();
    if (!answer) out.text += std::exchange(system, {});
    out.text += content;
    out.text += format.end;
    if (answer) out.answers.push_back({begin, out.text.size(), i});
    out.text += format.gap;
  }
  if (answer_next) open(format.assistant);
  return out;
}

}  // namespace tessera::text
