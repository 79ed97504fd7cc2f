// The layers whose cost is measured: every registered mixer, and attention with every registered
// pattern and position, each in the config that the mechanism gives as its example.
#pragma once

#include "tessera/analysis/cost.h"

namespace tessera::analysis {

/// One layer: a mixer, after a position scheme where that acts on the embedding.
struct CostLayer {
  spec::Scope scope;  // causal unless something in the layer refuses that
  spec::AnyPart mixer;
  spec::AnyPart position;  // empty unless it acts on the embedding
  spec::Scope position_scope() const;
  Claim claim() const;     // the largest growth of all parts
  bool has_state() const;  // whether it can read a document token by token
  Json config() const;
};

/// The mechanisms measured, in the order of the registry; those of `only` where it names some, as
/// "window" or "pattern/window". Throws Error(usage) on an unknown name.
std::vector<const spec::Mechanism*> cost_mechanisms(const std::vector<std::string>& only = {});

/// The layer that shows this mechanism, for documents of up to `length` tokens. Throws Error(spec)
/// when its example does not fit.
CostLayer cost_layer(const spec::Mechanism& mechanism, int64_t width, int64_t length);

}  // namespace tessera::analysis
