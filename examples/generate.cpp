// Text from any checkpoint that tessera reads:  generate MODEL PROMPT
#include <cstdio>

#include "tessera/base/error.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/infer/loading/load_model.h"

int main(int argc, char** argv) try {
  if (argc != 3) return std::fprintf(stderr, "usage: %s MODEL PROMPT\n", argv[0]), 2;
  const tessera::infer::LoadedModel loaded = tessera::infer::load_model(argv[1]);
  const auto ids = loaded.tokenizer.value().encode(argv[2]);
  tessera::infer::GenerateOptions options;
  options.max_new_tokens = 64;
  options.on_text = [](size_t, std::string_view text) {
    std::printf("%.*s", static_cast<int>(text.size()), text.data()), std::fflush(stdout);
  };
  tessera::infer::generate(loaded.model, &*loaded.tokenizer, {{ids.begin(), ids.end()}}, options);
  return std::puts(""), 0;
} catch (const std::exception& error) {
  return std::fprintf(stderr, "%s\n", error.what()), 1;
}
