// Evaluation of the tree.
#include <cmath>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/convert/environment.h"
#include "tessera/convert/expr_node.h"

namespace tessera::convert {

using Node = Expr::Node;
using Kind = Node::Kind;

std::string shown(const Json& value) {
  constexpr size_t kMax = 120;
  if (is_absent(value)) return "nothing";
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kMax) text = text.substr(0, kMax) + "...";
  return text;
}

bool equal(const Json& a, const Json& b) {
  if (is_absent(a) || is_absent(b)) return is_absent(a) && is_absent(b);
  return a == b;
}

double number_of(const Json& value, const Node& node, std::string_view where) {
  if (!value.is_number())
    fail(ErrorKind::file, where, "{}: found {}; expected a number", node.source, shown(value));
  return value.get<double>();
}

int64_t integer_of(const Json& value, const Node& node, std::string_view where) {
  if (value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX))
    return value.get<int64_t>();
  if (value.is_number_integer() && !value.is_number_unsigned()) return value.get<int64_t>();
  fail(ErrorKind::file, where, "{}: found {}; expected an integer", node.source, shown(value));
}

namespace {

double finite(double value, const Node& node, std::string_view where) {
  if (std::isnan(value))
    fail(ErrorKind::file, where, "{}: the result is not a number", node.source);
  return value;
}

Json integer_arithmetic(char op, int64_t a, int64_t b, const Node& node, std::string_view where) {
  int64_t result = 0;
  bool overflow = false;
  if ((op == '/' || op == 'q' || op == '%') && b == 0)
    fail(ErrorKind::file, where, "{}: division by zero", node.source);
  // the one quotient that does not fit
  if ((op == '/' || op == 'q' || op == '%') && b == -1)
    return integer_arithmetic('-', 0, op == '%' ? 0 : a, node, where);
  switch (op) {
    case '+':
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case '-':
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case '*':
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case '/':
      if (a % b != 0) return static_cast<double>(a) / static_cast<double>(b);
      result = a / b;
      break;
    case 'q':
      result = a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
      break;
    case '%':
      result = a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
      break;
    default:
      break;
  }
  if (overflow) fail(ErrorKind::file, where, "{}: the result does not fit 64 bits", node.source);
  return result;
}

}  // namespace

/// op: + - * / and q (floor division), % (floor modulo), ^ (power)
Json arithmetic(char op, const Json& a, const Json& b, const Node& node, std::string_view where) {
  if (op == '+' && a.is_string() && b.is_string()) {
    std::string joined = a.get_ref<const std::string&>() + b.get_ref<const std::string&>();
    if (joined.size() > kMaxJoined)
      fail(ErrorKind::file, where, "{}: the result has {} bytes; expected at most {}", node.source,
           joined.size(), kMaxJoined);
    return joined;
  }
  if (op == '+' && a.is_array() && b.is_array()) {
    Json joined = a;
    joined.insert(joined.end(), b.begin(), b.end());
    return joined;
  }
  const Node& left = *node.kids[0];
  const Node& right = *node.kids[1];
  if (op != '^' && a.is_number_integer() && b.is_number_integer())
    return integer_arithmetic(op, integer_of(a, left, where), integer_of(b, right, where), node,
                              where);
  const double x = number_of(a, left, where), y = number_of(b, right, where);
  if ((op == '/' || op == 'q' || op == '%') && y == 0)
    fail(ErrorKind::file, where, "{}: division by zero", node.source);
  switch (op) {
    case '+':
      return finite(x + y, node, where);
    case '-':
      return finite(x - y, node, where);
    case '*':
      return finite(x * y, node, where);
    case '/':
      return finite(x / y, node, where);
    case 'q':
      return finite(std::floor(x / y), node, where);
    case '%':
      return finite(x - std::floor(x / y) * y, node, where);
    default:
      return finite(std::pow(x, y), node, where);
  }
}

namespace {

constexpr size_t kMembersPerStep = 64;  // members are looked for one by one

class Evaluator {
 public:
  Evaluator(Environment& env, const std::string& where) : env_(env), where_(where) {}

