/* Text from any model that tessera reads, token by token:  story_c MODEL PROMPT */
#include <stdio.h>
#include <tessera.h>

static int print(const char* text, int64_t bytes, void* user) {
  (void)user;
  fwrite(text, 1, (size_t)bytes, stdout);
  fflush(stdout);
  return 1; /* go on */
}

int main(int argc, char** argv) {
  if (argc != 3) return fprintf(stderr, "usage: %s MODEL PROMPT\n", argv[0]), 2;
  tessera_model* model = tessera_load(argv[1], NULL);
  if (model == NULL) return fprintf(stderr, "%s\n", tessera_error()), 1;
  char* answer =
      tessera_generate(model, argv[2], "{\"max_new_tokens\": 64, \"temperature\": 0}", print, NULL);
  if (answer == NULL)
    fprintf(stderr, "%s\n", tessera_error());
  else
    puts("");
  const int failed = answer == NULL;
  tessera_free(answer);
  tessera_close(model);
  return failed;
}
