// Doc lines of decoding options other than sampling fields (sampling.h) that flags and requests
// share. Each line is written once; what a consumer alone accepts (a repeatable flag, the bounds
// of requests) follows it there. Torch-free.
#pragma once

#include <string>
#include <string_view>

namespace tessera::infer {

struct OptionLine {
  const char* name;  // as a setting; the flag has dashes for underscores
  const char* doc;

  /// The line, then what a consumer adds.
  std::string with(std::string_view more) const { return std::string(doc).append(more); }
};

inline constexpr OptionLine kMinNewTokens{"min_new_tokens",
                                          "minimum new tokens before end of text"},
    kIgnoreEos{"ignore_eos", "do not stop at end of text"},
    kBadWords{"bad_words", "banned strings, as tokenized alone or after a space"},
    kSamplers{"samplers", "order of the samplers; those left out are off"},
    kBeams{"beams", "beam search: number of beams; 1 = off"},
    kLengthPenalty{"length_penalty",
                   "beam search: score = log p / length^penalty; above 0 favours long outputs"},
    kEarlyStopping{
        "early_stopping",
        "beam search: when it ends with as many finished hypotheses as beams. true: at once; "
        "false: no other is better at its present length; never: none can become better at any "
        "length"};

}  // namespace tessera::infer
