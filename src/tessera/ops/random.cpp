#include "tessera/ops/random.h"

#include <cmath>

#include "tessera/base/threads.h"

namespace tessera::ops {

Tensor dropout(const Tensor& x, double p, const RandomKey& key) {
  if (p <= 0) return x;
  Tensor mask = at::empty(x.sizes(), at::TensorOptions().dtype(at::kFloat));
  auto* out = mask.data_ptr<float>();
  const auto limit = static_cast<uint32_t>(p * 4294967296.0);
  const auto scale = static_cast<float>(1 / (1 - p));
  const int64_t n = mask.numel();
  parallel_for((n + 3) / 4, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const auto bits = key.block(static_cast<uint64_t>(b));
      for (int64_t i = 4 * b; i < std::min(4 * b + 4, n); ++i)
        out[i] = bits[static_cast<size_t>(i % 4)] < limit ? 0.0f : scale;
    }
  });
  return x * mask.to(x.device(), x.scalar_type());
}

Tensor initial_values(const spec::ParamDecl& decl, const RandomKey& key, at::ScalarType type) {
  using Kind = spec::Init::Kind;
  const spec::Init& init = decl.init;
  if (init.kind == Kind::constant) return at::full(decl.shape, init.a, type);
  require(init.kind != Kind::repeat || !init.values.empty(), "init", "{}: no values to repeat",
          decl.name);
  Tensor values = at::empty(decl.shape, type == at::kDouble ? at::kDouble : at::kFloat);
  const RandomKey stream = key.fold(decl.name);
  const auto draw = [&](int64_t i) -> double {
    const auto index = static_cast<uint64_t>(i);
    switch (init.kind) {
      case Kind::normal:
        return init.a * stream.normal(index);
      case Kind::uniform:
        return init.a + (init.b - init.a) * stream.uniform(index);
      case Kind::log_of_uniform:
        return std::log(init.a + (init.b - init.a) * stream.uniform(index));
      case Kind::softplus_log_uniform: {
        const double y =
            std::max(init.c, std::exp(std::log(init.a) + (std::log(init.b) - std::log(init.a)) *
                                                             stream.uniform(index)));
        return y + std::log(-std::expm1(-y));  // the inverse of softplus
      }
      case Kind::sigmoid_root_of_uniform: {
        const double square = init.a + (init.b - init.a) * stream.uniform(index);
        return std::log(1 / std::sqrt(square) - 1);
      }
      case Kind::repeat:
        return init.values[static_cast<size_t>(i) % init.values.size()];
      case Kind::constant:
        break;
    }
    return init.a;
  };
  const auto fill = [&](auto* out) {
    parallel_for(values.numel(), 4096, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        out[i] = static_cast<std::remove_pointer_t<decltype(out)>>(draw(i));
    });
  };
  if (values.scalar_type() == at::kDouble)
    fill(values.data_ptr<double>());
  else
    fill(values.data_ptr<float>());
  return values.to(type);
}

}  // namespace tessera::ops
