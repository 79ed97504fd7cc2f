#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/text/jinja/jinja_filters.h"
#include "tessera/text/jinja/jinja_library.h"
#include "tessera/text/jinja/jinja_node.h"

namespace tessera::text::jinja {
namespace {

struct Scope {
  Scope* outer = nullptr;
  std::vector<std::pair<std::string, Value>> names = {};

  Value* own(const std::string& name) {
    for (auto& [known, value] : names)
      if (known == name) return &value;
    return nullptr;
  }
  void set(const std::string& name, Value value) {
    if (Value* known = own(name))
      *known = std::move(value);
    else
      names.emplace_back(name, std::move(value));
  }
};

/// How a statement ended.
enum class Flow { on, break_, continue_ };

constexpr int kMaxCalls = 1000;  // nested calls of the functions below
constexpr size_t kScope = 1024;  // cost of the names of a call or loop iteration

/// raise_exception(): the template rejects the conversation; the template itself is valid.
struct Refusal {
  std::string what;
};

class Renderer {
 public:
  explicit Renderer(std::function<void()> poll) { budget_.poll = std::move(poll); }
  Text all(const Node& root, std::vector<std::pair<std::string, Value>> variables) {
    Scope& globals = open(nullptr);
    add_functions(globals);
    Scope& context = open(&globals);
    context.names = std::move(variables);
    try {
      execute(root, context, out_);
    } catch (const Refusal& refusal) {
      stop(refusal.what);
    } catch (const Error& error) {
      constexpr std::string_view kWhere = "[chat template] ";
      const std::string_view what = error.what();
      if (error.kind() != ErrorKind::input || !what.starts_with(kWhere)) throw;
      stop(fmt::format("line {}: {}", line_, what.substr(kWhere.size())));
    }
    return std::move(out_);
  }

 private:
  struct Depth {
    explicit Depth(Renderer& r) : run(r) {
      if (++run.depth_ > kMaxCalls) stop("it goes too deep; expected a template that ends");
      run.budget_.charge();
    }
    ~Depth() { --run.depth_; }
    Renderer& run;
  };

  /// Scopes live as long as the rendering: a macro may outlive the block that defined it.
  Scope& open(Scope* outer) { return scopes_.emplace_back(Scope{outer}); }

  Value look_up(const std::string& name, Scope* scope) {
    for (; scope != nullptr; scope = scope->outer) {
      budget_.charge(scope->names.size() * 8 + name.size());
      if (const Value* value = scope->own(name)) return *value;
    }
    return make_undefined(name);
  }

  void add_functions(Scope& globals) {
    globals.set("raise_exception", make_call("raise_exception", [this](Arguments& a) -> Value {
                  throw Refusal{a.values.empty()
                                    ? "it refuses the conversation"
                                    : to_text(a.values[0], budget_).bytes.substr(0, 1024)};
                }));
    globals.set("namespace", make_call("namespace", [this](Arguments& a) -> Value {
                  Namespace& space = spaces_.emplace_back();
                  if (!a.values.empty()) {
                    if (!a.values[0].dict()) stop("namespace takes a mapping");
                    if (a.values[0].dict()->numbers) stop("namespace of numbers; expected names");
                    for (const auto& [key, value] : a.values[0].dict()->items)
                      space.items.emplace_back(key.bytes, value);
                  }
                  budget_.touch(Budget::kItem * a.named.size() * a.named.size());
                  for (auto& [name, value] : a.named) set_in(space, name, value);
                  return {&space};
                }));
    globals.set("dict", make_call("dict", [this](Arguments& a) {
                  std::vector<std::pair<Text, Value>> items;
                  if (!a.values.empty()) {
                    if (!a.values[0].dict()) stop("dict takes a mapping");
                    budget_.charge(2 * a.values[0].dict()->weight);
                    items = a.values[0].dict()->items;
                    if (a.values[0].dict()->numbers) {
                      if (!a.named.empty()) stop("a mapping whose keys are texts and numbers");
                      return make_dict(std::move(items), true);
                    }
                  }
                  for (auto& [name, value] : a.named) items.emplace_back(Text(name), value);
                  return make_dict(std::move(items));
                }));
    globals.set("range", make_call("range", [this](Arguments& a) { return range(a); }));
  }

