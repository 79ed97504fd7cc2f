#include "tessera/ops/library/shapes.h"

#include <map>
#include <sstream>
#include <string_view>

namespace tessera::ops::library {
namespace {

using Names = std::vector<std::string_view>;
using Sizes = std::map<std::string_view, c10::SymInt>;

Names split(std::string_view text, std::string_view separator) {
  Names out;
  for (size_t at = 0;;) {
    const size_t end = text.find(separator, at);
    out.push_back(text.substr(at, end - at));
    if (end == std::string_view::npos) return out;
    at = end + separator.size();
  }
}

/// "B = 2, T = 5", of those names that are known.
std::string values(const Names& names, const Sizes& known) {
  std::ostringstream out;
  for (const std::string_view name : names)
    if (const auto size = known.find(name); size != known.end())
      out << (out.tellp() > 0 ? ", " : " with ") << name << " = " << size->second;
  return out.str();
}

void check(const char* op, const Argument& argument, const Tensor& x, Sizes& known) {
  TORCH_CHECK_VALUE(x.is_floating_point(), "[", op, "] ", argument.name, ": ", x.scalar_type(),
                    "; expected floating-point numbers");
  const Names forms = split(argument.sizes, " or ");
  for (const std::string_view form : forms) {
    const Names names = split(form, ",");
    if (static_cast<int64_t>(names.size()) != x.dim()) continue;
    for (size_t i = 0; i < names.size(); ++i) {
      const c10::SymInt size = x.sym_size(static_cast<int64_t>(i));
      const auto [at, is_new] = known.emplace(names[i], size);
      TORCH_CHECK_VALUE(is_new || at->second == size, "[", op, "] ", argument.name, ": ",
                        x.sym_sizes(), "; expected [", form, "]", values(names, known));
    }
    return;
  }
  TORCH_CHECK_VALUE(false, "[", op, "] ", argument.name, ": ", x.sym_sizes(), "; expected sizes ",
                    argument.sizes);
}

}  // namespace

void check_call(const Signature& s, const std::vector<Tensor>& tensors, int64_t n) {
  Sizes known;
  for (size_t i = 0; i < tensors.size(); ++i) check(s.op, s.arguments[i], tensors[i], known);
  if (const auto g = known.find("G"); g != known.end()) {
    const c10::SymInt& heads = known.at("H");
    TORCH_CHECK_VALUE(g->second > 0 && heads % g->second == 0, "[", s.op, "] G = ", g->second,
                      "; expected a divisor of H = ", heads);
  }
  TORCH_CHECK_VALUE(n >= s.integer.least, "[", s.op, "] ", s.integer.name, " = ", n,
                    "; expected at least ", s.integer.least);
}

void check_gradient(const Signature& s, const Tensor& gradient, const Tensor& like) {
  TORCH_CHECK_VALUE(gradient.sym_sizes() == like.sym_sizes(), "[", s.op,
                    "] gradient: ", gradient.sym_sizes(), "; expected ", like.sym_sizes());
}

}  // namespace tessera::ops::library
