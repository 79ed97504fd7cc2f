#include "tessera/infer/evaluation/passkey.h"

#include <cmath>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::infer {
namespace {

constexpr const char* kTask =
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there.";
constexpr const char* kFiller =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

}  // namespace

Passkey make_passkey(int64_t before, int64_t after, const RandomKey& key) {
  const uint64_t number = 10'000 + (uint64_t{key.bits(0)} * 90'000 >> 32);
  const auto filler = [](int64_t repeats) {
    std::string line;
    for (int64_t i = 0; i < repeats; ++i) line += (i > 0 ? " " : "") + std::string(kFiller);
    return line;
  };
  Passkey out;
  out.prompt = fmt::format(
      "{}\n{}\nThe pass key is {}. Remember it. {} is the pass key.\n{}\nWhat is the pass key? "
      "The pass key is",
      kTask, filler(before), number, number, filler(after));
  out.answer = fmt::format(" {}", number);
  return out;
}

Passkey make_passkey(const text::Tokenizer& tokenizer,
                     int64_t length,
                     double depth,
                     const RandomKey& key) {
  const auto with = [&](int64_t repeats) {
    const int64_t before = std::llround(depth * static_cast<double>(repeats));
    return make_passkey(before, repeats - before, key);
  };
  const auto tokens = [&](int64_t repeats) {
    const Passkey made = with(repeats);
    return std::ssize(tokenizer.encode(made.prompt + made.answer, {.add_special = false}));
  };
  const int64_t bare = tokens(0);
  if (bare > length)
    fail(ErrorKind::usage, "eval", "passkey prompts of {} tokens; expected at least {}", length,
         bare);
  // a repeat has more than one token: bisect between none and as many repeats as tokens
  int64_t fits = 0, over = length + 1;
  while (over - fits > 1) {
    const int64_t middle = fits + (over - fits) / 2;
    (tokens(middle) <= length ? fits : over) = middle;
  }
  return with(fits);
}

}  // namespace tessera::infer