  Value range(const Arguments& a) {
    for (const Value& v : a.values)
      if (!v.whole() || std::abs(v.integer()) > (int64_t{1} << 40))
        stop("range takes integers up to 2^40");
    if (a.values.empty() || a.values.size() > 3 || !a.named.empty())
      stop("range takes 1 to 3 numbers");
    const int64_t begin = a.values.size() > 1 ? a.values[0].integer() : 0;
    const int64_t end = a.values[a.values.size() > 1 ? 1 : 0].integer();
    const int64_t step = a.values.size() > 2 ? a.values[2].integer() : 1;
    if (step == 0) stop("range with a step of 0");
    std::vector<Value> items;
    for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
      if (items.size() >= Budget::kMaxItems)
        stop(fmt::format("a range of more than {}", Budget::kMaxItems));
      items.push_back({i});
    }
    budget_.charge(items.size() * 16);
    return make_list(std::move(items));
  }

  static void set_in(Namespace& space, const std::string& name, const Value& value) {
    for (auto& [known, old] : space.items)
      if (known == name) {
        old = value;
        return;
      }
    space.items.emplace_back(name, value);
  }

  // statements

  Flow execute(const Node& node, Scope& scope, Text& out) {
    const Depth depth(*this);
    switch (node.kind) {
      case Kind::body:
        for (const NodePointer& child : node.children)
          if (const Flow flow = execute(*child, scope, out); flow != Flow::on) return flow;
        return Flow::on;
      case Kind::data:
        budget_.touch(node.constant.text()->size());
        out.add(*node.constant.text());
        return Flow::on;
      case Kind::output:
        out.add(to_text(value(*node.children[0], scope), budget_));
        return Flow::on;
      case Kind::if_: {
        size_t i = 0;
        for (; i + 1 < node.children.size(); i += 2)
          if (truth(value(*node.children[i], scope)))
            return execute(*node.children[i + 1], scope, out);
        return i < node.children.size() ? execute(*node.children[i], scope, out) : Flow::on;
      }
      case Kind::for_:
        loop(node, scope, out);
        return Flow::on;
      case Kind::set:
        set(node, scope);
        return Flow::on;
      case Kind::set_block: {
        Text text;
        execute(*node.children[0], open(&scope), text);
        Value made = make_text(std::move(text));
        if (node.children[1]) made = filtered(*node.children[1], made, scope);
        assign(node, made, scope);
        return Flow::on;
      }
      case Kind::macro:
        scope.set(node.name, macro(node, scope));
        return Flow::on;
      case Kind::filter_block: {
        Text text;
        execute(*node.children[0], open(&scope), text);
        out.add(to_text(filtered(*node.children[1], make_text(std::move(text)), scope), budget_));
        return Flow::on;
      }
      case Kind::generation: {
        const size_t begin = out.size();
        const Flow flow = execute(*node.children[0], scope, out);
        budget_.touch(out.size() - begin);
        for (size_t i = begin; i < out.size(); ++i) out.marks[i] |= Text::kAnswer;
        return flow;
      }
      case Kind::break_:
        return Flow::break_;
      case Kind::continue_:
        return Flow::continue_;
      default:
        stop("an expression in place of a statement");
    }
  }

  void assign(const Node& node, const Value& made, Scope& scope) {
    if (node.name.empty()) return scope.set(node.names[0], made);
    Namespace* space = look_up(node.names[0], &scope).space();
    if (space == nullptr)
      stop(fmt::format("{}.{} is set, which is no namespace", node.names[0], node.name));
    budget_.touch(space->items.size() * Budget::kItem + node.name.size());
    set_in(*space, node.name, made);
  }

