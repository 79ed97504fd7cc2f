// How a branch (mixer or feed-forward layer) joins the residual stream.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct ResidualConfig : spec::Config {
  double scale = 1;
  double dropout = 0;

  /// Names of the norms of one branch, after the branch's own name: "norm" gives mixer_norm.
  virtual std::vector<std::string> norms() const = 0;
  /// Whether all branches of a layer read the same input and are summed (GPT-J, NeoX).
  virtual bool joins_branches() const { return false; }
  /// Whether the branches of one group share the first branch's norm.
  virtual bool shares_norm() const { return false; }
  /// Whether a branch may say what it reads, and go without a norm: all that stands before its part
  /// is Branch::input().
  virtual bool takes_inputs() const { return false; }
  /// Whether the stream is left unnormalised, so that the stack ends with a norm.
  virtual bool wants_final_norm() const { return true; }
  /// Streams of d_model that it carries from branch to branch, and that it leaves side by side
  /// where the next branch carries one.
  virtual int64_t streams() const { return 1; }
  virtual int64_t streams_left() const { return 1; }

  void check(const spec::Scope& scope) const override {
    if (dropout >= 1)
      fail(ErrorKind::spec, scope.path, "dropout = {}; expected less than 1", dropout);
  }

 protected:
  template <class C>
  static constexpr auto common_fields() {
    return std::tuple{
        spec::field<C>("scale", static_cast<double C::*>(&C::scale),
                       "factor on the branch's output"),
        spec::field<C>("dropout", static_cast<double C::*>(&C::dropout),
                       "probability on the branch's output, in training", {.min = 0})};
  }
};

}  // namespace tessera::nn
