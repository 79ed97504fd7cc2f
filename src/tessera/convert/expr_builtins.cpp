// The functions of the language.
#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/convert/environment.h"
#include "tessera/convert/expr_node.h"

namespace tessera::convert {
namespace {

constexpr int64_t kMaxRange = 100'000;

const Expr::Node& kid(const Call& call, size_t i) {
  return *call.node.kids[i];
}
double number(const Call& call, size_t i) {
  return number_of(call.arguments[i], kid(call, i), call.where);
}
int64_t integer(const Call& call, size_t i) {
  return integer_of(call.arguments[i], kid(call, i), call.where);
}

[[noreturn]] void wrong(const Call& call, size_t i, std::string_view expected) {
  fail(ErrorKind::file, call.where, "{}: found {}; expected {}", kid(call, i).source,
       shown(call.arguments[i]), expected);
}
const std::string& text(const Call& call, size_t i) {
  if (!call.arguments[i].is_string()) wrong(call, i, "a string");
  return call.arguments[i].get_ref<const std::string&>();
}
const Json& list(const Call& call, size_t i) {
  if (!call.arguments[i].is_array()) wrong(call, i, "a list");
  call.env.step(call.where, static_cast<int64_t>(call.arguments[i].size()));
  return call.arguments[i];
}
const Json& object(const Call& call, size_t i) {
  if (!call.arguments[i].is_object()) wrong(call, i, "an object");
  return call.arguments[i];
}

Json checked(const Call& call, double value) {
  if (std::isnan(value))
    fail(ErrorKind::file, call.where, "{}: the result is not a number", call.node.source);
  return value;
}

/// A double as the integer it is.
Json whole(const Call& call, double value) {
  if (!(value >= -9.2e18 && value <= 9.2e18))
    fail(ErrorKind::file, call.where, "{}: the result does not fit 64 bits", call.node.source);
  return static_cast<int64_t>(value);
}

Json rounded(const Call& call, double (*round)(double)) {
  if (call.arguments[0].is_number_integer()) return integer(call, 0);
  return whole(call, round(number(call, 0)));
}

Json extreme(const Call& call, bool largest) {
  const bool of_list = call.arguments.size() == 1;
  const Json items = of_list
                         ? list(call, 0)
                         : Json(std::vector<Json>(call.arguments.begin(), call.arguments.end()));
  if (items.empty()) fail(ErrorKind::file, call.where, "{}: the list is empty", call.node.source);
  Json best = items[0];
  for (const Json& item : items) {
    const double a = number_of(item, call.node, call.where),
                 b = number_of(best, call.node, call.where);
    if (largest ? a > b : a < b) best = item;
  }
  return best;
}

Json builtin_range(const Call& call) {
  const int64_t begin = call.arguments.size() == 2 ? integer(call, 0) : 0;
  const int64_t end = integer(call, call.arguments.size() - 1);
  if (end > begin && (end > kMaxRange || begin < -kMaxRange))
    fail(ErrorKind::file, call.where, "{}: a range up to {}; expected at most {}", call.node.source,
         end, kMaxRange);
  call.env.step(call.where, std::max<int64_t>(0, end - begin));
  Json items = Json::array();
  for (int64_t i = begin; i < end; ++i) items.push_back(i);
  return items;
}

Json builtin_pick(const Call& call) {
  const Json& table = object(call, 1);
  const Json& key = call.arguments[0];
  const std::string name = key.is_string() ? key.get<std::string>() : shown(key);
  if (const auto found = table.find(name); found != table.end()) return *found;
  if (call.arguments.size() == 3) return call.arguments[2];
  std::vector<std::string> known;
  for (const auto& [k, v] : table.items()) known.push_back(k);
  fail(ErrorKind::file, call.where, "{}: found {}; expected one of {}", kid(call, 0).source,
       shown(key), fmt::join(known, ", "));
}

/// The first key of a table that has the value.
Json builtin_key_of(const Call& call) {
  for (const auto& [key, value] : object(call, 1).items())
    if (equal(value, call.arguments[0])) return key;
  fail(ErrorKind::file, call.where, "{}: {} has no name here", kid(call, 0).source,
       shown(call.arguments[0]));
}

Json builtin_merge(const Call& call) {
  Json merged = Json::object();
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    if (is_absent(call.arguments[i]) || call.arguments[i].is_null()) continue;
    for (const auto& [key, value] : object(call, i).items()) {
      call.env.step(call.where, static_cast<int64_t>(merged.size()));
      merged[key] = value;
    }
  }
  return merged;
}

/// {"0": a, "1": b} of a list.
Json builtin_by_place(const Call& call) {
  Json out = Json::object();
  for (const Json& item : list(call, 0)) out[std::to_string(out.size())] = item;
  return out;
}

/// {a: 0, b: 1} of a list of strings.
Json builtin_places(const Call& call) {
  Json out = Json::object();
  int64_t place = 0;
  for (const Json& item : list(call, 0)) {
    if (!item.is_string()) wrong(call, 0, "a list of strings");
    out[item.get<std::string>()] = place++;
  }
  return out;
}

Json builtin_without(const Call& call) {
  Json rest = object(call, 0);
  for (const Json& key : list(call, 1)) {
    call.env.step(call.where, static_cast<int64_t>(rest.size()));
    if (key.is_string()) rest.erase(key.get<std::string>());
  }
  return rest;
}

Json builtin_unique(const Call& call) {
  Json items = Json::array();
  for (const Json& item : list(call, 0)) {
    call.env.step(call.where, static_cast<int64_t>(items.size()));
    if (std::none_of(items.begin(), items.end(),
                     [&](const Json& other) { return equal(item, other); }))
      items.push_back(item);
  }
  return items;
}

Json builtin_index_of(const Call& call) {
  const Json& items = list(call, 1);
  for (size_t i = 0; i < items.size(); ++i)
    if (equal(items[i], call.arguments[0])) return static_cast<int64_t>(i);
  return -1;
}

Json builtin_truths(const Call& call, bool all) {
  for (const Json& item : list(call, 0)) {
    if (!item.is_boolean()) wrong(call, 0, "a list of true and false");
    if (item.get<bool>() != all) return !all;
  }
  return all;
}

Json builtin_require(const Call& call) {
  if (!call.arguments[0].is_boolean()) wrong(call, 0, "true or false");
  if (!call.arguments[0].get<bool>()) fail(ErrorKind::file, call.where, "{}", text(call, 1));
  return call.arguments.size() == 3 ? call.arguments[2] : Json(true);
}

Json builtin_string(const Call& call) {
  return call.arguments[0].is_string() ? call.arguments[0] : Json(shown(call.arguments[0]));
}

Json builtin_len(const Call& call) {
  const Json& value = call.arguments[0];
  if (value.is_string()) return static_cast<int64_t>(value.get_ref<const std::string&>().size());
  if (!value.is_array() && !value.is_object()) wrong(call, 0, "a list, an object or a string");
  return static_cast<int64_t>(value.size());
}

Json builtin_sum(const Call& call) {
  int64_t total = 0;
  bool integers = true;
  double sum = 0;
  for (const Json& item : list(call, 0)) {
    sum += number_of(item, kid(call, 0), call.where);
    integers = integers && item.is_number_integer();
    if (integers &&
        __builtin_add_overflow(total, integer_of(item, kid(call, 0), call.where), &total))
      fail(ErrorKind::file, call.where, "{}: the result does not fit 64 bits", call.node.source);
  }
  return integers ? Json(total) : checked(call, sum);
}

Json builtin_round_up(const Call& call) {
  const int64_t n = integer(call, 0), multiple = integer(call, 1);
  int64_t result = 0;
  if (n < 0 || multiple < 1 || __builtin_add_overflow(n, multiple - 1, &result))
    fail(ErrorKind::file, call.where,
         "{}: found {} and {}; expected a size and a positive multiple", call.node.source, n,
         multiple);
  return result / multiple * multiple;
}

Json builtin_log(const Call& call) {
  const double x = number(call, 0);
  if (x <= 0) fail(ErrorKind::file, call.where, "{}: the logarithm of {}", call.node.source, x);
  return std::log(x);
}

Json builtin_sqrt(const Call& call) {
  const double x = number(call, 0);
  if (x < 0) fail(ErrorKind::file, call.where, "{}: the root of {}", call.node.source, x);
  return std::sqrt(x);
}

double normal_cdf(double z) {
  return 0.5 * std::erfc(-z * std::sqrt(0.5));
}

/// The z below which a share p of a standard normal distribution lies; the ends are infinite. By
/// bisection of the smaller tail, whose doubles end before 40.
Json builtin_normal_quantile(const Call& call) {
  const double p = number(call, 0), tail = std::min(p, 1 - p);
  if (!(tail >= 0))
    fail(ErrorKind::file, call.where, "{}: found {}; expected a share, 0 to 1", kid(call, 0).source,
         p);
  double low = 0, high = tail < 0.5 ? 40 : 0;
  for (double middle = high / 2; low < middle && middle < high; middle = low + (high - low) / 2)
    (normal_cdf(-middle) > tail ? low : high) = middle;
  if (tail == 0) high = std::numeric_limits<double>::infinity();
  return p < 0.5 ? -high : high;
}

Json builtin_replace(const Call& call) {
  std::string result;
  const std::string &from = text(call, 1), &to = text(call, 2), &whole_text = text(call, 0);
  if (from.empty()) wrong(call, 1, "a string that is not empty");
  for (size_t at = 0; at < whole_text.size();) {
    if (whole_text.compare(at, from.size(), from) == 0) {
      result += to;
      at += from.size();
    } else {
      result += whole_text[at++];
    }
    if (result.size() > kMaxJoined)
      fail(ErrorKind::file, call.where, "{}: the result has more than {} bytes", call.node.source,
           kMaxJoined);
  }
  return result;
}

/// The characters of a text, bytes above ASCII together with those that they continue.
Json builtin_characters(const Call& call) {
  Json list = Json::array();
  call.env.step(call.where, static_cast<int64_t>(text(call, 0).size()));
  for (const char c : text(call, 0)) {
    if ((static_cast<unsigned char>(c) & 0xc0) == 0x80 && !list.empty())
      list.back().get_ref<std::string&>() += c;
    else
      list.push_back(std::string(1, c));
  }
  return list;
}

struct Entry {
  std::string_view name;
  Builtin builtin;
};

constexpr Entry kBuiltins[] = {
    // presence
    {"has", {1, 1, [](const Call& c) -> Json { return !is_absent(c.arguments[0]); }}},
    {"get",
     {2, 2,
      [](const Call& c) -> Json {
        return is_absent(c.arguments[0]) ? c.arguments[1] : c.arguments[0];
      }}},
    // numbers
    {"floor", {1, 1, [](const Call& c) { return rounded(c, std::floor); }}},
    {"ceil", {1, 1, [](const Call& c) { return rounded(c, std::ceil); }}},
    {"round", {1, 1, [](const Call& c) { return rounded(c, std::round); }}},
    {"int", {1, 1, [](const Call& c) { return rounded(c, std::trunc); }}},
    {"float", {1, 1, [](const Call& c) -> Json { return number(c, 0); }}},
    {"float32",
     {1, 1,
      [](const Call& c) -> Json { return static_cast<double>(static_cast<float>(number(c, 0))); }}},
    {"round_up", {2, 2, builtin_round_up}},
    {"sqrt", {1, 1, builtin_sqrt}},
    {"ln", {1, 1, builtin_log}},
    {"exp", {1, 1, [](const Call& c) { return checked(c, std::exp(number(c, 0))); }}},
    {"normal_cdf", {1, 1, [](const Call& c) -> Json { return normal_cdf(number(c, 0)); }}},
    {"normal_quantile", {1, 1, builtin_normal_quantile}},
    {"pow",
     {2, 2,
      [](const Call& c) {
        return arithmetic('^', c.arguments[0], c.arguments[1], c.node, c.where);
      }}},
    {"abs",
     {1, 1,
      [](const Call& c) -> Json {
        return c.arguments[0].is_number_integer()
                   ? Json(std::abs(std::max(integer(c, 0), -INT64_MAX)))
                   : Json(std::abs(number(c, 0)));
      }}},
    {"min", {1, 16, [](const Call& c) { return extreme(c, false); }}},
    {"max", {1, 16, [](const Call& c) { return extreme(c, true); }}},
    {"sum", {1, 1, builtin_sum}},
    {"is_infinite",
     {1, 1,
      [](const Call& c) -> Json {
        return c.arguments[0].is_number() && std::isinf(c.arguments[0].get<double>());
      }}},
    // strings
    {"string", {1, 1, builtin_string}},
    {"starts_with",
     {2, 2, [](const Call& c) -> Json { return text(c, 0).starts_with(text(c, 1)); }}},
    {"ends_with", {2, 2, [](const Call& c) -> Json { return text(c, 0).ends_with(text(c, 1)); }}},
    {"replace", {3, 3, builtin_replace}},
    {"characters", {1, 1, builtin_characters}},
    // lists and objects
    {"len", {1, 1, builtin_len}},
    {"range", {1, 2, builtin_range}},
    {"all", {1, 1, [](const Call& c) { return builtin_truths(c, true); }}},
    {"any", {1, 1, [](const Call& c) { return builtin_truths(c, false); }}},
    {"unique", {1, 1, builtin_unique}},
    {"index_of", {2, 2, builtin_index_of}},
    {"merge", {1, 16, builtin_merge}},
    {"without", {2, 2, builtin_without}},
    {"by_place", {1, 1, builtin_by_place}},
    {"places", {1, 1, builtin_places}},
    {"is_list", {1, 1, [](const Call& c) -> Json { return c.arguments[0].is_array(); }}},
    {"is_object", {1, 1, [](const Call& c) -> Json { return c.arguments[0].is_object(); }}},
    // tables and checks
    {"pick", {2, 3, builtin_pick}},
    {"key_of", {2, 2, builtin_key_of}},
    {"require", {2, 3, builtin_require}},
    {"fail",
     {1, 1, [](const Call& c) -> Json { fail(ErrorKind::file, c.where, "{}", text(c, 0)); }}},
};

}  // namespace

const Builtin* find_builtin(std::string_view name) {
  for (const Entry& entry : kBuiltins)
    if (entry.name == name) return &entry.builtin;
  return nullptr;
}

std::vector<std::string> function_names() {
  std::vector<std::string> names = {"has_tensor", "shape", "tensor_values", "find_prefix"};
  for (const Entry& entry : kBuiltins) names.emplace_back(entry.name);
  return names;
}

}  // namespace tessera::convert
