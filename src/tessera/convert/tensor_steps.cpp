#include "tessera/convert/tensor_steps.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/convert/expr_node.h"
#include "tessera/spec/names.h"

namespace tessera::convert {
namespace {

constexpr int64_t kMaxParts = 100'000;

/// Members of a step's argument where it is an object.
const std::vector<std::string>& known_members(const std::string& step) {
  static const std::map<std::string, std::vector<std::string>> kMembers = {
      {"reshape", {"from", "to"}},
      {"split", {"axis", "sizes"}},
      {"join", {"axis", "sizes"}},
      {"stack", {"axis", "count"}},
      {"unstack", {"axis", "count"}},
      {"interleave", {"heads", "rotary"}},
      {"deinterleave", {"heads", "rotary"}},
      {"swap_halves", {"heads", "rotary"}},
      {"first_rows", {"count", "of", "padding"}},
      {"rows_before", {"count", "padding"}},
      {"repeat", {"axis", "count"}},
      {"ternary", {"inverse", "scale"}}};
  static const std::vector<std::string> kNone;
  const auto found = kMembers.find(step);
  return found == kMembers.end() ? kNone : found->second;
}

int64_t whole(const Json& value, const std::string& where, std::string_view what) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)))
    fail(ErrorKind::file, where, "{}: found {}; expected an integer", what, shown(value));
  return value.get<int64_t>();
}

std::vector<int64_t> wholes(const Json& value, const std::string& where, std::string_view what) {
  if (!value.is_array())
    fail(ErrorKind::file, where, "{}: found {}; expected a list", what, shown(value));
  std::vector<int64_t> list;
  for (const Json& item : value) list.push_back(whole(item, where, what));
  return list;
}

int64_t member(const Json& argument, const char* key, const std::string& where) {
  return argument.is_object() && argument.contains(key) ? whole(argument[key], where, key)
                                                        : whole(absent(), where, key);
}

std::vector<int64_t> members(const Json& argument, const char* key, const std::string& where) {
  return argument.is_object() && argument.contains(key) ? wholes(argument[key], where, key)
                                                        : wholes(absent(), where, key);
}

double number(const Json& value, const std::string& where) {
  if (!value.is_number()) fail(ErrorKind::file, where, "found {}; expected a number", shown(value));
  return value.get<double>();
}

TensorView expect_shape(TensorView tensor, const Shape& shape) {
  if (tensor.shape != shape)
    fail(ErrorKind::file, "convert", "tensor \"{}\" has shape {}; expected {}", tensor.name,
         format::shape_text(tensor.shape), format::shape_text(shape));
  return tensor;
}

TensorView without_axis(const TensorView& tensor, int64_t axis) {
  Shape shape = tensor.shape;
  if (axis < 0 || axis >= static_cast<int64_t>(shape.size()) ||
      shape[static_cast<size_t>(axis)] != 1)
    fail(ErrorKind::file, "convert", "tensor \"{}\" has shape {}; expected 1 at axis {}",
         tensor.name, format::shape_text(shape), axis);
  shape.erase(shape.begin() + axis);
  return reshaped(tensor, shape);
}

TensorView with_axis(const TensorView& tensor, int64_t axis) {
  Shape shape = tensor.shape;
  if (axis < 0 || axis > static_cast<int64_t>(shape.size()))
    fail(ErrorKind::file, "convert", "tensor \"{}\" has shape {}; there is no place for axis {}",
         tensor.name, format::shape_text(shape), axis);
  shape.insert(shape.begin() + axis, 1);
  return reshaped(tensor, shape);
}

std::vector<int64_t> inverse_permutation(const std::vector<int64_t>& permutation) {
  std::vector<int64_t> inverse(permutation.size(), -1);
  for (size_t k = 0; k < permutation.size(); ++k)
    if (permutation[k] >= 0 && permutation[k] < static_cast<int64_t>(permutation.size()))
      inverse[static_cast<size_t>(permutation[k])] = static_cast<int64_t>(k);
  return inverse;
}

