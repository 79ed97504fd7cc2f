/* tessera as a C library, installed as tessera.h: the functions of tessera/tessera.h on opaque
 * handles.
 *
 *   tessera_model* model = tessera_load("model.gguf", NULL);
 *   if (model == NULL) return fprintf(stderr, "%s\n", tessera_error()), 1;
 *   char* text = tessera_generate(model, "Once upon a time", "{\"max_new_tokens\": 40}", NULL,
 * NULL);
 *
 * What fails returns NULL or -1; tessera_error() then has the line of the calling thread and
 * tessera_error_code() its kind. What is returned as char* or float* belongs to the caller, who
 * gives it to tessera_free(). Texts are UTF-8. Settings are JSON objects, NULL = {}. A model may be
 * used by many threads; its calls run one after another. */
#ifndef TESSERA_H
#define TESSERA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tessera_model tessera_model;

/* Of the last call of this thread that failed. */
typedef enum {
  TESSERA_OK = 0,
  TESSERA_USAGE = 1,     /* asked for what does not exist or does not fit */
  TESSERA_SPEC = 2,      /* an architecture or recipe is invalid */
  TESSERA_FILE = 3,      /* a file is missing, malformed or does not match */
  TESSERA_INPUT = 4,     /* a prompt, a text or settings are invalid */
  TESSERA_RESOURCE = 5,  /* memory, disk, device or lock not available */
  TESSERA_CANCELLED = 6, /* stopped on request */
  TESSERA_INTERNAL = 7   /* a mistake of this library */
} tessera_code;

const char* tessera_version(void);
const char* tessera_error(void);
tessera_code tessera_error_code(void);
void tessera_set_threads(int count);
void tessera_free(void* memory);

/* Loads a plugin, a shared library with mechanisms of your own: specs and models read from now on
 * may use them. 0, or -1. The first call that reads a spec or a model loads those of the
 * environment variable TESSERA_PLUGINS. Call it while no other thread is in the library. */
int tessera_load_plugin(const char* file);

tessera_model* tessera_load(const char* path, const char* settings);
void tessera_close(tessera_model* model);

/* Text as it becomes certain; 0 ends the answer. It ends with a zero byte too. */
typedef int (*tessera_on_text)(const char* text, int64_t bytes, void* user);

/* JSON: {"text", "token_ids", "prompt_tokens", "finish_reason"}. */
char* tessera_generate(const tessera_model* model,
                       const char* prompt,
                       const char* settings,
                       tessera_on_text on_text,
                       void* user);
char* tessera_generate_ids(const tessera_model* model,
                           const int64_t* ids,
                           int64_t n,
                           const char* settings,
                           tessera_on_text on_text,
                           void* user);
/* messages: a JSON list of {"role", "content"}. */
char* tessera_chat(const tessera_model* model,
                   const char* messages,
                   const char* settings,
                   tessera_on_text on_text,
                   void* user);

/* The number of tokens; *ids is for tessera_free(). */
int64_t tessera_tokenize(
    const tessera_model* model, const char* text, int special, int parse_special, int64_t** ids);
char* tessera_detokenize(const tessera_model* model, const int64_t* ids, int64_t n);

/* [rows, columns] float32, row after row. */
float* tessera_logits(
    const tessera_model* model, const int64_t* ids, int64_t n, int64_t* rows, int64_t* columns);
float* tessera_hidden_states(
    const tessera_model* model, const int64_t* ids, int64_t n, int64_t* rows, int64_t* columns);
float* tessera_embed(const tessera_model* model,
                     const char* const* texts,
                     int64_t n,
                     const char* settings,
                     int64_t* rows,
                     int64_t* columns);

/* The resolved spec, as JSON. */
char* tessera_spec(const tessera_model* model);
/* Costs, as JSON, of a spec (JSON or a file) or of a model; context 0 = the usual one. */
char* tessera_plan(const char* spec, int64_t context);
/* The layers, as JSON for diagrams, of the same. */
char* tessera_outline(const char* spec);

/* A line of the log as JSON, and the steps that there are; 0 ends the run after a checkpoint. */
typedef int (*tessera_on_step)(const char* line, int64_t steps, void* user);
/* The newest checkpoint's path. */
char* tessera_train(const char* recipe,
                    const char* folder,
                    const char* settings,
                    tessera_on_step on_step,
                    void* user);

#ifdef __cplusplus
}
#endif

#endif