  Json value(const Node& node, const Local* locals) {
    env_.step(where_);
    switch (node.kind) {
      case Kind::literal:
        env_.step_copy(where_, node.value);
        return node.value;
      case Kind::name:
      case Kind::member:
      case Kind::index: {
        Json computed;
        const Json* found = locate(node, locals, computed);
        if (found == &computed) return computed;
        env_.step_copy(where_, *found);
        return *found;
      }
      case Kind::call:
        return call(node, locals);
      case Kind::list: {
        Json list = Json::array();
        for (const auto& kid : node.kids) list.push_back(present(*kid, locals));
        return list;
      }
      case Kind::object: {
        Json object = Json::object();
        for (size_t i = 0; i < node.kids.size(); ++i) {
          Json member = value(*node.kids[i], locals);
          if (!is_absent(member)) object[node.keys[i]] = std::move(member);
        }
        return object;
      }
      case Kind::loop:
        return loop(node, locals);
      case Kind::negate: {
        const Json operand = value(*node.kids[0], locals);
        if (operand.is_number_integer()) {
          const int64_t n = integer_of(operand, *node.kids[0], where_);
          if (n == INT64_MIN)
            fail(ErrorKind::file, where_, "{}: the result does not fit 64 bits", node.source);
          return -n;
        }
        return -number_of(operand, *node.kids[0], where_);
      }
      case Kind::logical_not:
        return !truth(*node.kids[0], locals);
      case Kind::binary:
        return binary(node, locals);
      case Kind::choice:
        return value(*node.kids[truth(*node.kids[0], locals) ? 1 : 2], locals);
    }
    return absent();
  }

  bool truth(const Node& node, const Local* locals) {
    const Json condition = value(node, locals);
    if (!condition.is_boolean())
      fail(ErrorKind::file, where_, "{}: found {}; expected true or false", node.source,
           shown(condition));
    return condition.get<bool>();
  }

 private:
  /// Where the value of a chain lies, so that a.b.c copies only its end. `computed` holds what lies
  /// nowhere else.
  const Json* locate(const Node& node, const Local* locals, Json& computed) {
    static const Json kAbsent = absent();
    if (node.kind == Kind::name) {
      for (const Local* local = locals; local != nullptr; local = local->outer)
        if (local->name == node.text) return &local->value;
      const Json* found = env_.find(node.text);
      if (found == nullptr) fail(ErrorKind::spec, where_, "there is no value \"{}\"", node.text);
      return found;
    }
    if (node.kind != Kind::member && node.kind != Kind::index) {
      computed = value(node, locals);
      return &computed;
    }
    const Json* object = locate(*node.kids[0], locals, computed);
    Json found;
    const Json* result = &kAbsent;
    if (node.kind == Kind::member) {
      result = member(*object, node.text, node);
    } else {
      Json index = value(*node.kids[1], locals);
      result = index.is_string() ? member(*object, index.get_ref<const std::string&>(), node)
                                 : element(*object, index, node);
    }
    // a part of `computed` must not be overwritten by the whole
    if (object == &computed && result != &kAbsent) {
      found = *result;
      computed = std::move(found);
      return &computed;
    }
    return result;
  }

  const Json* member(const Json& object, const std::string& key, const Node& node) {
    static const Json kAbsent = absent();
    if (is_absent(object) || object.is_null()) return &kAbsent;
    if (!object.is_object())
      fail(ErrorKind::file, where_, "{}: found {}; expected an object", node.kids[0]->source,
           shown(object));
    env_.step(where_, static_cast<int64_t>(object.size() / kMembersPerStep));
    const auto found = object.find(key);
    return found == object.end() ? &kAbsent : &*found;
  }

