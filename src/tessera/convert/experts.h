// Dense feed-forward layers into mixtures of experts, and experts into fewer or one.
//
// upcycled   E copies of every layer and a fresh router N(0, 0.02) whose k weights sum to 1: the
//            same function until training tells the copies apart. Komatsuzaki et al. 2022,
//            arXiv:2212.05055
// merged     one dense layer of every mixture, the mean of its experts, weighted by their use where
//            that is known: exact where they are equal, else a start for further training
// pruned     the most used experts of every mixture and their rows of the router; exact for tokens
//            that chose none of the others. Lu et al. 2024, arXiv:2402.14800, sec. 3
// A router's use is each expert's share of the choices, as `generate --json` and a run's log give
// it ("layers.3.ffn.router": {"load": [..]}). Errors: Error(usage) for a model without such layers,
// or with parts that the result could not say.
#pragma once

#include <map>

#include "tessera/convert/checkpoint.h"

namespace tessera::convert {

using ExpertLoads = std::map<std::string, std::vector<double>>;  // by router

/// Out of what `generate --json` printed, a line of log.jsonl, or their "experts" alone. Throws
/// Error(file) for another text.
ExpertLoads read_expert_loads(const std::filesystem::path& path);

struct UpcycleOptions {
  int64_t n_experts = 8;
  int64_t k = 2;
  int64_t every = 1;  // in every so many layers, the last of them
  uint64_t seed = 0;  // of the routers
};
Checkpoint upcycled(Checkpoint checkpoint, const UpcycleOptions& options);

/// `use` may be empty: all weigh alike.
Checkpoint merged_experts(Checkpoint checkpoint, const ExpertLoads& use);

Checkpoint pruned_experts(Checkpoint checkpoint, int64_t n_experts, const ExpertLoads& use);

}  // namespace tessera::convert
