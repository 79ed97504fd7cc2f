#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "tessera/api/loaded_access.h"
#include "tessera/api/tessera_c.h"
#include "tessera/base/version.h"
#include "tessera/spec/json.h"

namespace {

using tessera::Error;
using tessera::ErrorKind;

thread_local std::string last_error;
thread_local tessera_code last_code = TESSERA_OK;

tessera_code code_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage:
      return TESSERA_USAGE;
    case ErrorKind::spec:
      return TESSERA_SPEC;
    case ErrorKind::file:
      return TESSERA_FILE;
    case ErrorKind::input:
      return TESSERA_INPUT;
    case ErrorKind::resource:
      return TESSERA_RESOURCE;
    case ErrorKind::cancelled:
      return TESSERA_CANCELLED;
    case ErrorKind::internal:
      break;
  }
  return TESSERA_INTERNAL;
}

/// The result of `call`, or `failed` with this thread's error set.
template <class Call, class T>
T guarded(Call call, T failed) noexcept {
  try {
    return call();
  } catch (const Error& error) {
    last_code = code_of(error.kind());
    last_error = error.what();
  } catch (const std::bad_alloc&) {
    last_code = TESSERA_RESOURCE;
    last_error = "[memory] out of memory";
  } catch (const std::exception& error) {
    last_code = TESSERA_INTERNAL;
    last_error = error.what();
  }
  return failed;
}

template <class T>
T* copy_of(const T* data, size_t n) {
  // an empty result is not a null pointer
  auto* const out = static_cast<T*>(std::malloc(std::max<size_t>(1, n) * sizeof(T)));
  if (out == nullptr) throw std::bad_alloc();
  if (n > 0) std::memcpy(out, data, n * sizeof(T));
  return out;
}

char* copy_of(const std::string& text) {
  return copy_of(text.c_str(), text.size() + 1);
}

/// Throws Error(usage) for a required argument that is null.
template <class T>
T* given(T* pointer, const char* what) {
  if (pointer == nullptr)
    throw Error(ErrorKind::usage, "tessera", std::string(what) + " is NULL; expected a value");
  return pointer;
}

std::string_view or_empty(const char* settings) {
  return settings == nullptr ? "" : settings;
}

std::vector<int64_t> ids_of(const int64_t* ids, int64_t n) {
  if (n < 0) throw Error(ErrorKind::usage, "tessera", "a negative number of ids");
  if (n > 0) given(ids, "ids");
  return {ids, ids + n};
}

tessera::OnText listener(tessera_on_text on_text, void* user) {
  if (on_text == nullptr) return {};
  return [on_text, user](std::string_view text) {
    const std::string ended(text);
    return on_text(ended.c_str(), static_cast<int64_t>(text.size()), user) != 0;
  };
}

char* json_of(const tessera::Completion& completion) {
  return copy_of(tessera::spec::Json{{"text", completion.text},
                                     {"token_ids", completion.token_ids},
                                     {"prompt_tokens", completion.prompt_tokens},
                                     {"finish_reason", completion.finish_reason}}
                     .dump());
}

float* numbers_of(const tessera::Matrix& matrix, int64_t* rows, int64_t* columns) {
  *given(rows, "rows") = matrix.rows;
  *given(columns, "columns") = matrix.columns;
  return copy_of(matrix.values.data(), matrix.values.size());
}

char* none() {
  return nullptr;
}

}  // namespace

