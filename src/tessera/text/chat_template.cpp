#include "tessera/text/chat_template.h"

#include <algorithm>
#include <clocale>
#include <ctime>

#include "tessera/base/error.h"
#include "tessera/text/jinja_node.h"

namespace tessera::text {

using jinja::Text;
using jinja::Value;

struct ChatTemplate::State {
  std::string source;
  jinja::NodePointer root;
};

ChatTemplate::ChatTemplate(std::string source, const std::string& where) {
  auto root = jinja::parse(source, where);
  state_ = std::make_shared<const State>(State{std::move(source), std::move(root)});
}

const std::string& ChatTemplate::source() const {
  return state_->source;
}

namespace {

constexpr const char* kRoles[] = {"system", "developer", "user", "assistant", "tool", "ipython"};

/// Templates write a role beside the control tokens, so that it is one of a list, and theirs.
Value message_value(const spec::Json& message, size_t number) {
  if (!message.is_object() || !message.contains("role") || !message["role"].is_string())
    fail(ErrorKind::input, "chat",
         "message {} has no role; expected an object with \"role\" and \"content\"", number);
  const std::string role = message["role"];
  if (std::none_of(std::begin(kRoles), std::end(kRoles), [&](const char* r) { return role == r; }))
    fail(ErrorKind::input, "chat",
         "message {} has an unknown role; expected system, developer, user, assistant, tool or "
         "ipython",
         number);
  std::vector<std::pair<Text, Value>> items;
  for (const auto& [key, value] : message.items())
    items.emplace_back(Text(key, Text::kInput),
                       jinja::value_of(value, key == "role" ? Text::kTemplate : Text::kInput));
  return jinja::make_dict(std::move(items));
}

/// A time as strftime() writes it in the locale "C".
Value time_text(int64_t now, const jinja::Arguments& arguments) {
  constexpr size_t kMostBytes = 256;
  const Text* format = arguments.values.size() == 1 && arguments.named.empty()
                           ? arguments.values[0].text()
                           : nullptr;
  if (format == nullptr || format->size() > kMostBytes ||
      format->bytes.find('\0') != std::string::npos)
    jinja::stop("strftime_now: expected a short format, as in \"%d %B %Y\"");
  static const locale_t plain = newlocale(LC_ALL_MASK, "C", nullptr);
  const auto seconds = static_cast<time_t>(now);
  std::tm parts{};
  if (gmtime_r(&seconds, &parts) == nullptr) jinja::stop("strftime_now: no such time");
  // a character in front tells an empty text from one that is too long
  char out[16 * kMostBytes];
  const size_t n = strftime_l(out, sizeof out, (" " + format->bytes).c_str(), &parts, plain);
  if (n == 0) jinja::stop("strftime_now: a format that makes too long a text");
  return jinja::make_text(std::string_view(out + 1, n - 1));
}

}  // namespace

MarkedText ChatTemplate::render(const Chat& chat) const {
  if (!chat.messages.is_array())
    fail(ErrorKind::input, "chat", "messages are no list; expected a list of messages");
  std::vector<Value> messages;
  for (size_t i = 0; i < chat.messages.size(); ++i)
    messages.push_back(message_value(chat.messages[i], i));
  std::vector<std::pair<std::string, Value>> variables;
  variables.emplace_back("messages", jinja::make_list(std::move(messages)));
  variables.emplace_back("tools", jinja::value_of(chat.tools, Text::kInput));
  variables.emplace_back("add_generation_prompt", Value{chat.add_generation_prompt});
  for (const auto& [name, value] : chat.variables.items()) {
    if (std::any_of(variables.begin(), variables.end(),
                    [&](const auto& v) { return v.first == name; }))
      fail(ErrorKind::input, "chat", "the variable {} is the conversation's own", name);
    variables.emplace_back(
        name, jinja::value_of(value, name.ends_with("_token") ? Text::kTemplate : Text::kInput));
  }
  if (chat.now)
    variables.emplace_back("strftime_now",
                           jinja::make_call("strftime_now", [now = *chat.now](jinja::Arguments& a) {
                             return time_text(now, a);
                           }));
  // as transformers gives it where nobody did
  if (!chat.variables.contains("documents"))
    variables.emplace_back("documents", jinja::make_none());
  Text out = jinja::render(*state_->root, std::move(variables));
  MarkedText text{std::move(out.bytes), std::move(out.marks)};
  if (std::any_of(text.input.begin(), text.input.end(),
                  [](char mark) { return mark >= Text::kAnswer; }))
    for (char& mark : text.input) {
      text.answer += mark >= Text::kAnswer ? '\1' : '\0';
      mark &= Text::kInput;
    }
  return text;
}

}  // namespace tessera::text
