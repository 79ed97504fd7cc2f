#include "tessera/train/data/tasks.h"

#include <algorithm>
#include <cmath>

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

/// The keys of either copying task; null for others.
const CopyingTask* copying_of(const TaskRecipe& task) {
  if (const auto* selective = std::get_if<SelectiveCopyingTask>(&task)) return selective;
  return std::get_if<CopyingTask>(&task);
}

}  // namespace

void check_task(const TaskRecipe& task, int64_t vocab, int64_t length, std::string_view path) {
  const auto least = [](std::string_view key, int64_t found, int64_t wanted,
                        const std::string& why) {
    if (found < wanted)
      fail(ErrorKind::spec, key, "found {}; expected at least {}: {}", found, wanted, why);
  };
  if (const auto* mqar = std::get_if<MqarTask>(&task)) {
    if (length % 2 != 0) fail(ErrorKind::spec, path, "found {}; expected an even number", length);
    least(path, length, 4 * mqar->items, "keys and values, and as many for the queries");
    least("spec.vocab", vocab, length + 1,
          fmt::format("more tokens than positions, of which {} has {}", path, length));
  } else if (const CopyingTask* copies = copying_of(task)) {
    least(path, length, 2 * copies->items, "symbols and their copies");
    least("spec.vocab", vocab, 4, "two symbols, the blank and the marker");
  } else {
    least(path, length, 3, "the token, what follows it, and the token again");
    least("spec.vocab", vocab, 3, "two tokens and the special one");
  }
}

Example make_example(const TaskRecipe& task, int64_t vocab, int64_t length, const RandomKey& key) {
  if (const auto* mqar = std::get_if<MqarTask>(&task))
    return associative_recall(*mqar, vocab, length, key);
  if (const CopyingTask* copies = copying_of(task))
    return copying(copies->items, std::holds_alternative<SelectiveCopyingTask>(task), vocab, length,
                   key);
  return induction(vocab, length, key);
}

}  // namespace tessera::train