float apply_named(const std::string& name, float x) {
  return name == "exp" ? std::exp(x) : name == "log" ? std::log(x) : -x;
}
const char* inverse_name(const std::string& name) {
  return name == "exp" ? "log" : name == "log" ? "exp" : "neg";
}

/// The named function of every number. A logarithm of what has none would be a silent NaN.
TensorView applied(const TensorView& tensor, const std::string& name) {
  int64_t at = -1;
  return mapped(tensor, [&](float x) {
    ++at;
    if (name == "log" && !(x >= 0))
      fail(ErrorKind::file, "convert",
           "tensor \"{}\": its logarithm is taken, and element {} is {} there; expected a number "
           "from 0",
           tensor.name, at, x);
    return apply_named(name, x);
  });
}

TensorView first_rows(const TensorView& tensor,
                      const Json& argument,
                      bool forward,
                      const std::string& where) {
  const int64_t count = member(argument, "count", where), of = member(argument, "of", where);
  if (count < 0 || count > of) fail(ErrorKind::file, where, "the first {} of {} rows", count, of);
  if (forward) return split(tensor, 0, std::array{count, of - count}).front();
  if (!argument.contains("padding"))
    fail(ErrorKind::file, where, "the dropped rows cannot be restored: no \"padding\"");
  return with_padding(tensor, of - count, number(argument["padding"], where));
}

/// Rows that stand before the tensor's own.
TensorView rows_before(const TensorView& tensor,
                       const Json& argument,
                       bool forward,
                       const std::string& where) {
  const int64_t count = member(argument, "count", where);
  if (tensor.shape.empty() || count < 0 || (!forward && count > tensor.shape[0]))
    fail(ErrorKind::file, where, "tensor \"{}\" has shape {}; there are no {} rows before it",
         tensor.name, format::shape_text(tensor.shape), count);
  if (count == 0) return tensor;
  const int64_t rows = tensor.shape[0];
  if (!forward) return split(tensor, 0, std::array{count, rows - count}).back();
  if (!argument.contains("padding"))
    fail(ErrorKind::file, where, "the rows cannot be restored: no \"padding\"");
  std::vector<int64_t> order(static_cast<size_t>(rows + count));
  std::iota(order.begin(), order.begin() + count, rows);
  std::iota(order.begin() + count, order.end(), 0);
  return with_rows(with_padding(tensor, count, number(argument["padding"], where)), order);
}

TensorView repeated(const TensorView& tensor,
                    const Json& argument,
                    bool forward,
                    const std::string& where) {
  const int64_t axis = member(argument, "axis", where), count = member(argument, "count", where);
  if (count < 1 || count > kMaxParts)
    fail(ErrorKind::file, where, "count: found {}; expected 1 to {}", count, kMaxParts);
  const auto copies = static_cast<size_t>(count);
  if (forward) {
    without_axis(tensor, axis);  // which checks that the axis has one element
    return joined(std::vector<TensorView>(copies, tensor), axis);
  }
  const std::vector<TensorView> parts = split(tensor, axis, std::vector<int64_t>(copies, 1));
  for (const TensorView& part : parts)
    if (!equal_values(part, parts.front()))
      fail(ErrorKind::file, where, "tensor \"{}\" differs along axis {}; expected {} equal parts",
           tensor.name, axis, count);
  return parts.front();
}

}  // namespace