  const Json* element(const Json& list, const Json& index, const Node& node) {
    static const Json kAbsent = absent();
    if (is_absent(list) || list.is_null()) return &kAbsent;
    if (!list.is_array())
      fail(ErrorKind::file, where_, "{}: found {}; expected a list", node.kids[0]->source,
           shown(list));
    int64_t i = integer_of(index, *node.kids[1], where_);
    const auto size = static_cast<int64_t>(list.size());
    if (i < 0) i += size;
    if (i < 0 || i >= size)
      fail(ErrorKind::file, where_, "{}: there is no element {}; the list has {}", node.source,
           shown(index), size);
    return &list[static_cast<size_t>(i)];
  }

  Json present(const Node& node, const Local* locals) {
    Json result = value(node, locals);
    if (is_absent(result)) fail(ErrorKind::file, where_, "{} is absent", node.source);
    return result;
  }

  Json call(const Node& node, const Local* locals) {
    std::vector<Json> arguments;
    arguments.reserve(node.kids.size());
    for (const auto& kid : node.kids) arguments.push_back(value(*kid, locals));
    if (const Builtin* builtin = find_builtin(node.text)) {
      if (arguments.size() < builtin->min_arguments || arguments.size() > builtin->max_arguments)
        fail(ErrorKind::spec, where_, "{}: {} arguments; {} takes {} to {}", node.source,
             arguments.size(), node.text, builtin->min_arguments, builtin->max_arguments);
      return builtin->function({node, arguments, where_, env_});
    }
    return env_.call(node.text, arguments, where_);
  }

  Json loop(const Node& node, const Local* locals) {
    const Json over = value(*node.kids[1], locals);
    if (!over.is_array())
      fail(ErrorKind::file, where_, "{}: found {}; expected a list", node.kids[1]->source,
           shown(over));
    Json list = Json::array();
    for (const Json& item : over) {
      const Local local{node.text, item, locals};
      if (node.kids.size() == 3 && !truth(*node.kids[2], &local)) continue;
      list.push_back(present(*node.kids[0], &local));
    }
    return list;
  }

  Json binary(const Node& node, const Local* locals) {
    const std::string& op = node.text;
    const Node& left = *node.kids[0];
    const Node& right = *node.kids[1];
    if (op == "and") return truth(left, locals) && truth(right, locals);
    if (op == "or") return truth(left, locals) || truth(right, locals);
    const Json a = value(left, locals);
    if (op == "??") return is_absent(a) || a.is_null() ? value(right, locals) : a;
    const Json b = value(right, locals);
    if (op == "==") return equal(a, b);
    if (op == "!=") return !equal(a, b);
    if (op == "in") return contains(a, b, right);
    if (op == "not in") return !contains(a, b, right);
    if (op == "<" || op == ">" || op == "<=" || op == ">=") {
      const double x = number_of(a, left, where_), y = number_of(b, right, where_);
      return op == "<" ? x < y : op == ">" ? x > y : op == "<=" ? x <= y : x >= y;
    }
    return arithmetic(op == "//" ? 'q' : op == "**" ? '^' : op[0], a, b, node, where_);
  }

  bool contains(const Json& item, const Json& in, const Node& node) {
    if (in.is_array()) {
      env_.step(where_, static_cast<int64_t>(in.size()));
      for (const Json& other : in)
        if (equal(item, other)) return true;
      return false;
    }
    if (in.is_object() && item.is_string()) return in.contains(item.get_ref<const std::string&>());
    if (in.is_string() && item.is_string())
      return in.get_ref<const std::string&>().find(item.get_ref<const std::string&>()) !=
             std::string::npos;
    if (is_absent(in) || in.is_null()) return false;
    fail(ErrorKind::file, where_, "{}: found {}; expected a list, an object or a string",
         node.source, shown(in));
  }

  Environment& env_;
  const std::string& where_;
};

}  // namespace

Json Expr::evaluate(Environment& env, const Local* locals) const {
  return Evaluator(env, where_).value(*root_, locals);
}

bool Expr::test(Environment& env, const Local* locals) const {
  return Evaluator(env, where_).truth(*root_, locals);
}

int64_t Expr::integer(Environment& env, const Local* locals) const {
  return integer_of(evaluate(env, locals), *root_, where_);
}

}  // namespace tessera::convert
