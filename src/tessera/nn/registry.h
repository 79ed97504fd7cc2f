// Fills the table of spec/mechanism.h from mechanisms.def. Torch-free.
#pragma once

namespace tessera::nn {

/// Safe to call more than once and from several threads.
void register_mechanisms();

}  // namespace tessera::nn
