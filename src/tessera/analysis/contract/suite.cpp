#include "tessera/analysis/contract/suite.h"

#include <exception>

#include "tessera/analysis/contract/exceptions.h"

namespace tessera::contract {

std::span<const Check> checks() {
  static constexpr Check kAll[] = {
      {"config", "options: read, dumped, documented, refused", check_config},
      {"parameters", "declared parameters are used, no others", check_parameters},
      {"initial", "initial values: statistics, seeds", check_initial},
      {"refusals", "wrong places and lengths are refused", check_refusals},
      {"types", "float64, float32 and bf16 agree", check_types},
      {"unwritten", "no uninitialized memory is read", check_unwritten},
      {"fast_path", "inference kernels = reference", check_fast_path},
      {"gradients", "gradients = central differences", check_gradients},
      {"causality", "no token reads later ones, as declared", check_causality},
      {"documents", "documents of a batch are independent", check_documents},
      {"forms", "parallel = chunked = recurrent", check_forms},
      {"same_bits", "decode = prefill, bit by bit, in any batch", check_same_bits},
      {"threads", "training: same bits by 1, 2, 3 threads", check_threads},
      {"state", "state: copies, files, pages, bytes, KV types", check_state},
      {"roll_back", "state: pending tokens are dropped", check_roll_back},
      {"generate", "text: in a batch, by any prefill chunk", check_generate},
      {"prefix_cache", "text: with a prefix cache; truncated states", check_prefix_cache},
      {"speculation", "text: by speculative decoding", check_speculation},
      {"beams", "text: by beam search", check_beams},
      {"session", "text: saved and resumed", check_session},
  };
  return kAll;
}

Result run_check(const Case& part, const Check& check) {
  Report report;
  try {
    check.run(part, report);
  } catch (const std::exception& error) {
    report.expect(false, "{}", error.what());
  }
  const ExceptionEntry* const exception = find_exception(part.name, check.name);
  return {report.ok(), report.text(), exception == nullptr ? nullptr : exception->reason};
}

}  // namespace tessera::contract
