#include "tessera/serve/response_format.h"

#include <algorithm>
#include <cmath>

namespace tessera::serve {
namespace {

/// JSON has no infinity; clients know this number for it.
double finite(double log_p) {
  return std::isfinite(log_p) ? log_p : -9999.0;
}

/// `index`: of the first, in events, which number them.
Json json_of(const std::vector<text::ToolCall>& calls,
             const std::string& id,
             std::optional<int64_t> index) {
  Json out = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    Json call = Json::object();
    const int64_t number = index.value_or(0) + static_cast<int64_t>(i);
    if (index) call["index"] = number;
    call["id"] = "call_" + id.substr(id.find('-') + 1) + "_" + std::to_string(number);
    call["type"] = "function";
    call["function"] = {{"name", calls[i].name}, {"arguments", calls[i].arguments}};
    out.push_back(std::move(call));
  }
  return out;
}

Json bytes_of(const std::string& text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

Json logprob_of(const std::string& bytes, double log_p) {
  return {{"token", bytes}, {"logprob", finite(log_p)}, {"bytes", bytes_of(bytes)}};
}

}  // namespace

Json chat_logprobs(const std::vector<LogprobJson>& tokens) {
  Json content = Json::array();
  for (const LogprobJson& token : tokens) {
    Json entry = logprob_of(token.bytes, token.log_p);
    entry["top_logprobs"] = Json::array();
    for (const auto& other : token.top)
      entry["top_logprobs"].push_back(logprob_of(other.bytes, other.log_p));
    content.push_back(std::move(entry));
  }
  return {{"content", content}, {"refusal", nullptr}};
}

Json completion_logprobs(const std::vector<LogprobJson>& tokens, int64_t offset) {
  Json out = {{"tokens", Json::array()},
              {"token_logprobs", Json::array()},
              {"top_logprobs", Json::array()},
              {"text_offset", Json::array()}};
  for (const LogprobJson& token : tokens) {
    out["tokens"].push_back(token.bytes);
    out["text_offset"].push_back(offset);
    offset += characters(token.bytes);
    if (token.unknown) {
      out["token_logprobs"].push_back(nullptr);
      out["top_logprobs"].push_back(nullptr);
      continue;
    }
    out["token_logprobs"].push_back(finite(token.log_p));
    Json top = Json::object();
    for (const auto& other : token.top)
      if (!top.contains(other.bytes)) top[other.bytes] = finite(other.log_p);
    out["top_logprobs"].push_back(std::move(top));
  }
  return out;
}

int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

Json to_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}}};
}

Json Frames::head(bool streamed) const {
  return {{"id", id},
          {"object", !chat      ? "text_completion"
                     : streamed ? "chat.completion.chunk"
                                : "chat.completion"},
          {"created", created},
          {"model", model},
          {"system_fingerprint", fingerprint}};
}

Json Frames::whole(const std::vector<Choice>& choices, const Usage& used) const {
  Json out = head(false);
  out["seed"] = seed;
  out["choices"] = Json::array();
  for (const Choice& choice : choices) {
    Json entry = {{"index", choice.index}};
    if (chat) {
      entry["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
      if (!choice.reasoning.empty()) entry["message"]["reasoning_content"] = choice.reasoning;
      if (!choice.calls.empty()) {
        if (choice.text.empty()) entry["message"]["content"] = nullptr;
        entry["message"]["tool_calls"] =
            json_of(choice.calls, id + std::to_string(choice.index), std::nullopt);
      }
    } else {
      entry["text"] = choice.text;
    }
    entry["logprobs"] = !choice.logprobs ? Json()
                        : chat           ? chat_logprobs(*choice.logprobs)
                                         : completion_logprobs(*choice.logprobs, choice.offset);
    entry["finish_reason"] = choice.finish_reason;
    entry["stop_reason"] = choice.stop_reason;
    if (!choice.limit.empty()) entry["limit"] = choice.limit;
    if (choice.token_ids) entry["token_ids"] = *choice.token_ids;
    if (!choice.sources.is_null()) entry["sources"] = choice.sources;
    out["choices"].push_back(std::move(entry));
  }
  out["usage"] = to_json(used);
  return out;
}

Json Frames::role(int64_t index) const {
  Json out = head(true);
  out["seed"] = seed;
  out["choices"] = Json::array({{{"index", index},
                                 {"delta", {{"role", "assistant"}, {"content", ""}}},
                                 {"logprobs", nullptr},
                                 {"finish_reason", nullptr}}});
  if (usage) out["usage"] = nullptr;
  return out;
}

Json Frames::chunk(const Choice& piece) const {
  Json out = head(true);
  Json entry = {{"index", piece.index}};
  if (chat) {
    entry["delta"] = Json::object();
    if (!piece.reasoning.empty()) entry["delta"]["reasoning_content"] = piece.reasoning;
    if (!piece.text.empty()) entry["delta"]["content"] = piece.text;
    if (!piece.calls.empty())
      entry["delta"]["tool_calls"] =
          json_of(piece.calls, id + std::to_string(piece.index), piece.first_call);
  } else {
    out["seed"] = seed;
    entry["text"] = piece.text;
  }
  entry["logprobs"] = !piece.logprobs || piece.logprobs->empty() ? Json()
                      : chat                                     ? chat_logprobs(*piece.logprobs)
                             : completion_logprobs(*piece.logprobs, piece.offset);
  entry["finish_reason"] = piece.finish_reason.empty() ? Json() : Json(piece.finish_reason);
  if (!piece.finish_reason.empty()) entry["stop_reason"] = piece.stop_reason;
  if (!piece.limit.empty()) entry["limit"] = piece.limit;
  if (piece.token_ids) entry["token_ids"] = *piece.token_ids;
  if (!piece.sources.is_null()) entry["sources"] = piece.sources;
  out["choices"] = Json::array({std::move(entry)});
  if (usage) out["usage"] = nullptr;
  return out;
}

Json Frames::usage_event(const Usage& used) const {
  Json out = head(true);
  out["choices"] = Json::array();
  out["usage"] = to_json(used);
  return out;
}

}  // namespace tessera::serve
