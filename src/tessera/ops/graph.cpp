#include "tessera/ops/graph.h"

#include <cstdlib>
#include <string_view>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tessera/ops/form.h"

// libtorch has the interface of all devices from 2.15 on
#if __has_include(<ATen/core/GraphImplInterface.h>)
#include <ATen/core/GraphImplInterface.h>
#define TESSERA_HAS_GRAPHS 1
#else
#define TESSERA_HAS_GRAPHS 0
#endif

namespace tessera::ops {

#if TESSERA_HAS_GRAPHS

struct Graph::Recording {
  std::unique_ptr<at::GraphImplInterface> graph;
};

std::string Graph::unavailable_reason(at::Device device) {
  if (const char* set = std::getenv("TESSERA_CUDA_GRAPHS");
      set != nullptr && std::string_view(set) == "0")
    return "TESSERA_CUDA_GRAPHS=0";
  if (on_host(device)) return "operations of the CPU are not recorded";
  if (!at::has_graph_impl(device.type()))
    return "libtorch records no operations of " + device.str();
  return "";
}

void Graph::record(const std::function<void()>& f) {
  const c10::impl::VirtualGuardImpl backend(device_.type());
  const c10::DeviceGuard on(device_);
  // CUDA records no default stream
  const c10::Stream side = backend.getStreamFromGlobalPool(device_);
  backend.synchronizeDevice(device_.index());
  auto recording = std::make_unique<Recording>();
  recording->graph = at::create_graph_impl(device_.type());
  {
    const c10::StreamGuard in(side);
    f();
    backend.synchronizeDevice(device_.index());
    recording->graph->capture_begin();
    try {
      f();
    } catch (...) {
      // an open recording would refuse all that follows
      try {
        recording->graph->capture_end();
      } catch (const std::exception&) {
        // the first error is the one to report
      }
      throw;
    }
    recording->graph->capture_end();
  }
  backend.synchronizeDevice(device_.index());
  recording_ = std::move(recording);
}

void Graph::replay() {
  require(recording_ != nullptr, "graph", "nothing was recorded");
  const c10::DeviceGuard on(device_);
  recording_->graph->replay();
}

#else

struct Graph::Recording {};

std::string Graph::unavailable_reason(at::Device) {
  return "libtorch records operations from 2.15 on";
}
void Graph::record(const std::function<void()>&) {
  fail(ErrorKind::resource, "graph", "{}", unavailable_reason(device_));
}
void Graph::replay() {
  fail(ErrorKind::resource, "graph", "{}", unavailable_reason(device_));
}

#endif

Graph::Graph(at::Device device) : device_(device) {}
Graph::~Graph() = default;

}  // namespace tessera::ops
