// A body, as every route reads it.
#include "fuzz.h"

#include "tessera/serve/bodies.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(request_body) {
  const std::string_view text = fuzz::text_of(input);
  int read = 0;
  const auto attempt = [&](const auto& reader) {
    try {
      serve::Limits limits;
      limits.json_values = 20'000;
      reader(serve::parse_body(text, limits));
      ++read;
    } catch (const serve::ApiError& error) {
      fuzz::check(error.status() == 400, "a bad body is the client's fault");
      fuzz::check(std::string_view(error.what()).size() < 2000, "a message is short");
      error.body().dump(-1, ' ', true, serve::Json::error_handler_t::replace);
    }
  };
  fuzz::run(
      [&] {
        std::vector<std::string> ignored;
        attempt([](const serve::Json& json) { serve::read_completion(json); });
        attempt([&](const serve::Json& json) { serve::read_chat(json, &ignored); });
        attempt([](const serve::Json& json) { serve::embeddings_fields().read(json); });
        attempt([](const serve::Json& json) { serve::rerank_fields().read(json); });
        attempt([](const serve::Json& json) { serve::classify_fields().read(json); });
        attempt([](const serve::Json& json) { serve::fill_mask_fields().read(json); });
        attempt([](const serve::Json& json) { serve::translate_fields().read(json); });
        attempt([](const serve::Json& json) { serve::tokenize_fields().read(json); });
        attempt([](const serve::Json& json) { serve::detokenize_fields().read(json); });
        if (read == 0) fail(ErrorKind::input, "fuzz", "no route reads it");
      },
      {ErrorKind::input});
}
