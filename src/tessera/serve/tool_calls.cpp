#include "tessera/serve/tool_calls.h"

#include <algorithm>

#include "tessera/base/error.h"

#include "tessera/serve/tags.h"

namespace tessera::serve {
namespace {

/// A call out of its JSON; nothing where it is none.
std::optional<ToolCall> call_of(const Json& json) {
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string()) return std::nullopt;
  for (const char* key : {"arguments", "parameters"}) {
    if (!json.contains(key)) continue;
    Json arguments = json[key];
    if (arguments.is_string()) {
      // some write the text of the object
      try {
        arguments = spec::parse_json(arguments.get_ref<const std::string&>(), "call");
      } catch (const Error&) {
        return std::nullopt;
      }
    }
    if (!arguments.is_object()) return std::nullopt;
    return ToolCall{json["name"].get<std::string>(),
                    arguments.dump(-1, ' ', false, Json::error_handler_t::replace)};
  }
  return std::nullopt;
}

/// The calls of a text that is one, or a list of them; none where anything of it is no call.
std::vector<ToolCall> calls_of(const std::string& text) {
  Json json;
  try {
    json = spec::parse_json(text, "call");
  } catch (const Error&) {
    return {};
  }
  std::vector<ToolCall> calls;
  for (const Json& one : json.is_array() ? json : Json::array({json})) {
    const auto call = call_of(one);
    if (!call) return {};
    calls.push_back(*call);
  }
  return calls;
}

}  // namespace

std::optional<ToolFormat> tool_format_of(std::string_view source) {
  const auto holds = [&](std::string_view part) { return source.find(part) != std::string::npos; };
  // other ways to write arguments within the same tags
  if (holds("<function=") || holds("<arg_key>")) return std::nullopt;
  if (holds("<tool_call>")) return ToolFormat{"<tool_call>", "</tool_call>", false};
  if (holds("[TOOL_CALLS]") && !holds("[ARGS]")) return ToolFormat{"[TOOL_CALLS]", "", true};
  if (holds("\"parameters\"") && (holds("ipython") || holds("python_tag")))
    return ToolFormat{"", "", false};
  return std::nullopt;
}

ToolSplitter::ToolSplitter(std::optional<ToolFormat> format) : format_(std::move(format)) {}

void ToolSplitter::give(std::vector<Piece>& out, std::string text) {
  // what stands between calls is the format's
  if (called_ && text.find_first_not_of(kSpace) == std::string::npos) return;
  if (!text.empty()) out.push_back({std::move(text)});
}

void ToolSplitter::close(std::vector<Piece>& out,
                         const std::string& inner,
                         const std::string& whole) {
  const std::vector<ToolCall> calls = calls_of(inner);
  if (calls.empty()) return give(out, std::exchange(space_, {}) + whole);
  called_ = true;
  for (const ToolCall& call : calls) out.push_back({"", call});
}

std::vector<ToolSplitter::Piece> ToolSplitter::push(std::string_view text, bool last) {
  std::vector<Piece> out;
  held_ += text;
  if (!format_) {
    give(out, std::exchange(held_, {}));
    return out;
  }
  const std::string& open = format_->open;
  if (open.empty() && !begun_) {
    // the whole answer is a call where it begins as one
    const size_t begin = held_.find_first_not_of(kSpace);
    if (begin == std::string::npos && !last) return out;
    begun_ = true;
    within_ = begin != std::string::npos && (held_[begin] == '{' || held_[begin] == '[');
  }
  for (;;) {
    if (within_) {
      const size_t end = format_->close.empty() ? std::string::npos : held_.find(format_->close);
      if (end == std::string::npos && !last) return out;
      const size_t stop = std::min(end, held_.size());
      const std::string inner = held_.substr(0, stop);
      held_.erase(0, end == std::string::npos ? held_.size() : stop + format_->close.size());
      within_ = false;
      // one that was not closed is no call but where the text closes it
      const bool closed = end != std::string::npos || format_->close.empty();
      const std::string whole = open + inner + (end == std::string::npos ? "" : format_->close);
      if (closed)
        close(out, inner, whole);
      else
        give(out, std::exchange(space_, {}) + whole);
      if (held_.empty()) return out;
      continue;
    }
    const size_t begin = open.empty() ? std::string::npos : held_.find(open);
    if (begin == std::string::npos) {
      const size_t kept = last || open.empty() ? 0 : beginning_of(open, held_);
      std::string certain = held_.substr(0, held_.size() - kept);
      held_.erase(0, certain.size());
      // spaces before a call are not said
      if (!last && !open.empty()) {
        const size_t end = certain.find_last_not_of(kSpace) + 1;  // 0 where there is none
        held_.insert(0, certain.substr(end));
        certain.resize(end);
      }
      give(out, std::move(certain));
      return out;
    }
    std::string before = held_.substr(0, begin);
    const size_t end = before.find_last_not_of(kSpace) + 1;
    held_.erase(0, begin + open.size());
    space_ = before.substr(end);
    before.resize(end);
    give(out, std::move(before));
    within_ = true;
  }
}

}  // namespace tessera::serve
