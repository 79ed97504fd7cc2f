// What a call of the library says of the text that it asks for.
#pragma once

#include <string_view>

#include "tessera/infer/engine/generate.h"
#include "tessera/infer/loading/decoding_defaults.h"
#include "tessera/infer/loading/load_model.h"

namespace tessera::api {

struct Asked {
  infer::GenerateOptions options;
  bool add_special = true, parse_special = true;  // of a prompt that is a text
  spec::Json tools = nullptr;                     // of a chat
};

/// What `settings` leaves open is as the model's makers say, else as `tessera generate` and `chat`
/// have it. Throws Error(usage) for a setting that is none or out of range, Error(input) for a
/// grammar that cannot be followed.
Asked read_asked(std::string_view settings, const infer::LoadedModel& loaded, infer::TextKind kind);

}  // namespace tessera::api
