#include "tessera/serve/body_values.h"

#include <algorithm>
#include <set>

#include "tessera/base/error.h"

namespace tessera::serve {

void SearchBody::check_search() const {
  // the defaults, which clients send along, change nothing
  const auto alone = [&](bool given, const std::string& name) {
    if (given && !searches())
      refuse(name, name + " without beam search; expected beams of 2 or more");
  };
  alone(length_penalty.value_or(1) != 1, "length_penalty");
  alone(early_stopping && *early_stopping != convert::EarlyStopping::heuristic, "early_stopping");
}

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

std::string content_of(const Json& value, const std::string& name, const UnknownMembers& unknown) {
  if (value.is_string()) return text_of(value, name, kMostText);
  if (!value.is_array())
    refuse(name, name + " is " + std::string(spec::kind_of(value)) +
                     "; expected a string, or a list of text parts");
  // "refusal" is a part of an assistant's content that has no "text"
  const std::vector<std::string> known = {"type",        "text",          "refusal",
                                          "annotations", "cache_control", "id"};
  std::string text;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string which = fmt::format("{}[{}]", name, i);
    const Json& part = value[i];
    if (part.is_string()) {
      text += text_of(part, which, kMostText);
      continue;
    }
    const Json type = part.is_object() ? part.value("type", Json("text")) : Json();
    if (!type.is_string())
      refuse(which, which + " is no part; expected {\"type\": \"text\", \"text\": ...}");
    const bool refusal = type == "refusal";
    // "output_text", "input_text": those of the Responses API
    if (type != "text" && type != "input_text" && type != "output_text" && !refusal)
      refuse(which, which + " is no text; this server reads text alone", "unsupported_content");
    std::optional<std::string> own;
    read_members(part, which, known, unknown,
                 [&](const std::string& key, const Json& member, const std::string& where) {
                   if (key == (refusal ? "refusal" : "text"))
                     own = text_of(member, where, kMostText);
                 });
    if (!own) refuse(which, fmt::format("{} has no \"{}\"", which, refusal ? "refusal" : "text"));
    text += *own;
  }
  return text;
}

