#include "tessera/text/chat/tools_in_prompt.h"

#include <utility>

#include <fmt/format.h>

namespace tessera::text {
namespace {

std::string text_of(const Json& message) {
  const Json content = message.value("content", Json());
  return content.is_string() ? content.get<std::string>() : std::string();
}

std::string description_of(const Json& tools) {
  std::string out =
      "You may call functions to help with what is asked. Each is described by a line of JSON:\n";
  for (const Json& tool : tools) out += tool.at("function").dump() + "\n";
  return out +
         "To call one, write its name and its arguments, which are of its parameters, like this, "
         "once for each call:\n"
         "<tool_call>\n{\"name\": \"NAME\", \"arguments\": {\"PARAMETER\": "
         "\"VALUE\"}}\n</tool_call>\n"
         "What a function gives back then follows between <tool_response> and </tool_response>. "
         "Where no function helps, answer yourself.";
}

std::string written(const Json& call) {
  const Json& function = call.at("function");
  // in the order in which they are asked for
  return fmt::format("<tool_call>\n{{\"name\": {}, \"arguments\": {}}}\n</tool_call>",
                     function.at("name").dump(),
                     function.value("arguments", Json::object()).dump());
}

}  // namespace

Json tools_in_prompt(const Json& messages, const Json& tools, bool system) {
  Json out = Json::array();
  bool results = false;  // the last one is what functions gave back
  for (const Json& message : messages) {
    const std::string role = message.value("role", "");
    if (role == "tool") {
      const std::string text = "<tool_response>\n" + text_of(message) + "\n</tool_response>";
      if (std::exchange(results, true))
        out.back()["content"] = text_of(out.back()) + "\n" + text;
      else
        out.push_back({{"role", "user"}, {"content", text}});
      continue;
    }
    results = false;
    Json one = message;
    if (const Json calls = message.value("tool_calls", Json()); calls.is_array()) {
      std::string text = text_of(message);
      for (const Json& call : calls) text += (text.empty() ? "" : "\n") + written(call);
      one["content"] = text;
      one.erase("tool_calls");
    }
    out.push_back(std::move(one));
  }
  if (tools.is_null()) return out;
  const std::string told = description_of(tools);
  const auto before = [&](Json& message) { message["content"] = told + "\n\n" + text_of(message); };
  if (system) {
    const std::string first = out.empty() ? "" : out[0].value("role", "");
    if (first == "system" || first == "developer")
      out[0]["content"] = text_of(out[0]) + "\n\n" + told;
    else
      out.insert(out.begin(), Json{{"role", "system"}, {"content", told}});
    return out;
  }
  for (Json& message : out)
    if (message.value("role", "") == "user") {
      before(message);
      return out;
    }
  out.insert(out.begin(), Json{{"role", "user"}, {"content", told}});
  return out;
}

}  // namespace tessera::text
