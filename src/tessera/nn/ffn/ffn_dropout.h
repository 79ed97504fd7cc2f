// Dropout inside a feed-forward layer, by token: of hidden values, of experts.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct FfnDropout {
  virtual ~FfnDropout() = default;
  virtual double hidden_dropout() const = 0;
  /// The name of its option.
  virtual std::string_view dropout_name() const { return "dropout"; }

  /// Throws Error(spec) where a part within `part` drops: `who` gives it rows that are not the
  /// tokens of a call, which have no random numbers of their own.
  static void refuse(const spec::AnyPart& part, const std::string& who, const spec::Scope& scope) {
    spec::for_each_part(part, [&](const spec::AnyPart& inner) {
      const auto* drops = dynamic_cast<const FfnDropout*>(inner.config.get());
      if (drops != nullptr && drops->hidden_dropout() > 0)
        fail(ErrorKind::spec, scope.path,
             "\"{}\" with {} = {} in {}; expected 0 there, or dropout of the residual",
             inner.type(), drops->dropout_name(), drops->hidden_dropout(), who);
    });
  }
};

}  // namespace tessera::nn
