// The table of reply formats, how one is found, and the grammars of calls.
#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/text/chat/reply.h"
#include "tessera/text/grammar/json_schema.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/text/tokenizer/vocabularies.h"

namespace tessera::text {

using spec::Json;

extern const char* const kToolCallFormatsJson;  // a source that the build makes

namespace {

ToolCallFormat tool_call_format_from(const std::string& name, const Json& json) {
  ToolCallFormat f;
  f.name = name;
  for (const Json& text : json.at("evidence")) f.evidence.push_back(text);
  const auto part = [&](const char* key, size_t i) {
    return json.contains(key) ? json.at(key).at(i).get<std::string>() : std::string();
  };
  f.open = part("section", 0);
  f.close = part("section", 1);
  f.bare = json.value("bare", false);
  const std::string form = json.at("form");
  f.form = form == "object"  ? ToolCallFormat::Form::object
           : form == "list"  ? ToolCallFormat::Form::list
           : form == "named" ? ToolCallFormat::Form::named
                             : ToolCallFormat::Form::tags;
  f.before = part("call", 0);
  f.between = part("call", 1);
  f.behind = part("call", 2);
  f.key_open = part("key", 0);
  f.key_close = part("key", 1);
  f.value_open = part("value", 0);
  f.value_close = part("value", 1);
  f.attributes = json.value("attributes", false);
  f.numbered = json.value("numbered", false);
  f.name_key = json.value("name_key", "name");
  f.arguments_key = json.value("arguments_key", "arguments");
  f.id_key = json.value("id_key", "");
  f.id_open = json.value("id_open", "");
  f.write_before = part("write", 0);
  f.write_between = part("write", 1);
  f.write_behind = part("write", 2);
  return f;
}

}  // namespace

const std::vector<ToolCallFormat>& tool_call_formats() {
  static const std::vector<ToolCallFormat> all = [] {
    std::vector<ToolCallFormat> formats;
    const Json table = spec::parse_json(kToolCallFormatsJson, "tool_call_formats.json");
    for (const auto& [name, json] : table.items()) formats.push_back(tool_call_format_from(name, json));
    return formats;
  }();
  return all;
}

const ToolCallFormat* tool_call_format_named(std::string_view name) {
  for (const ToolCallFormat& format : tool_call_formats())
    if (format.name == name) return &format;
  return nullptr;
}

const ToolCallFormat* tool_call_format_of(std::string_view source) {
  const ToolCallFormat* best = nullptr;
  bool tie = false;
  for (const ToolCallFormat& format : tool_call_formats()) {
    const bool all = std::all_of(
        format.evidence.begin(), format.evidence.end(),
        [&](const std::string& text) { return source.find(text) != std::string_view::npos; });
    if (!all || (best != nullptr && format.evidence.size() < best->evidence.size())) continue;
    tie = best != nullptr && format.evidence.size() == best->evidence.size();
    best = &format;
  }
  return tie ? nullptr : best;
}

std::optional<ReasoningTags> thought_tags_of(std::string_view source) {
  for (const auto& [open, close] : known_tokens().reasoning)
    if (source.find(close) != std::string_view::npos) return ReasoningTags{open, close};
  return std::nullopt;
}

void check_tools(const Json& tools, const std::string& where) {
  constexpr size_t kMostTools = 128, kMostName = 64;
  if (!tools.is_array() || tools.size() > kMostTools)
    fail(ErrorKind::input, where, "tools: found {} of {}; expected an array of at most {}",
         spec::kind_of(tools), tools.size(), kMostTools);
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json& tool = tools[i];
    const auto bad = [&](const char* what) {
      fail(ErrorKind::input, where,
           "tools[{}]: {}; expected {{\"type\": \"function\", \"function\": {{\"name\": ..., "
           "\"parameters\": ...}}}}",
           i, what);
    };
    if (!tool.is_object() || tool.value("type", Json("function")) != "function" ||
        !tool.contains("function") || !tool["function"].is_object())
      bad("found no function");
    const Json& function = tool["function"];
    if (!function.contains("name") || !function["name"].is_string()) bad("found no name");
    const std::string& name = function["name"].get_ref<const std::string&>();
    if (name.empty() || name.size() > kMostName ||
        !std::all_of(name.begin(), name.end(), [](char c) {
          return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
        }))
      bad("a name is 1 to 64 letters, digits, _ and -");
    for (size_t j = 0; j < i; ++j)
      if (tools[j]["function"]["name"] == name) bad("a name that another tool has");
    if (function.contains("parameters") && !function["parameters"].is_object() &&
        !function["parameters"].is_null())
      bad("found parameters that are no schema");
  }
}