  void set(const Node& node, Scope& scope) {
    const Value made = value(*node.children[0], scope);
    if (node.names.size() == 1) return assign(node, made, scope);
    unpack(node.names, made, scope);
  }

  void unpack(const std::vector<std::string>& names, const Value& made, Scope& scope) {
    const std::vector<Value> items = items_of(made, budget_);
    if (items.size() != names.size())
      stop(fmt::format("{} values for {} names", items.size(), names.size()));
    for (size_t i = 0; i < names.size(); ++i) scope.set(names[i], items[i]);
  }

  void loop(const Node& node, Scope& outer, Text& out) {
    std::vector<Value> items = items_of(value(*node.children[0], outer), budget_);
    Scope& scope = open(&outer);
    const auto bind = [&](const Value& item) {
      if (node.names.size() == 1)
        scope.set(node.names[0], item);
      else
        unpack(node.names, item, scope);
    };
    if (node.children[1]) {
      std::vector<Value> kept;
      for (const Value& item : items) {
        bind(item);
        if (truth(value(*node.children[1], scope))) kept.push_back(item);
      }
      items = std::move(kept);
    }
    if (items.empty() && node.children.size() > 3) {
      execute(*node.children[3], open(&outer), out);
      return;
    }
    for (size_t i = 0; i < items.size(); ++i) {
      budget_.charge(kScope);
      scope.names.clear();
      bind(items[i]);
      scope.set("loop", place(items, i));
      if (execute(*node.children[2], scope, out) == Flow::break_) return;
    }
  }

  static Value place(const std::vector<Value>& items, size_t i) {
    const auto at = static_cast<int64_t>(i), n = static_cast<int64_t>(items.size());
    std::vector<std::pair<Text, Value>> names;
    const auto add = [&](const char* name, Value value) {
      names.emplace_back(Text(name), std::move(value));
    };
    add("index", {at + 1});
    add("index0", {at});
    add("revindex", {n - at});
    add("revindex0", {n - at - 1});
    add("first", {i == 0});
    add("last", {at + 1 == n});
    add("length", {n});
    add("previtem", i > 0 ? items[i - 1] : make_undefined("previtem"));
    add("nextitem", at + 1 < n ? items[i + 1] : make_undefined("nextitem"));
    add("depth", {int64_t{1}});
    add("depth0", {int64_t{0}});
    // exempt from the limit of depth, which the items themselves may have reached
    int depth = 1;
    for (const auto& [name, item] : names)
      depth = std::max({depth, item.list() ? item.list()->depth + 1 : 0,
                        item.dict() ? item.dict()->depth + 1 : 0});
    size_t weight = 0;
    for (const auto& [name, item] : names) weight += name.size() + Budget::kItem;
    return {std::make_shared<const Dict>(Dict{std::move(names), depth, false, weight})};
  }

  Value macro(const Node& node, Scope& scope) {
    return make_call(node.name, [this, &node, &scope](Arguments& a) {
      const Depth depth(*this);
      Scope& inner = open(&scope);
      budget_.charge(kScope + Budget::kItem * (node.names.size() + 1) * (a.named.size() + 1));
      further(node, a, inner);
      for (size_t i = 0; i < node.names.size(); ++i) {
        const std::string& name = node.names[i];
        std::optional<Value> given;
        if (i < a.values.size()) given = a.values[i];
        for (const auto& [known, named] : a.named)
          if (known == name) given = named;
        if (!given && node.children[i + 1]) given = value(*node.children[i + 1], inner);
        inner.set(name, given ? *given : make_undefined(name));
      }
      Text out;
      execute(*node.children[0], inner, out);
      return make_text(std::move(out));
    });
  }

