// What every position scheme answers without computing.
#pragma once

#include "tessera/nn/rope_scaling/rope_scaling_config.h"

namespace tessera::nn {

struct PositionConfig : spec::Config {
  /// How long a sequence of `length` tokens can become before all of its angles change (LongRoPE
  /// once, dynamic NTK with every token): what a state holds of it is recomputed there.
  virtual int64_t angles_until(int64_t /*length*/) const { return kAnglesStay; }
  bool angles_change() const { return angles_until(1) != kAnglesStay; }
  std::string not_recorded_reason() const override {
    return angles_change() ? "its angles change with the length" : "";
  }
  /// Whether it adds to the values, too, not to the scores alone.
  virtual bool adds_values() const { return false; }
  /// Whether what it adds to the scores takes the factor on them, as products of queries and keys.
  virtual bool takes_scale() const { return false; }
  /// Whether what it adds depends on the head and the distance alone.
  virtual bool by_distance() const { return false; }
  /// Whether a score depends on all keys between its key and its query.
  virtual bool counts_keys() const { return false; }

  /// Throws Error(spec) where something would do nothing because no query sees a later key.
  virtual void check_one_sided(const spec::Scope&) const {}

  /// Refuses, for a mixer that pools keys, a scheme that needs every one of them.
  static void refuse_pooled(const spec::AnyPart& position, const spec::Scope& scope) {
    if (!position) return;
    const auto& scheme = dynamic_cast<const PositionConfig&>(*position.config);
    if (scheme.adds_values())
      fail(ErrorKind::spec, scope.path,
           "position \"{}\" adds to the values by distance, but values of several distances are "
           "pooled here; set its \"values\" to false",
           position.type());
    if (scheme.counts_keys())
      fail(ErrorKind::spec, scope.path,
           "position \"{}\" counts every key between key and query, but keys are pooled here; use "
           "a position by distance such as t5",
           position.type());
  }

 protected:
  /// Refuses a scheme that acts elsewhere than the parent asks.
  static void require_place(spec::Place acts,
                            std::string_view name,
                            const spec::Scope& scope,
                            std::string_view remedy) {
    if (scope.places.offers(acts)) return;
    fail(ErrorKind::spec, scope.path, "position \"{}\" acts on {}, but this place offers {}; {}",
         name, spec::name_of(acts), scope.places.text(), remedy);
  }
  /// A rotation turns pairs of channels.
  static void require_pairs(const spec::Scope& scope) {
    if (scope.turned() % 2 != 0)
      fail(ErrorKind::spec, scope.path, "head_dim = {}; expected an even number", scope.turned());
  }
  /// The place of every scheme that acts on scores.
  static void require_scores(std::string_view name, const spec::Scope& scope) {
    require_place(spec::Place::score_bias, name, scope,
                  "put it into \"position\" of an attention mixer");
  }
  /// Declares in the part's own list, or once for all layers that name the id `share`.
  template <class Declare>
  static void declare(spec::ParamList& list, const std::string& share, const Declare& to) {
    if (share.empty()) return to(list);
    spec::ParamList all = spec::ParamList::shared(share);
    to(all);
    list.append(all);
  }
  /// An id under which layers share parameters; "" = each has its own.
  static void check_share(const std::string& id, const spec::Scope& scope) {
    if (id.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") != std::string::npos)
      fail(ErrorKind::spec, scope.at("share").path,
           "id \"{}\"; expected lower-case letters, digits and _", id);
  }
};

}  // namespace tessera::nn
