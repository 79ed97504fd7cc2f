#include "tessera/text/grammar/json_schema.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "tessera/base/error.h"
#include "tessera/text/grammar/byte_program.h"
#include "tessera/text/grammar/json_numbers.h"
#include "tessera/text/grammar/json_schema_merge.h"
#include "tessera/text/grammar/regex_grammar.h"
#include "tessera/text/utf8.h"

namespace tessera::text {

using spec::Json;

namespace {

constexpr int64_t kUnbounded = Grammar::kAnyTimes;

// each a subset of the RFC
constexpr const char* kDate =
    "[12][0-9]{3}-(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
    "|[12][0-9]{3}-(0[469]|11)-(0[1-9]|[12][0-9]|30)|[12][0-9]{3}-02-(0[1-9]|1[0-9]|2[0-8])";
constexpr const char* kTime =
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
constexpr const char* kByte = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
constexpr const char* kLabel = "[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?";

/// The pattern of an enforced format; "" for formats that are annotations.
std::string format_pattern(const std::string& format) {
  const std::string host = fmt::format("{}(\\.{}){{0,5}}", kLabel, kLabel);
  if (format == "date") return kDate;
  if (format == "time") return kTime;
  if (format == "date-time") return fmt::format("({})T({})", kDate, kTime);
  if (format == "duration")
    return "P([0-9]{1,4}W|([0-9]{1,4}Y)?([0-9]{1,2}M)?[0-9]{1,3}D(T[0-9]{1,2}H([0-9]{1,2}M)?)?"
           "|T([0-9]{1,3}H([0-9]{1,2}M([0-9]{1,2}S)?)?|[0-9]{1,3}M([0-9]{1,2}S)?|[0-9]{1,4}S))";
  if (format == "uuid")
    return "[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}";
  if (format == "email")
    return fmt::format("[A-Za-z0-9]([A-Za-z0-9._+-]{{0,30}}[A-Za-z0-9])?@{}", host);
  if (format == "ipv4") return fmt::format("{}(\\.{}){{3}}", kByte, kByte);
  if (format == "ipv6")
    return "[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}|[0-9a-f]{1,4}(:[0-9a-f]{1,4}){0,4}::[0-9a-f]{1,4}|::1";
  if (format == "hostname") return host;
  if (format == "uri")
    return fmt::format(
        "https?://{}(:[1-9][0-9]{{0,3}})?(/[A-Za-z0-9._~-]{{1,40}}){{0,8}}/?"
        "(\\?[A-Za-z0-9=&._~-]{{0,80}})?(#[A-Za-z0-9._~-]{{0,40}})?",
        host);
  return "";
}

class SchemaReader {
 public:
  SchemaReader(Grammar& grammar,
               const Json& root,
               const std::string& where,
               bool strict,
               std::vector<std::string>* ignored)
      : g_(grammar), merger_(root, where), where_(where), strict_(strict), ignored_(ignored) {}

  int32_t schema(const Json& schema, const std::string& path, int depth) {
    constexpr int kMostDepth = 128;
    if (depth > kMostDepth)
      fail(ErrorKind::input, where_, "unsupported schema: {}: nested deeper than {}", path,
           kMostDepth);
    if (const auto target = merger_.plain_reference(schema, path)) return reference(*target, depth);
    std::vector<int32_t> parts;
    for (const Alternative& one : merger_.alternatives(schema, path, strict_)) {
      if (const auto target = merger_.plain_reference(one.schema, one.path))
        parts.push_back(reference(*target, depth));
      else
        parts.push_back(plain(one.schema, one.path, depth));
    }
    for (const std::string& place : merger_.take_ignored()) ignore(place);
    return g_.choice(std::move(parts));
  }

  int32_t any_object() {
    return named("json-object", [&] { return object_of_anything(); });
  }

 private:
  void ignore(const std::string& place) {
    if (strict_)
      fail(ErrorKind::input, where_,
           "unsupported schema: {}; expected one without, or a request that is not strict", place);
    if (ignored_ != nullptr &&
        std::find(ignored_->begin(), ignored_->end(), place) == ignored_->end())
      ignored_->push_back(place);
  }

