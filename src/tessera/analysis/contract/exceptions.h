// Where a part does not hold to the contract, and why that is so by its nature. Every exception is
// listed in tests/exceptions.golden, and the suite demands that the excepted check fails: one that
// has become unnecessary is an error.
#pragma once

#include <string>
#include <vector>

namespace tessera::contract {

enum class Exception {
  angles_change_at_trained_length,  // a sequence that crosses it is computed again
  a_prefix_comes_whole,             // its tokens see each other, so no call may end inside it
  gradients_stop_at_a_memory,       // so that they are no derivative of a pass over many segments
  scores_sums_held_constant,        // divisors of rows, which a later norm cancels
  learns_from_its_own_loss,         // the output's gradient stops before it
  acts_in_training_alone,           // so that no gradient reaches it outside
  depends_on_threads,               // in digits of double that float32 does not keep
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
