// Operations on a device that are recorded once and launched together afterwards (CUDA graphs).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tessera/ops/tensor.h"

namespace tessera::ops {

class Graph {
 public:
  /// "" if operations of the device can be recorded; otherwise the reason with its remedy.
  /// TESSERA_CUDA_GRAPHS=0 turns it off.
  static std::string unavailable_reason(at::Device device);

  /// Of a device that has none of these reasons.
  explicit Graph(at::Device device);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Runs f twice: once as it is, so that everything that it makes only once is there, and once
  /// recorded, without computing. f launches operations on the device alone: it copies nothing from
  /// or to the host. Throws what f throws, and libtorch's error for what cannot be recorded; then
  /// the graph is empty.
  void record(const std::function<void()>& f);
  /// Launches what was recorded, on the same memory.
  void replay();

 private:
  struct Recording;
  at::Device device_;
  std::unique_ptr<Recording> recording_;
};

}  // namespace tessera::ops
