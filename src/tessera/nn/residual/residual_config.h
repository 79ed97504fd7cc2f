// How a branch (mixer or feed-forward layer) joins the residual stream.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

/// Learned factors on a branch's output.
enum class Gain { none, scalar, channel };

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::Gain> {
  static constexpr std::array names{std::pair{nn::Gain::none, "none"},
                                    std::pair{nn::Gain::scalar, "scalar"},
                                    std::pair{nn::Gain::channel, "channel"}};
};

namespace tessera::nn {

struct ResidualConfig : spec::Config {
  double scale = 1;
  double dropout = 0;
  Gain gain = Gain::none;
  double gain_init = 0;
  bool sum_gain = false;

  /// Names of the norms of one branch, after the branch's own name: "norm" gives mixer_norm.
  virtual std::vector<std::string> norms() const = 0;
  /// Whether all branches of a layer read the same input and are summed (GPT-J, NeoX).
  virtual bool joins_branches() const { return false; }
  /// Whether the branches of one group share the first branch's norm.
  virtual bool shares_norm() const { return false; }
  /// Whether a branch may choose what it reads.
  virtual bool takes_inputs() const { return false; }
  /// Whether only Branch::input() precedes its part, whose norm is as wide as what the
  /// branch reads and may be left out.
  virtual bool norms_input() const { return false; }
  /// Whether the stream is left unnormalised, so that the stack ends with a norm.
  virtual bool wants_final_norm() const { return true; }
  /// What it carries from branch to branch: residuals that name the same hand it on as it is, and
  /// between others the stream is x_ND. "" = x_ND alone.
  virtual std::string carries() const { return ""; }
  /// Whether it recomputes its branches in the backward pass itself, without stored activations.
  virtual bool recomputes() const { return false; }
  /// Streams of d_model channels that its branches read concatenated. What a branch makes of them
  /// is as wide, or d_model wide and added to each.
  virtual int64_t streams_read() const { return 1; }
  /// Concatenated streams of d_model channels that it leaves where its run ends.
  virtual int64_t streams_left() const { return 1; }

  /// Of each branch, after the branch's own name: "mixer_residual.gain", "mixer_residual.sum_gain".
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.add_if(gain != Gain::none, {.name = "gain",
                                     .shape = {gain == Gain::channel ? scope.d_model : 1},
                                     .init = spec::Init::constant(gain_init),
                                     .kind = spec::ParamKind::structural});
    list.add_if(sum_gain, {.name = "sum_gain",
                           .shape = {1},
                           .init = spec::Init::constant(1),
                           .kind = spec::ParamKind::structural});
  }
  /// Of a group of branches, declared with its first one: "mixer_residual.*".
  virtual void group_params(spec::ParamList&, const spec::Scope&) const {}
  /// Of a run of residuals that carry a stream of their own, declared where it begins and where it
  /// ends: "mixer_residual.enter.*" of its first group, "ffn_residual.leave.*" of its last one.
  virtual void enter_params(spec::ParamList&, const spec::Scope&) const {}
  virtual void leave_params(spec::ParamList&, const spec::Scope&) const {}

  void check(const spec::Scope& scope) const override {
    if (gain == Gain::none && gain_init != 0)
      fail(ErrorKind::spec, scope.path,
           "gain_init = {} without a gain; expected gain \"scalar\" or \"channel\"", gain_init);
  }

 protected:
  template <class C>
  static constexpr auto common_fields() {
    return std::tuple_cat(
        output_fields<C>(),
        std::tuple{spec::field<C>("gain", static_cast<Gain C::*>(&C::gain),
                                  "learned factors on the branch's output: one (ReZero) or one a "
                                  "channel (LayerScale)"),
                   spec::field<C>("gain_init", static_cast<double C::*>(&C::gain_init),
                                  "what they begin as")});
  }
  /// Those of residuals of one branch that end with a sum.
  template <class C>
  static constexpr auto sum_fields() {
    return std::tuple_cat(
        common_fields<C>(),
        std::tuple{spec::field<C>("sum_gain", static_cast<bool C::*>(&C::sum_gain),
                                  "whether a learned factor multiplies the sum of stream and "
                                  "branch (layer scalar, Gemma 4)")});
  }
  /// Those of residuals that have learned factors of their own.
  template <class C>
  static constexpr auto output_fields() {
    return std::tuple{
        spec::field<C>("scale", static_cast<double C::*>(&C::scale),
                       "factor on the branch's output"),
        spec::field<C>("dropout", static_cast<double C::*>(&C::dropout),
                       "probability on the branch's output, in training", {.min = 0, .below = 1})};
  }
};

}  // namespace tessera::nn
