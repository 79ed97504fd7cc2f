// Rows of products of one row of x, which decoding consists of: bytes of packed weights a second,
// beside what reading alone reaches. Then of 512 rows, which a prompt consists of, in two digits,
// on processors with AMX: without its tiles by with them.
//   products_rows [ROW ...] [--repeats N] [--json] [--list]
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "machine.h"
#include "rows.h"
#include "tessera/base/rng.h"
#include "tessera/kernels/tiles.h"
#include "tessera/kernels/weights/digits.h"
#include "tessera/kernels/weights/matmul.h"

namespace tessera::bench {
namespace {

struct Shape {
  DType type;
  int64_t n, k;
};

// y [n] = w x; copies of w take turns, so that no cache holds them
class OneRow {
 public:
  explicit OneRow(const Shape& shape)
      : shape_(shape), bytes_(storage_bytes(shape.type, shape.n * shape.k)) {
    constexpr int64_t kFar = int64_t{160} << 20;  // several times the last cache level
    copies_ = std::max<int64_t>(2, kFar / bytes_);
    w_.resize(static_cast<size_t>(copies_ * bytes_));
    x_.resize(static_cast<size_t>(shape.k));
    y_.resize(static_cast<size_t>(shape.n));
    const RandomKey key(5);
    // bytes below 64 are no scale that is not finite
    for (size_t i = 0; i < w_.size(); ++i) w_[i] = static_cast<uint8_t>(key.bits(i) & 0x3f);
    for (size_t i = 0; i < x_.size(); ++i) x_[i] = key.uniform(i) - 0.5f;
    memory_.resize(static_cast<size_t>(kernels::rounded_bytes(1, shape.k)) + 64);
  }

  int64_t bytes() const { return bytes_; }
  void read() { read_alone(next(), bytes_); }
  void multiply(kernels::Arithmetic arithmetic) {
    if (arithmetic == kernels::Arithmetic::float32 || !kernels::has_codes(shape_.type))
      return kernels::matmul(x_.data(), 1, shape_.k, shape_.k, shape_.type, next(), shape_.n,
                             nullptr, y_.data(), shape_.n);
    void* line = memory_.data() + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64) % 64;
    const kernels::RoundedRows x =
        kernels::round_rows(x_.data(), 1, shape_.k, shape_.k, arithmetic, line);
    kernels::digit_matmul(x, shape_.type, next(), shape_.n, nullptr, y_.data(), shape_.n);
  }

 private:
  const uint8_t* next() { return w_.data() + turn_++ % copies_ * bytes_; }

  Shape shape_;
  int64_t bytes_, copies_, turn_ = 0;
  std::vector<uint8_t> w_, memory_;
  std::vector<float> x_, y_;
};

void product_rows(Report& report) {
  // of SmolLM2-135M in Q4_1: queries, gates, down, head; of Gemma 3 270M in Q4_K_M: gates, queries,
  // output, down twice, head; of Llama 3.2 1B: gates and down in each type
  std::vector<Shape> shapes = {{DType::q4_1, 576, 576},  {DType::q4_1, 1536, 576},
                               {DType::q4_1, 576, 1536}, {DType::q8_0, 49152, 576},
                               {DType::q5_0, 2048, 640}, {DType::q5_0, 1024, 640},
                               {DType::q4_k, 640, 1024}, {DType::q4_k, 640, 2048},
                               {DType::q6_k, 640, 2048}, {DType::q8_0, 262144, 640}};
  for (const DType type : {DType::q4_k, DType::q6_k, DType::q5_k, DType::iq4_xs, DType::q4_0,
                           DType::q8_0, DType::mxfp4, DType::bf16, DType::f16})
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{8192, 2048}, {2048, 8192}})
      shapes.push_back({type, n, k});
  for (const Shape& shape : shapes) {
    const std::string name = fmt::format("one_row/{}/{}x{}", name_of(shape.type), shape.n, shape.k);
    report.group(name, [&] {
      OneRow product(shape);
      const auto of = [&](kernels::Arithmetic arithmetic) {
        return [&product, arithmetic] { product.multiply(arithmetic); };
      };
      using kernels::Arithmetic;
      std::vector<Program> programs = {[&] { product.read(); }, of(Arithmetic::float32)};
      const bool codes = kernels::has_codes(shape.type);
      if (codes) programs.insert(programs.end(), {of(Arithmetic::int15), of(Arithmetic::int8)});
      const std::vector<double> s = report.seconds(programs);
      const auto rate = [&](size_t i) { return static_cast<double>(product.bytes()) / s[i] / 1e9; };
      std::string detail =
          fmt::format("of reading alone, {:.1f} GB/s; float32 {:.1f}", rate(0), rate(1));
      if (codes) detail += fmt::format(", 15 bits {:.1f}, 8 bits {:.1f}", rate(2), rate(3));
      // in the arithmetic that is the default
      report.add({name, s[0] / s[codes ? 2 : 1], "x", Aim::at_least, 0.85, detail});
    });
  }
}

