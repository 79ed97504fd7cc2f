// Self-supervised objectives on text as data: the "objective" of a recipe.
//
//   {"type": "span_corruption", "rate": 0.15, "mean_span": 3}
//   {"type": "mixture", "of": [{"weight": 1, "type": "prefix_lm", "mode": "[S2S]"},
//                              {"weight": 2, "type": "span_corruption", "mode": "[NLU]"}]}
#pragma once

#include "tessera/model/model_spec.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/train/data/token_name.h"
#include "tessera/train/objective/denoising/noise.h"

namespace tessera::train {

/// Context of the noises of a recipe.
struct NoiseScope {
  const model::ModelSpec& spec;
  const text::Tokenizer& tokenizer;
  NoiseRoom room;
  std::optional<int64_t> separator = {};  // after every document of the data
  std::string where = "objective";        // path in the recipe
  std::vector<int64_t> named = {};        // ids that the recipe uses, which are no sentinels
};

class NoiseConfig {
 public:
  virtual ~NoiseConfig() = default;
  virtual std::string type() const = 0;
  /// The keys with every default.
  virtual spec::Json dump() const = 0;
  /// Ids that it uses.
  virtual std::vector<int64_t> named(const NoiseScope& scope) const = 0;
  /// Throws Error(spec) if it does not fit the spec, the tokenizer or the length.
  virtual std::unique_ptr<Noise> build(const NoiseScope& scope) const = 0;
};

using NoiseConfigPtr = std::shared_ptr<const NoiseConfig>;

/// A noise of a mixture; every sample draws one by weight.
struct NoiseShare {
  double weight = 1;
  NoiseConfigPtr noise;
};

/// Reads an objective: the members of a mixture, or one noise. Weights are at least 0 and not all
/// 0. Unknown types and keys throw Error(spec).
std::vector<NoiseShare> read_noises(const spec::Json& json, const spec::Scope& scope);
/// "mixture" for several.
std::string type_of(const std::vector<NoiseShare>& shares);
spec::Json dump_noises(const std::vector<NoiseShare>& shares);

/// All types of read_noises(), "mixture" last.
const std::vector<std::string>& noise_types();
/// JSON schema of one type, without "type".
spec::Json noise_schema(const std::string& type);

/// One per member. Throws the errors of NoiseConfig::build().
std::vector<std::unique_ptr<Noise>> build_noises(const std::vector<NoiseShare>& shares,
                                                 NoiseScope scope);

}  // namespace tessera::train
