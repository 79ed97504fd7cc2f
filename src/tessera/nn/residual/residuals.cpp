#include "tessera/nn/residual/damped.h"
#include "tessera/nn/residual/parallel.h"
#include "tessera/nn/residual/post_norm.h"
#include "tessera/nn/residual/pre_norm.h"
#include "tessera/nn/residual/reordered.h"
#include "tessera/nn/residual/sandwich.h"

namespace tessera::nn {
namespace {

class PreNorm final : public Residual {
 public:
  explicit PreNorm(const PreNormConfig& config) : config_(config) {}
  Stream forward(Stream stream, std::span<const Branch> branches, Context& context) const override {
    const Tensor& x_ND = stream.front();
    const Branch& f = branches[0];
    return {ops::plus(x_ND, damped(config_, f.run(f.input(x_ND, context), context), f, context))};
  }

 private:
  PreNormConfig config_;
};

class PostNorm final : public Residual {
 public:
  explicit PostNorm(const PostNormConfig& config) : config_(config) {}
  Stream forward(Stream stream, std::span<const Branch> branches, Context& context) const override {
    const Tensor& x_ND = stream.front();
    const Branch& f = branches[0];
    const Tensor scaled_ND = config_.stream == 1 ? x_ND : x_ND * config_.stream;
    const Tensor in = f.read ? f.read(x_ND, context) : x_ND;
    return {f.norms[0]->forward(
        ops::plus(scaled_ND, damped(config_, f.run(in, context), f, context)), context)};
  }

 private:
  PostNormConfig config_;
};

class Sandwich final : public Residual {
 public:
  explicit Sandwich(const SandwichConfig& config) : config_(config) {}
  Stream forward(Stream stream, std::span<const Branch> branches, Context& context) const override {
    const Tensor& x_ND = stream.front();
    const Branch& f = branches[0];
    Tensor out = f.norms[1]->forward(f.run(f.norms[0]->forward(x_ND, context), context), context);
    return {ops::plus(x_ND, damped(config_, std::move(out), f, context))};
  }

 private:
  SandwichConfig config_;
};

class Reordered final : public Residual {
 public:
  explicit Reordered(const ReorderedConfig& config) : config_(config) {}
  Stream forward(Stream stream, std::span<const Branch> branches, Context& context) const override {
    const Tensor& x_ND = stream.front();
    const Branch& f = branches[0];
    const Tensor y_ND = f.norms[0]->forward(f.run(x_ND, context), context);
    return {ops::plus(x_ND, damped(config_, y_ND, f, context))};
  }

 private:
  ReorderedConfig config_;
};

class Parallel final : public Residual {
 public:
  explicit Parallel(const ParallelConfig& config) : config_(config) {}
  Stream forward(Stream stream, std::span<const Branch> branches, Context& context) const override {
    const Tensor& x_ND = stream.front();
    Tensor normed, sum = x_ND;
    for (const Branch& f : branches) {
      if (!f.norms.empty())
        normed = f.norms[0]->forward(x_ND, context);  // the first branch's norm serves those without
      sum = ops::plus(sum, damped(config_, f.run(normed, context), f, context));
    }
    return {sum};
  }

 private:
  ParallelConfig config_;
};

}  // namespace

std::unique_ptr<Residual> build(const PreNormConfig& config, const Builder&) {
  return std::make_unique<PreNorm>(config);
}
std::unique_ptr<Residual> build(const PostNormConfig& config, const Builder&) {
  return std::make_unique<PostNorm>(config);
}
std::unique_ptr<Residual> build(const SandwichConfig& config, const Builder&) {
  return std::make_unique<Sandwich>(config);
}
std::unique_ptr<Residual> build(const ReorderedConfig& config, const Builder&) {
  return std::make_unique<Reordered>(config);
}
std::unique_ptr<Residual> build(const ParallelConfig& config, const Builder&) {
  return std::make_unique<Parallel>(config);
}

}  // namespace tessera::nn