  int32_t reference(const std::string& pointer, int depth) {
    const auto found = references_.find(pointer);
    if (found != references_.end()) return g_.call(found->second);
    const int32_t rule = g_.fresh_rule(pointer.substr(pointer.rfind('/') + 1));
    references_.emplace(pointer, rule);
    g_.define(rule, schema(merger_.resolve(pointer, pointer), pointer, depth + 1));
    return g_.call(rule);
  }

  template <class Make>
  int32_t named(const char* name, const Make& make) {
    const auto found = shared_.find(name);
    if (found != shared_.end()) return g_.call(found->second);
    const int32_t rule = g_.fresh_rule(name);
    shared_.emplace(name, rule);
    g_.define(rule, make());
    return g_.call(rule);
  }

  // --- values of any kind

  int32_t value() {
    return named("json-value", [&] {
      return g_.choice({any_object(), any_array(), any_string(), any_number(), boolean(), null()});
    });
  }
  int32_t null() { return g_.literal("null"); }
  int32_t boolean() { return g_.choice({g_.literal("true"), g_.literal("false")}); }
  int32_t any_number() {
    return named("json-number", [&] { return add_number(g_, {}); });
  }
  int32_t any_string() {
    return named("json-string", [&] { return quoted(g_.repeat(character(), 0, kUnbounded)); });
  }
  int32_t any_array() {
    return named("json-array", [&] { return list({}, value(), 0, kUnbounded); });
  }
  int32_t object_of_anything() {
    const int32_t pair = g_.sequence({any_string(), g_.literal(":"), value()});
    return g_.sequence({g_.literal("{"), g_.optional(separated(pair)), g_.literal("}")});
  }
  int32_t separated(int32_t one) {
    return g_.sequence({one, g_.repeat(g_.sequence({g_.literal(","), one}), 0, kUnbounded)});
  }
  int32_t quoted(int32_t inner) { return g_.sequence({g_.literal("\""), inner, g_.literal("\"")}); }

  /// A character of a string in any notation; no lone surrogates.
  int32_t character() {
    return named("json-char", [&] {
      const int32_t hex = g_.chars({{'0', '9'}, {'A', 'F'}, {'a', 'f'}});
      const CharacterRanges d = {{'D', 'D'}, {'d', 'd'}};
      const auto rest = [&](int64_t n) { return g_.repeat(hex, n, n); };
      const int32_t basic = g_.choice(
          {g_.sequence(
               {g_.chars({{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}}), rest(3)}),
           g_.sequence({g_.chars(d), g_.chars({{'0', '7'}}), rest(2)})});
      const int32_t pair = g_.sequence({g_.chars(d), g_.chars({{'8', '9'}, {'A', 'B'}, {'a', 'b'}}),
                                        rest(2), g_.literal("\\u"), g_.chars(d),
                                        g_.chars({{'C', 'F'}, {'c', 'f'}}), rest(2)});
      return g_.choice(
          {g_.chars(complement({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}})),
           g_.sequence({g_.literal("\\"),
                        g_.choice({g_.chars({{'"', '"'},
                                             {'/', '/'},
                                             {'\\', '\\'},
                                             {'b', 'b'},
                                             {'f', 'f'},
                                             {'n', 'n'},
                                             {'r', 'r'},
                                             {'t', 't'}}),
                                   g_.sequence({g_.literal("u"), g_.choice({basic, pair})})})})});
    });
  }

  // --- a schema without references and combinations

  bool takes(const Json& s, const char* type) const {
    const auto found = s.find("type");
    if (found == s.end()) return true;
    const auto is = [&](const Json& t) {
      return t == type || (t == "number" && std::string_view(type) == "integer");
    };
    return found->is_array() ? std::any_of(found->begin(), found->end(), is) : is(*found);
  }

  int32_t plain(const Json& s, const std::string& path, int depth) {
    if (s.is_boolean()) return s.get<bool>() ? value() : g_.never();
    for (const char* key : {"not", "if", "$dynamicRef", "$recursiveRef"})
      if (s.contains(key)) ignore(path + "/" + key);
    if (const auto found = s.find("enum"); found != s.end()) return one_of(s, *found, path, depth);
    std::vector<int32_t> parts;
    if (takes(s, "object")) parts.push_back(object(s, path, depth));
    if (takes(s, "array")) parts.push_back(array(s, path, depth));
    if (takes(s, "string")) parts.push_back(string(s, path));
    const bool whole_numbers = !takes(s, "number");
    if (takes(s, "integer")) parts.push_back(number(s, path, whole_numbers));
    if (takes(s, "boolean")) parts.push_back(boolean());
    if (takes(s, "null")) parts.push_back(null());
    constexpr size_t kKinds = 6;
    if (parts.size() == kKinds && !merger_.constrains(s)) return value();
    return g_.choice(std::move(parts));
  }

