// Classes instead of tokens: logits = W x + b, of every token or of the pooler's vector; where
// asked after a transform, x = N(act(T h + t)). Devlin et al. 2018, arXiv:1810.04805, sec. 4 (a
// document's class) and 5.3 (a token's). A pair of documents is computed by two towers with the
// same weights; of the pooler's vectors u, v [D] of two neighbouring documents
//   x = act(P [u; v; u v; u - v] + p) [F],  y = act(Q x + q) [F/2],  logits = W y + b
// Mou et al. 2016, arXiv:1512.08422; Tay et al. 2020, arXiv:2011.04006, sec. 2.2.3 (document
// retrieval of Long Range Arena).
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
  int64_t documents = 1, d_hidden = 0;

  HeadInput reads() const override {
    return of == ClassifierOf::pooled ? HeadInput::pooled : HeadInput::tokens;
  }
  bool of_vocabulary() const override { return false; }
  int64_t outputs(const spec::Scope&) const override { return n_labels; }
  bool two_towers() const { return documents == 2; }
  static constexpr auto fields() {
    using C = ClassifierConfig;
    return std::tuple_cat(
        std::tuple{
            spec::field("n_labels", &C::n_labels, "classes", {.min = 1, .required = true}),
            spec::field("of", &C::of, "what is classified: the pooler's vector, or every token"),
            spec::field("bias", &C::bias, "bias of the logits"),
            spec::field("labels", &C::labels, "names of the classes; empty = they have none"),
            spec::field("documents", &C::documents,
                        "documents of an example; 2 = two towers: layers read the vectors of both, "
                        "their product and their difference",
                        {.min = 1}),
            spec::field("d_hidden", &C::d_hidden,
                        "two towers: width F of the first layer, even; the second has F / 2; "
                        "0 = 4 * d_model",
                        {.min = 0})},
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
    if (documents > 2 || (two_towers() && (of == ClassifierOf::tokens || transform)))
      fail(ErrorKind::spec, scope.at("documents").path,
           "found {}; expected 1, or 2 of \"pooled\" without \"transform\"", documents);
    if (d_hidden % 2 != 0 || (d_hidden > 0 && !two_towers()))
      fail(ErrorKind::spec, scope.at("d_hidden").path,
           "found {}; expected an even number with \"documents\": 2, else 0", d_hidden);
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    declare_transform(list, scope);
    int64_t read = scope.d_model;
    if (two_towers()) {
      const int64_t hidden = d_hidden > 0 ? d_hidden : 4 * scope.d_model;
      list.linear("pair", hidden, 4 * scope.d_model, /*bias=*/true);
      list.linear("pair_2", hidden / 2, hidden, /*bias=*/true);
      read = hidden / 2;
    }
    list.add({"weight", {n_labels, read}, spec::Init::logits()});
    list.add_if(bias, {"bias", {n_labels}, spec::Init::constant(0), spec::ParamKind::bias});
  }
};

}  // namespace tessera::nn
