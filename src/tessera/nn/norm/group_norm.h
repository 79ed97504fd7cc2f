// Group norm: the channels of every token in groups, each with zero mean and unit variance:
//   y = (x - mean_g) / sqrt(var_g + eps) * w + b, variance divided by the channels of a group.
// A token is what an image is in the paper: no other token enters. Wu and He 2018,
// arXiv:1803.08494.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct GroupNormConfig final : spec::Config {
  int64_t groups = 1;
  double eps = 1e-5;
  bool affine = true;

  static constexpr auto fields() {
    using C = GroupNormConfig;
    return std::tuple{spec::field("groups", &C::groups,
                                  "groups of channels, each normalized separately", {.min = 1}),
                      spec::field("eps", &C::eps, "added to the variance", {.min = 0}),
                      spec::field("affine", &C::affine, "w and b of every channel; else neither")};
  }
  static spec::Info info() {
    return {.summary = "Layer norm of groups of channels, each group separately.",
            .paper = "Wu, He: Group Normalization, arXiv:1803.08494",
            .year = 2018,
            .forms = {.recurrent = true, .recorded = true}};
  }
  void check(const spec::Scope& scope) const override {
    if (scope.width % groups != 0)
      fail(ErrorKind::spec, scope.path, "groups = {} does not divide {} channels", groups,
           scope.width);
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.add_if(affine, {"weight", {scope.width}, spec::Init::constant(1), spec::ParamKind::norm});
    list.add_if(affine, {"bias", {scope.width}, spec::Init::constant(0), spec::ParamKind::bias});
  }
};

}  // namespace tessera::nn
