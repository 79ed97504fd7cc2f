// Functions for models whose chat template knows of none: what they are, and how they are called,
// stands in the conversation itself, in the form that most models were taught (reply format
// "hermes"): <tool_call>{"name": ..., "arguments": {...}}</tool_call>.
#pragma once

#include "tessera/spec/json.h"

namespace tessera::text {

using spec::Json;

/// The messages of a chat, of whose roles system, user and assistant alone are left: functions
/// (null: none) are told of in the system message, or before the first question where the template
/// has no place for a system; calls and their results are texts.
Json tools_in_prompt(const Json& messages, const Json& tools, bool system);

}  // namespace tessera::text
