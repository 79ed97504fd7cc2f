// Dense feed-forward layers into mixtures of experts, and experts into more, fewer or one.
//
// upcycled   E copies of every layer and a fresh router N(0, 0.02) whose k weights sum to 1: the
//            same function until training separates the copies. Komatsuzaki et al. 2022,
//            arXiv:2212.05055
// merged     one dense layer of every mixture, the mean of its experts, weighted by their use where
//            that is known: exact where they are equal, else a start for further training
// pruned     the most used experts of every mixture and their rows of the router; exact for tokens
//            that chose none of the others. Lu et al. 2024, arXiv:2402.14800, sec. 3
// grown      copies of the most used experts and of their rows of the router, apart by a little
//            noise. With twice the experts, twice the choices and no noise the function stays where
//            weights are normalised; a single choice weighed by a sigmoid stays in any case. Else a
//            token whose favourite was copied may choose it twice. Guo et al. 2024,
//            arXiv:2405.14297, sec. 3.2 (experts added and removed in training)
// A router's use is each expert's share of the choices, as `generate --json` and a run's log give
// it ("layers.3.ffn.router": {"load": [..]}). Errors: Error(usage) for a model without such layers,
// or with parts that the resulting spec cannot express.
#pragma once

#include <map>

#include "tessera/convert/checkpoint.h"

namespace tessera::convert {

using ExpertLoads = std::map<std::string, std::vector<double>>;  // by router

/// A mixture of experts in the layers of a spec, by the prefix of its parameters ("layers.3.ffn").
struct Mixture {
  int64_t n_experts = 0;
  int64_t k = 0;       // choices of a token; 0 where they are open
  std::string reason;  // why experts cannot come and go; "" where they can
};
std::map<std::string, Mixture> mixtures(const model::ModelSpec& spec);

/// Which expert each one is that a mixture is to have, by its number before.
struct ExpertChange {
  std::map<std::string, std::vector<int64_t>> from;  // by mixture; others stay as they are
  int64_t k = 0;                                     // choices of a token in these; 0 = as before
  double noise = 0;  // added to matrices and router rows that are copied once more, by their size
  uint64_t seed = 0;
};
/// The n most used of experts, the first among equals, in the order in which they stand.
std::vector<int64_t> most_used(const std::vector<double>& load, int64_t n);
/// All experts, followed by copies of the most used ones, up to n.
std::vector<int64_t> grown(const std::vector<double>& load, int64_t n);
/// The spec, and a parameter of it (or what belongs to one, as moments do), after a change. Throws
/// Error(usage) for a mixture whose experts cannot come and go, or that would have fewer than k.
Json with_experts(const model::ModelSpec& spec, const ExpertChange& change);
TensorView with_experts(const TensorView& tensor, const ExpertChange& change);

/// Out of what `generate --json` printed, a line of log.jsonl, or their "experts" alone. Throws
/// Error(file) for another text.
ExpertLoads read_expert_loads(const std::filesystem::path& path);

struct UpcycleOptions {
  int64_t n_experts = 8;
  int64_t k = 2;
  int64_t every = 1;  // period in layers; the last layer of each period
  uint64_t seed = 0;  // of the routers
};
Checkpoint upcycled(Checkpoint checkpoint, const UpcycleOptions& options);

/// `use` may be empty: all weigh alike.
Checkpoint merged_experts(Checkpoint checkpoint, const ExpertLoads& use);

Checkpoint pruned_experts(Checkpoint checkpoint, int64_t n_experts, const ExpertLoads& use);

struct GrowOptions {
  int64_t n_experts = 0;
  int64_t k = 0;  // 0 = as before
  double noise = 0.01;
  uint64_t seed = 0;
};
/// Mixtures that have as many experts already stay as they are.
Checkpoint grown_experts(Checkpoint checkpoint, const GrowOptions& options, const ExpertLoads& use);

}  // namespace tessera::convert