namespace {

/// What a call gives its function. Models write arguments that are no JSON object; a history that
/// holds such a call is still a history, so that its text stays as it was said. Clients send
/// nothing at all for a function without parameters.
Json arguments_of(const Json& value, const std::string& name) {
  if (value.is_null()) return Json::object();
  if (value.is_object()) return value;
  if (!value.is_string())
    refuse(name, fmt::format("{} is {}; expected a string that holds a JSON object, or the object",
                             name, spec::kind_of(value)));
  const std::string text = text_of(value, name, kMostText);
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return Json::object();
  try {
    Json parsed = spec::parse_json(text, name);
    if (parsed.is_null()) return Json::object();
    if (parsed.is_object()) return parsed;
  } catch (const Error&) {
  }
  return value;
}

/// A call of a function as templates want it.
Json tool_call_of(const Json& call, const std::string& name, const UnknownMembers& unknown) {
  if (!call.is_object() || call.value("type", Json("function")) != "function" ||
      !call.contains("function") || !call["function"].is_object())
    refuse(name, name + " is no call; expected {\"type\": \"function\", \"function\": ...}");
  Json out = {{"type", "function"}, {"function", {{"arguments", Json::object()}}}};
  // "index" comes from the pieces of a stream
  read_members(call, name, {"type", "function", "id", "index", "extra_content", "cache_control"},
               unknown, [&](const std::string& key, const Json& value, const std::string& where) {
                 if (key == "id") out["id"] = text_of(value, where, 1024);
               });
  Json& function = out["function"];
  read_members(call["function"], name + ".function", {"name", "arguments", "parsed_arguments"},
               unknown, [&](const std::string& key, const Json& value, const std::string& where) {
                 if (key == "name") function["name"] = text_of(value, where, kMostName);
                 if (key == "arguments") function["arguments"] = arguments_of(value, where);
               });
  if (!function.contains("name")) refuse(name, name + ".function has no name");
  return out;
}

/// Null where there is none.
Json tool_calls_of(const Json& value, const std::string& name, const UnknownMembers& unknown) {
  if (!value.is_array() || value.size() > kMostTools)
    refuse(name, fmt::format("{} is no list of at most {} calls", name, kMostTools));
  if (value.empty()) return nullptr;
  Json calls = Json::array();
  for (size_t i = 0; i < value.size(); ++i)
    calls.push_back(tool_call_of(value[i], fmt::format("{}[{}]", name, i), unknown));
  return calls;
}

/// Members that clients keep with a message and that templates do not read.
const std::vector<std::string> kHistoryMembers = {"refusal",
                                                  "annotations",
                                                  "cache_control",
                                                  "id",
                                                  "object",
                                                  "created",
                                                  "reasoning_details",
                                                  "parsed",
                                                  "provider_specific_fields",
                                                  "thinking_blocks"};
const std::vector<std::string> kMessageMembers = {"role",       "content",      "name",
                                                  "tool_calls", "tool_call_id", "reasoning_content",
                                                  "reasoning",  "thinking"};
const std::vector<std::string> kUnsupportedMembers = {"audio", "function_call", "images"};

std::vector<std::string> message_members() {
  std::vector<std::string> all = kMessageMembers;
  all.insert(all.end(), kHistoryMembers.begin(), kHistoryMembers.end());
  all.insert(all.end(), kUnsupportedMembers.begin(), kUnsupportedMembers.end());
  return all;
}

std::string role_of(const Json& message, const std::string& name) {
  static const std::set<std::string> kRoles = {"system", "developer", "user", "assistant", "tool"};
  if (!message.is_object())
    refuse(name, name + " is " + std::string(spec::kind_of(message)) + "; expected an object");
  if (!message.contains("role")) refuse(name + ".role", name + " has no role", "missing_parameter");
  std::string role = text_of(message["role"], name + ".role", 64);
  if (!kRoles.contains(role))
    refuse(name + ".role",
           name + ".role is unknown; expected system, developer, user, assistant or tool");
  return role;
}

Json message_of(const Json& message, const std::string& name, const UnknownMembers& unknown) {
  static const std::vector<std::string> kMembers = message_members();
  const std::string role = role_of(message, name);
  const bool assistant = role == "assistant";
  Json out = {{"role", role}};
  read_members(message, name, kMembers, unknown,
               [&](const std::string& key, const Json& value, const std::string& where) {
                 if (key == "content")
                   out["content"] = content_of(value, where, unknown);
                 else if (key == "name" || key == "tool_call_id")
                   out[key] = text_of(value, where, 1024);
                 else if ((key == "reasoning_content" || key == "reasoning" || key == "thinking") &&
                          assistant)
                   out["reasoning_content"] = text_of(value, where, kMostText);
                 else if (key == "tool_calls" && assistant)
                   out["tool_calls"] = tool_calls_of(value, where, unknown);
                 else if (key == "tool_calls" && !value.empty())
                   refuse(where, where + ": only the assistant calls functions");
                 else if (std::find(kUnsupportedMembers.begin(), kUnsupportedMembers.end(), key) !=
                              kUnsupportedMembers.end() &&
                          !(value.is_array() && value.empty()))
                   refuse(where, where + " is not supported", "unsupported_content");
               });
  if (out.contains("tool_calls") && out["tool_calls"].is_null()) out.erase("tool_calls");
  if (out.contains("content")) return out;
  // null is the content of a message that only calls, thinks or refuses, and of a function that
  // returns nothing; elsewhere it is a slip
  const bool allow_no_answer = out.contains("tool_calls") || out.contains("reasoning_content");
  const bool may_be_null = assistant || role == "tool";
  if (!allow_no_answer && !(may_be_null && message.contains("content")))
    refuse(name + ".content", name + " has no content", "missing_parameter");
  out["content"] = message.value("refusal", Json()).is_string()
                       ? message["refusal"].get<std::string>()
                       : std::string();
  return out;
}

}  // namespace

Json messages_of(const Json& value, const std::string& name, const UnknownMembers& unknown) {
  if (!value.is_array() || value.empty() || value.size() > kMostMessages)
    refuse(name, fmt::format("{} is no list of 1 to {} messages", name, kMostMessages));
  Json messages = Json::array();
  for (size_t i = 0; i < value.size(); ++i)
    messages.push_back(message_of(value[i], fmt::format("{}[{}]", name, i), unknown));
  return messages;
}

}  // namespace tessera::serve
