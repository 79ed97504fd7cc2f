// What a tensor is for, by the words that checkpoints name it with: how names of one architecture
// are compared with those of another. Torch-free.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::convert {

/// A name with its numbers as stars: "h.*.attn.weight" and {3} of "h.3.attn.weight".
struct NumberedName {
  std::string pattern;
  std::vector<int64_t> numbers;
};
NumberedName numbered(std::string_view name);

/// "q", "down", "norm2", ... of a name or pattern; "" where its words have none.
std::string role_of(std::string_view name);

/// How alike two patterns are, from 0 to 1: 0 where their last words (weight, bias) or their roles
/// differ.
double likeness(std::string_view a, std::string_view b);

}  // namespace tessera::convert