  /// Extra arguments of a call: `varargs` and `kwargs`, if the body uses them.
  static void further(const Node& node, const Arguments& a, Scope& inner) {
    const size_t n = node.names.size();
    if (a.values.size() > n && !node.varargs)
      stop(fmt::format("macro {} takes {} arguments", node.name, n));
    std::vector<std::pair<Text, Value>> named;
    for (const auto& [name, given] : a.named) {
      if (std::find(node.names.begin(), node.names.end(), name) != node.names.end()) continue;
      if (!node.kwargs) stop(fmt::format("macro {} takes no {}", node.name, name));
      named.emplace_back(Text(name), given);
    }
    if (node.kwargs) inner.set("kwargs", make_dict(std::move(named)));
    if (!node.varargs) return;
    std::vector<Value> values;
    for (size_t i = n; i < a.values.size(); ++i) values.push_back(a.values[i]);
    inner.set("varargs", make_list(std::move(values), true));
  }

  // expressions

  Arguments arguments(const Node& node, Scope& scope) {
    Arguments out;
    for (size_t i = 1; i < node.children.size(); ++i) {
      const Node& child = *node.children[i];
      if (child.kind == Kind::argument)
        out.named.emplace_back(child.name, value(*child.children[0], scope));
      else
        out.values.push_back(value(child, scope));
    }
    return out;
  }

  /// A chain of filters whose first has no value of its own.
  Value filtered(const Node& node, const Value& of, Scope& scope) {
    const Depth depth(*this);
    line_ = node.line;
    if (node.kind != Kind::filter) stop("expected filters alone");
    const Value inner = node.children[0] ? filtered(*node.children[0], of, scope) : of;
    return apply_filter(node.name, inner, arguments(node, scope), budget_);
  }

  Value value(const Node& node, Scope& scope) {
    const Depth depth(*this);
    line_ = node.line;
    const auto child = [&](size_t i) { return value(*node.children[i], scope); };
    switch (node.kind) {
      case Kind::constant:
        return node.constant;
      case Kind::name:
        return look_up(node.name, &scope);
      case Kind::list:
      case Kind::tuple: {
        std::vector<Value> items;
        for (size_t i = 0; i < node.children.size(); ++i) items.push_back(child(i));
        return make_list(std::move(items), node.kind == Kind::tuple);
      }
      case Kind::dict: {
        std::vector<std::pair<Text, Value>> items;
        bool numbers = false;
        for (size_t i = 0; i < node.children.size(); i += 2) {
          const Value key = child(i);
          if (!key.text() && !key.is<int64_t>())
            stop(fmt::format("{} is a key of a mapping; expected a text or a whole number",
                             type_name(key)));
          if (i == 0) numbers = !key.text();
          if (numbers != !key.text()) stop("a mapping whose keys are texts and numbers");
          const Text name = numbers ? Text(std::to_string(key.integer())) : *key.text();
          Value item = child(i + 1);
          budget_.charge(items.size() * Budget::kItem + name.size());
          const auto known = std::find_if(items.begin(), items.end(), [&](const auto& e) {
            if (e.first.size() != name.size()) return false;
            budget_.touch(name.size());
            return e.first.bytes == name.bytes;
          });
          if (known == items.end())
            items.emplace_back(name, std::move(item));
          else
            known->second = std::move(item);
        }
        return budget_.made(make_dict(std::move(items), numbers));
      }
      case Kind::attribute:
        return attribute_of(child(0), node.name, budget_);
      case Kind::item: {
        const Value of = child(0);
        return item_of(of, child(1), budget_);
      }
      case Kind::slice:
        return budget_.made(slice(node, scope));
      case Kind::call:
        return call(node, scope);
      case Kind::filter: {
        const Value of = child(0);
        return apply_filter(node.name, of, arguments(node, scope), budget_);
      }
      case Kind::test: {
        const Value of = child(0);
        return {apply_test(node.name, of, arguments(node, scope), budget_)};
      }
      case Kind::unary: {
        const Value of = child(0);
        if (node.name == "not") return {!truth(of)};
        if (!of.number()) stop(fmt::format("{} of {}", node.name, type_name(of)));
        if (node.name == "+") return of;
        if (of.whole() && of.integer() == std::numeric_limits<int64_t>::min())
          stop("a number beyond 64 bits");
        return of.whole() ? Value{-of.integer()} : Value{-of.real()};
      }
      case Kind::binary: {
        Value left = child(0);
        if (node.name == "or") return truth(left) ? left : child(1);
        if (node.name == "and") return truth(left) ? child(1) : left;
        return budget_.made(binary(node.name, left, child(1)));
      }
      case Kind::compare:
        return {comparisons(node, scope)};
      case Kind::condition:
        if (truth(child(1))) return child(0);
        return node.children[2] ? child(2) : make_undefined("the other value of an if");
      default:
        stop("a statement in place of an expression");
    }
  }