extern "C" {

const char* tessera_version(void) {
  return tessera::kVersion;
}
const char* tessera_error(void) {
  return last_error.c_str();
}
tessera_code tessera_error_code(void) {
  return last_code;
}
void tessera_set_threads(int count) {
  guarded([&] { return tessera::set_threads(count), 0; }, -1);
}
void tessera_free(void* memory) {
  std::free(memory);
}

int tessera_load_plugin(const char* file) {
  return guarded([&] { return tessera::load_plugin(given(file, "file")), 0; }, -1);
}

tessera_model* tessera_load(const char* path, const char* settings) {
  return guarded(
      [&] { return new tessera_model{tessera::Model(given(path, "path"), or_empty(settings))}; },
      static_cast<tessera_model*>(nullptr));
}
void tessera_close(tessera_model* model) {
  delete model;
}

char* tessera_generate(const tessera_model* model,
                       const char* prompt,
                       const char* settings,
                       tessera_on_text on_text,
                       void* user) {
  return guarded(
      [&] {
        return json_of(given(model, "model")
                           ->model.generate(std::string_view(given(prompt, "prompt")),
                                            or_empty(settings), listener(on_text, user)));
      },
      none());
}

char* tessera_generate_ids(const tessera_model* model,
                           const int64_t* ids,
                           int64_t n,
                           const char* settings,
                           tessera_on_text on_text,
                           void* user) {
  return guarded(
      [&] {
        return json_of(
            given(model, "model")
                ->model.generate(ids_of(ids, n), or_empty(settings), listener(on_text, user)));
      },
      none());
}

char* tessera_chat(const tessera_model* model,
                   const char* messages,
                   const char* settings,
                   tessera_on_text on_text,
                   void* user) {
  return guarded(
      [&] {
        return json_of(given(model, "model")
                           ->model.chat(given(messages, "messages"), or_empty(settings),
                                        listener(on_text, user)));
      },
      none());
}

int64_t tessera_tokenize(
    const tessera_model* model, const char* text, int special, int parse_special, int64_t** ids) {
  return guarded(
      [&] {
        const std::vector<int64_t> made =
            given(model, "model")
                ->model.tokenize(given(text, "text"), special != 0, parse_special != 0);
        *given(ids, "ids") = copy_of(made.data(), made.size());
        return static_cast<int64_t>(made.size());
      },
      int64_t{-1});
}

char* tessera_detokenize(const tessera_model* model, const int64_t* ids, int64_t n) {
  return guarded([&] { return copy_of(given(model, "model")->model.detokenize(ids_of(ids, n))); },
                 none());
}

float* tessera_logits(
    const tessera_model* model, const int64_t* ids, int64_t n, int64_t* rows, int64_t* columns) {
  return guarded(
      [&] {
        return numbers_of(given(model, "model")->model.logits(ids_of(ids, n)), rows, columns);
      },
      static_cast<float*>(nullptr));
}

float* tessera_hidden_states(
    const tessera_model* model, const int64_t* ids, int64_t n, int64_t* rows, int64_t* columns) {
  return guarded(
      [&] {
        return numbers_of(given(model, "model")->model.hidden_states(ids_of(ids, n)), rows,
                          columns);
      },
      static_cast<float*>(nullptr));
}

float* tessera_embed(const tessera_model* model,
                     const char* const* texts,
                     int64_t n,
                     const char* settings,
                     int64_t* rows,
                     int64_t* columns) {
  return guarded(
      [&] {
        if (n > 0) given(texts, "texts");
        std::vector<std::string> all;
        for (int64_t i = 0; i < n; ++i) all.emplace_back(given(texts[i], "texts"));
        return numbers_of(given(model, "model")->model.embed(all, or_empty(settings)), rows,
                          columns);
      },
      static_cast<float*>(nullptr));
}

char* tessera_spec(const tessera_model* model) {
  return guarded([&] { return copy_of(given(model, "model")->model.spec()); }, none());
}

char* tessera_plan(const char* spec, int64_t context) {
  return guarded([&] { return copy_of(tessera::plan(given(spec, "spec"), context)); }, none());
}

char* tessera_outline(const char* spec) {
  return guarded([&] { return copy_of(tessera::outline(given(spec, "spec"))); }, none());
}

char* tessera_train(const char* recipe,
                    const char* folder,
                    const char* settings,
                    tessera_on_step on_step,
                    void* user) {
  return guarded(
      [&] {
        tessera::OnStep listens;
        if (on_step != nullptr)
          listens = [&](std::string_view line, int64_t steps) {
            return on_step(std::string(line).c_str(), steps, user) != 0;
          };
        return copy_of(tessera::train_recipe(given(recipe, "recipe"), given(folder, "folder"),
                                             or_empty(settings), listens));
      },
      none());
}

}  // extern "C"
