// Drafts a family file for a checkpoint of an unknown type: the nearest family as its base, its
// config keys and tensor names as renames of the base's, and the form that keys, names and shapes
// show. Torch-free; of tensors names and shapes count, and of norms the mean of their weights.
//
//   evidence (propose_evidence.h)  config, patterns of names, shapes
//   trial    (propose_trial.h)     a dry run of a draft, and its cost: what it leaves over, and how
//                                  much it changes its base
//   keys     (propose_keys.h)      the same name, a name by which other families read the same
//                                  value, the nearest spelling
//   forms    (propose_forms.h,     biases, gates, norms and their places, windows, rotary share;
//             propose_norms.h)     keys that other families read; switches of the base
//   tensors  (propose_tensors.h)   the same name, another prefix, the same part of the model
//   (q_proj
//                                  and query) with the same shapes and the same numbers of layers;
//                                  fused and transposed matrices
//   choice   (propose_choice.h)    of drafts that fit equally the most typical one
// What the search is not sure of is in `unsure`, which the file keeps and every reader of it
// repeats.
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
