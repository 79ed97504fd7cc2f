// What the time-invariant systems of complex pairs (s4, s4d) declare alike.
#pragma once

#include <complex>
#include <vector>

#include "tessera/spec/mechanism.h"

namespace tessera::nn {

void check_lti(
    const spec::Scope& scope, const char* name, int64_t d_state, double dt_min, double dt_max);

/// What both systems have: steps, the diagonal of A, and around it the output.
void declare_lti_diagonal(spec::ParamList& list,
                          const spec::Scope& scope,
                          const std::vector<double>& a_im,
                          double dt_min,
                          double dt_max);

void declare_lti_output(spec::ParamList& list, const spec::Scope& scope, int64_t pairs);

std::vector<double> imaginary_parts(const std::vector<std::complex<double>>& values);

std::vector<spec::StateDecl> lti_state(const spec::Scope& scope, int64_t d_state);

}  // namespace tessera::nn
