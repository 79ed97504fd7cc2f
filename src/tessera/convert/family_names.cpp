// Names in a family file: renamed tensors and keys, the lines of its entries, the names in
// its expressions.
#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/convert/expr_node.h"
#include "tessera/convert/family.h"

namespace tessera::convert {
namespace {

/// What the stars of a pattern stand for in a name: one part between dots each, and the rest at the
/// end; nothing if it does not match.
std::optional<std::vector<std::string_view>> captures(std::string_view text,
                                                      std::string_view glob) {
  const size_t star = glob.find('*');
  if (star == std::string_view::npos)
    return text == glob ? std::optional(std::vector<std::string_view>()) : std::nullopt;
  if (text.substr(0, star) != glob.substr(0, star)) return std::nullopt;
  text.remove_prefix(star);
  glob.remove_prefix(star + 1);
  const size_t part = glob.empty() ? text.size() : std::min(text.find('.'), text.size());
  for (size_t length = 0; length <= part; ++length)
    if (auto rest = captures(text.substr(length), glob)) {
      rest->insert(rest->begin(), text.substr(0, length));
      return rest;
    }
  return std::nullopt;
}

std::string filled(std::string_view glob, const std::vector<std::string_view>& stars) {
  std::string text;
  size_t next = 0;
  for (const char c : glob)
    if (c == '*')
      text += stars[next++];
    else
      text += c;
  return text;
}

/// Members one below another, "a.b.c".
Json* member_at(Json& json, std::string_view path) {
  Json* at = &json;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t dot = std::min(path.find('.', begin), path.size());
    if (!at->is_object()) return nullptr;
    const auto found = at->find(std::string(path.substr(begin, dot - begin)));
    if (found == at->end()) return nullptr;
    at = &*found;
    begin = dot + 1;
  }
  return at;
}

void erase_member(Json& json, std::string_view path) {
  const size_t dot = path.rfind('.');
  Json* owner = dot == std::string_view::npos ? &json : member_at(json, path.substr(0, dot));
  if (owner != nullptr && owner->is_object())
    owner->erase(std::string(dot == std::string_view::npos ? path : path.substr(dot + 1)));
}

void set_member(Json& json, std::string_view path, Json value) {
  Json* at = &json;
  for (size_t dot; (dot = path.find('.')) != std::string_view::npos; path.remove_prefix(dot + 1)) {
    at = &(*at)[std::string(path.substr(0, dot))];
    if (!at->is_object()) *at = Json::object();
  }
  (*at)[std::string(path)] = std::move(value);
}

/// Walks JSON with comments, and knows the path and the line of where it is.
class LineFinder {
 public:
  LineFinder(std::string_view text, std::string_view wanted) : text_(text), wanted_(wanted) {}

  int find() {
    value("");
    return best_;
  }

 private:
  void skip() {
    while (at_ < text_.size()) {
      if (text_.substr(at_, 2) == "//") {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (text_.substr(at_, 2) == "/*") {
        const size_t end = text_.find("*/", at_ + 2);
        to(end == std::string_view::npos ? text_.size() : end + 2);
      } else if (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r' ||
                 text_[at_] == '\n') {
        to(at_ + 1);
      } else {
        return;
      }
    }
  }
  void to(size_t end) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    at_ = end;
  }
  std::string_view string() {
    const size_t begin = ++at_;
    while (at_ < text_.size() && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
    const size_t end = std::min(at_, text_.size());
    at_ = std::min(at_ + 1, text_.size());
    return text_.substr(begin, end - begin);
  }
  /// Whether the wanted path is this one or below it.
  void note(const std::string& path) {
    if (!wanted_.starts_with(path) || path.size() < length_) return;
    if (wanted_.size() > path.size() && wanted_[path.size()] != '.' && wanted_[path.size()] != '[')
      return;
    length_ = path.size();
    best_ = line_;
  }
  void value(const std::string& path) {
    skip();
    if (at_ >= text_.size()) return;
    const char open = text_[at_];
    if (open == '"') {
      string();
      return;
    }
    if (open != '{' && open != '[') {
      while (at_ < text_.size() &&
             std::string_view(",]} \t\r\n").find(text_[at_]) == std::string_view::npos)
        ++at_;
      return;
    }
    ++at_;
    for (size_t index = 0;; ++index) {
      skip();
      if (at_ >= text_.size()) return;
      if (text_[at_] == '}' || text_[at_] == ']') {
        ++at_;
        return;
      }
      if (text_[at_] == ',') {
        ++at_;
        --index;
        continue;
      }
      std::string inner = fmt::format("{}[{}]", path, index);
      if (open == '{') {
        if (text_[at_] != '"') return;  // no JSON
        const std::string_view key = string();
        // a function is named without its parameters
        inner = (path.empty() ? "" : path + ".") + std::string(key.substr(0, key.find('(')));
        note(inner);
        skip();
        if (at_ < text_.size() && text_[at_] == ':') ++at_;
      } else {
        note(inner);
      }
      const size_t before = at_;
      value(inner);
      if (at_ == before) return;
    }
  }

  std::string_view text_, wanted_;
  size_t at_ = 0, length_ = 0;
  int line_ = 1, best_ = 0;
};

bool begins_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

void add_words(std::string_view text, std::set<std::string>& words) {
  for (size_t i = 0; i < text.size();) {
    if (!begins_word(text[i])) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < text.size() && (begins_word(text[end]) || (text[end] >= '0' && text[end] <= '9')))
      ++end;
    // a member is no name
    if (i == 0 || text[i - 1] != '.') words.emplace(text.substr(i, end - i));
    i = end;
  }
}

void add_identifiers(const Json& json, std::set<std::string>& words) {
  if (json.is_string()) {
    const auto& text = json.get_ref<const std::string&>();
    add_words(text, words);
  } else if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      add_identifiers(value, words);
      if (key.find('{') != std::string::npos || key.find('(') != std::string::npos)
        add_words(key, words);
    }
  } else if (json.is_array()) {
    for (const Json& value : json) add_identifiers(value, words);
  }
}

}  // namespace

