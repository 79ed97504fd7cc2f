#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/text/chat/reply.h"

namespace tessera::text {

using spec::Json;

namespace {

constexpr std::string_view kReplySpace = " \t\r\n";

bool is_reply_space(char c) {
  return kReplySpace.find(c) != std::string_view::npos;
}
std::string_view without_space(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(kReplySpace), text.size());
  return text.substr(begin, text.find_last_not_of(kReplySpace) + 1 - begin);
}

/// Length of the longest suffix of a text that is a prefix of a marker.
size_t held_back(std::string_view text, std::string_view marker) {
  for (size_t n = std::min(text.size(), marker.empty() ? 0 : marker.size() - 1); n > 0; --n)
    if (text.substr(text.size() - n) == marker.substr(0, n)) return n;
  return 0;
}

/// Parses calls after their opening marker.
class CallReader {
 public:
  enum class Found { whole, more, none };

  CallReader(const ToolCallFormat& format, const Json& tools, std::string_view text, bool last)
      : f_(format), tools_(tools), text_(text), last_(last) {}

  /// `opened`: the text before a name has been parsed.
  Found read(bool bare, bool opened) {
    using Form = ToolCallFormat::Form;
    const bool json = f_.form == Form::object || f_.form == Form::list;
    for (bool first = true;; first = false) {
      const Found one = json ? values(bare) : call(first && opened);
      if (one != Found::whole) return one;
      if (bare || without_space(f_.close).empty()) return Found::whole;
      const size_t at = at_;
      const Found closed = literal(f_.close);
      if (closed == Found::whole) return Found::whole;
      // the answer ends after its calls
      if (closed == Found::more) return last_ && rest_is_space(at) ? Found::whole : Found::more;
      at_ = at;
      if (json && peek_after_space() != '{') return Found::none;
      if (!json && without_space(f_.before).empty()) return Found::none;
    }
  }
  size_t read_bytes() const { return at_; }
  std::vector<ToolCall> calls;

 private:
  bool rest_is_space(size_t from) const { return without_space(text_.substr(from)).empty(); }
  void skip_space() {
    while (at_ < text_.size() && is_reply_space(text_[at_])) ++at_;
  }
  char peek_after_space() const {
    const size_t at = text_.find_first_not_of(kReplySpace, at_);
    return at == std::string_view::npos ? '\0' : text_[at];
  }

  /// Matches a literal of the format, with any white space around it.
  Found literal(std::string_view what) {
    skip_space();
    what = without_space(what);
    if (what.empty()) return Found::whole;
    const std::string_view here = text_.substr(at_, what.size());
    if (here == what) {
      at_ += what.size();
      return Found::whole;
    }
    return what.starts_with(here) ? Found::more : Found::none;
  }

  /// A JSON value from { or [ to its end.
  Found value(Json& out) {
    skip_space();
    if (at_ >= text_.size()) return Found::more;
    if (text_[at_] != '{' && text_[at_] != '[') return Found::none;
    int64_t depth = 0;
    bool quoted = false;
    for (size_t i = at_; i < text_.size(); ++i) {
      const char c = text_[i];
      if (quoted) {
        if (c == '\\') ++i;
        quoted = c != '"';
      } else if (c == '"') {
        quoted = true;
      } else if (c == '{' || c == '[') {
        if (++depth > spec::JsonLimits{}.max_depth) return Found::none;
      } else if (c == '}' || c == ']') {
        if (--depth > 0) continue;
        // a repeated key does not invalidate a call: the last value is used
        out = Json::parse(text_.substr(at_, i + 1 - at_), nullptr, false);
        if (out.is_discarded()) return Found::none;
        at_ = i + 1;
        return Found::whole;
      }
    }
    return Found::more;
  }

