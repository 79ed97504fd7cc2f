// Decoding settings of library calls.
#pragma once

#include <string_view>

#include "tessera/infer/engine/generate.h"
#include "tessera/infer/loading/decoding_defaults.h"
#include "tessera/infer/loading/load_model.h"

namespace tessera::api {

struct DecodingSettings {
  infer::GenerateOptions options;
  bool add_special = true, parse_special = true;  // for prompts given as text
  spec::Json tools = nullptr;                     // for chats
};

/// Parses settings; missing ones are the model's own, otherwise the defaults of `tessera generate`
/// and `chat`. Throws Error(usage) for an unknown setting or a value out of range, Error(input) for
/// an invalid grammar.
DecodingSettings read_decoding_settings(std::string_view settings,
                                        const infer::LoadedModel& loaded,
                                        infer::TextKind kind);

}  // namespace tessera::api
