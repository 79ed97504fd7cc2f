#include "tessera/convert/environment.h"

#include "tessera/base/error.h"
#include "tessera/convert/template.h"

namespace tessera::convert {
namespace {

constexpr int64_t kMaxSteps = 5'000'000;
constexpr int kMaxCallDepth = 100;  // functions calling functions, values asking for values

constexpr int kMaxNested = 1000;  // lists in lists
constexpr size_t kBytesPerStep = 16;

/// What a copy costs: a step for each value in it, and for some bytes of text.
int64_t copy_cost(const Json& value, std::string_view where, int depth = 0) {
  if (depth > kMaxNested)
    fail(ErrorKind::spec, where, "a value is nested deeper than {}", kMaxNested);
  int64_t cost = 1;
  if (value.is_string())
    cost += static_cast<int64_t>(value.get_ref<const std::string&>().size() / kBytesPerStep);
  else if (value.is_structured())
    for (const Json& member : value) cost += copy_cost(member, where, depth + 1);
  return cost;
}

/// Raises a depth for as long as it lives.
class Descent {
 public:
  Descent(int& depth, std::string_view where) : depth_(depth) {
    if (depth_ >= kMaxCallDepth)
      fail(ErrorKind::spec, where, "functions call each other deeper than {}", kMaxCallDepth);
    ++depth_;
  }
  ~Descent() { --depth_; }

 private:
  int& depth_;
};

}  // namespace

void Environment::constant(std::string name, Json value) {
  values_.insert_or_assign(std::move(name),
                           Lazy{nullptr, true, Lazy::State::done, std::move(value)});
}

void Environment::lazy(std::string name, std::shared_ptr<const Template> body, bool may_be_absent) {
  values_.insert_or_assign(std::move(name),
                           Lazy{std::move(body), may_be_absent, Lazy::State::fresh, {}});
}

void Environment::function(std::string name, FamilyFunction function) {
  functions_.insert_or_assign(std::move(name), std::move(function));
}

void Environment::host(std::string name, size_t arguments, HostFunction function) {
  hosts_.insert_or_assign(std::move(name), Host{arguments, std::move(function)});
}

const Json* Environment::find(std::string_view name) {
  const auto found = values_.find(name);
  if (found == values_.end()) return nullptr;
  Lazy& entry = found->second;
  if (entry.state == Lazy::State::done) return &entry.value;
  if (entry.state == Lazy::State::running)
    fail(ErrorKind::spec, entry.body->where(), "the value \"{}\" depends on itself", name);
  const Descent descent(depth_, entry.body->where());
  entry.state = Lazy::State::running;
  Json value;
  try {
    value = entry.body->evaluate(*this);
  } catch (...) {
    entry.state = Lazy::State::fresh;  // found again by a later question, not taken for a cycle
    throw;
  }
  if (is_absent(value) && !entry.may_be_absent)
    fail(ErrorKind::file, entry.body->where(), "the value is missing: {}", entry.body->text());
  entry.value = std::move(value);
  entry.state = Lazy::State::done;
  return &entry.value;
}

bool Environment::evaluated(std::string_view name) const {
  const auto found = values_.find(name);
  return found != values_.end() && found->second.state == Lazy::State::done;
}

bool Environment::has_function(std::string_view name) const {
  return functions_.find(name) != functions_.end() || hosts_.find(name) != hosts_.end();
}

Json Environment::call(std::string_view name,
                       std::span<const Json> arguments,
                       std::string_view where) {
  const auto check_count = [&](size_t expected) {
    if (arguments.size() != expected)
      fail(ErrorKind::spec, where, "{} takes {} arguments, not {}", name, expected,
           arguments.size());
  };
  if (const auto host = hosts_.find(name); host != hosts_.end()) {
    check_count(host->second.arguments);
    return host->second.function(arguments);
  }
  const auto found = functions_.find(name);
  if (found == functions_.end()) fail(ErrorKind::spec, where, "there is no function \"{}\"", name);
  const FamilyFunction& function = found->second;
  check_count(function.params.size());
  const Descent descent(depth_, where);
  // a function sees its parameters and the environment, not the caller's loops
  std::vector<Local> locals;
  locals.reserve(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i)
    locals.push_back({function.params[i], arguments[i], locals.empty() ? nullptr : &locals.back()});
  return function.body->evaluate(*this, locals.empty() ? nullptr : &locals.back());
}

void Environment::step(std::string_view where, int64_t cost) {
  steps_ += 1 + cost;
  if (steps_ > kMaxSteps)
    fail(ErrorKind::resource, where, "the family file asks for more than {} steps of work",
         kMaxSteps);
}

void Environment::step_copy(std::string_view where, const Json& value) {
  step(where, copy_cost(value, where));
}

}  // namespace tessera::convert