  Value call(const Node& node, Scope& scope) {
    const Value function = value(*node.children[0], scope);
    if (function.callable() == nullptr)
      stop(fmt::format(
          "{} is called{}", type_name(function),
          node.children[0]->name.empty() ? "" : ": " + node.children[0]->name.substr(0, 40)));
    Arguments given = arguments(node, scope);
    budget_.read(given);
    Value made = budget_.made(function.callable()->call(given));
    line_ = node.line;  // line of the macro's body until here
    return made;
  }

  bool comparisons(const Node& node, Scope& scope) {
    Value left = value(*node.children[0], scope);
    for (size_t i = 0; i < node.names.size(); ++i) {
      Value right = value(*node.children[i + 1], scope);
      const std::string& sign = node.names[i];
      bool holds = false;
      if (sign == "in" || sign == "not in") {
        if (right.text() && !left.text()) stop(fmt::format("{} in a text", type_name(left)));
        holds = apply_test("in", left, {{right}, {}}, budget_) == (sign == "in");
      } else {
        holds = apply_test(sign, left, {{right}, {}}, budget_);
      }
      if (!holds) return false;
      left = std::move(right);
    }
    return true;
  }

  Value slice(const Node& node, Scope& scope) {
    const Value of = value(*node.children[0], scope);
    std::optional<int64_t> bounds[3];
    for (size_t i = 0; i < 3; ++i) {
      if (!node.children[i + 1]) continue;
      const Value bound = value(*node.children[i + 1], scope);
      if (bound.none()) continue;
      if (!bound.whole()) stop(fmt::format("a slice by {}", type_name(bound)));
      bounds[i] = bound.integer();
    }
    if (!of.list() && !of.text()) stop(fmt::format("a slice of {}", type_name(of)));
    const auto n = static_cast<int64_t>(length_of(of, budget_));
    const int64_t step = bounds[2].value_or(1);
    if (step == 0) stop("a slice with a step of 0");
    const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    const auto clamped = [&](std::optional<int64_t> bound, int64_t otherwise) {
      if (!bound) return otherwise;
      return std::clamp(*bound < 0 ? std::max(*bound, -n - 1) + n : *bound, low, high);
    };
    const int64_t begin = clamped(bounds[0], step > 0 ? 0 : n - 1);
    const int64_t end = clamped(bounds[1], step > 0 ? n : -1);
    const int64_t stride = std::clamp(step, -n - 1, n + 1);
    budget_.read(of);
    if (of.text()) return characters(*of.text(), begin, end, stride);
    std::vector<Value> kept;
    for (int64_t i = begin; stride > 0 ? i < end : i > end; i += stride)
      kept.push_back(of.list()->items[static_cast<size_t>(i)]);
    return make_list(std::move(kept), of.list()->tuple);
  }

