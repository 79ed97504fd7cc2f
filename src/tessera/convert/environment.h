// What names and functions mean while expressions are evaluated: constants, values that are
// computed when first asked for, functions written in the family file, and functions of the host.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tessera/convert/expr.h"

namespace tessera::convert {

class Template;

/// A function of a family file: "name(a, b)": template.
struct FamilyFunction {
  std::vector<std::string> params;
  std::shared_ptr<const Template> body;
};

class Environment {
 public:
  using HostFunction = std::function<Json(std::span<const Json>)>;

  /// Later definitions replace earlier ones of the same name.
  void constant(std::string name, Json value);
  /// Evaluated when first asked for. A value that refers to itself is an error, and so is one that
  /// is absent, unless `may_be_absent`.
  void lazy(std::string name, std::shared_ptr<const Template> body, bool may_be_absent = false);
  void function(std::string name, FamilyFunction function);
  void host(std::string name, size_t arguments, HostFunction function);

  /// Null when there is no such name.
  const Json* find(std::string_view name);
  /// Whether something asked for it and it could be evaluated.
  bool evaluated(std::string_view name) const;
  bool has_function(std::string_view name) const;
  Json call(std::string_view name, std::span<const Json> arguments, std::string_view where);
  /// Counts the work; throws when a family file asks for too much of it.
  void step(std::string_view where, int64_t cost = 1);
  /// The same for a copy of `value`, by its size: a short text can double a value again and again.
  void step_copy(std::string_view where, const Json& value);

 private:
  struct Lazy {
    std::shared_ptr<const Template> body;
    bool may_be_absent = false;
    enum class State { fresh, running, done } state = State::fresh;
    Json value;
  };
  struct Host {
    size_t arguments;
    HostFunction function;
  };
  std::map<std::string, Lazy, std::less<>> values_;
  std::map<std::string, FamilyFunction, std::less<>> functions_;
  std::map<std::string, Host, std::less<>> hosts_;
  int64_t steps_ = 0;
  int depth_ = 0;
};

}  // namespace tessera::convert
