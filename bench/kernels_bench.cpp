// Kernel speed: GFLOP/s (2 per multiply-add) and GB/s of packed weights.
//   cmake -B build/bench -DTESSERA_BENCH=ON ... && build/bench/bench/kernels_bench
// Weights rotate through at least 64 MB where memory bandwidth is meant, so that no cache holds
// them.
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "tessera/base/half.h"
#include "tessera/base/rng.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/weights/matmul.h"
#include "tessera/kernels/basic/rowwise.h"
#include "tessera/kernels/targets.h"

namespace tessera::kernels {
namespace {

std::vector<float> normals(int64_t n, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(n));
  const RandomKey key(seed);
  for (size_t i = 0; i < values.size(); ++i) values[i] = key.uniform(i) - 0.5f;
  return values;
}

// Random bytes read as floats would be NaN and subnormal, which some processors slow down for.
std::vector<uint8_t> weights(DType type, int64_t n) {
  std::vector<uint8_t> bytes(static_cast<size_t>(storage_bytes(type, n)));
  const RandomKey key(5);
  if (type == DType::f32) {
    const auto values = normals(n, 5);
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(key.bits(i) & 0x3f);
  return bytes;
}

void matmul_bench(benchmark::State& state, DType type, bool rotate) {
  const int64_t m = state.range(0), k = state.range(1), n = state.range(2);
  const int64_t bytes = storage_bytes(type, k * n);
  const int64_t copies = rotate ? 1 + (int64_t{64} << 20) / bytes : 1;
  const auto w = weights(type, k * n * copies);
  const auto x = normals(m * k, 1);
  std::vector<float> y(static_cast<size_t>(m * n));
  int64_t turn = 0;
  for (auto _ : state) {
    matmul(x.data(), m, k, k, type, w.data() + (turn++ % copies) * bytes, n, nullptr, y.data(), n);
    benchmark::DoNotOptimize(y.data());
  }
  const double flops = 2.0 * static_cast<double>(m * k * n);
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(bytes) * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}

void register_matmul() {
  for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::q4_0, DType::q4_1,
                           DType::q5_0, DType::q8_0, DType::q4_k, DType::q6_k}) {
    const std::string name(name_of(type));
    const int64_t k = is_block_type(type) && layout_of(type).block_elements == 256 ? 1536 : 576;
    benchmark::RegisterBenchmark(("gemv/" + name).c_str(), matmul_bench, type, true)
        ->Args({1, k, 1536})
        ->UseRealTime();
  }
  for (const DType type : {DType::f32, DType::q4_1, DType::q8_0})
    for (const int64_t k : {576, 1024, 1536})
      benchmark::RegisterBenchmark(("gemm/" + std::string(name_of(type))).c_str(), matmul_bench,
                                   type, false)
          ->Args({512, k, 1536})
          ->UseRealTime();
}

// T queries at the end of S keys; FLOPs count visible keys only.
void attention_bench(benchmark::State& state) {
  Attention a;
  a.T = state.range(0), a.H = state.range(2), a.G = state.range(3), a.K = a.V = state.range(4);
  const int64_t S = state.range(1), D = a.K;
  const auto q = normals(a.T * a.H * D, 1), k = normals(S * a.G * D, 2),
             v = normals(S * a.G * D, 3);
  std::vector<float> out(q.size());
  a.q = q.data(), a.q_token_stride = a.H * D, a.q_head_stride = D;
  a.out = out.data(), a.out_token_stride = a.H * D, a.out_head_stride = D;
  a.first_position = S - a.T;
  constexpr int64_t kFloat = sizeof(float);
  const KeySpan span{k.data(), v.data(), a.G * D * kFloat, D * kFloat, a.G * D * kFloat, D * kFloat,
                     0,        S};
  a.kv = {&span, 1};
  a.scale = 0.125f;
  for (auto _ : state) {
    attend(a);
    benchmark::DoNotOptimize(out.data());
  }
  const double pairs =
      static_cast<double>(a.T) * (static_cast<double>(S) - static_cast<double>(a.T - 1) / 2);
  state.counters["GFLOP/s"] = benchmark::Counter(4e-9 * pairs * static_cast<double>(a.H * D),
                                                 benchmark::Counter::kIsIterationInvariantRate);
  state.counters["GB/s"] = benchmark::Counter(8e-9 * static_cast<double>(S * a.G * D),
                                              benchmark::Counter::kIsIterationInvariantRate);
}

void act_bench(benchmark::State& state, Activation kind) {
  const auto x = normals(1 << 16, 1);
  std::vector<float> y(x.size());
  for (auto _ : state) {
    act(kind, x.data(), 1 << 16, y.data());
    benchmark::DoNotOptimize(y.data());
  }
  state.counters["Gelement/s"] =
      benchmark::Counter(65536e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void register_others() {
  benchmark::RegisterBenchmark("attention/prefill", attention_bench)
      ->Args({512, 512, 9, 3, 64})
      ->Args({512, 512, 12, 12, 64})
      ->Args({512, 2048, 9, 3, 64})
      ->Args({1024, 16384, 9, 3, 64})
      ->UseRealTime();
  benchmark::RegisterBenchmark("attention/decode", attention_bench)
      ->Args({1, 512, 9, 3, 64})
      ->Args({1, 2048, 9, 3, 64})
      ->Args({1, 2048, 12, 12, 64})
      ->UseRealTime();
  benchmark::RegisterBenchmark("act/silu", act_bench, Activation::silu)->UseRealTime();
  benchmark::RegisterBenchmark("act/gelu", act_bench, Activation::gelu)->UseRealTime();
  benchmark::RegisterBenchmark("act/gelu_tanh", act_bench, Activation::gelu_tanh)->UseRealTime();
}

}  // namespace
}  // namespace tessera::kernels

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("target", tessera::kernels::current_target());
  benchmark::AddCustomContext("threads", std::to_string(tessera::thread_count()));
  tessera::kernels::register_matmul();
  tessera::kernels::register_others();
  benchmark::RunSpecifiedBenchmarks();
}