  Value characters(const Text& text, int64_t begin, int64_t end, int64_t stride) {
    const std::vector<size_t> ends = character_ends(text);
    const auto begin_of = [&](int64_t i) { return i == 0 ? 0 : ends[static_cast<size_t>(i - 1)]; };
    if (stride == 1)
      return make_text(begin < end ? text.cut(begin_of(begin), begin_of(end)) : Text());
    constexpr size_t kCut = 16;  // of a character, in addition to reading it
    budget_.touch(text.size() * kCut);
    Text out;
    for (int64_t i = begin; stride > 0 ? i < end : i > end; i += stride)
      out.add(text.cut(begin_of(i), ends[static_cast<size_t>(i)]));
    return make_text(std::move(out));
  }

  Value binary(const std::string& sign, const Value& a, const Value& b) {
    if (sign == "~") {
      Text out = to_text(a, budget_);
      out.add(to_text(b, budget_));
      return make_text(std::move(out));
    }
    if (sign == "+" && a.text() && b.text()) {
      budget_.charge(a.text()->size() + b.text()->size());
      Text out = *a.text();
      out.add(*b.text());
      return make_text(std::move(out));
    }
    if (sign == "%" && a.text()) return make_text(percent_formatted(*a.text(), b, budget_));
    if (sign == "+" && a.list() && b.list() && a.list()->tuple == b.list()->tuple) {
      std::vector<Value> items = items_of(a, budget_);
      const std::vector<Value> more = items_of(b, budget_);
      items.insert(items.end(), more.begin(), more.end());
      return make_list(std::move(items), a.list()->tuple);
    }
    if (sign == "*" && (a.text() || b.text()) && (a.whole() || b.whole())) {
      const Text& text = a.text() ? *a.text() : *b.text();
      const int64_t times = a.text() ? b.integer() : a.integer();
      Text out;
      for (int64_t i = 0; i < times && text.size() > 0; ++i) {
        budget_.charge(text.size());
        out.add(text);
      }
      return make_text(std::move(out));
    }
    if (!a.number() || !b.number()) stop(fmt::format("{} {} {}", type_name(a), sign, type_name(b)));
    return number(sign, a, b);
  }

  static Value number(const std::string& sign, const Value& a, const Value& b) {
    if ((sign == "/" || sign == "//" || sign == "%") && b.real() == 0) stop("a division by 0");
    if (sign == "/") return {a.real() / b.real()};
    if (!a.whole() || !b.whole()) {
      const double x = a.real(), y = b.real();
      if (sign == "+") return {x + y};
      if (sign == "-") return {x - y};
      if (sign == "*") return {x * y};
      if (sign == "//") return {std::floor(x / y)};
      const double rest = std::fmod(x, y);
      return {rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest};
    }
    const int64_t x = a.integer(), y = b.integer();
    int64_t out = 0;
    bool over = false;
    if (sign == "+") {
      over = __builtin_add_overflow(x, y, &out);
    } else if (sign == "-") {
      over = __builtin_sub_overflow(x, y, &out);
    } else if (sign == "*") {
      over = __builtin_mul_overflow(x, y, &out);
    } else if (y == -1) {
      over = sign == "//" && __builtin_sub_overflow(int64_t{0}, x, &out);
    } else {
      const int64_t rest = x % y, whole = x / y;
      const bool down = rest != 0 && (rest < 0) != (y < 0);
      out = sign == "//" ? whole - (down ? 1 : 0) : rest + (down ? y : 0);
    }
    if (over) stop("a number beyond 64 bits");
    return {out};
  }

  Budget budget_;
  std::deque<Scope> scopes_;
  std::deque<Namespace> spaces_;
  Text out_;
  int depth_ = 0, line_ = 1;  // of the expression that is being evaluated
};

}  // namespace

Text render(const Node& root,
            std::vector<std::pair<std::string, Value>> variables,
            std::function<void()> poll) {
  return Renderer(std::move(poll)).all(root, std::move(variables));
}

}  // namespace tessera::text::jinja
