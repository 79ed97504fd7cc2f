// Classes instead of tokens: logits = W x + b, of every token or of the pooler's vector; where
// asked after a transform, x = N(act(T h + t)). Devlin et al. 2018, arXiv:1810.04805, sec. 4 (a
// document's class) and 5.3 (a token's).
#pragma once

#include <string>
#include <vector>

#include "tessera/nn/head/transformed_head.h"

namespace tessera::nn {

enum class ClassifierOf { pooled, tokens };

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::ClassifierOf> {
  static constexpr std::array names{std::pair{nn::ClassifierOf::pooled, "pooled"},
                                    std::pair{nn::ClassifierOf::tokens, "tokens"}};
};

namespace tessera::nn {

struct ClassifierConfig final : TransformedHeadConfig {
  int64_t n_labels = 0;
  ClassifierOf of = ClassifierOf::pooled;
  bool bias = true;
  std::vector<std::string> labels = {};

  HeadInput reads() const override {
    return of == ClassifierOf::pooled ? HeadInput::pooled : HeadInput::tokens;
  }
  bool of_vocabulary() const override { return false; }
  int64_t outputs(const spec::Scope&) const override { return n_labels; }
  static constexpr auto fields() {
    using C = ClassifierConfig;
    return std::tuple_cat(
        std::tuple{
            spec::field("n_labels", &C::n_labels, "classes", {.min = 1, .required = true}),
            spec::field("of", &C::of, "what is classified: the pooler's vector, or every token"),
            spec::field("bias", &C::bias, "bias of the logits"),
            spec::field("labels", &C::labels, "names of the classes; empty = they have none")},
        transform_fields<C>());
  }
  static spec::Info info() {
    return {.summary = "Logits of classes, for whole documents or for every token.",
            .paper = "Devlin et al.: BERT, arXiv:1810.04805",
            .year = 2018,
            .causality = spec::Causality::none,
            .forms = {}};
  }
  void check(const spec::Scope& scope) const override {
    check_transform(scope);
    if (!labels.empty() && static_cast<int64_t>(labels.size()) != n_labels)
      fail(ErrorKind::spec, scope.at("labels").path, "{} names; expected n_labels = {}, or none",
           labels.size(), n_labels);
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    declare_transform(list, scope);
    list.add({"weight", {n_labels, scope.d_model}, spec::Init::logits()});
    list.add_if(bias, {"bias", {n_labels}, spec::Init::constant(0), spec::ParamKind::bias});
  }
};

}  // namespace tessera::nn
