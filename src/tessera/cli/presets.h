// The released models whose specs are in zoo/: names, families and parameter counts (presets.json).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::cli {

struct Preset {
  std::string spec;         // path of the spec below zoo/, without extension
  std::string family;       // of its checkpoints, "" = no family reads them
  int64_t parameters = 0;   // every tensor once
  int64_t active = 0;       // used for one token
  std::string note;         // what the count includes or leaves out
  std::string model;        // name in the table of architectures, "" = not in the table
  int64_t year = 0;         // with `model`
  std::string survey_note;  // with `model`: what the spec does not hold

  /// The file's name: "llama2-7b".
  std::string name() const { return spec.substr(spec.find('/') + 1); }
};

/// In the order of the file.
const std::vector<Preset>& presets();

/// Three digits and a unit: "135M", "1.24B", "406B", "1.03T".
std::string short_count(int64_t n);

}  // namespace tessera::cli