Renames Renames::compile(const Json& json, const std::string& where) {
  if (!json.is_object())
    fail(ErrorKind::spec, where, "expected {{\"name in the base\": \"name in the file\"}}");
  Renames renames;
  const auto stars = [](const std::string& text) {
    return std::count(text.begin(), text.end(), '*');
  };
  for (const auto& [base, file] : json.items()) {
    if (file.is_null()) continue;  // takes back one of the base
    if (!file.is_string())
      fail(ErrorKind::spec, where + "." + base, "found {}; expected the name in the file",
           shown(file));
    const auto& name = file.get_ref<const std::string&>();
    if (stars(base) != stars(name))
      fail(ErrorKind::spec, where + "." + base, "{} stars become {} in \"{}\"; expected as many",
           stars(base), stars(name), name);
    renames.list_.emplace_back(base, name);
  }
  std::stable_sort(renames.list_.begin(), renames.list_.end(), [&](const auto& a, const auto& b) {
    return std::ssize(a.first) - 2 * stars(a.first) > std::ssize(b.first) - 2 * stars(b.first);
  });
  return renames;
}

std::string Renames::to_file(std::string_view name) const {
  for (const auto& [base, file] : list_)
    if (const auto found = captures(name, base)) return filled(file, *found);
  return std::string(name);
}

std::string Renames::to_base(std::string_view name) const {
  for (const auto& [base, file] : list_)
    if (const auto found = captures(name, file)) return filled(base, *found);
  return std::string(name);
}

std::string Dialect::file_key(std::string_view path) const {
  for (const auto& [base, file] : keys)
    if (path == base || path.starts_with(base + "."))
      return file + std::string(path.substr(base.size()));
  return std::string(path);
}

Json Dialect::base_config(Json config, std::string_view where) const {
  for (const auto& [base, file] : keys) {
    const Json* found = member_at(config, file);
    if (found == nullptr) continue;
    Json value = *found;
    if (const Json* own = member_at(config, base); own != nullptr && *own != value)
      fail(ErrorKind::file, where, "\"{}\" = {} and \"{}\" = {} are one key to this family", file,
           shown(value), base, shown(*own));
    erase_member(config, file);
    set_member(config, base, std::move(value));
  }
  return config;
}

Json Dialect::file_config(Json config) const {
  for (const auto& [base, file] : keys) {
    const Json* found = member_at(config, base);
    if (found == nullptr) continue;
    Json value = *found;
    erase_member(config, base);
    set_member(config, file, std::move(value));
  }
  return config;
}

int line_of(std::string_view text, std::string_view path) {
  return LineFinder(text, path).find();
}

std::set<std::string> identifiers_of(const Json& json) {
  std::set<std::string> words;
  add_identifiers(json, words);
  return words;
}

}  // namespace tessera::convert
