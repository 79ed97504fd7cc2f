// Optimizer update rules. Torch-free.
//
// To add a rule: its keys and name in optimizer_recipe.h, a class here, a line in make_rule()
// (optimizer.cpp).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/base/threads.h"

namespace tessera::train {

/// One parameter in an update: its memory and its gradient, on the device of the rule; nullptr = no
/// gradient, the parameter does not change. Rules of another device than the CPU multiply the
/// gradients by Step::scale in place.
struct Parameter {
  float* weight = nullptr;
  const float* gradient = nullptr;
};

/// The static properties of a parameter.
struct ParameterInfo {
  std::string name = {};
  std::vector<int64_t> shape = {};
  double weight_decay = 0;
  double lr_factor = 1;
  bool matrix = false;  // [.., out, in], input and output of a matrix product

  int64_t elements() const;
  /// Of the last two dimensions; one row if there are fewer.
  int64_t rows() const { return shape.size() < 2 ? 1 : shape[shape.size() - 2]; }
  int64_t columns() const { return shape.empty() ? 1 : shape.back(); }
  /// Number of matrices.
  int64_t matrices() const;
};

/// Memory that the next update depends on, on the device of the rule.
struct RuleState {
  std::string name;       // in checkpoints
  std::string parameter;  // its parameter; "" = of the whole rule
  std::vector<int64_t> shape;
  DType dtype;
  void* data;
  bool on_host = false;  // in host memory, whatever the device of the rule
  int64_t bytes() const;
};

class UpdateRule {
 public:
  struct Step {
    int64_t t = 1;     // update number, from 1
    double lr = 0;     // learning rate, before factors of parameters
    double scale = 1;  // of gradients (clipping)
  };
  virtual ~UpdateRule() = default;
  /// One per parameter, in order.
  virtual void update(std::span<const Parameter> parameters, const Step& step) = 0;
  virtual std::vector<RuleState> state() = 0;

  /// True if the evaluated and saved values are not those at which gradients are taken.
  virtual bool averages() const { return false; }
  /// Replaces the trained values of a parameter, at `weights` on the device of the rule, by the
  /// averaged ones.
  virtual void to_average(size_t /*slot*/, float* /*weights*/) const {}
};

/// Chunks of parameters, the same for any number of threads.
class ElementChunks {
 public:
  explicit ElementChunks(const std::vector<ParameterInfo>& slots);
  struct Piece {
    size_t slot;
    int64_t begin, end;  // elements of the parameter
    int64_t place;       // of the first one, in concatenated memory
  };
  const std::vector<Piece>& all() const { return pieces_; }
  int64_t elements() const { return elements_; }
  /// Offset of a parameter in concatenated memory.
  int64_t place(size_t slot) const { return places_[slot]; }
  /// Calls body(chunk) in parallel for parameters with a gradient.
  template <class Body>
  void each(std::span<const Parameter> parameters, const Body& body) const {
    parallel_for(static_cast<int64_t>(pieces_.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Piece& piece = pieces_[static_cast<size_t>(i)];
        if (parameters[piece.slot].gradient != nullptr) body(piece);
      }
    });
  }

 private:
  std::vector<Piece> pieces_;
  std::vector<int64_t> places_;
  int64_t elements_ = 0;
};

/// Memory of one number per element of all parameters, concatenated, as state.
class Moments {
 public:
  Moments(std::string name, const ElementChunks& pieces)
      : name_(std::move(name)), pieces_(pieces), values_(static_cast<size_t>(pieces.elements())) {}
  float* at(const ElementChunks::Piece& piece) { return values_.data() + piece.place; }
  float* at(size_t slot) { return values_.data() + pieces_.place(slot); }
  const float* at(size_t slot) const { return values_.data() + pieces_.place(slot); }
  /// Appends them, one per parameter.
  void append(const std::vector<ParameterInfo>& slots, std::vector<RuleState>& to);

 private:
  std::string name_;
  const ElementChunks& pieces_;
  std::vector<float> values_;
};

}  // namespace tessera::train
