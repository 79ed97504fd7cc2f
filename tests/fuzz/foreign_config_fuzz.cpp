// config.json of a Hugging Face folder, or the metadata of a GGUF file, as one JSON object.
#include "fuzz.h"

#include "tessera/convert/foreign_config.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(foreign_config) {
  fuzz::run([&] {
    const std::string_view text = fuzz::text_of(input);
    const spec::Json config =
        text.starts_with("GGUF")
            ? convert::gguf_config(format::read_gguf(input, "fuzz").metadata, "fuzz")
            : convert::parse_hf_config(text, "fuzz");
    fuzz::check(config.is_object(), "a config is an object");
    fuzz::check(convert::parse_hf_config(convert::hf_config_text(config), "again") == config,
                "what is written reads the same");
  });
}