TensorSteps TensorSteps::compile(const Json& json, const std::string& where) {
  static const std::pair<const char*, Kind> kNames[] = {{"transpose", Kind::transpose},
                                                        {"reshape", Kind::reshape},
                                                        {"squeeze", Kind::squeeze},
                                                        {"unsqueeze", Kind::unsqueeze},
                                                        {"split", Kind::split},
                                                        {"join", Kind::join},
                                                        {"stack", Kind::stack},
                                                        {"unstack", Kind::unstack},
                                                        {"order", Kind::order},
                                                        {"interleave", Kind::interleave},
                                                        {"deinterleave", Kind::deinterleave},
                                                        {"swap_halves", Kind::swap_halves},
                                                        {"first_rows", Kind::first_rows},
                                                        {"rows_before", Kind::rows_before},
                                                        {"repeat", Kind::repeat},
                                                        {"mxfp4", Kind::mxfp4},
                                                        {"integers", Kind::integers},
                                                        {"ternary", Kind::ternary},
                                                        {"round_ternary", Kind::round_ternary},
                                                        {"add", Kind::add},
                                                        {"scale", Kind::scale},
                                                        {"apply", Kind::apply}};
  TensorSteps steps;
  if (!json.is_array())
    fail(ErrorKind::spec, where, "found {}; expected a list of steps", spec::kind_of(json));
  for (size_t i = 0; i < json.size(); ++i) {
    const Json& item = json[i];
    const std::string at = fmt::format("{}[{}]", where, i);
    if (!item.is_object() || item.empty())
      fail(ErrorKind::spec, at, "found {}; expected a step such as {{\"transpose\": [1, 0]}}",
           spec::kind_of(item));
    Step step{Kind::choice, nullptr, std::nullopt, {}, {}, at};
    if (item.contains("$if")) {
      if (!item["$if"].is_string() || !item.contains("then"))
        fail(ErrorKind::spec, at, "expected {{\"$if\": \"condition\", \"then\": [...]}}");
      spec::check_keys(item, {"$if", "then", "else"}, at);
      step.condition = Expr::parse(item["$if"].get_ref<const std::string&>(), at + ".$if");
      step.branches.push_back(compile(item["then"], at + ".then"));
      step.branches.push_back(item.contains("else") ? compile(item["else"], at + ".else")
                                                    : TensorSteps{});
      steps.steps_.push_back(std::move(step));
      continue;
    }
    for (const auto& [key, value] : item.items()) {
      if (key == "only") {
        for (const int64_t index : wholes(value, at, "only"))
          step.only.push_back(static_cast<size_t>(index));
        continue;
      }
      const auto found = std::find_if(std::begin(kNames), std::end(kNames),
                                      [&](const auto& entry) { return entry.first == key; });
      if (found == std::end(kNames) || step.argument)
        fail(ErrorKind::spec, at, "unknown step \"{}\"", key);
      step.kind = found->second;
      if (value.is_object() && !value.contains("$if") && !value.contains("$match"))
        spec::check_keys(value, known_members(key), at + "." + key);
      step.argument = Template::compile(value, at + "." + key);
    }
    if (!step.argument) fail(ErrorKind::spec, at, "a step without a name");
    steps.steps_.push_back(std::move(step));
  }
  return steps;
}

void TensorSteps::collect_names(ExprNames& names) const {
  for (const Step& step : steps_) {
    if (step.argument) step.argument->collect_names(names);
    if (step.condition) step.condition->collect_names(names);
    for (const TensorSteps& branch : step.branches) branch.collect_names(names);
  }
}

bool TensorSteps::move_rows() const {
  return std::all_of(steps_.begin(), steps_.end(), [](const Step& step) {
    switch (step.kind) {
      case Kind::transpose:
      case Kind::split:
      case Kind::interleave:
      case Kind::deinterleave:
      case Kind::swap_halves:
        return true;
      case Kind::choice:
        return std::all_of(step.branches.begin(), step.branches.end(),
                           [](const TensorSteps& branch) { return branch.move_rows(); });
      default:
        return false;
    }
  });
}

bool TensorSteps::transpose() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const Step& step) {
    return step.kind == Kind::transpose ||
           std::any_of(step.branches.begin(), step.branches.end(),
                       [](const TensorSteps& branch) { return branch.transpose(); });
  });
}

void TensorSteps::apply(std::vector<TensorView>& tensors,
                        Environment& env,
                        const Local* locals) const {
  for (const Step& step : steps_) run(step, true, tensors, env, locals);
}

