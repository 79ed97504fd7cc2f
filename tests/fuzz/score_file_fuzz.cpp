// Token score files: the tokenizer.bin of llama2.c.
#include "tokenizers.h"

#include "tessera/text/tokenizer_files/score_file.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(score_file) {
  fuzz::run([&] { fuzz::check_tokenizer(text::tokenizer_from_scores(input, "fuzz")); },
            fuzz::kTokenizerKinds);
}
