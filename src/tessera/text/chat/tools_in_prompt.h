// Tool calling for models whose chat template has no tools: describes functions and the call format
// in the conversation, in the most common format ("hermes"): <tool_call>{"name": ..., "arguments":
// {...}}</tool_call>.
#pragma once

#include "tessera/spec/json.h"

namespace tessera::text {

using spec::Json;

/// The messages of a chat with roles system, user and assistant only. Functions (null: none) are
/// described in the system message, or before the first question if the template has no system
/// role; calls and results become text.
Json tools_in_prompt(const Json& messages, const Json& tools, bool system);

}  // namespace tessera::text
