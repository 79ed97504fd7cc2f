#include "tessera/ops/deterministic.h"

#include <cstdlib>

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include "tessera/ops/form.h"

namespace tessera::ops {
namespace {

/// libtorch warns that a later version has other names for these settings; 2.11 to 2.15 know them.
struct Silent final : c10::WarningHandler {
  void process(const c10::Warning& /*warning*/) override {}
};

void set_tf32(bool allowed) {
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  at::globalContext().setAllowTF32CuBLAS(allowed);
  at::globalContext().setAllowTF32CuDNN(allowed);
}

}  // namespace

void compute_without_tf32() {
  set_tf32(false);
}

AllowTf32::AllowTf32(bool allowed) : allowed_(allowed) {
  if (allowed_) set_tf32(true);
}
AllowTf32::~AllowTf32() {
  if (allowed_) set_tf32(false);
}

Deterministic::Deterministic(at::Device device) : changes_(!on_host(device)) {
  if (!changes_) return;
  at::Context& context = at::globalContext();
  before_ = {context.deterministicAlgorithms(), context.deterministicAlgorithmsWarnOnly(),
             context.deterministicFillUninitializedMemory(), context.deterministicCuDNN(),
             context.benchmarkCuDNN()};
  // one workspace of a fixed size per stream, as the CUDA documentation of cuBLAS requires
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  // not as a warning: flash attention is deterministic only then
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  // no part reads memory that it has not written
  context.setDeterministicFillUninitializedMemory(false);
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
}

Deterministic::~Deterministic() {
  if (!changes_) return;
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(before_.algorithms, before_.only_warns);
  context.setDeterministicFillUninitializedMemory(before_.fills);
  context.setDeterministicCuDNN(before_.cudnn);
  context.setBenchmarkCuDNN(before_.cudnn_benchmark);
}

}  // namespace tessera::ops
