// The form of a model by what its config and tensors show: biases, norms and their places, gates,
// windows, rotary share, and keys that other families read. Torch-free.
#pragma once

#include "tessera/convert/propose_trial.h"

namespace tessera::convert {

/// Gives a draft the form that keys, names, shapes and the weights of norms show, where its base
/// has values for it. A change that leaves more over is not made.
void adapt(Trial& trial, Draft& draft);

/// Reads keys that the base does not know as other families do: with a fragment of theirs, or value
/// by value.
void borrow_keys(Trial& trial, Draft& draft);

/// Accepts keys that switch tensors on in other families, once every tensor has a place.
void claim_switches(Trial& trial, Draft& draft);

/// Ignores keys by which other families read sizes that the shapes of all tensors show, once every
/// tensor has a place.
void pass_over_sizes(Trial& trial, Draft& draft);

/// Includes the fragment whose rules give most of the parameters that a draft has no rules for,
/// where that leaves less over.
void include_rules(Trial& trial, Draft& draft);

/// Flips booleans of the base, and includes parts of decoders, where that leaves less over.
void try_switches(Trial& trial, Draft& draft);

}  // namespace tessera::convert