  static std::string written(const Json& value) {
    return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  /// A call, or a list of them.
  Found values(bool bare) {
    Json json;
    if (const Found found = value(json); found != Found::whole) return found;
    const Json list = json.is_array() ? json : Json::array({json});
    if (list.empty()) return Found::none;
    for (const Json& one : list) {
      if (!one.is_object() || !one.contains(f_.name_key) || !one[f_.name_key].is_string())
        return Found::none;
      ToolCall call;
      call.name = one[f_.name_key];
      // without a marker only calls of known functions count
      if (bare && (!one.contains(f_.arguments_key) || (!tools_.is_null() && !known(call.name))))
        return Found::none;
      Json arguments = one.contains(f_.arguments_key) ? one[f_.arguments_key] : Json::object();
      if (arguments.is_string()) {
        try {
          arguments = spec::parse_json(arguments.get_ref<const std::string&>(), "call");
        } catch (const Error&) {
          return Found::none;
        }
      }
      if (!arguments.is_object()) return Found::none;
      call.arguments = written(arguments);
      if (!f_.id_key.empty() && one.contains(f_.id_key))
        call.id = one[f_.id_key].is_string() ? one[f_.id_key].get<std::string>()
                                             : written(one[f_.id_key]);
      calls.push_back(std::move(call));
    }
    return Found::whole;
  }

  bool known(const std::string& name) const { return tool(name) != nullptr; }
  const Json* tool(const std::string& name) const {
    for (const Json& one : tools_)
      if (one.is_object() && one.contains("function") && one["function"].is_object() &&
          one["function"].value("name", Json()) == name)
        return &one["function"];
    return nullptr;
  }

  std::string name_run() {
    skip_space();
    const size_t begin = at_;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 ||
            std::string_view("_-.:").find(text_[at_]) != std::string_view::npos))
      ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  Found call(bool opened) {
    if (!opened)
      if (const Found found = literal(f_.before); found != Found::whole) return found;
    ToolCall call;
    call.name = name_run();
    if (at_ >= text_.size()) return Found::more;
    if (call.name.empty()) return Found::none;
    if (f_.numbered) {
      call.id = call.name;
      if (call.name.starts_with("functions.")) call.name.erase(0, 10);
      call.name.resize(std::min(call.name.rfind(':'), call.name.size()));
    }
    if (!f_.id_open.empty()) {
      const size_t at = at_;
      const Found found = literal(f_.id_open);
      if (found == Found::more) return found;
      if (found == Found::whole) {
        call.id = name_run();
        if (at_ >= text_.size()) return Found::more;
      } else {
        at_ = at;
      }
    }
    if (const Found found = literal(f_.between); found != Found::whole) return found;
    Json arguments = Json::object();
    const Found found =
        f_.form == ToolCallFormat::Form::named ? value(arguments) : tags(call.name, arguments);
    if (found != Found::whole) return found;
    if (!arguments.is_object()) return Found::none;
    if (const Found end = literal(f_.after); end != Found::whole) {
      const bool is_over = last_ && end == Found::more && rest_is_space(at_);
      if (!is_over) return end;
    }
    call.arguments = written(arguments);
    calls.push_back(std::move(call));
    return Found::whole;
  }

  Found tags(const std::string& name, Json& arguments) {
    for (;;) {
      const size_t at = at_;
      const Found open = literal(f_.key_open);
      if (open == Found::more) {
        // the end of the call may begin like an argument
        at_ = at;
        const std::string_view end =
            without_space(without_space(f_.after).empty() ? f_.close : f_.after);
        skip_space();
        const bool ended = !end.empty() && text_.substr(at_).starts_with(end);
        at_ = at;
        return ended ? Found::whole : Found::more;
      }
      if (open == Found::none) {
        at_ = at;
        return Found::whole;
      }
      const size_t key_end = text_.find(f_.key_close, at_);
      if (key_end == std::string_view::npos) return Found::more;
      const std::string key(without_space(text_.substr(at_, key_end - at_)));
      at_ = key_end + f_.key_close.size();
      std::optional<bool> text;
      if (f_.attributes) {
        const size_t end = text_.find('>', at_);
        if (end == std::string_view::npos) return Found::more;
        const std::string_view said = text_.substr(at_, end - at_);
        if (said.find("string=\"true\"") != std::string_view::npos) text = true;
        if (said.find("string=\"false\"") != std::string_view::npos) text = false;
        at_ = end + 1;
      } else if (const std::string_view value = without_space(f_.value_open); !value.empty()) {
        if (const Found found = literal(value); found != Found::whole) return found;
      }
      const std::string_view close = without_space(f_.value_close);
      const size_t end = text_.find(close, at_);
      if (end == std::string_view::npos) return Found::more;
      std::string_view value = text_.substr(at_, end - at_);
      // a line end on either side belongs to the tags
      if (value.starts_with('\n')) value.remove_prefix(1);
      if (value.ends_with('\n')) value.remove_suffix(1);
      arguments[key] = typed(name, key, std::string(value), text);
      at_ = end + close.size();
    }
  }

