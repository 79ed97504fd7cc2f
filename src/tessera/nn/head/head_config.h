// What heads answer without computing. Language-model heads have logits of the vocabulary at every
// token: logits = softcap(scale * W h + b).
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

/// The rows that a head reads.
enum class HeadInput {
  tokens,        // hidden states of all tokens
  first_tokens,  // of the first token of each document: a pooler
  pooled,        // what the pooler makes of them
};

struct HeadConfig : spec::Config {
  double scale = 1;
  double softcap = 0;
  virtual HeadInput reads() const { return HeadInput::tokens; }
  /// Whether a row's numbers are logits of the vocabulary.
  virtual bool of_vocabulary() const { return true; }
  /// Numbers per row.
  virtual int64_t outputs(const spec::Scope& scope) const { return scope.vocab; }
  /// Whether the token embedding is the output matrix, and the width that it must have then.
  virtual bool tied() const { return false; }
  virtual int64_t table_width(const spec::Scope& scope) const { return scope.d_model; }

 protected:
  template <class C>
  static constexpr auto common_fields() {
    return std::tuple{
        spec::field<C>("scale", static_cast<double C::*>(&C::scale), "factor on the logits"),
        spec::field<C>("softcap", static_cast<double C::*>(&C::softcap),
                       "c in c * tanh(logits / c); 0 = none", {.min = 0})};
  }
  static void require_encoder(std::string_view name, const spec::Scope& scope) {
    if (scope.causal)
      fail(ErrorKind::spec, scope.path,
           "head \"{}\" needs an encoder: the first token of a decoder has seen nothing but itself",
           name);
  }
};

}  // namespace tessera::nn
