// How libtorch computes on another device than the CPU: in float32 without TF32, and with
// deterministic algorithms where they are asked for. The settings are the process's.
#pragma once

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// Products and convolutions of float32 read all bits of their factors: TF32 is off in cuBLAS and
/// cuDNN, where libtorch allows it for convolutions. device_named() calls it for every device but
/// the CPU.
void compute_without_tf32();

/// While one lives with `allowed`, they may use TF32. Made and destroyed by one thread.
class AllowTf32 {
 public:
  explicit AllowTf32(bool allowed);
  ~AllowTf32();
  AllowTf32(const AllowTf32&) = delete;
  AllowTf32& operator=(const AllowTf32&) = delete;

 private:
  bool allowed_;
};

/// While one lives, libtorch's operators on `device` are deterministic: the same call gives the
/// same bits again on one kind of device, and an operator that cannot throws. Attention takes the
/// deterministic backward pass of its kernels. Does nothing for the CPU, whose results do not
/// depend on it. To be made before the first operator: cuBLAS reads CUBLAS_WORKSPACE_CONFIG once,
/// which it sets where the environment does not. Made and destroyed by one thread, in that order.
class Deterministic {
 public:
  explicit Deterministic(at::Device device);
  ~Deterministic();
  Deterministic(const Deterministic&) = delete;
  Deterministic& operator=(const Deterministic&) = delete;

 private:
  struct Before {
    bool algorithms, only_warns, fills, cudnn, cudnn_benchmark;
  };
  bool changes_;
  Before before_{};
};

}  // namespace tessera::ops
