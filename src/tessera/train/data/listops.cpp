#include "tessera/train/data/listops.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/rng.h"

namespace tessera::train {
namespace {

struct ListOperator {
  const char* name;
  char symbol;
};
constexpr std::array kListOperators{ListOperator{"[MIN", 'm'}, ListOperator{"[MAX", 'M'},
                                    ListOperator{"[MED", 'e'}, ListOperator{"[SM", 's'}};

int64_t apply(char symbol, std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  switch (symbol) {
    case 'm':
      return values.front();
    case 'M':
      return values.back();
    case 'e':
      return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
    default:
      break;
  }
  int64_t sum = 0;
  for (const int64_t value : values) sum += value;
  return sum % 10;
}

/// Draws of one tree, in order. Stops when it is too long.
class TreeMaker {
 public:
  TreeMaker(const ListOpsOptions& options, const RandomKey& key) : options_(options), key_(key) {}

  /// Appends a node and returns its value; 0 for a tree that is too long.
  int64_t node(int64_t depth) {
    constexpr uint32_t kQuarter = uint32_t{1} << 30;
    if (length_ >= options_.max_length) return 0;
    if (depth >= options_.max_depth || key_.bits(next_++) > kQuarter) {
      ++length_;
      const int64_t digit = below(10);
      source_ += static_cast<char>('0' + digit);
      source_ += ' ';
      return digit;
    }
    const ListOperator& of = kListOperators[static_cast<size_t>(below(kListOperators.size()))];
    length_ += 2;
    source_ += of.name;
    source_ += ' ';
    const int64_t n = 2 + below(options_.max_args - 1);
    std::vector<int64_t> values;
    for (int64_t i = 0; i < n; ++i) values.push_back(node(depth + 1));
    source_ += "] ";
    return apply(of.symbol, std::move(values));
  }
  int64_t length() const { return length_; }
  /// Without the space at the end.
  std::string source() const { return source_.substr(0, source_.size() - 1); }

 private:
  int64_t below(int64_t n) {
    return static_cast<int64_t>(uint64_t{key_.bits(next_++)} * static_cast<uint64_t>(n) >> 32);
  }
  const ListOpsOptions& options_;
  RandomKey key_;
  uint64_t next_ = 0;
  int64_t length_ = 0;
  std::string source_;
};

/// The value of the node at `at`, which becomes the position after it.
int64_t value_at(std::string_view symbols, size_t& at, int64_t depth, const std::string& where) {
  constexpr int64_t kDeepest = 1000;
  const char c = at < symbols.size() ? symbols[at] : '\0';
  if (c >= '0' && c <= '9') {
    ++at;
    return c - '0';
  }
  const bool known = std::any_of(kListOperators.begin(), kListOperators.end(),
                                 [&](const ListOperator& one) { return one.symbol == c; });
  if (!known || depth > kDeepest)
    fail(ErrorKind::file, "data",
         "{}: token {} is no operator or digit; expected a tree of ListOps", where, at + 1);
  ++at;
  std::vector<int64_t> values;
  while (at < symbols.size() && symbols[at] != ']')
    values.push_back(value_at(symbols, at, depth + 1, where));
  if (at == symbols.size() || values.empty())
    fail(ErrorKind::file, "data", "{}: an operator {}; expected a tree of ListOps", where,
         values.empty() ? "without arguments" : "without its ]");
  ++at;
  return apply(c, std::move(values));
}

int64_t most_frequent(const std::array<int64_t, 10>& counts) {
  return *std::max_element(counts.begin(), counts.end());
}

}  // namespace

std::vector<ListOpsTree> make_listops(const ListOpsOptions& options,
                                      int64_t n,
                                      uint64_t seed,
                                      int64_t* draws,
                                      const CancelToken* cancel) {
  constexpr int64_t kFruitless = 1'000'000;  // draws without a tree
  if (options.max_args < 2 || options.max_depth < 2 || options.max_length <= options.min_length + 1)
    fail(ErrorKind::usage, "listops",
         "depth {}, {} arguments, lengths of {} to {}; expected at least 2, 2 and a range",
         options.max_depth, options.max_args, options.min_length, options.max_length);
  std::vector<ListOpsTree> trees;
  std::set<uint64_t> seen;
  const RandomKey key = RandomKey(seed).fold("listops");
  int64_t drawn = 0, last = 0;
  for (; std::ssize(trees) < n; ++drawn) {
    if (cancel != nullptr && drawn % 1024 == 0) cancel->check("data");
    if (drawn - last > kFruitless)
      fail(ErrorKind::usage, "listops",
           "{} of {} different trees after {} draws; expected a wider range of lengths, or fewer",
           trees.size(), n, drawn);
    TreeMaker made(options, key.fold(static_cast<uint64_t>(drawn)));
    const int64_t value = made.node(1);
    if (made.length() <= options.min_length || made.length() >= options.max_length) continue;
    std::string source = made.source();
    if (!seen.insert(hash_name(source)).second) continue;
    trees.push_back({std::move(source), value});
    last = drawn;
  }
  if (draws != nullptr) *draws = drawn;
  return trees;
}

std::string listops_symbols(std::string_view source, const std::string& where) {
  std::string out;
  for (size_t at = 0; (at = source.find_first_not_of(' ', at)) != source.npos;) {
    const size_t end = std::min(source.find(' ', at), source.size());
    const std::string_view token = source.substr(at, end - at);
    at = end;
    if (token == "(" || token == ")") continue;
    const auto* of = std::find_if(kListOperators.begin(), kListOperators.end(),
                                  [&](const ListOperator& one) { return token == one.name; });
    if (of != kListOperators.end())
      out += of->symbol;
    else if (token.size() == 1 && (token[0] == ']' || (token[0] >= '0' && token[0] <= '9')))
      out += token[0];
    else
      fail(ErrorKind::file, "data",
           "{}: \"{}\"; expected tokens of ListOps: [MIN [MAX [MED [SM ] and digits", where,
           token.substr(0, 20));
  }
  return out;
}

int64_t listops_value(std::string_view symbols, const std::string& where) {
  size_t at = 0;
  const int64_t value = value_at(symbols, at, 1, where);
  if (at < symbols.size())
    fail(ErrorKind::file, "data", "{}: {} tokens after the tree; expected one tree", where,
         symbols.size() - at);
  return value;
}

ListOpsBaselines listops_baselines(const std::vector<std::string>& symbols,
                                   const std::vector<int64_t>& values) {
  ListOpsBaselines out;
  if (symbols.empty()) return out;
  std::array<int64_t, 10> all{};
  std::map<char, std::array<int64_t, 10>> by_root;
  size_t tokens = 0;
  for (size_t i = 0; i < symbols.size(); ++i) {
    const auto value = static_cast<size_t>(values.at(i));
    ++all.at(value);
    ++by_root[symbols[i].empty() ? ' ' : symbols[i].front()].at(value);
    tokens += symbols[i].size();
  }
  int64_t hits = 0;
  for (const auto& [root, counts] : by_root) hits += most_frequent(counts);
  const auto n = static_cast<double>(symbols.size());
  out.majority = static_cast<double>(most_frequent(all)) / n;
  out.root_operator = static_cast<double>(hits) / n;
  out.mean_length = static_cast<double>(tokens) / n;
  return out;
}

}  // namespace tessera::train
