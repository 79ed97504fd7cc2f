#include "tessera/train/data/tasks.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tessera::train {
namespace {

constexpr int64_t kBlank = 0;

/// Uniform in 0 .. n - 1, element `index` of the stream.
int64_t below(int64_t n, const RandomKey& key, int64_t index) {
  return static_cast<int64_t>(
      uint64_t{key.bits(static_cast<uint64_t>(index))} * static_cast<uint64_t>(n) >> 32);
}

/// n distinct of 0 .. slots - 1 without replacement, slot g with weight (g + 1)^(a - 1), a = 0.01.
std::vector<int64_t> early_slots(int64_t n, int64_t slots, const RandomKey& key) {
  std::vector<double> weights;
  double mass = 0;
  for (int64_t g = 0; g < slots; ++g)
    mass += weights.emplace_back(std::pow(static_cast<double>(g + 1), 0.01 - 1));
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < n; ++i) {
    double draw = static_cast<double>(key.bits(static_cast<uint64_t>(i))) * 0x1p-32 * mass;
    int64_t slot = -1;
    // rounding may leave a rest of the draw: use the last free slot
    for (int64_t g = 0; g < slots && (slot < 0 || draw >= 0); ++g)
      if (weights[static_cast<size_t>(g)] > 0) {
        slot = g;
        draw -= weights[static_cast<size_t>(g)];
      }
    chosen.push_back(slot);
    mass -= weights[static_cast<size_t>(slot)];
    weights[static_cast<size_t>(slot)] = 0;
  }
  return chosen;
}

Example associative_recall(const MqarTask& task,
                           int64_t vocab,
                           int64_t length,
                           const RandomKey& key) {
  const int64_t n = task.items, half = vocab / 2;
  Example example;
  example.targets.assign(static_cast<size_t>(length), -1);
  for (int64_t i = 0; i < length; ++i)
    example.ids.push_back(task.filler == Filler::random ? below(vocab, key.fold("filler"), i)
                                                        : kBlank);
  const auto slots = early_slots(n, length / 2 - n, key.fold("slots"));
  for (int64_t j = 0; j < n; ++j) {
    const int64_t name = 1 + permuted(j, half - 1, key.fold("keys"));
    const int64_t value = half + permuted(j, vocab - half, key.fold("values"));
    const auto at = static_cast<size_t>(2 * j);
    const auto query = static_cast<size_t>(2 * n + 2 * slots[static_cast<size_t>(j)]);
    example.ids[at] = name;
    example.ids[at + 1] = value;
    example.ids[query] = name;
    example.targets[query] = value;
  }
  return example;
}

/// `scattered`: the symbols are at any n positions in order, otherwise the first n.
Example copying(int64_t n, bool scattered, int64_t vocab, int64_t length, const RandomKey& key) {
  const int64_t room = length - n;
  std::vector<int64_t> places;
  for (int64_t j = 0; j < n; ++j)
    places.push_back(scattered ? permuted(j, room, key.fold("places")) : j);
  std::sort(places.begin(), places.end());
  Example example;
  example.ids.assign(static_cast<size_t>(room), kBlank);
  example.ids.resize(static_cast<size_t>(length), vocab - 1);
  example.targets.assign(static_cast<size_t>(length), -1);
  for (int64_t j = 0; j < n; ++j) {
    const int64_t symbol = 1 + below(vocab - 2, key.fold("symbols"), j);
    example.ids[static_cast<size_t>(places[static_cast<size_t>(j)])] = symbol;
    example.targets[static_cast<size_t>(room + j)] = symbol;
  }
  return example;
}

Example induction(int64_t vocab, int64_t length, const RandomKey& key) {
  Example example;
  for (int64_t i = 0; i < length; ++i)
    example.ids.push_back(below(vocab - 1, key.fold("tokens"), i));
  const auto place = static_cast<size_t>(below(length - 2, key.fold("place"), 0));
  example.ids[place] = example.ids.back() = vocab - 1;
  example.targets.assign(static_cast<size_t>(length), -1);
  example.targets.back() = example.ids[place + 1];
  return example;
}

Example needle(
    int64_t n, int64_t vocab, int64_t length, const RandomKey& key, std::optional<double> depth) {
  const int64_t body = length - n, room = body - n - 1;
  const int64_t at = depth ? std::llround(*depth * static_cast<double>(room))
                           : below(room + 1, key.fold("depth"), 0);
  Example example;
  for (int64_t i = 0; i < body; ++i) example.ids.push_back(below(vocab - 1, key.fold("filler"), i));
  example.targets.assign(static_cast<size_t>(length), -1);
  example.ids[static_cast<size_t>(at)] = vocab - 1;
  example.ids.push_back(vocab - 1);
  for (int64_t j = 0; j < n; ++j) {
    const int64_t token = below(vocab - 1, key.fold("value"), j);
    example.ids[static_cast<size_t>(at + 1 + j)] = token;
    example.targets[static_cast<size_t>(body + j)] = token;
    if (j + 1 < n) example.ids.push_back(token);
  }
  return example;
}

