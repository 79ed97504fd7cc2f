// Published techniques that are no part of their own: ways to arrange parts, to compute and to keep
// what they say. `tessera list` and docs/mechanisms/techniques.md show one table of them.
// Torch-free.
#pragma once

#include <string>
#include <vector>

namespace tessera::model {

struct Technique {
  const char* group;  // "arrangement", "computation" or "storage"
  const char* name;
  const char* summary;  // one sentence
  const char* paper;
  int year;
  const char* use;  // the key or option that asks for it, or where it is automatic
};

const std::vector<Technique>& techniques();

/// A Markdown table of them.
std::string technique_table();

}  // namespace tessera::model
