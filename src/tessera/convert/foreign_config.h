// Foreign configs as one JSON object, whatever file they stand in.
#pragma once

#include <string>

#include "tessera/base/error.h"
#include "tessera/format/ggmf.h"
#include "tessera/format/gguf.h"
#include "tessera/format/llama2c.h"
#include "tessera/spec/json.h"

namespace tessera::convert {

/// Members of an object are looked for one by one, and compared each with each where objects are
/// merged: none may have a great many. Throws Error(kind).
void check_members(const spec::Json& json, std::string_view where, ErrorKind kind);

/// config.json of a Hugging Face folder. Python's bare Infinity and NaN, and {"__float__":
/// "Infinity"}, become numbers. Throws Error(file).
spec::Json parse_hf_config(std::string_view text, std::string_view where);
/// The text that parse_hf_config reads back as this config: infinities as {"__float__":
/// "Infinity"}. indent as of Json::dump.
std::string hf_config_text(spec::Json config, int indent = -1);

/// GGUF metadata: the keys under the architecture's own prefix without it, nested at the dots;
/// general.architecture as "architecture". Float32 values become the shortest double that names
/// them, and numbers of every layer that are all alike become the one number that other files have.
/// Keys with other prefixes (general, tokenizer, ...) are not part of it.
spec::Json gguf_config(const format::GgufMetadata& metadata, std::string_view where);

spec::Json llama2c_config(const format::Llama2cHeader& header);
spec::Json ggmf_config(const format::GgmfHeader& header);

}  // namespace tessera::convert