// y [512, n] = x w^T in two digits
class ManyRows {
 public:
  explicit ManyRows(const Shape& shape)
      : shape_(shape),
        w_(static_cast<size_t>(storage_bytes(shape.type, shape.n * shape.k))),
        x_(static_cast<size_t>(kRows * shape.k)),
        y_(static_cast<size_t>(kRows * shape.n)),
        memory_(static_cast<size_t>(kernels::rounded_bytes(kRows, shape.k)) + 64) {
    const RandomKey key(5);
    for (size_t i = 0; i < w_.size(); ++i) w_[i] = static_cast<uint8_t>(key.bits(i) & 0x3f);
    for (size_t i = 0; i < x_.size(); ++i) x_[i] = key.uniform(i) - 0.5f;
    void* line = memory_.data() + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64) % 64;
    rounded_ =
        kernels::round_rows(x_.data(), kRows, shape.k, shape.k, kernels::Arithmetic::int15, line);
  }

  double operations() const { return 2.0 * kRows * static_cast<double>(shape_.n * shape_.k); }
  void operator()() {
    kernels::digit_matmul(rounded_, shape_.type, w_.data(), shape_.n, nullptr, y_.data(), shape_.n);
  }

 private:
  static constexpr int64_t kRows = 512;
  Shape shape_;
  std::vector<uint8_t> w_;
  std::vector<float> x_, y_;
  std::vector<uint8_t> memory_;
  kernels::RoundedRows rounded_;
};

void tile_rows(Report& report) {
  if (!kernels::use_tiles()) return;
  // of SmolLM2-135M in Q4_1: keys, queries, gates, down; the same gates in other types
  for (const Shape& shape :
       {Shape{DType::q4_1, 192, 576}, Shape{DType::q4_1, 576, 576}, Shape{DType::q4_1, 1536, 576},
        Shape{DType::q4_1, 576, 1536}, Shape{DType::q4_0, 1536, 576}, Shape{DType::q5_0, 1536, 576},
        Shape{DType::q4_k, 1536, 768}, Shape{DType::q5_k, 1536, 768}}) {
    const std::string name = fmt::format("tiles/{}/{}x{}", name_of(shape.type), shape.n, shape.k);
    report.group(name, [&] {
      ManyRows product(shape);
      const std::vector<double> s = report.seconds({[&] {
                                                      const kernels::WithoutTiles scope;
                                                      product();
                                                    },
                                                    [&] { product(); }});
      report.add({name, s[0] / s[1], "x", Aim::none, 0,
                  fmt::format("{:.0f} by {:.0f} Gop/s", product.operations() / s[1] / 1e9,
                              product.operations() / s[0] / 1e9)});
    });
  }
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera::bench;
  return run(argc, argv, "products", {product_rows, tile_rows});
}
