#include "tessera/serve/body_values.h"

#include <set>

#include "tessera/base/error.h"

namespace tessera::serve {

std::vector<std::string> texts_of(const Json& value, const std::string& name, size_t most) {
  if (value.is_string()) return {text_of(value, name, kMostText)};
  if (!value.is_array() || value.empty())
    refuse(name, name + " is " + std::string(spec::kind_of(value)) +
                     "; expected a string, or a list of them");
  if (value.size() > most)
    refuse(name, fmt::format("{} has {} texts; expected at most {}", name, value.size(), most));
  std::vector<std::string> texts;
  for (size_t i = 0; i < value.size(); ++i)
    texts.push_back(text_of(value[i], fmt::format("{}[{}]", name, i), kMostText));
  return texts;
}

std::vector<Prompt> prompts_of(const Json& value, const std::string& name, size_t most) {
  const auto one = [&](const Json& item, const std::string& which) {
    Prompt prompt;
    if (item.is_string())
      prompt.text = text_of(item, which, kMostText);
    else if (item.is_array())
      prompt.ids = ids_of(item, which, kMostText);
    else
      refuse(which, which + " is " + std::string(spec::kind_of(item)) +
                        "; expected a string, or a list of token ids");
    return prompt;
  };
  if (value.is_string() || (value.is_array() && !value.empty() && value[0].is_number()))
    return {one(value, name)};
  if (!value.is_array() || value.empty())
    refuse(name, name + " is " + (value.is_array() ? "empty" : std::string(spec::kind_of(value))) +
                     "; expected a string, a list of token ids, or a list of either");
  if (value.size() > most)
    refuse(name, fmt::format("{} has {} entries; expected at most {}", name, value.size(), most));
  std::vector<Prompt> prompts;
  for (size_t i = 0; i < value.size(); ++i)
    prompts.push_back(one(value[i], fmt::format("{}[{}]", name, i)));
  return prompts;
}

Json content_of(const Json& value, const std::string& name, bool may_lack) {
  if (value.is_string()) return value;
  if (value.is_null() && may_lack) return value;
  if (!value.is_array())
    refuse(name, name + " is " + std::string(spec::kind_of(value)) +
                     "; expected a string, or a list of text parts");
  std::string text;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string which = fmt::format("{}[{}]", name, i);
    const Json& part = value[i];
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string())
      refuse(which, which + " is no part; expected {\"type\": \"text\", \"text\": ...}");
    if (part["type"] != "text")
      refuse(which, which + " is no text; this server reads text alone", "unsupported_content");
    for (const auto& [key, ignored] : part.items())
      if (key != "type" && key != "text") refuse_unknown(key, {"type", "text"});
    if (!part.contains("text")) refuse(which, which + " has no \"text\"");
    text += text_of(part["text"], which + ".text", kMostText);
  }
  return text;
}

namespace {

/// Calls of tools as templates want them: arguments as an object.
Json tool_calls_of(const Json& value, const std::string& name) {
  if (!value.is_array() || value.empty() || value.size() > kMostTools)
    refuse(name, name + " is no list of 1 to 128 calls");
  Json calls = Json::array();
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string which = fmt::format("{}[{}]", name, i);
    const Json& call = value[i];
    if (!call.is_object() || call.value("type", Json("function")) != "function" ||
        !call.contains("function") || !call["function"].is_object())
      refuse(which, which + " is no call of a function");
    const Json& function = call["function"];
    if (!function.contains("name") || !function.contains("arguments"))
      refuse(which, which + ".function lacks name or arguments");
    Json arguments = function["arguments"];
    if (arguments.is_string()) {
      try {
        arguments = spec::parse_json(arguments.get_ref<const std::string&>(), which);
      } catch (const Error&) {
        refuse(which + ".function.arguments", which + ".function.arguments is no JSON");
      }
    }
    if (!arguments.is_object())
      refuse(which + ".function.arguments", which + ".function.arguments is no object");
    Json out = {{"type", "function"},
                {"function",
                 {{"name", text_of(function["name"], which + ".function.name", 64)},
                  {"arguments", arguments}}}};
    if (call.contains("id")) out["id"] = text_of(call["id"], which + ".id", 256);
    calls.push_back(out);
  }
  return calls;
}

Json message_of(const Json& message, const std::string& name) {
  static const std::set<std::string> kRoles = {"system", "developer", "user", "assistant", "tool"};
  if (!message.is_object())
    refuse(name, name + " is " + std::string(spec::kind_of(message)) + "; expected an object");
  if (!message.contains("role")) refuse(name + ".role", name + " has no role", "missing_parameter");
  const std::string role = text_of(message["role"], name + ".role", 64);
  if (!kRoles.contains(role))
    refuse(name + ".role",
           name + ".role is unknown; expected system, developer, user, assistant or tool");
  Json out = {{"role", role}};
  const bool calls = message.contains("tool_calls") && !message["tool_calls"].is_null();
  for (const auto& [key, value] : message.items()) {
    const std::string which = name + "." + key.substr(0, 60);
    if (key == "role" || value.is_null()) continue;
    if (key == "content")
      out["content"] = content_of(value, which, calls);
    else if (key == "name" || key == "tool_call_id")
      out[key] = text_of(value, which, 256);
    else if (key == "reasoning_content" && role == "assistant")
      out[key] = text_of(value, which, kMostText);
    else if (key == "tool_calls" && role == "assistant")
      out[key] = tool_calls_of(value, which);
    else if (key != "refusal" && key != "annotations" && key != "audio" && key != "function_call")
      refuse_unknown(
          key, {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"});
    else if (key == "audio" || key == "function_call")
      refuse(which, which + " is not supported", "unsupported_content");
  }
  if (!out.contains("content")) {
    if (!calls) refuse(name + ".content", name + " has no content", "missing_parameter");
    out["content"] = "";
  }
  return out;
}

}  // namespace

Json messages_of(const Json& value, const std::string& name) {
  if (!value.is_array() || value.empty() || value.size() > kMostMessages)
    refuse(name, fmt::format("{} is no list of 1 to {} messages", name, kMostMessages));
  Json messages = Json::array();
  for (size_t i = 0; i < value.size(); ++i)
    messages.push_back(message_of(value[i], fmt::format("{}[{}]", name, i)));
  return messages;
}

}  // namespace tessera::serve
