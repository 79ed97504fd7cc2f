#include "tessera/convert/peft_names.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::convert {
namespace {

constexpr std::string_view kWeight = ".weight";
constexpr const char* kHead = "head.weight";

bool is_number(std::string_view word) {
  return !word.empty() && word.size() < 10 &&
         std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// Calls body(begin, word) for the words of a name until it returns true.
template <class Body>
void for_words(std::string_view name, Body body) {
  for (size_t begin = 0; begin < name.size();) {
    const size_t dot = std::min(name.find('.', begin), name.size());
    if (body(begin, name.substr(begin, dot - begin))) return;
    begin = dot + 1;
  }
}

/// A name from the word before its first number on ("layers.0.mlp.up_proj.weight"), or its last two
/// words.
std::string end_of(const std::string& name) {
  size_t before = std::string::npos, previous = 0, last = 0, last_but_one = 0;
  for_words(name, [&](size_t begin, std::string_view word) {
    if (is_number(word) && begin > 0) before = previous;
    previous = begin;
    last_but_one = last;
    last = begin;
    return before != std::string::npos;
  });
  return name.substr(before != std::string::npos ? before : last_but_one);
}

}  // namespace

int64_t layer_in(const std::string& name) {
  int64_t layer = -1;
  for_words(name, [&](size_t, std::string_view word) {
    if (is_number(word)) layer = std::stoll(std::string(word));
    return layer >= 0;
  });
  return layer;
}

PeftNames::PeftNames(const Family& family, const Checkpoint& base) {
  for_each_rule(family, "hf", base, [&](const BoundRule& rule) {
    for (const std::vector<std::string>& spellings : rule.spellings) add(spellings);
    if (rule.ours.size() != 1 || rule.foreign.size() != 1) return;
    if (rule.ours.front() == model::kTokenTable) table_ = rule.foreign.front();
    if (rule.ours.front() == kHead) head_ = rule.foreign.front();
  });
  for (const BoundAlias& alias : aliases_of(family, "hf", base)) {
    add(alias.spellings);
    // copies of single layers (predictors) are no names of the model's own
    if (alias.ours != model::kTokenTable || layer_in(alias.spellings.front()) >= 0) continue;
    shared_ = shared_ || tied_;
    tied_ = true;
    head_ = alias.spellings.front();
  }
}

void PeftNames::add(const std::vector<std::string>& spellings) {
  for (const std::string& spelling : spellings) {
    names_.emplace(spelling, spellings.front());
    ends_[end_of(spelling)].insert(spellings.front());
  }
}

std::string PeftNames::tensor(const std::string& name) const {
  if (const auto found = names_.find(name); found != names_.end()) return found->second;
  const auto found = ends_.find(end_of(name));
  return found == ends_.end() || found->second.size() != 1 ? "" : *found->second.begin();
}

std::string PeftNames::module(const std::string& name) const {
  const std::string found = tensor(name + std::string(kWeight));
  return found.ends_with(kWeight) ? found.substr(0, found.size() - kWeight.size()) : "";
}

PeftFile renamed(PeftFile file, const PeftNames& names) {
  PeftFile out;
  out.vectors = file.vectors;
  const auto refuse = [](const std::string& name) {
    fail(ErrorKind::file, "adapter", "two modules of the file are {} of this model", name);
  };
  for (auto& [name, parts] : file.modules) {
    const std::string own = names.module(name);
    if (!out.modules.emplace(own.empty() ? name : own, parts).second) refuse(own);
  }
  for (auto& [name, tensor] : file.whole) {
    const std::string own = names.tensor(name);
    if (!out.whole.emplace(own.empty() ? name : own, tensor).second) refuse(own);
  }
  return out;
}

}  // namespace tessera::convert