  /// The values of a list that the rest of the schema accepts.
  int32_t one_of(const Json& s, const Json& values, const std::string& path, int depth) {
    if (!values.is_array())
      fail(ErrorKind::input, where_, "{}/enum: found {}; expected an array", path,
           spec::kind_of(values));
    Json rest = s;
    rest.erase("enum");
    std::optional<ByteProgram> program;
    std::optional<ByteAutomaton> automaton;
    if (merger_.constrains(rest)) {
      Grammar own;
      const int32_t root = own.rule("root");
      own.set_root(root);
      std::vector<std::string> dropped;
      SchemaReader reader(own, merger_.root(), where_, strict_, &dropped);
      own.define(root, reader.plain(rest, path, depth + 1));
      for (const std::string& place : dropped) ignore(place);
      if (!own.productive()[static_cast<size_t>(own.rules()[static_cast<size_t>(root)].body)])
        return g_.never();
      program.emplace(own, where_, [](const std::string&) { return -1; });
      automaton.emplace(*program);
    }
    std::vector<int32_t> parts;
    for (const Json& value : values) {
      const std::string text = written(value);
      const bool typed =
          rest.find("type") == rest.end() || takes(rest, merger_.type_of(value).c_str());
      if (!typed) continue;
      if (automaton) {
        int32_t state = automaton->start();
        for (size_t i = 0; i < text.size() && state != ByteAutomaton::kDead; ++i)
          state = automaton->step(state, static_cast<uint8_t>(text[i]));
        if (state == ByteAutomaton::kDead || !automaton->may_end(state)) continue;
      }
      parts.push_back(g_.literal(text));
    }
    return g_.choice(std::move(parts));
  }

