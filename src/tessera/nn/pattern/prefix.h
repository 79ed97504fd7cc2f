// Prefix attention (prefix-LM): the first tokens of a document see each other, all later ones see
// what is before them.
//   j visible to i  iff  j <= i  or  j < prefix
// The prefix is what was given of each document (Segment::prefix): a prompt, the source of a pair;
// with a `length`, at most `length` tokens of it, or of a document without a given prefix.
// Liu et al. 2018, arXiv:1801.10198; Raffel et al. 2019, arXiv:1910.10683, sec. 3.2.1.
#pragma once

#include "tessera/nn/pattern/pattern_config.h"

namespace tessera::nn {

struct PrefixPatternConfig final : PatternBase<PrefixPatternConfig> {
  int64_t length = 0;

  static constexpr auto fields() {
    return std::tuple{spec::field(
        "length", &PrefixPatternConfig::length,
        "most tokens of a prefix, and those of a document without a prompt or source; 0 = all that "
        "was given: the prompt, the source of a pair, prefix_lengths of `forward`",
        {.min = 0})};
  }
  static spec::Info info() {
    return {.summary = "The tokens of a prefix see each other; later ones see the past.",
            .paper =
                "Raffel et al.: Exploring the Limits of Transfer Learning with a Unified "
                "Text-to-Text Transformer, arXiv:1910.10683 (sec. 3.2.1)",
            .year = 2019,
            .causality = spec::Causality::none,
            .forms = {.recurrent = true},
            .time = spec::Growth::quadratic};
  }
  void check(const spec::Scope& scope) const override {
    if (!scope.causal)
      fail(ErrorKind::spec, scope.path,
           "prefix in an encoder, whose tokens all see each other; use full there");
  }
  int64_t prefix(int64_t given) const override {
    return length == 0 ? given : given == 0 ? length : std::min(length, given);
  }
  int64_t multiplicity(const PatternSite& site,
                       int64_t /*head*/,
                       int64_t query,
                       int64_t key) const override {
    return !site.causal || key <= query || key < prefix(site.prefix) ? 1 : 0;
  }
  std::vector<KeyRange> ranges(const PatternSite& site,
                               int64_t /*head*/,
                               int64_t /*begin*/,
                               int64_t end) const override {
    return {{0, std::min(std::max(last_key(site, end), prefix(site.prefix)), site.length)}};
  }
  Seen tile(const PatternSite& site,
            int64_t /*head*/,
            KeyRange queries,
            KeyRange keys) const override {
    if (!site.causal || all_past(queries, keys) || keys.end <= prefix(site.prefix))
      return Seen::all;
    return all_future(queries, keys) && keys.begin >= prefix(site.prefix) ? Seen::none : Seen::some;
  }
  void check_call(const PatternSite& site, int64_t start) const override {
    if (site.causal && start > 0 && start < prefix(site.prefix))
      fail(ErrorKind::input, "prefix",
           "a call starts at position {}, inside the prefix of {} tokens, which see each other; "
           "give the whole prefix in one call",
           start, prefix(site.prefix));
  }
};

}  // namespace tessera::nn
