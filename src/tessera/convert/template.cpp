#include "tessera/convert/template.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/convert/expr_node.h"

namespace tessera::convert {

Loop Loop::parse(std::string_view text, const std::string& where) {
  const size_t in = text.find(" in ");
  const std::string_view variable = text.substr(0, in);
  if (in == std::string_view::npos || variable.empty() ||
      variable.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") != std::string_view::npos)
    fail(ErrorKind::spec, where, "\"{}\"; expected \"variable in list\"", text);
  return {std::string(variable), Expr::parse(text.substr(in + 4), where)};
}

void Loop::run(Environment& env,
               const Local* locals,
               const std::function<void(const Local*)>& body) const {
  const Json items = list.evaluate(env, locals);
  if (!items.is_array())
    fail(ErrorKind::file, list.where(), "{}: found {}; expected a list", list.text(), shown(items));
  for (const Json& item : items) {
    env.step(list.where());
    const Local local{variable, item, locals};
    body(&local);
  }
}

void Loop::collect_names(ExprNames& names, const std::function<void()>& body) const {
  names.bound.insert(variable);
  list.collect_names(names);
  const auto local = names.locals.insert(variable);
  body();
  names.locals.erase(local);
}

namespace {

/// The members of a control form, checked: no others are allowed.
const Json& form_member(const Json& json, const char* key, const std::string& where) {
  const auto found = json.find(key);
  if (found == json.end()) fail(ErrorKind::spec, where, "a control form lacks \"{}\"", key);
  return *found;
}

void check_form(const Json& json,
                std::initializer_list<std::string_view> keys,
                const std::string& where) {
  for (const auto& [key, value] : json.items())
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      fail(ErrorKind::spec, where, "\"{}\" and \"{}\" exclude each other; leave out one of them",
           key, *keys.begin());
}

Expr form_expr(const Json& json, const char* key, const std::string& where) {
  const Json& text = form_member(json, key, where);
  if (!text.is_string())
    fail(ErrorKind::spec, where, "{}: found {}; expected an expression in a string", key,
         spec::kind_of(text));
  return Expr::parse(text.get_ref<const std::string&>(), where + "." + key);
}

}  // namespace

std::shared_ptr<const Template> Template::compile(const Json& json, const std::string& where) {
  auto made = std::make_shared<Template>();
  Template& t = *made;
  t.where_ = where;
  if (json.is_string() && json.get_ref<const std::string&>().starts_with('=')) {
    t.kind_ = Kind::expression;
    t.expr_ = Expr::parse(std::string_view(json.get_ref<const std::string&>()).substr(1), where);
  } else if (json.is_object() && json.contains("$if")) {
    check_form(json, {"$if", "then", "else"}, where);
    t.kind_ = Kind::choice;
    t.expr_ = form_expr(json, "$if", where);
    t.members_.emplace_back("then", compile(form_member(json, "then", where), where + ".then"));
    if (json.contains("else")) t.otherwise_ = compile(json["else"], where + ".else");
  } else if (json.is_object() && json.contains("$match")) {
    check_form(json, {"$match", "cases", "else"}, where);
    t.kind_ = Kind::match;
    t.expr_ = form_expr(json, "$match", where);
    const Json& cases = form_member(json, "cases", where);
    if (!cases.is_object())
      fail(ErrorKind::spec, where, "cases: found {}; expected an object", spec::kind_of(cases));
    for (const auto& [key, value] : cases.items())
      t.members_.emplace_back(key, compile(value, where + "." + key));
    if (json.contains("else")) t.otherwise_ = compile(json["else"], where + ".else");
  } else if (json.is_object() && json.contains("$for")) {
    check_form(json, {"$for", "item"}, where);
    t.kind_ = Kind::loop;
    const Json& head = form_member(json, "$for", where);
    if (!head.is_string()) fail(ErrorKind::spec, where, "$for: expected \"variable in list\"");
    t.loop_ = Loop::parse(head.get_ref<const std::string&>(), where + ".$for");
    t.members_.emplace_back("item", compile(form_member(json, "item", where), where + ".item"));
  } else if (json.is_object()) {
    t.kind_ = Kind::object;
    for (const auto& [key, value] : json.items()) {
      if (key.starts_with('$'))
        fail(ErrorKind::spec, where, "unknown control form \"{}\"; expected $if, $match or $for",
             key);
      t.members_.emplace_back(key, compile(value, where + "." + key));
    }
  } else if (json.is_array()) {
    t.kind_ = Kind::list;
    for (size_t i = 0; i < json.size(); ++i)
      t.members_.emplace_back("", compile(json[i], fmt::format("{}[{}]", where, i)));
  } else {
    t.literal_ = json;
  }
  return made;
}

Json Template::evaluate(Environment& env, const Local* locals) const {
  env.step(where_);
  switch (kind_) {
    case Kind::literal:
      env.step_copy(where_, literal_);
      return literal_;
    case Kind::expression:
      return expr_->evaluate(env, locals);
    case Kind::object: {
      Json object = Json::object();
      for (const auto& [key, member] : members_) {
        Json value = member->evaluate(env, locals);
        if (!is_absent(value)) object[key] = std::move(value);
      }
      return object;
    }
    case Kind::list: {
      Json list = Json::array();
      for (const auto& [key, member] : members_) {
        Json value = member->evaluate(env, locals);
        if (member->kind_ == Kind::loop) {
          for (Json& item : value) list.push_back(std::move(item));
        } else if (!is_absent(value)) {
          list.push_back(std::move(value));
        }
      }
      return list;
    }
    case Kind::choice:
      if (expr_->test(env, locals)) return members_[0].second->evaluate(env, locals);
      return otherwise_ ? otherwise_->evaluate(env, locals) : absent();
    case Kind::match: {
      const Json key = expr_->evaluate(env, locals);
      const std::string name = key.is_string() ? key.get<std::string>() : shown(key);
      std::string known;
      for (const auto& [candidate, body] : members_) {
        if (candidate == name) return body->evaluate(env, locals);
        known += (known.empty() ? "" : ", ") + candidate;
      }
      if (otherwise_) return otherwise_->evaluate(env, locals);
      fail(ErrorKind::file, where_, "{}: found {}; expected one of {}", expr_->text(), shown(key),
           known);
    }
    case Kind::loop: {
      Json list = Json::array();
      loop_->run(env, locals, [&](const Local* inner) {
        Json item = members_[0].second->evaluate(env, inner);
        if (!is_absent(item)) list.push_back(std::move(item));
      });
      return list;
    }
  }
  return absent();
}

void Template::collect_paths(std::string_view root, std::set<std::string>& paths) const {
  if (expr_) expr_->collect_paths(root, paths);
  if (loop_) loop_->list.collect_paths(root, paths);
  for (const auto& [key, member] : members_) member->collect_paths(root, paths);
  if (otherwise_) otherwise_->collect_paths(root, paths);
}

void Template::collect_names(ExprNames& names) const {
  if (expr_) expr_->collect_names(names);
  if (literal_.is_string()) names.texts.insert(literal_.get<std::string>());
  const auto members = [&] {
    for (const auto& [key, member] : members_) member->collect_names(names);
    if (otherwise_) otherwise_->collect_names(names);
  };
  if (loop_)
    loop_->collect_names(names, members);
  else
    members();
}

std::string Template::text() const {
  return expr_ ? expr_->text() : "a template";
}

NamePattern NamePattern::parse(std::string_view text, const std::string& where) {
  NamePattern pattern;
  pattern.text_ = text;
  pattern.literals_.emplace_back();
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '{') {
      const size_t close = text.find('}', at);
      if (close == std::string_view::npos)
        fail(ErrorKind::spec, where, "\"{}\": \"{{\" without \"}}\"", text);
      pattern.exprs_.push_back(Expr::parse(text.substr(at + 1, close - at - 1), where));
      pattern.literals_.emplace_back();
      at = close;
    } else {
      pattern.literals_.back() += text[at];
    }
  }
  return pattern;
}

std::string NamePattern::expand(Environment& env, const Local* locals) const {
  std::string name = literals_.front();
  for (size_t i = 0; i < exprs_.size(); ++i) {
    const Json value = exprs_[i].evaluate(env, locals);
    if (value.is_string())
      name += value.get_ref<const std::string&>();
    else if (value.is_number_integer())
      name += value.dump();
    else
      fail(ErrorKind::file, exprs_[i].where(), "{}: found {}; expected an integer or a string",
           exprs_[i].text(), shown(value));
    name += literals_[i + 1];
  }
  return name;
}

}  // namespace tessera::convert
