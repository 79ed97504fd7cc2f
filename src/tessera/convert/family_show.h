// What a family consists of, for authors of family files: what it builds on, the template of its
// spec, its values with the file that gives each and what it means, its tensor rules. Torch-free.
#pragma once

#include <string>

#include "tessera/convert/family.h"

namespace tessera::convert {

/// A family as text, with keys and tensors of a dialect; "" = hf, or its first. Throws Error(usage)
/// for a name of none, Error(spec) for a malformed file.
std::string shown_family(FamilySet& families,
                         const std::string& family,
                         const std::string& dialect);

/// The same as JSON: its file with everything merged in that it builds on, and the names of these
/// files as "files".
Json shown_family_json(const FamilySet& families, const std::string& family);

/// Markdown: for each fragment with "meanings" a table of its values, functions and tables (name,
/// meaning, default, the shortest other expression of a built-in family), and one of all fragments.
std::string values_markdown(const FamilySet& families);
std::string fragments_markdown(const FamilySet& families);

}  // namespace tessera::convert
