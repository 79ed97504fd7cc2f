// What bounds the tokens of an expert: of S tokens that choose k experts each, an expert computes
// C = ceil(capacity_factor k S / E), or `capacity` of them. Choices count in the order of tokens,
// all first choices before all second ones, dropped ones included; those past C are dropped: their
// expert adds nothing.
//
// What is dropped turns on the other tokens, and C on how many there are. So experts have room for
// all where nothing is trained, unless drop is `always`, which needs an encoder.
#pragma once

#include "tessera/nn/router/router_config.h"

namespace tessera::nn {

enum class CapacityGroup {
  document,  // S are the tokens of a document (of what a call has of it)
  call,      // all tokens of a call
};
enum class Dropping { training, always };

struct CapacityConfig : LearnedRouterConfig {
  double capacity_factor = 1.25;
  int64_t capacity = 0;
  CapacityGroup group = CapacityGroup::document;
  Dropping drop = Dropping::training;

  bool by_token() const override { return false; }
  bool selects_without_future() const override { return drop == Dropping::training; }
  void check(const spec::Scope& scope) const override {
    if (capacity == 0 && capacity_factor == 0)
      fail(ErrorKind::spec, scope.path,
           "capacity = 0 and capacity_factor = 0: an expert has room for no token; expected one of "
           "them above 0");
    if (drop == Dropping::always && scope.causal)
      fail(ErrorKind::spec, scope.path,
           "drop = always needs an encoder: what is dropped turns on later tokens; expected "
           "\"training\"");
  }

 protected:
  template <class C>
  static constexpr auto capacity_fields() {
    return std::tuple_cat(
        std::tuple{
            spec::field<C>("capacity_factor", static_cast<double C::*>(&C::capacity_factor),
                           "room of an expert, as a multiple of its even share", {.min = 0}),
            spec::field<C>("capacity", static_cast<int64_t C::*>(&C::capacity),
                           "room of an expert in tokens; 0 = by capacity_factor", {.min = 0}),
            spec::field<C>("group", static_cast<CapacityGroup C::*>(&C::group),
                           "the tokens that share the room"),
            spec::field<C>("drop", static_cast<Dropping C::*>(&C::drop),
                           "when what has no room is dropped")},
        common_fields<C>());
  }
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::CapacityGroup> {
  using G = nn::CapacityGroup;
  static constexpr std::array names{std::pair{G::document, "document"}, std::pair{G::call, "call"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::Dropping> {
  using D = nn::Dropping;
  static constexpr std::array names{std::pair{D::training, "training"},
                                    std::pair{D::always, "always"}};
};
