// Values that bodies of several routes have: texts, prompts, messages.
#pragma once

#include "tessera/infer/sampling/decoding_fields.h"
#include "tessera/serve/bodies.h"

namespace tessera::serve {

inline constexpr int64_t kMostTokens = infer::kMostAsked;
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

/// The schema of a whole number in the range of requests, and its reading.
inline Json integer_schema(const infer::DecodingField& option) {
  return {{"type", "integer"},
          {"minimum", static_cast<int64_t>(option.asked_least)},
          {"maximum", static_cast<int64_t>(option.asked_most)}};
}
inline int64_t asked_integer(const infer::DecodingField& option,
                             const Json& value,
                             const std::string& name) {
  return integer_of(value, name, static_cast<int64_t>(option.asked_least),
                    static_cast<int64_t>(option.asked_most));
}

/// Fields of decoding options, with the names, the doc line and the range of their list; `more`
/// follows the doc line.
template <class Body>
Fields<Body>& add_names(Fields<Body>& fields, const infer::DecodingField& option) {
  for (std::string& name : option.request_aliases()) fields.alias(std::move(name));
  return fields;
}
template <class Body, class Reader>
Fields<Body>& add_option(Fields<Body>& fields,
                         const infer::DecodingField& option,
                         Json schema,
                         std::string_view more,
                         Reader reader) {
  fields.add(option.request_name(), std::move(schema), option.with(more), std::move(reader));
  return add_names(fields, option);
}
template <class Body, class C, class T>
Fields<Body>& add_integer(Fields<Body>& fields,
                          const infer::DecodingField& option,
                          T C::*member,
                          std::string_view more = {}) {
  fields.integer(option.request_name(), member, static_cast<int64_t>(option.asked_least),
                 static_cast<int64_t>(option.asked_most), option.with(more));
  return add_names(fields, option);
}
template <class Body, class C, class T>
Fields<Body>& add_flag(Fields<Body>& fields,
                       const infer::DecodingField& option,
                       T C::*member,
                       std::string_view more = {}) {
  fields.flag(option.request_name(), member, option.with(more));
  return add_names(fields, option);
}

template <class Body>
void add_search(Fields<Body>& fields) {
  using S = SearchBody;
  using infer::decoding_field;
  add_integer(fields, decoding_field("beams"), &S::beams);
  const infer::DecodingField& penalty = decoding_field("length_penalty");
  fields.number(penalty.request_name(), &S::length_penalty, penalty.asked_least, penalty.asked_most,
                penalty.with("; default 1"));
  add_option(fields, decoding_field("early_stopping"), {{"enum", {false, true, "never"}}},
             "; default false", [](Body& body, const Json& value, const std::string& name) {
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