  /// A value of the type in its schema; a string by default.
  Json typed(const std::string& name,
             const std::string& key,
             const std::string& value,
             std::optional<bool> text) const {
    const Json* function = tool(name);
    Json schema;
    if (function != nullptr && function->value("parameters", Json()).is_object()) {
      const Json properties = (*function)["parameters"].value("properties", Json::object());
      if (properties.is_object() && properties.contains(key)) schema = properties[key];
    }
    const Json type = schema.is_object() ? schema.value("type", Json()) : Json();
    if (!text && type == "string") text = true;
    if (text.value_or(false)) return value;
    try {
      return spec::parse_json(value, "argument");
    } catch (const Error&) {
      return value;
    }
  }

  const ToolCallFormat& f_;
  const Json& tools_;
  std::string_view text_;
  bool last_;
  size_t at_ = 0;
};

}  // namespace

ReplyParser::ReplyParser(Options options) : options_(std::move(options)) {
  if (options_.reasoning && options_.thinking) {
    place_ = Place::reasoning;
    fresh_ = true;
  } else {
    fresh_ = false;
  }
}

Reply ReplyParser::push(std::string_view text) {
  waiting_ += text;
  Reply out;
  read(out, false);
  return out;
}

Reply ReplyParser::finish() {
  Reply out;
  read(out, true);
  if (!fresh_) (place_ == Place::reasoning ? out.reasoning : out.content) += space_;
  space_.clear();
  return out;
}

void ReplyParser::read(Reply& out, bool last) {
  for (bool goes_on = true; goes_on;) {
    switch (place_) {
      case Place::reasoning:
        goes_on = read_thoughts(out, last);
        break;
      case Place::content:
        goes_on = read_content(out, last);
        break;
      case Place::call:
        goes_on = read_call(out, last);
        break;
    }
  }
}

/// White space is buffered until more text follows.
void ReplyParser::say(std::string& into, std::string_view text) {
  if (fresh_) {
    text.remove_prefix(std::min(text.find_first_not_of(kReplySpace), text.size()));
    if (text.empty()) return;
    fresh_ = false;
  }
  const size_t end = text.find_last_not_of(kReplySpace) + 1;
  if (end == 0) {
    space_ += text;
    return;
  }
  into += space_;
  into += text.substr(0, end);
  space_ = text.substr(end);
  if (place_ != Place::reasoning) has_content_ = true;
}

bool ReplyParser::read_thoughts(Reply& out, bool last) {
  const std::string& close = options_.reasoning->close;
  const size_t at = waiting_.find(close);
  if (at == std::string::npos) {
    const size_t n = waiting_.size() - (last ? 0 : held_back(waiting_, close));
    say(out.reasoning, std::string_view(waiting_).substr(0, n));
    waiting_.erase(0, n);
    return false;
  }
  say(out.reasoning, std::string_view(waiting_).substr(0, at));
  waiting_.erase(0, at + close.size());
  place_ = Place::content;
  space_.clear();
  fresh_ = true;
  return true;
}

