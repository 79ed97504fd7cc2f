// Drafts a family file for a checkpoint of an unknown type: the nearest family as its base, its
// config keys and tensor names as renames of the base's, products that are packed or turned over as
// rules of its own. Torch-free; of tensors names and shapes count, never values.
//
//   config keys  -> keys of the base: the same name, a name that other families read the same value
//                   by, the nearest spelling
//   tensor names -> names of the base: the same name, another prefix, the same part of the model
//                   (q_proj and query) with the same shapes and the same numbers of layers
//   what is left -> switches of the base (biases, norms of queries and keys, ...), tried one by one
// Of all families the one that leaves least over is taken; of several that fit equally the one whose
// spec has most in common with those of the others. What the search is not sure of is in `unsure`,
// which the file keeps and every reader of it repeats.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tessera/convert/mapping.h"

namespace tessera::convert {

struct ProposeOptions {
  std::filesystem::path families = {};   // of the user's, which may be bases too
  std::string base = {};                 // the base; "" = the nearest
  std::vector<std::string> hidden = {};  // families that are no bases, nor those built on them
};

struct Proposal {
  std::string type, base;
  Json family;                      // the file
  DryRun dry;                       // of an import by it
  std::vector<std::string> unsure;  // also in the file
  std::vector<std::pair<std::string, double>>
      nearest;                   // bases and what they leave over, best first
  size_t keys = 0, tensors = 0;  // of the checkpoint
};

/// Throws Error(usage) for a type that a family reads, Error(file) for a folder that is no
/// unquantized checkpoint with a config.json.
Proposal propose_family(const std::filesystem::path& folder, const ProposeOptions& options = {});

/// The file as text, a rule or key a line.
std::string family_text(const Json& family);

/// What importing a folder by a family of the set would meet.
DryRun dry_run_of(FamilySet& families,
                  const std::string& family,
                  const std::filesystem::path& folder);

/// JSON schema (draft 2020-12) of family files.
const char* family_schema();

}  // namespace tessera::convert
