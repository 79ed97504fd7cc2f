// The checks of the contract, one function each. A check reports what is wrong and never stops the
// program, so that an exception can be shown to be necessary.
#pragma once

#include "tessera/analysis/contract/kit.h"

namespace tessera::contract {

void check_config(const Case& c, Report& report);  // round trip, schema, near names, documentation
void check_parameters(const Case& c,
                      Report& report);  // declared = used; missing, extra, misshapen refused
void check_initial(const Case& c,
                   Report& report);  // statistics of fresh weights, same seed same bits
void check_refusals(const Case& c,
                    Report& report);  // wrong places and lengths, with reason and remedy
void check_types(const Case& c, Report& report);  // shapes, dtypes, bf16 weights, mapped weights
void check_unwritten(const Case& c, Report& report);  // no fresh memory leaks into results
void check_fast_path(const Case& c, Report& report);  // kernels against the plain form in double
void check_gradients(const Case& c,
                     Report& report);  // double against central differences, float32 against double
void check_causality(const Case& c, Report& report);  // never worse than declared
void check_documents(const Case& c, Report& report);  // each document as if alone
void check_forms(const Case& c, Report& report);  // parallel = chunked = recurrent, with gradients
void check_same_bits(const Case& c,
                     Report& report);               // any split, any company, any number of threads
void check_threads(const Case& c, Report& report);  // a step of training, by any number of threads
void check_state(const Case& c, Report& report);    // rows, copies, files, bytes
void check_roll_back(const Case& c, Report& report);  // pending tokens
void check_generate(const Case& c,
                    Report& report);  // greedy text alone, in a batch, by any prefill chunk

void check_prefix_cache(const Case& c,
                        Report& report);  // text with a cache of prefixes is text without one

// The same text as by plain generation (text_checks.cpp):
void check_speculation(const Case& c, Report& report);  // by a draft model or prompt lookup
void check_beams(const Case& c, Report& report);        // the beams of a search without a state
void check_session(const Case& c, Report& report);      // saved to a file and resumed

/// How the past of `json`'s model depends on the future, by experiment.
spec::Causality shown_causality(const Json& json);

/// The reason why this case's decoder has no state, "" when it has one.
std::string no_state(const Case& c);

}  // namespace tessera::contract
