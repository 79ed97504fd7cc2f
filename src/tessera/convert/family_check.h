// Names in a user's family file that nothing has: a misspelt one would be without effect. Private
// to this layer.
#pragma once

#include <string>
#include <vector>

#include "tessera/convert/family.h"

namespace tessera::convert {

struct FamilyParts {
  const Json& own;       // the file
  const Json& below;     // what it builds on: base and fragments, merged
  const Json& merged;    // both
  const Family& family;  // compiled of `merged`
  FamilySet& set;
};

/// Throws Error(spec) with the place of the entry and the nearest name for
///  - a value, table or function that no expression has, and a name in an expression that is none;
///  - a key in "keys" that the family does not read, a pattern in "names" or "drop" that fits none
///    of its tensor rules, two entries of them for one name of the file;
///  - null in "expect", "keys" or "names" where the base has no entry;
///  - a key that is read by its name in the file although "keys" gives it the base's;
///  - a member of an object of config.json that no built-in family reads, like one that they do.
void check_family_names(const FamilyParts& parts);

/// The last of these checks alone.
void check_family_members(const FamilyParts& parts);

/// The place, "family.hf.read.x", of the first expression in the file that has this name; "" if
/// none has.
std::string place_of_name(const FamilyParts& parts, const std::string& name);

}  // namespace tessera::convert
