#include "tessera/ops/random.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/base/threads.h"

namespace tessera::ops {

namespace {

/// mask[i] = 0 or 1 / (1 - p) for elements first + i of a stream.
void fill_factors(
    const Dropout& dropout, const RandomKey& stream, int64_t first, int64_t n, float* mask) {
  const uint32_t limit = dropout.limit();
  const float scale = dropout.scale();
  for (int64_t i = 0; i < n;) {
    const int64_t element = first + i;
    const auto bits = stream.block(static_cast<uint64_t>(element / 4));
    for (int64_t at = element % 4; at < 4 && i < n; ++at, ++i)
      mask[i] = bits[static_cast<size_t>(at)] < limit ? 0.0f : scale;
  }
}

Tensor factors_like(const Tensor& x) {
  return at::empty(x.sizes(), at::TensorOptions().dtype(at::kFloat));
}

/// fill_factors in many small pieces at once.
void fill_all(
    const Dropout& dropout, const RandomKey& stream, int64_t first, int64_t n, float* mask) {
  constexpr int64_t kAtOnce = 4096;
  parallel_for((n + kAtOnce - 1) / kAtOnce, 1, [&](int64_t begin, int64_t end) {
    fill_factors(dropout, stream, first + begin * kAtOnce,
                 std::min(end * kAtOnce, n) - begin * kAtOnce, mask + begin * kAtOnce);
  });
}

}  // namespace

const RandomKey& Dropout::stream(int64_t b, int64_t n) const {
  if (streams.empty()) return key;
  require(static_cast<int64_t>(streams.size()) == n, "dropout",
          "{} streams of random numbers; expected {}", streams.size(), n);
  return streams[static_cast<size_t>(b)];
}

Tensor Dropout::operator()(const Tensor& weights) const {
  if (p <= 0) return weights;
  Tensor mask = factors_like(weights);
  auto* out = mask.data_ptr<float>();
  // sequences with a stream each are numbered each from 0 on, all others together
  const int64_t sequences = streams.empty() ? 1 : weights.size(0);
  const int64_t each = weights.numel() / std::max<int64_t>(sequences, 1);
  for (int64_t b = 0; b < sequences; ++b, out += each) {
    const RandomKey& own = stream(b, sequences);
    if (!part) {
      fill_all(*this, own, 0, each, out);
      continue;
    }
    const int64_t n = weights.size(-2), m = weights.size(-1);
    parallel_for(each / std::max<int64_t>(m, 1), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = (i / n * part->T + part->row + i % n) * part->S;
        float* to = out + i * m;
        for (const kernels::KeyRange& range : part->columns) {
          fill_factors(*this, own, row + range.begin, range.end - range.begin, to);
          to += range.end - range.begin;
        }
      }
    });
  }
  return weights * mask.to(weights.device(), weights.scalar_type());
}

Tensor dropout(const Tensor& x, double p, const RandomKey& key) {
  return Dropout{p, key}(x);
}

Tensor dropout(const Tensor& x,
               double p,
               const std::vector<int64_t>& lengths,
               const std::vector<RandomKey>& streams) {
  require(lengths.size() == streams.size(), "dropout",
          "{} streams of random numbers for {} documents", streams.size(), lengths.size());
  if (p <= 0) return x;
  const Dropout dropout{p};
  Tensor mask = factors_like(x);
  auto* out = mask.data_ptr<float>();
  const int64_t width = x.numel() / std::max<int64_t>(x.size(0), 1);
  const int64_t rows = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  require(rows == x.size(0), "dropout", "documents of {} rows in all; x has {}", rows, x.size(0));
  for (size_t i = 0; i < lengths.size(); out += lengths[i++] * width)
    fill_all(dropout, streams[i], 0, lengths[i] * width, out);
  return x * mask.to(x.device(), x.scalar_type());
}

Tensor dropout(const Tensor& x, double p, const std::vector<StreamRow>& rows) {
  if (p <= 0) return x;
  require(static_cast<int64_t>(rows.size()) == x.size(0), "dropout", "{} rows named; x has {}",
          rows.size(), x.size(0));
  const Dropout dropout{p};
  Tensor mask = factors_like(x);
  auto* out = mask.data_ptr<float>();
  const int64_t width = x.numel() / std::max<int64_t>(x.size(0), 1);
  parallel_for(x.size(0), std::max<int64_t>(1, 4096 / std::max<int64_t>(width, 1)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const StreamRow& row = rows[static_cast<size_t>(i)];
                   fill_factors(dropout, row.stream, row.index * width, width, out + i * width);
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
      case Kind::truncated_normal: {
        double z = stream.normal(index);
        for (uint64_t again = 1; std::abs(z) > init.b; ++again)
          z = stream.fold(again).normal(index);
        return init.a * z;
      }
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
