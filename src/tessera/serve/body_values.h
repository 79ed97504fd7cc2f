// Values that bodies of several routes have: texts, prompts, messages.
#pragma once

#include "tessera/infer/sampling/option_lines.h"
#include "tessera/serve/bodies.h"

namespace tessera::serve {

inline constexpr int64_t kMostTokens = int64_t{1} << 30;
inline constexpr uint64_t kMostSeed = UINT64_MAX;
inline constexpr size_t kMostText = size_t{8} << 20;  // max. size of a body
inline constexpr size_t kMostMessages = 4096, kMostTools = 128;
inline constexpr size_t kMostName = 64;  // of a function name

/// A string, or a list of up to `most` strings.
std::vector<std::string> texts_of(const Json& value, const std::string& name, size_t most);
/// A string, token ids, or a list of up to `most` of either.
std::vector<Prompt> prompts_of(const Json& value, const std::string& name, size_t most);
/// The text of a message's content: a string, or text parts, concatenated.
std::string content_of(const Json& value, const std::string& name, const UnknownMembers& unknown);
/// Messages as chat templates need them: contents are strings, arguments of calls are objects.
/// Members that clients keep in their histories and that templates do not use (cache_control, id,
/// refusal, ...) are removed.
Json messages_of(const Json& value, const std::string& name, const UnknownMembers& unknown);

template <class Body>
void add_model(Fields<Body>& fields) {
  fields.text("model", &Body::model, 512,
              "which of the models of /v1/models; not needed where there is one");
  fields.hint("user", "string", "not used");
}

template <class Body>
void add_search(Fields<Body>& fields) {
  using S = SearchBody;
  fields.integer("beams", &S::beams, 1, 16, infer::kBeams.doc)
      .alias("num_beams")
      .number("length_penalty", &S::length_penalty, -10, 10,
              infer::kLengthPenalty.with("; default 1"))
      .add("early_stopping", {{"enum", {false, true, "never"}}},
           infer::kEarlyStopping.with("; default false"),
           [](Body& body, const Json& value, const std::string& name) {
             using convert::EarlyStopping;
             if (!value.is_boolean() && value != "never")
               refuse(name, name + " is " + std::string(spec::kind_of(value)) +
                                "; expected true, false or \"never\"");
             body.early_stopping = value == true    ? EarlyStopping::always
                                   : value == false ? EarlyStopping::heuristic
                                                    : EarlyStopping::never;
           });
}

}  // namespace tessera::serve
