// Published techniques that are not parts: arrangements, ways to compute and to store. `tessera
// list` and docs/mechanisms/techniques.md have the same table. Torch-free.
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
  const char* use;  // the key or option that enables it, or where it is automatic
};

const std::vector<Technique>& techniques();

/// The techniques as a Markdown table.
std::string technique_table();

}  // namespace tessera::model