Example modular_sum(int64_t modulus, int64_t length, const RandomKey& key) {
  Example example;
  int64_t sum = 0;
  for (int64_t i = 0; i < length; ++i) {
    example.ids.push_back(below(modulus, key.fold("tokens"), i));
    sum = (sum + example.ids.back()) % modulus;
    example.targets.push_back(sum);
  }
  return example;
}

/// All permutations of 0 .. n - 1 in lexicographic order.
std::vector<std::vector<int64_t>> permutations(int64_t n) {
  std::vector<int64_t> one(static_cast<size_t>(n));
  std::iota(one.begin(), one.end(), 0);
  std::vector<std::vector<int64_t>> all;
  do {
    all.push_back(one);
  } while (std::next_permutation(one.begin(), one.end()));
  return all;
}

Example products(int64_t n, int64_t length, const RandomKey& key) {
  const auto all = permutations(n);
  std::vector<int64_t> product = all.front();
  Example example;
  for (int64_t i = 0; i < length; ++i) {
    example.ids.push_back(below(std::ssize(all), key.fold("tokens"), i));
    const std::vector<int64_t>& next = all[static_cast<size_t>(example.ids.back())];
    for (int64_t& element : product) element = next[static_cast<size_t>(element)];
    example.targets.push_back(std::lower_bound(all.begin(), all.end(), product) - all.begin());
  }
  return example;
}

struct TaskCheck {
  int64_t vocab, length;
  std::string_view path;

  void least(std::string_view key, int64_t found, int64_t wanted, const std::string& why) const {
    if (found < wanted)
      fail(ErrorKind::spec, key, "found {}; expected at least {}: {}", found, wanted, why);
  }
  void copied(int64_t items) const {
    least(path, length, 2 * items, "symbols and their copies");
    least("spec.vocab", vocab, 4, "two symbols, the blank and the marker");
  }

  void operator()(const MqarTask& task) const {
    if (length % 2 != 0) fail(ErrorKind::spec, path, "found {}; expected an even number", length);
    least(path, length, 4 * task.items, "keys and values, and as many for the queries");
    least("spec.vocab", vocab, length + 1,
          fmt::format("more tokens than positions, of which {} has {}", path, length));
  }
  void operator()(const CopyingTask& task) const { copied(task.items); }
  void operator()(const SelectiveCopyingTask& task) const { copied(task.items); }
  void operator()(const InductionHeadsTask&) const {
    least(path, length, 3, "the token, what follows it, and the token again");
    least("spec.vocab", vocab, 3, "two tokens and the special one");
  }
  void operator()(const NeedleTask& task) const {
    least(path, length, 2 * task.items + 1, "the marker and the value, and both again");
    least("spec.vocab", vocab, 3, "two tokens and the marker");
  }
  void operator()(const ParityTask&) const { least("spec.vocab", vocab, 2, "the bits"); }
  void operator()(const ModularSumTask& task) const {
    least("data.items", task.items, 2, "the modulus");
    least("spec.vocab", vocab, task.items, "the residues");
  }
  void operator()(const S3Task&) const {
    least("spec.vocab", vocab, 6, "the permutations of 3 elements");
  }
  void operator()(const S5Task&) const {
    least("spec.vocab", vocab, 120, "the permutations of 5 elements");
  }
};

struct ExampleMaker {
  int64_t vocab, length;
  const RandomKey& key;
  std::optional<double> depth;

  Example operator()(const MqarTask& task) const {
    return associative_recall(task, vocab, length, key);
  }
  Example operator()(const CopyingTask& task) const {
    return copying(task.items, false, vocab, length, key);
  }
  Example operator()(const SelectiveCopyingTask& task) const {
    return copying(task.items, true, vocab, length, key);
  }
  Example operator()(const InductionHeadsTask&) const { return induction(vocab, length, key); }
  Example operator()(const NeedleTask& task) const {
    return needle(task.items, vocab, length, key, depth);
  }
  Example operator()(const ParityTask&) const { return modular_sum(2, length, key); }
  Example operator()(const ModularSumTask& task) const {
    return modular_sum(task.items, length, key);
  }
  Example operator()(const S3Task&) const { return products(3, length, key); }
  Example operator()(const S5Task&) const { return products(5, length, key); }
};

}  // namespace

void check_task(const TaskRecipe& task, int64_t vocab, int64_t length, std::string_view path) {
  std::visit(TaskCheck{vocab, length, path}, task);
}

Example make_example(const TaskRecipe& task,
                     int64_t vocab,
                     int64_t length,
                     const RandomKey& key,
                     std::optional<double> depth) {
  return std::visit(ExampleMaker{vocab, length, key, depth}, task);
}

}  // namespace tessera::train
