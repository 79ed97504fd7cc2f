#include "tessera/retrieve/citations.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

namespace tessera::retrieve {
namespace {

constexpr const char* kInstructions =
    "Answer the question from the passages below. Name the passages that the answer stands on by "
    "their numbers, like [1]. If they do not hold the answer, say so.\n";

/// The longest beginning of whole lines of at most `tokens` tokens.
std::string beginning(const std::string& text, int64_t tokens, const text::Tokenizer& tokenizer) {
  size_t kept = 0;
  int64_t used = 0;
  while (kept < text.size()) {
    const size_t end = std::min(text.find('\n', kept), text.size() - 1) + 1;
    used += std::ssize(tokenizer.encode(text.substr(kept, end - kept), {.add_special = false}));
    if (used > tokens) break;
    kept = end;
  }
  return text.substr(0, kept);
}

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

}  // namespace

PromptWithPassages augment_prompt(std::string_view question,
                                  const std::vector<Source>& found,
                                  int64_t tokens,
                                  const text::Tokenizer& tokenizer) {
  const auto count = [&](const std::string& text) {
    return std::ssize(tokenizer.encode(text, {.add_special = false}));
  };
  PromptWithPassages out;
  std::string passages;
  int64_t left = tokens - count(kInstructions);
  for (const Source& source : found) {
    const std::string head = fmt::format("\n[{}] {}\n", out.passages + 1, source.where);
    left -= count(head);
    if (left <= 0) break;
    std::string text = trimmed(source.text) + "\n";
    if (count(text) > left) {
      text = beginning(text, left, tokenizer);
      out.cut = !text.empty();
      if (text.empty()) break;
    }
    left -= count(text);
    passages += head + text;
    ++out.passages;
    if (out.cut) break;
  }
  out.prompt = out.passages == 0
                   ? std::string(question)
                   : fmt::format("{}{}\nQuestion: {}", kInstructions, passages, question);
  return out;
}

std::vector<size_t> cited(std::string_view answer, size_t n) {
  std::set<size_t> out;
  for (size_t at = answer.find('['); at != std::string_view::npos; at = answer.find('[', at + 1)) {
    const size_t end = answer.find(']', at);
    if (end == std::string_view::npos) break;
    const std::string_view inside = answer.substr(at + 1, end - at - 1);
    if (inside.empty() || inside.find_first_not_of("0123456789, ") != std::string_view::npos)
      continue;
    size_t number = 0;
    for (size_t i = 0; i <= inside.size(); ++i) {
      if (i < inside.size() && inside[i] >= '0' && inside[i] <= '9') {
        number = std::min<size_t>(number * 10 + static_cast<size_t>(inside[i] - '0'), n + 1);
        continue;
      }
      if (number >= 1 && number <= n) out.insert(number);
      number = 0;
    }
  }
  return {out.begin(), out.end()};
}

}  // namespace tessera::retrieve
