// Which of the drafts that fit is taken. Torch-free.
#pragma once

#include "tessera/convert/propose_trial.h"

namespace tessera::convert {

/// Of complete drafts that fit equally, the one whose spec has most in common with those of the
/// others comes first: a peculiarity that neither keys nor shapes show is a rare one. What it
/// differs in from the others is reported.
void prefer_typical(std::vector<Draft>& drafts);

}  // namespace tessera::convert