bool ReplyParser::read_content(Reply& out, bool last) {
  const ToolCallFormat* format = options_.format;
  std::string_view marker, reasoning;
  if (format != nullptr)
    marker = without_space(format->open.empty() ? format->before : format->open);
  if (options_.reasoning && !has_content_ && !called_) reasoning = options_.reasoning->open;
  const auto place_of = [&](std::string_view what) {
    return what.empty() ? std::string::npos : waiting_.find(what);
  };
  const size_t call = place_of(marker), thought = place_of(reasoning);
  // a call without a marker
  if (format != nullptr && format->bare && !has_content_) {
    size_t first = waiting_.find_first_not_of(kReplySpace);
    if (called_ && first != std::string::npos && waiting_[first] == ';')
      first = waiting_.find_first_not_of(kReplySpace, first + 1);
    if (first == std::string::npos && !last) return false;
    if (first != std::string::npos && waiting_[first] == '{') {
      waiting_.erase(0, first);
      call_open_.clear();
      begin_call();
      return true;
    }
  }
  const size_t at = std::min(call, thought);
  if (at == std::string::npos) {
    size_t held = 0;
    if (!last) held = std::max(held_back(waiting_, marker), held_back(waiting_, reasoning));
    const size_t n = waiting_.size() - held;
    say(out.content, std::string_view(waiting_).substr(0, n));
    waiting_.erase(0, n);
    return false;
  }
  say(out.content, std::string_view(waiting_).substr(0, at));
  if (thought < call) {
    // after other content it is content
    if (has_content_) {
      say(out.content, reasoning);
    } else {
      place_ = Place::reasoning;
      fresh_ = true;
      space_.clear();
    }
    waiting_.erase(0, at + reasoning.size());
    return true;
  }
  call_open_ = marker;
  waiting_.erase(0, at + marker.size());
  begin_call();
  return true;
}

void ReplyParser::begin_call() {
  place_ = Place::call;
  tried_ = scanned_ = 0;
  depth_ = 0;
  quoted_ = false;
}

/// True if a long call may end in the text since the last try. Each piece is scanned once, whereas
/// a try parses the whole call again.
bool ReplyParser::may_be_whole() {
  const ToolCallFormat& f = *options_.format;
  std::string_view end = without_space(f.close);
  if (end.empty()) end = without_space(f.after);
  if (!end.empty())
    return waiting_.find(end, tried_ - std::min(tried_, end.size() - 1)) != std::string::npos;
  for (; scanned_ < waiting_.size(); ++scanned_) {
    const char c = waiting_[scanned_];
    if (quoted_ && c == '\\') {
      if (scanned_ + 1 == waiting_.size()) break;  // the escaped character has not arrived
      ++scanned_;
    } else if (c == '"') {
      quoted_ = !quoted_;
    } else if (!quoted_) {
      depth_ += (c == '{' || c == '[') - (c == '}' || c == ']');
    }
  }
  return depth_ <= 0;
}

bool ReplyParser::read_call(Reply& out, bool last) {
  // calls end with one of these
  if (!last && waiting_.find_first_of("}])>", tried_) == std::string::npos) {
    tried_ = waiting_.size();
    return false;
  }
  constexpr size_t kShort = size_t{16} << 10;  // bytes; shorter calls are parsed again at every try
  if (!last && waiting_.size() > kShort && !may_be_whole()) {
    tried_ = waiting_.size();
    return false;
  }
  tried_ = waiting_.size();
  const bool bare = call_open_.empty(), opened = options_.format->open.empty();
  CallReader reader(*options_.format, options_.tools, waiting_, last);
  const CallReader::Found found = reader.read(bare, opened);
  if (found == CallReader::Found::more && !last) return false;
  place_ = Place::content;
  if (found == CallReader::Found::whole) {
    for (ToolCall& call : reader.calls) out.calls.push_back(std::move(call));
    waiting_.erase(0, reader.read_bytes());
    called_ = true;
    fresh_ = true;
    space_.clear();
    return true;
  }
  if (bare) {
    say(out.content, "{");
    waiting_.erase(0, 1);
  } else {
    say(out.content, call_open_);
  }
  return true;
}

Reply read_reply(std::string_view text, const ReplyParser::Options& options) {
  ReplyParser reader(options);
  Reply out = reader.push(text);
  const Reply rest = reader.finish();
  out.reasoning += rest.reasoning;
  out.content += rest.content;
  out.calls.insert(out.calls.end(), rest.calls.begin(), rest.calls.end());
  return out;
}

}  // namespace tessera::text
