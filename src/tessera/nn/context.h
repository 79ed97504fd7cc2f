// What the parts of one call share.
#pragma once

#include <algorithm>
#include <any>
#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/cancel.h"
#include "tessera/base/rng.h"
#include "tessera/nn/batch.h"
#include "tessera/nn/recompute.h"
#include "tessera/nn/sequence_split.h"
#include "tessera/nn/state.h"
#include "tessera/ops/attention/attention.h"
#include "tessera/ops/weights/product_settings.h"

namespace tessera::nn {

/// What an encoder made of the sources of some rows: x_SD, one vector per token of `source`, whose
/// segments name the rows that read them.
struct Encoded {
  Batch source;
  Tensor x_SD;
  /// The source of a row, or nullptr.
  const Segment* of_row(int64_t row) const;
};

/// The state that a call continues, as branches see it.
class BranchStates {
 public:
  virtual ~BranchStates() = default;
  /// The rows of branch `index`, in the order of the batch's segments.
  virtual StateRows branch(size_t index, const Batch& batch) = 0;
};

/// What a call brings for the branches.
struct Call {
  BranchStates* state = nullptr;  // continued, and moved on
  /// Given a branch's input and its name, what it gets instead; may be empty.
  std::function<Tensor(const std::string& name, const Tensor& x_ND)> replace = nullptr;
  /// Whether what the call computes cannot be computed again.
  bool runs_once() const { return state != nullptr || replace != nullptr; }
};

/// Takes named intermediates ("layers.3.mixer.out") of a call.
class Probe {
 public:
  using Take = std::function<void(const std::string& name, const Tensor& value)>;
  using Wants = std::function<bool(const std::string& name)>;
  Probe() = default;
  /// Of all names, or of those that `wants` is true for.
  template <class F>
  requires std::invocable<F&, const std::string&, const Tensor&> Probe(
      F take, Wants wants = nullptr)  // NOLINT(google-explicit-constructor)
      : take_(std::move(take)), wants_(std::move(wants)) {}
  explicit operator bool() const { return take_ != nullptr; }
  bool wants(const std::string& name) const { return take_ && (!wants_ || wants_(name)); }
  void operator()(const std::string& name, const Tensor& value) const {
    if (wants(name)) take_(name, value);
  }

 private:
  Take take_;
  Wants wants_;
};

/// Takes a part's own loss, a sum over the tokens of the call, under a name.
using LossSink = std::function<void(const std::string& name, const Tensor& loss)>;
/// Takes what a part counts while it computes (loads of experts), without gradients.
using StatisticSink = std::function<void(const std::string& name, const Tensor& value)>;

/// What parts have counted in the calls of one update of training so far, by name: losses that are
/// products of means over the update (balance of experts) read it.
using UpdateCounts = std::map<std::string, Tensor>;

/// Tensors that one layer of a call makes and later ones read, gradients included: outputs of
/// branches, values of the first layer, tables of distances. What a spec has to hold for them is
/// checked when it is read (spec::ReadsEarlierParts, inputs of branches).
class LayerValues {
 public:
  void put(const std::string& name, Tensor value) { values_[name] = std::move(value); }
  const Tensor* find(const std::string& name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? nullptr : &found->second;
  }
  /// Throws Error(internal) when no earlier layer left it.
  const Tensor& at(const std::string& name) const {
    const Tensor* value = find(name);
    require(value != nullptr, "context", "no earlier layer left \"{}\"", name);
    return *value;
  }
  /// The value, made by the first layer that asks.
  template <class Make>
  const Tensor& once(const std::string& name, Make make) {
    if (find(name) == nullptr) put(name, make());
    return at(name);
  }
  const std::map<std::string, Tensor>& all() const { return values_; }
  std::map<std::string, Tensor>& all() { return values_; }

 private:
  std::map<std::string, Tensor> values_;
};

/// Keys and values of a call, by segment, with those that its row holds before it, that one layer
/// leaves for later ones: with a state what LayerValues are without.
class SharedKeyValues {
 public:
  using Lists = std::vector<std::vector<ops::KeyValues>>;
  void put(const std::string& name, Lists lists) { lists_[name] = std::move(lists); }
  /// Throws Error(internal) when no earlier layer left them.
  const Lists& at(const std::string& name) const {
    const auto found = lists_.find(name);
    require(found != lists_.end(), "context", "no earlier layer left keys \"{}\"", name);
    return found->second;
  }
  /// Runs `act` after the last layer: rows that keep a window evict its oldest keys.
  void at_end(std::function<void()> act) { ends_.push_back(std::move(act)); }
  void end() {
    for (const auto& act : ends_) act();
    ends_.clear();
  }

