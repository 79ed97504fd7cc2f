#include "tessera/text/chat/chat_template.h"

#include <algorithm>
#include <clocale>
#include <ctime>

#include "tessera/base/error.h"
#include "tessera/text/jinja/jinja_node.h"

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

/// A message as templates expect it: keys that are null are left out, as many templates test
/// whether a key is there; reasoning is found under the names that templates read, whichever it
/// came by.
spec::Json plain_message(const spec::Json& message) {
  spec::Json out = spec::Json::object();
  for (const auto& [key, value] : message.items())
    if (!value.is_null()) out[key] = value;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    if (!out.contains(name)) continue;
    const spec::Json reasoning = out[name];
    if (!out.contains("thinking")) out["thinking"] = reasoning;
    out["reasoning_content"] = reasoning;
    break;
  }
  return out;
}

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
  const spec::Json plain = plain_message(message);
  for (const auto& [key, value] : plain.items())
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

std::optional<int64_t> local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  return static_cast<int64_t>(timegm(&parts));
}

TemplateClock template_clock(const std::string& date, const std::string& option) {
  if (date == "none") return [] { return std::optional<int64_t>(); };
  if (date == "today") return [now = local_time()] { return now; };
  std::tm parts{};
  const char* const end = strptime(date.c_str(), "%Y-%m-%d", &parts);
  if (end == nullptr || *end != '\0')
    fail(ErrorKind::usage, option, "found \"{}\"; expected today, none or a day such as 2024-07-26",
         date.substr(0, 40));
  return [day = static_cast<int64_t>(timegm(&parts))] { return std::optional<int64_t>(day); };
}

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
  Text out = jinja::render(*state_->root, std::move(variables), chat.poll);
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
