// What heads answer without computing. Language-model heads have logits of the vocabulary at every
// token: logits = softcap(scale * W h + b).
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

/// The rows that a head reads.
enum class HeadInput {
  tokens,     // hidden states of all tokens
  documents,  // one vector of each document: a pooler
  pooled,     // what the pooler makes of them
};

/// Which vector of a document a pooler reads.
enum class PoolOf {
  first,  // of the first token
  mean,   // of all tokens
  last,   // of the last token, which in a decoder alone has seen them all
  max,    // the largest of each channel
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
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::PoolOf> {
  using E = tessera::nn::PoolOf;
  static constexpr std::array names{std::pair{E::first, "first"}, std::pair{E::mean, "mean"},
                                    std::pair{E::last, "last"}, std::pair{E::max, "max"}};
  static constexpr std::array aliases{std::pair{E::first, "cls"}};
};