 private:
  std::map<std::string, Lists> lists_;
  std::vector<std::function<void()>> ends_;
};

/// Rows that lie sorted by expert: those of expert e are [offsets[e], offsets[e + 1]).
struct Groups {
  std::vector<int64_t> offsets;  // one more than experts
  Tensor token_S = {};           // int64 on the CPU: the token of the call that each row is, rising
                                 // within an expert; undefined where rows are mixtures of tokens
  /// The same of rows [begin, begin + n) alone.
  Groups cut(int64_t begin, int64_t n) const {
    Groups out;
    for (const int64_t at : offsets) out.offsets.push_back(std::clamp<int64_t>(at - begin, 0, n));
    if (token_S.defined()) out.token_S = token_S.narrow(0, begin, n);
    return out;
  }
};

struct Recomputation;    // checkpointing.h
struct ReversibleChain;  // residual/reversible.cpp

struct Context {
  const Batch* batch = nullptr;
  const Encoded* encoded = nullptr;  // sources that this call brings; rows of a state keep theirs
  bool causal = true;
  bool training = false;  // dropout and other noise act
  RandomKey key{0};       // folded by seed and step; parts fold in their own name
  int64_t step = 0;       // of training, from 0; the same in all parts of its batch
  int64_t layer = 0;      // invocation being computed
  bool recorded = false;  // lengths of segments are bounds (model/recorded_steps.h)
  const CancelToken* cancel = nullptr;
  ops::ProductSettings products;  // of all products with weights
  bool steps = true;              // calls of few tokens may take decoding steps (decode_step.h)
  Call call;
  Probe probe;
  LossSink add_loss;               // empty if nothing collects losses
  StatisticSink add_statistic;     // empty if nothing collects them
  UpdateCounts* update = nullptr;  // null if the call is an update alone
  Recompute recompute;             // where gradients are recorded
  SequenceSplit split;             // of documents over ranks, where gradients are recorded
  LayerValues values;
  SharedKeyValues keys;
  /// Where a part computes as many experts at once: its rows by expert, its weights one for each.
  std::shared_ptr<const Groups> groups;
  std::shared_ptr<Recomputation> recomputation;  // of checkpointed regions
  std::shared_ptr<ReversibleChain> reversible;   // between entering and leaving two streams
  /// Values that depend on the weights alone and are kept between calls along with a state (keys
  /// of distances), by name; nullptr where there is no state.
  std::map<std::string, std::any>* lasting = nullptr;

  /// Number of the current draw of what training redraws every `steps` steps, 0 = never; outside it
  /// the first draw stays.
  int64_t draws(int64_t steps) const { return training && steps > 0 ? step / steps : 0; }

  /// A value that follows from the batch alone (rotary tables), made once per call and without
  /// gradients; copies of the context share it.
  template <class T, class Make>
  const T& once(const std::string& name, Make make) {
    const auto found = made_->find(name);
    if (found != made_->end()) return std::any_cast<const T&>(found->second);
    const at::NoGradGuard constants;
    return std::any_cast<const T&>(made_->emplace(name, std::any(T(make()))).first->second);
  }

  /// Numbers that follow from a part's config, and in a recorded step from the bound on lengths: on
  /// the batch's device. Recorded steps copy them there once; `name` is theirs alone.
  Tensor on_device(const std::string& name, const Tensor& numbers) {
    const at::Device device = batch->positions_N.device();
    if (numbers.device() == device) return numbers;
    if (!recorded || lasting == nullptr) return numbers.to(device);
    std::any& cell = (*lasting)[name];
    if (!cell.has_value()) cell = numbers.to(device);
    return std::any_cast<const Tensor&>(cell);
  }

  /// The same call over other tokens: nothing that follows from the batch, and no layer's values,
  /// are taken over.
  Context over(const Batch& other) const {
    Context inner = *this;
    inner.batch = &other;
    inner.values = {};
    inner.keys = {};
    inner.made_ = std::make_shared<Made>();
    return inner;
  }

 private:
  using Made = std::map<std::string, std::any>;
  std::shared_ptr<Made> made_ = std::make_shared<Made>();
};

}  // namespace tessera::nn
