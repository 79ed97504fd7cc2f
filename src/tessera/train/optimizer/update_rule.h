// How gradients become new values, of the parameters that one rule is for. Torch-free.
//
// How a rule is added: its keys and its name in optimizer_recipe.h, a class here, a line in
// make_rule() (optimizer.cpp).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/base/threads.h"

namespace tessera::train {

/// One parameter in an update: its memory now, and its gradient; a null gradient leaves it as it
/// is.
struct Parameter {
  float* weight = nullptr;
  const float* gradient = nullptr;
};

/// One parameter as a rule is made for it.
struct ParameterInfo {
  std::string name = {};
  std::vector<int64_t> shape = {};
  double weight_decay = 0;
  double lr_factor = 1;
  bool matrix = false;  // [.., out, in], whose rows and columns a product reads and makes

  int64_t elements() const;
  /// Of the last two dimensions; of what has fewer, one row.
  int64_t rows() const { return shape.size() < 2 ? 1 : shape[shape.size() - 2]; }
  int64_t columns() const { return shape.empty() ? 1 : shape.back(); }
  /// How many matrices it is of.
  int64_t matrices() const;
};

/// Memory that the next update depends on.
struct RuleState {
  std::string name;       // as a checkpoint has it
  std::string parameter;  // that it belongs to; "" = to all of the rule
  std::vector<int64_t> shape;
  DType dtype;
  void* data;
  int64_t bytes() const;
};

class UpdateRule {
 public:
  struct Step {
    int64_t t = 1;     // number of the update, from 1
    double lr = 0;     // which slots multiply
    double scale = 1;  // of gradients (clipping)
  };
  virtual ~UpdateRule() = default;
  /// One for each slot, in their order.
  virtual void update(std::span<const Parameter> parameters, const Step& step) = 0;
  virtual std::vector<RuleState> state() = 0;

  /// Whether what is evaluated and saved are not the values that gradients are taken at.
  virtual bool averages() const { return false; }
  /// Those values of a slot, in place of the ones that are trained.
  virtual void to_average(size_t /*slot*/, std::span<float> /*weights*/) const {}
};

/// Pieces of slots, the same for any number of threads.
class ElementChunks {
 public:
  explicit ElementChunks(const std::vector<ParameterInfo>& slots);
  struct Piece {
    size_t slot;
    int64_t begin, end;  // elements of the slot
    int64_t place;       // of the first one in memory that holds all slots one behind another
  };
  const std::vector<Piece>& all() const { return pieces_; }
  int64_t elements() const { return elements_; }
  /// Of a slot in memory that holds all.
  int64_t place(size_t slot) const { return places_[slot]; }
  /// body(piece) in parallel for those whose parameter has a gradient.
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

/// Memory for one number per element of slots, one slot behind another, as states of its slots.
class Moments {
 public:
  Moments(std::string name, const ElementChunks& pieces)
      : name_(std::move(name)), pieces_(pieces), values_(static_cast<size_t>(pieces.elements())) {}
  float* at(const ElementChunks::Piece& piece) { return values_.data() + piece.place; }
  float* at(size_t slot) { return values_.data() + pieces_.place(slot); }
  const float* at(size_t slot) const { return values_.data() + pieces_.place(slot); }
  /// Adds them, one for each slot.
  void append(const std::vector<ParameterInfo>& slots, std::vector<RuleState>& to);

 private:
  std::string name_;
  const ElementChunks& pieces_;
  std::vector<float> values_;
};

}  // namespace tessera::train
