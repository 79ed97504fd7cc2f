// Where a part does not hold to the contract, and why that is so by its nature. Every exception is
// listed in tests/exceptions.golden, and the suite demands that the excepted check fails: one that
// has become unnecessary is an error.
#pragma once

#include <string>
#include <vector>

namespace tessera::contract {

enum class Exception {
  angles_change_at_trained_length,  // a sequence that crosses it must be computed anew
  a_prefix_comes_whole,             // its tokens see each other, so no call may end inside it
};

struct ExceptionEntry {
  Exception kind;
  const char* name;  // of the case
  const char* check;
  const char* reason;
};

const std::vector<ExceptionEntry>& exceptions();
/// nullptr when the case has to pass.
const ExceptionEntry* find_exception(const std::string& name, const std::string& check);

}  // namespace tessera::contract