namespace {

bool is_special(const Tokenizer* tokenizer, const std::string& text) {
  if (tokenizer == nullptr) return false;
  const auto id = tokenizer->id(text);
  return id && tokenizer->is_special(*id);
}
int32_t some_space(Grammar& g) {
  return g.repeat(g.chars({{' ', ' '}, {'\n', '\n'}}), 0, 4);
}
int32_t any_text(Grammar& g) {
  return g.repeat(g.chars({{0, 0x10FFFF}}), 0, Grammar::kAnyTimes);
}

}  // namespace

int32_t behind_thoughts(Grammar& g,
                        int32_t body,
                        const ReasoningTags& tags,
                        bool thinking,
                        const Tokenizer* tokenizer) {
  const auto tag = [&](const std::string& text) {
    return is_special(tokenizer, text) ? g.token({*tokenizer->id(text)}, {}) : g.literal(text);
  };
  const int32_t end = is_special(tokenizer, tags.close) ? g.sequence({any_text(g), tag(tags.close)})
                                                        : g.up_to(tags.close);
  const int32_t rest = g.sequence({end, some_space(g), body});
  return thinking ? rest : g.choice({body, g.sequence({tag(tags.open), rest})});
}

namespace {

class CallGrammar {
 public:
  CallGrammar(const CallGrammarOptions& options,
              const std::string& where,
              std::vector<std::string>* ignored)
      : o_(options), f_(*options.format), where_(where), ignored_(ignored) {}

  Grammar make() {
    g_.set_root(g_.rule("root"));
    check_tools(o_.tools, where_);
    if (o_.tools.empty()) fail(ErrorKind::input, where_, "tools: none; expected at least one");
    std::vector<int32_t> calls;
    for (const Json& tool : o_.tools) calls.push_back(call(tool["function"]));
    const int32_t some = sections(g_.choice(calls));
    int32_t body = some;
    if (!o_.required) body = g_.choice({free_before(some), free_text()});
    if (o_.reasoning) body = behind_thoughts(g_, body, *o_.reasoning, o_.thinking, o_.tokenizer);
    g_.define(g_.root(), body);
    g_.check(where_);
    return std::move(g_);
  }

 private:
  /// A marker is one token where the vocabulary has it as a special one.
  int32_t marker(const std::string& text) {
    if (text.empty()) return g_.empty();
    if (special(text)) return g_.token({*o_.tokenizer->id(text)}, {});
    // markers within a longer text
    if (o_.tokenizer != nullptr)
      for (size_t begin = text.find_first_of("<["); begin != std::string::npos;
           begin = text.find_first_of("<[", begin + 1))
        for (size_t end = text.size(); end > begin; --end)
          if (const std::string part = text.substr(begin, end - begin);
              part.size() < text.size() && special(part))
            return g_.sequence(
                {g_.literal(text.substr(0, begin)), marker(part), marker(text.substr(end))});
    return g_.literal(text);
  }
  bool special(const std::string& text) const { return is_special(o_.tokenizer, text); }
  std::string first_marker() const {
    const std::string& open = f_.open.empty() ? f_.before : f_.open;
    return open.substr(std::min(open.find_first_not_of(" \n"), open.size()));
  }
  int32_t space() { return some_space(g_); }

  int32_t free_text() { return special(first_marker()) ? anything() : g_.without(first_marker()); }
  int32_t anything() { return any_text(g_); }
  /// Text, and behind it calls from their marker on.
  int32_t free_before(int32_t calls) {
    // the marker of the first call belongs to the calls: what is free ends where it begins
    if (special(first_marker())) return g_.sequence({anything(), calls});
    const int32_t opened = sections_behind_marker_;
    return g_.sequence({g_.up_to(first_marker()), opened});
  }

  int32_t schema_of(const Json& function) {
    Json parameters = function.value("parameters", Json::object());
    if (!parameters.is_object() || parameters.empty())
      return add_schema(g_, Json{{"type", "object"}, {"additionalProperties", false}}, where_);
    // what a tool does not know it is not given
    if (parameters.contains("properties") && !parameters.contains("additionalProperties"))
      parameters["additionalProperties"] = false;
    std::vector<std::string> dropped;
    const int32_t node = add_schema(g_, parameters, where_, /*strict=*/false, &dropped);
    if (ignored_ != nullptr)
      for (const std::string& place : dropped)
        ignored_->push_back(function["name"].get<std::string>() + " " + place);
    return node;
  }