void TensorSteps::invert(std::vector<TensorView>& tensors,
                         Environment& env,
                         const Local* locals) const {
  for (size_t i = steps_.size(); i-- > 0;) run(steps_[i], false, tensors, env, locals);
}

void TensorSteps::run(const Step& step,
                      bool forward,
                      std::vector<TensorView>& tensors,
                      Environment& env,
                      const Local* locals) {
  if (step.kind == Kind::choice) {
    const TensorSteps& chosen = step.branches[step.condition->test(env, locals) ? 0 : 1];
    return forward ? chosen.apply(tensors, env, locals) : chosen.invert(tensors, env, locals);
  }
  const Json argument = step.argument->evaluate(env, locals);
  const std::string& where = step.where;
  const auto one = [&]() -> const TensorView& {
    if (tensors.size() != 1)
      fail(ErrorKind::spec, where, "this step takes one tensor, not {}", tensors.size());
    return tensors.front();
  };
  const auto each = [&](const auto& function) {
    for (size_t i = 0; i < tensors.size(); ++i)
      if (step.only.empty() || std::find(step.only.begin(), step.only.end(), i) != step.only.end())
        tensors[i] = function(tensors[i]);
  };
  const auto parts = [&] {
    const int64_t count = member(argument, "count", where);
    if (count < 1 || count > kMaxParts)
      fail(ErrorKind::file, where, "count: found {}; expected 1 to {}", count, kMaxParts);
    return std::vector<int64_t>(static_cast<size_t>(count), 1);
  };
  const auto check_parts = [&](const std::vector<int64_t>& sizes, int64_t axis) {
    if (tensors.size() != sizes.size())
      fail(ErrorKind::spec, where, "found {} tensors; expected {}", tensors.size(), sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i)
      if (axis < 0 || axis >= static_cast<int64_t>(tensors[i].shape.size()) ||
          tensors[i].shape[static_cast<size_t>(axis)] != sizes[i])
        fail(ErrorKind::file, where, "tensor \"{}\" has shape {}; expected {} along axis {}",
             tensors[i].name, format::shape_text(tensors[i].shape), sizes[i], axis);
  };
  const auto take_apart = [&](const std::vector<int64_t>& sizes) {
    tensors = split(one(), member(argument, "axis", where), sizes);
  };
  const auto put_together = [&](const std::vector<int64_t>& sizes) {
    const int64_t axis = member(argument, "axis", where);
    check_parts(sizes, axis);
    tensors = {joined(tensors, axis)};
  };
  switch (step.kind) {
    case Kind::transpose: {
      const auto permutation = wholes(argument, where, "transpose");
      each([&](const TensorView& t) {
        return transposed(t, forward ? permutation : inverse_permutation(permutation));
      });
      break;
    }
    case Kind::reshape: {
      const Shape from = members(argument, forward ? "from" : "to", where),
                  to = members(argument, forward ? "to" : "from", where);
      each([&](const TensorView& t) { return reshaped(expect_shape(t, from), to); });
      break;
    }
    case Kind::squeeze:
    case Kind::unsqueeze: {
      const int64_t axis = whole(argument, where, "axis");
      each([&](const TensorView& t) {
        return (step.kind == Kind::squeeze) == forward ? without_axis(t, axis) : with_axis(t, axis);
      });
      break;
    }
    case Kind::split:
    case Kind::join: {
      const auto sizes = members(argument, "sizes", where);
      if ((step.kind == Kind::split) == forward)
        take_apart(sizes);
      else
        put_together(sizes);
      break;
    }
    case Kind::order: {
      const auto places = wholes(argument, where, "order"), inverse = inverse_permutation(places);
      if (places.size() != tensors.size() ||
          std::find(inverse.begin(), inverse.end(), -1) != inverse.end())
        fail(ErrorKind::spec, where, "order: found {}; expected a permutation of {} tensors",
             argument.dump(), tensors.size());
      std::vector<TensorView> moved;
      for (const int64_t place : forward ? places : inverse)
        moved.push_back(tensors.at(static_cast<size_t>(place)));
      tensors = std::move(moved);
      break;
    }
    case Kind::unstack:
    case Kind::stack: {
      const int64_t axis = member(argument, "axis", where);
      if ((step.kind == Kind::unstack) == forward) {
        take_apart(parts());
        for (TensorView& t : tensors) t = without_axis(t, axis);
      } else {
        for (TensorView& t : tensors) t = with_axis(t, axis);
        put_together(parts());
      }
      break;
    }
    case Kind::interleave:
    case Kind::deinterleave: {
      const int64_t heads = member(argument, "heads", where),
                    rotary = member(argument, "rotary", where);
      each([&](const TensorView& t) {
        return with_rows(t, rotary_row_order(t.shape.empty() ? 0 : t.shape[0], heads, rotary,
                                             (step.kind == Kind::interleave) != forward));
      });
      break;
    }
    case Kind::swap_halves: {
      const int64_t heads = member(argument, "heads", where),
                    rotary = member(argument, "rotary", where);
      each([&](const TensorView& t) {
        return with_rows(t, swapped_row_order(t.shape.empty() ? 0 : t.shape[0], heads, rotary));
      });
      break;
    }
    case Kind::first_rows:
      each([&](const TensorView& t) { return first_rows(t, argument, forward, where); });
      break;
    case Kind::rows_before:
      each([&](const TensorView& t) { return rows_before(t, argument, forward, where); });
      break;
    case Kind::repeat:
      each([&](const TensorView& t) { return repeated(t, argument, forward, where); });
      break;
    case Kind::integers:
      each([&](const TensorView& t) { return forward ? integers_as_float32(t) : as_integers(t); });
      break;
    case Kind::mxfp4:
      if (forward) {
        if (tensors.size() != 2)
          fail(ErrorKind::spec, where, "this step takes codes and scales, not {} tensors",
               tensors.size());
        tensors = {mxfp4_of(tensors[0], tensors[1])};
      } else {
        tensors = mxfp4_parts(one());
      }
      break;
    case Kind::ternary: {
      if (!argument.is_object())
        fail(ErrorKind::spec, where,
             "found {}; expected {{\"inverse\": false, \"scale\": \"f32\"}}", shown(argument));
      const bool inverse = argument.value("inverse", false);
      if (forward && tensors.size() != 2)
        fail(ErrorKind::spec, where, "this step takes codes and their factor, not {} tensors",
             tensors.size());
      if (forward)
        tensors = {ternary_of(tensors[0], tensors[1], inverse)};
      else
        tensors = ternary_parts(one(), inverse, dtype_named(argument.value("scale", "f32")));
      break;
    }
    case Kind::round_ternary:
      if (!forward) each([](const TensorView& t) { return ternary_rounded(t); });
      break;
    case Kind::add: {
      const auto c = static_cast<float>(number(argument, where));
      each([&](const TensorView& t) {
        return mapped(t, [&](float x) { return forward ? x + c : x - c; });
      });
      break;
    }
    case Kind::scale: {
      const double c = number(argument, where);
      if (c == 0) fail(ErrorKind::file, where, "a factor of 0 has no inverse");
      each([&](const TensorView& t) {
        return mapped(t, [&](float x) { return static_cast<float>(forward ? x * c : x / c); });
      });
      break;
    }
    case Kind::apply: {
      const std::string name = argument.is_string() ? argument.get<std::string>() : "";
      if (name != "exp" && name != "log" && name != "neg")
        fail(ErrorKind::spec, where, "found {}; expected exp, log or neg", shown(argument));
      each([&](const TensorView& t) { return applied(t, forward ? name : inverse_name(name)); });
      break;
    }
    case Kind::choice:
      break;
  }
}

}  // namespace tessera::convert