  std::string written(const Json& value) const {
    return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  int64_t count(const Json& s, const char* key, const std::string& path, int64_t otherwise) {
    const auto found = s.find(key);
    if (found == s.end()) return otherwise;
    if (!found->is_number() || found->get<double>() < 0 ||
        found->get<double>() != std::floor(found->get<double>()))
      fail(ErrorKind::input, where_, "{}/{}: found {}; expected a whole number from 0", path, key,
           found->dump().substr(0, 60));
    return static_cast<int64_t>(
        std::min(found->get<double>(), static_cast<double>(Grammar::kMostTimes)));
  }

  int32_t number(const Json& s, const std::string& path, bool whole) {
    NumberRange range;
    range.whole = whole;
    const auto bound = [&](const char* key, std::optional<double>& into) {
      const auto found = s.find(key);
      if (found == s.end()) return;
      if (!found->is_number())
        fail(ErrorKind::input, where_, "{}/{}: found {}; expected a number", path, key,
             found->dump().substr(0, 60));
      into = found->get<double>();
    };
    bound("minimum", range.least);
    bound("maximum", range.most);
    std::optional<double> above, below;
    bound("exclusiveMinimum", above);
    bound("exclusiveMaximum", below);
    if (above && (!range.least || *above >= *range.least)) {
      range.least = above;
      range.above = true;
    }
    if (below && (!range.most || *below <= *range.most)) {
      range.most = below;
      range.below = true;
    }
    if (const auto found = s.find("multipleOf"); found != s.end()) {
      const double of = found->is_number() ? found->get<double>() : 0;
      if (!(of > 0))
        fail(ErrorKind::input, where_, "{}/multipleOf: found {}; expected a number above 0", path,
             found->dump().substr(0, 60));
      if (of == 1) {
        range.whole = true;
      } else if (range.whole && of > 0 && of <= 1000 && of == std::floor(of) && !range.least &&
                 !range.most) {
        range.multiple_of = static_cast<int64_t>(of);
      } else if (std::floor(1 / of) != 1 / of || !range.whole) {
        ignore(path + "/multipleOf");
      }
    }
    if (!range.least && !range.most && !range.whole) return any_number();
    return add_number(g_, range);
  }

  int32_t string(const Json& s, const std::string& path) {
    const int64_t least = count(s, "minLength", path, 0),
                  most = count(s, "maxLength", path, kUnbounded);
    std::string pattern;
    bool whole = false;
    const char* key = "pattern";
    if (const auto found = s.find("pattern"); found != s.end()) {
      if (!found->is_string())
        fail(ErrorKind::input, where_, "{}/pattern: found {}; expected a string", path,
             spec::kind_of(*found));
      pattern = *found;
    }
    if (const auto found = s.find("format"); found != s.end() && found->is_string()) {
      const std::string format = format_pattern(*found);
      if (!format.empty() && s.contains("pattern")) {
        ignore(path + "/format");
      } else if (!format.empty()) {
        pattern = format;
        whole = true;
        key = "format";
      }
    }
    if (pattern.empty()) {
      if (least == 0 && most == kUnbounded) return any_string();
      return quoted(g_.repeat(character(), least, most));
    }
    RegexPart part;
    try {
      part = add_regex(g_, pattern, Spelling::json, whole, path + "/" + key);
    } catch (const Error& error) {
      if (strict_) fail(ErrorKind::input, where_, "unsupported schema: {}", error.what());
      ignore(path + "/" + key);
      return quoted(g_.repeat(character(), least, most));
    }
    // without anchors the text may be as long as needed
    if (part.least < least ||
        (most != kUnbounded && (part.most == kUnbounded || part.most > most))) {
      if (const auto fitted = fitted_pattern(pattern, whole, least, most, path + "/" + key))
        return quoted(*fitted);
      ignore(path + (part.least < least ? "/minLength" : "/maxLength"));
    }
    return quoted(part.node);
  }

  /// A single repeated class, the form of most patterns with a length.
  std::optional<int32_t> fitted_pattern(const std::string& pattern,
                                        bool whole,
                                        int64_t least,
                                        int64_t most,
                                        const std::string& where) {
    if (!whole && !(pattern.starts_with('^') && pattern.ends_with('$'))) return std::nullopt;
    const std::string body = whole ? pattern : pattern.substr(1, pattern.size() - 2);
    if (body.size() < 2) return std::nullopt;
    const char last = body.back();
    if (last != '*' && last != '+') return std::nullopt;
    const RegexPart one = add_regex(g_, "^(?:" + body.substr(0, body.size() - 1) + ")$",
                                    Spelling::json, false, where);
    if (one.least != 1 || one.most != 1) return std::nullopt;
    return g_.repeat(one.node, std::max<int64_t>(least, last == '+' ? 1 : 0), most);
  }

  /// "[", some first items, then others, "]"; `least` to `most` items in total.
  int32_t list(const std::vector<int32_t>& first,
               std::optional<int32_t> others,
               int64_t least,
               int64_t most) {
    const auto n = static_cast<int64_t>(first.size());
    if (most != kUnbounded && most < least) return g_.never();
    if (!others && (most == kUnbounded || most > n)) most = n;
    if (most < least && most != kUnbounded) return g_.never();
    const int32_t comma = g_.literal(",");
    // from the last first item to the first
    const auto ends = [&](int64_t made) { return made >= least; };
    int32_t tail = g_.empty();
    int64_t from = n;
    if (most != kUnbounded && most < n) {
      from = most;
    } else if (others && (most == kUnbounded || most > n)) {
      const int64_t more_least = std::max<int64_t>(0, least - n),
                    more_most = most == kUnbounded ? kUnbounded : most - n;
      if (n == 0) {
        const int32_t rest =
            g_.repeat(g_.sequence({comma, *others}), std::max<int64_t>(0, more_least - 1),
                      more_most == kUnbounded ? kUnbounded : more_most - 1);
        tail = g_.sequence({*others, rest});
        if (more_least == 0) tail = g_.optional(tail);
      } else {
        tail = g_.repeat(g_.sequence({comma, *others}), more_least, more_most);
      }
    }
    for (int64_t i = from; i-- > 0;) {
      std::vector<int32_t> parts;
      if (i > 0) parts.push_back(comma);
      parts.push_back(first[static_cast<size_t>(i)]);
      parts.push_back(tail);
      tail = g_.sequence(std::move(parts));
      if (ends(i)) tail = g_.optional(tail);
    }
    return g_.sequence({g_.literal("["), tail, g_.literal("]")});
  }

  int32_t array(const Json& s, const std::string& path, int depth) {
    for (const char* key : {"contains", "minContains", "maxContains", "unevaluatedItems"})
      if (s.contains(key)) ignore(path + "/" + key);
    const int64_t least = count(s, "minItems", path, 0),
                  most = count(s, "maxItems", path, kUnbounded);
    if (s.value("uniqueItems", Json(false)) == true && (most == kUnbounded || most > 1))
      ignore(path + "/uniqueItems");
    std::vector<int32_t> first;
    const auto prefix = s.find("prefixItems");
    if (prefix != s.end()) {
      if (!prefix->is_array())
        fail(ErrorKind::input, where_, "{}/prefixItems: found {}; expected an array", path,
             spec::kind_of(*prefix));
      for (size_t i = 0; i < prefix->size(); ++i)
        first.push_back(schema((*prefix)[i], fmt::format("{}/prefixItems/{}", path, i), depth + 1));
    }
    const auto items = s.find("items");
    std::optional<int32_t> others;
    if (items == s.end())
      others = value();
    else if (*items != false)
      others = schema(*items, path + "/items", depth + 1);
    if (first.empty() && items == s.end() && least == 0 && most == kUnbounded) return any_array();
    return list(first, others, least, most);
  }

  // --- objects

  struct Property {
    std::string name;
    int32_t pair = 0;
    bool required = false;
  };

  int32_t object(const Json& s, const std::string& path, int depth) {
    for (const char* key : {"patternProperties", "propertyNames", "dependentRequired",
                            "dependentSchemas", "dependencies", "unevaluatedProperties"})
      if (const auto found = s.find(key); found != s.end() && !found->empty())
        ignore(path + "/" + key);
    const Json none = Json::object();
    const auto found = s.find("properties");
    const Json& properties = found == s.end() ? none : *found;
    if (!properties.is_object())
      fail(ErrorKind::input, where_, "{}/properties: found {}; expected an object", path,
           spec::kind_of(properties));
    const auto extra = s.find("additionalProperties");
    const bool open = extra == s.end() || *extra != false;
    const auto others = [&] {
      return extra == s.end() ? value() : schema(*extra, path + "/additionalProperties", depth + 1);
    };
    std::vector<std::string> required;
    if (const auto names = s.find("required"); names != s.end()) {
      if (!names->is_array())
        fail(ErrorKind::input, where_, "{}/required: found {}; expected an array of names", path,
             spec::kind_of(*names));
      for (const Json& name : *names) {
        if (!name.is_string())
          fail(ErrorKind::input, where_, "{}/required: found {}; expected names", path,
               name.dump().substr(0, 60));
        required.push_back(name);
      }
    }
    const auto is_required = [&](const std::string& name) {
      return std::find(required.begin(), required.end(), name) != required.end();
    };
    std::vector<Property> all;
    std::set<std::string> names;
    for (const auto& [name, member] : properties.items()) {
      const int32_t inner = schema(member, path + "/properties/" + pointer_part(name), depth + 1);
      all.push_back({name, pair(name, inner), is_required(name)});
      names.insert(name);
    }
    for (const std::string& name : required)
      if (names.insert(name).second) all.push_back({name, pair(name, others()), true});
    check_counts(s, path, all, open);
    if (all.empty() && extra == s.end()) return any_object();
    std::optional<int32_t> more;
    if (open) more = g_.sequence({key_but(names), g_.literal(":"), others()});
    return g_.sequence({g_.literal("{"), members(all, more), g_.literal("}")});
  }

  static std::string pointer_part(const std::string& name) {
    std::string out;
    for (const char c : name) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
    return out;
  }

  int32_t pair(const std::string& name, int32_t value) {
    return g_.sequence({g_.literal(written(Json(name)) + ":"), value});
  }

  /// The number of properties cannot be counted if names may be repeated.
  void check_counts(const Json& s,
                    const std::string& path,
                    const std::vector<Property>& all,
                    bool open) {
    const auto certain = static_cast<int64_t>(
        std::count_if(all.begin(), all.end(), [](const Property& p) { return p.required; }));
    if (count(s, "minProperties", path, 0) > certain) ignore(path + "/minProperties");
    const int64_t most = count(s, "maxProperties", path, kUnbounded);
    if (most != kUnbounded && (open || most < static_cast<int64_t>(all.size())))
      ignore(path + "/maxProperties");
  }

  /// Properties in order, each a rule followed by the later ones.
  int32_t members(const std::vector<Property>& all, std::optional<int32_t> more) {
    const int32_t comma = g_.literal(",");
    int32_t first = g_.empty(), later = g_.empty();
    if (more) {
      first = g_.optional(separated(*more));
      later = g_.repeat(g_.sequence({comma, *more}), 0, kUnbounded);
    }
    for (size_t i = all.size(); i-- > 0;) {
      const Property& p = all[i];
      const int32_t rest = g_.fresh_rule("more");
      g_.define(rest, later);
      const int32_t with = g_.sequence({p.pair, g_.call(rest)});
      const int32_t with_comma = g_.sequence({comma, p.pair, g_.call(rest)});
      first = p.required ? with : g_.choice({with, first});
      later = p.required ? with_comma : g_.choice({with_comma, g_.call(rest)});
      if (!p.required) {
        const int32_t rule = g_.fresh_rule("first");
        g_.define(rule, first);
        first = g_.call(rule);
      }
    }
    return first;
  }

  /// A key other than these, with a unique escape for each character.
  int32_t key_but(const std::set<std::string>& names) {
    if (names.empty()) return any_string();
    struct Node {
      std::map<char32_t, size_t> next;
      bool name = false;
    };
    std::vector<Node> tree(1);
    for (const std::string& name : names) {
      size_t at = 0;
      for_each_character(name, [&](char32_t c, size_t, size_t) {
        const auto [found, fresh] = tree[at].next.try_emplace(c, tree.size());
        const size_t to = found->second;
        if (fresh) tree.emplace_back();
        at = to;
      });
      tree[at].name = true;
    }
    const int32_t rest = named("json-key-rest", [&] {
      return g_.repeat(spelled(g_, CharacterRanges{{0, 0x10FFFF}}, Spelling::json), 0, kUnbounded);
    });
    std::vector<int32_t> states;
    for (size_t i = 0; i < tree.size(); ++i) states.push_back(g_.fresh_rule("key"));
    for (size_t i = 0; i < tree.size(); ++i) {
      std::vector<int32_t> parts;
      CharacterRanges known;
      for (const auto& [c, to] : tree[i].next) {
        known.emplace_back(c, c);
        parts.push_back(g_.sequence(
            {spelled(g_, CharacterRanges{{c, c}}, Spelling::json), g_.call(states[to])}));
      }
      parts.push_back(g_.sequence({spelled(g_, complement(known), Spelling::json), rest}));
      if (!tree[i].name) parts.push_back(g_.empty());
      g_.define(states[i], g_.choice(std::move(parts)));
    }
    return quoted(g_.call(states[0]));
  }

  Grammar& g_;
  SchemaMerger merger_;
  const std::string& where_;
  bool strict_;
  std::vector<std::string>* ignored_;
  std::map<std::string, int32_t> references_;  // rules, by pointer
  std::map<std::string, int32_t> shared_;
};

}  // namespace

int32_t add_schema(Grammar& grammar,
                   const Json& schema,
                   const std::string& where,
                   bool strict,
                   std::vector<std::string>* ignored) {
  return SchemaReader(grammar, schema, where, strict, ignored).schema(schema, "#", 0);
}

SchemaGrammar schema_grammar(const Json& schema, const std::string& where, bool strict) {
  SchemaGrammar out;
  out.grammar.set_root(out.grammar.rule("root"));
  out.grammar.define(out.grammar.root(),
                     add_schema(out.grammar, schema, where, strict, &out.ignored));
  out.grammar.check(where);
  return out;
}

Grammar json_object_grammar() {
  Grammar grammar;
  grammar.set_root(grammar.rule("root"));
  const Json any = Json::object();
  const std::string where = "json";
  grammar.define(grammar.root(), SchemaReader(grammar, any, where, true, nullptr).any_object());
  return grammar;
}

}  // namespace tessera::text