  int32_t call(const Json& function) {
    const std::string name = function["name"];
    const std::string written = f_.numbered ? "functions." + name + ":" : name;
    const int32_t number = f_.numbered ? g_.repeat(g_.chars({{'0', '9'}}), 1, 3) : g_.empty();
    using Form = ToolCallFormat::Form;
    if (f_.form == Form::object || f_.form == Form::list)
      return g_.sequence({g_.literal(f_.write_before + name + f_.write_between),
                          schema_of(function), g_.literal(f_.write_behind)});
    if (f_.form == Form::named)
      return g_.sequence({marker(f_.before), g_.literal(written), number, marker(f_.between),
                          schema_of(function), marker(f_.behind)});
    return g_.sequence({marker(f_.before), g_.literal(written), number, marker(f_.between),
                        tagged(function), marker(f_.behind)});
  }

  /// Each argument between its tags; texts as they are, all else as JSON.
  int32_t tagged(const Json& function) {
    const Json parameters = function.value("parameters", Json::object());
    if (!parameters.is_object()) return g_.empty();
    const Json properties = parameters.value("properties", Json::object());
    const Json required = parameters.value("required", Json::array());
    if (!properties.is_object())
      fail(ErrorKind::input, where_, "tool {}: properties are {}; expected an object",
           function["name"].get<std::string>(), spec::kind_of(properties));
    std::vector<int32_t> parts;
    for (const auto& [key, schema] : properties.items()) {
      const bool text = schema.is_object() && schema.value("type", Json()) == "string" &&
                        !schema.contains("enum") && !schema.contains("const");
      std::string open = f_.value_open;
      if (!text && f_.attributes) {
        const size_t at = open.find("\"true\"");
        if (at != std::string::npos) open.replace(at, 6, "\"false\"");
      }
      // references lead to places of the whole
      Json whole = schema;
      for (const char* defs : {"$defs", "definitions"})
        if (parameters.contains(defs) && whole.is_object()) whole[defs] = Json(parameters[defs]);
      std::vector<std::string> dropped;
      const int32_t value = text ? g_.up_to(f_.value_close)
                                 : g_.sequence({add_schema(g_, whole, where_, false, &dropped),
                                                marker(f_.value_close)});
      if (ignored_ != nullptr)
        for (const std::string& place : dropped)
          ignored_->push_back(function["name"].get<std::string>() + " " + key + " " + place);
      const int32_t one =
          g_.sequence({marker(f_.key_open), g_.literal(key), marker(f_.key_close + open), value});
      const bool needed = std::find(required.begin(), required.end(), Json(key)) != required.end();
      parts.push_back(needed ? one : g_.optional(one));
    }
    return g_.sequence(std::move(parts));
  }

  /// Calls in their sections; also those whose first marker was read already.
  int32_t sections(int32_t one) {
    const bool list = f_.form == ToolCallFormat::Form::list;
    const int32_t more =
        o_.parallel ? g_.repeat(g_.sequence({g_.literal(", "), one}), 0, 15) : g_.empty();
    int32_t inner = one;
    if (list) inner = g_.sequence({g_.literal("["), one, more, g_.literal("]")});
    const bool many = o_.parallel && !list && !f_.close.empty() && !f_.before.empty() &&
                      f_.form == ToolCallFormat::Form::named;
    if (many) inner = g_.repeat(one, 1, 16);
    const std::string first = first_marker();
    const std::string open = f_.bare ? "" : f_.open;
    const int32_t close = marker(f_.close);
    const int32_t section = g_.sequence({marker(open), inner, close});
    const bool repeats = o_.parallel && !list && !many && !f_.bare;
    const int32_t further =
        repeats ? g_.repeat(g_.sequence({space(), section}), 0, 15) : g_.empty();
    if (f_.open.empty()) {
      // the marker is how a call begins: its rest behind what was read
      std::vector<int32_t> rests;
      for (const Json& tool : o_.tools) {
        const Json& function = tool["function"];
        rests.push_back(g_.sequence({g_.literal(function["name"].get<std::string>()),
                                     marker(f_.between), schema_of(function), marker(f_.behind)}));
      }
      sections_behind_marker_ = g_.sequence({g_.choice(rests), close, further});
    } else {
      sections_behind_marker_ = g_.sequence({inner, close, further});
    }
    return g_.sequence({section, further});
  }

  const CallGrammarOptions& o_;
  const ToolCallFormat& f_;
  const std::string& where_;
  std::vector<std::string>* ignored_;
  Grammar g_;
  int32_t sections_behind_marker_ = 0;
};

}  // namespace

Grammar call_grammar(const CallGrammarOptions& options,
                     const std::string& where,
                     std::vector<std::string>* ignored) {
  if (options.format == nullptr)
    fail(ErrorKind::input, where,
         "the chat template writes calls of tools in no format that is known here");
  return CallGrammar(options, where, ignored).make();
}

}  // namespace tessera::text
