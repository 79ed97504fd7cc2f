// Values that bodies of several routes have: texts, prompts, messages.
#pragma once

#include "tessera/serve/bodies.h"

namespace tessera::serve {

inline constexpr int64_t kMostTokens = int64_t{1} << 30;
inline constexpr size_t kMostText = size_t{8} << 20;  // as much as a body
inline constexpr size_t kMostMessages = 4096, kMostTools = 128;

/// A string, or a list of up to `most`.
std::vector<std::string> texts_of(const Json& value, const std::string& name, size_t most);
/// A string, ids, or a list of up to `most` of either.
std::vector<Prompt> prompts_of(const Json& value, const std::string& name, size_t most);
/// The text of a message's content: a string, or text parts one after another; null where it may
/// be lacking.
Json content_of(const Json& value, const std::string& name, bool may_lack);
/// A conversation as templates want it.
Json messages_of(const Json& value, const std::string& name);

template <class Body>
void add_model(Fields<Body>& fields) {
  fields.text("model", &Body::model, 512,
              "which of the models of /v1/models; not needed where there is one");
  fields.inert("user", "string", "not used");
}

}  // namespace tessera::serve
