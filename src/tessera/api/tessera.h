// tessera as a C++ library: models, text generation, logits, training. This is the public interface
// of an installed package; it needs no header of another library.
//
//   #include <tessera/tessera.h>
//
//   const tessera::Model model("SmolLM2-135M-Instruct.Q4_1.gguf");
//   model.generate("Once upon a time", R"({"max_new_tokens": 40})", [](std::string_view text) {
//     std::cout << text << std::flush;
//     return true;
//   });
//
// Settings are JSON objects, "" = {}: names, meanings and defaults are those of the server's
// request fields and of the recipes (docs/guide/library.md lists them). An unknown name, a wrong
// type or a value out of range is an error.
//
// Errors: tessera::Error, whose kind() is the cause. Nothing else is thrown. Threads: a Model is
// thread-safe; its calls run one after another, each on all threads of set_threads(). Stable within
// 0.x minor versions: this header, the names of settings, the C interface.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error_type.h"

namespace tessera {

/// "0.1.0".
std::string version();
/// Number of threads of every call; 0 = the cores available to the process.
void set_threads(int count);

/// A float32 matrix in row-major order.
struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<float> values = {};

  const float* row(int64_t r) const { return values.data() + r * columns; }
};

struct Completion {
  std::string text;                // of the new tokens, without the stop string
  std::vector<int64_t> token_ids;  // generated tokens
  int64_t prompt_tokens = 0;
  std::string finish_reason;  // "stop" (end of text, a stop string), "length" or "cancelled"
};

/// Streaming callback: receives text as soon as it is final, never half a character; return false
/// to stop after this token.
using OnText = std::function<bool(std::string_view text)>;

/// A model ready to run: a Hugging Face folder, a GGUF file, a run's folder, or a name in the
/// Hugging Face cache ("org/name:Q4_K_M"; nothing is downloaded). Weights stay memory-mapped in
/// their storage type. Movable.
class Model {
 public:
  /// Settings: "adapters" (a list of folders), "arithmetic" ("default": 15-bit activations in
  /// products with quantized weights, "exact": float32, "fast": 8 bits), "blocks" (a type, such as
  /// "q8_0", to which float weights are quantized), "device" ("cpu", "cuda", "cuda:N"; quantized
  /// weights stay packed on a GPU).
  explicit Model(const std::string& path, std::string_view settings = {});
  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  /// Tokenizes a prompt as generate() does: with the model's special tokens around a text (BOS),
  /// unless `special` is false; special tokens in the text are parsed, unless `parse_special` is
  /// false.
  std::vector<int64_t> tokenize(std::string_view text,
                                bool special = true,
                                bool parse_special = true) const;
  std::string detokenize(const std::vector<int64_t>& ids) const;

  /// Continues a prompt; for an encoder-decoder, generates the target of a source.
  Completion generate(std::string_view prompt,
                      std::string_view settings = {},
                      const OnText& on_text = {}) const;
  Completion generate(const std::vector<int64_t>& prompt,
                      std::string_view settings = {},
                      const OnText& on_text = {}) const;
  /// The next answer of a conversation with the model's chat template. `messages` is a JSON list of
  /// {"role": "user", "content": "..."}, as in chat completions.
  Completion chat(std::string_view messages,
                  std::string_view settings = {},
                  const OnText& on_text = {}) const;

  /// Logits after each token, [tokens, vocabulary]; for a classifier, [1, classes].
  Matrix logits(const std::vector<int64_t>& ids) const;
  /// After the final norm, [tokens, width].
  Matrix hidden_states(const std::vector<int64_t>& ids) const;
  /// Text embeddings, [texts, width], pooled and normalized as the model defines. Settings:
  /// "pooling", "normalize", "dimensions", "prompt", "max_tokens".
  Matrix embed(const std::vector<std::string>& texts, std::string_view settings = {}) const;

  /// The resolved spec, as JSON.
  std::string spec() const;

 private:
  friend struct LoadedAccess;  // of the library itself
  struct State;
  std::unique_ptr<State> state_;
};

/// Loads a plugin, a shared library with mechanisms of your own (docs/guide/plugins.md): specs and
/// models read from now on may use them. Nothing if it is loaded already; it stays loaded. The
/// first call that reads a spec or a model loads those of the environment variable TESSERA_PLUGINS.
/// Call it while no other thread is in the library. Throws Error(file) for a file that is no
/// plugin, was built with another tessera, libtorch or compiler ABI, or has a mechanism of a name
/// that exists.
void load_plugin(const std::string& file);

/// Costs of an architecture as JSON: parameters, FLOPs per token, bytes of state. `spec` is a spec
/// in JSON, a spec file, or a model, whose weights are not read. Without `context` at most 2,048
/// tokens.
std::string plan(const std::string& spec, int64_t context = 0);

/// The layers of an architecture as JSON, for diagrams: stacks of parts with types, parameters and
/// costs, repeated layers folded. `spec` as in plan().
std::string outline(const std::string& spec);

/// Receives a log line (JSON: step, loss, lr, ...) and the total number of steps; return false to
/// stop the run after a checkpoint.
using OnStep = std::function<bool(std::string_view line, int64_t steps)>;

/// Trains a recipe file into a run's folder; returns the path of the newest checkpoint. Settings:
/// "set" (a list of overrides, such as "train.steps=100"), "resume" (true: from the newest
/// checkpoint), "device" ("cpu", "cuda", "cuda:N"). Throws Error(cancelled) if `on_step` stopped
/// it.
std::string train_recipe(const std::string& recipe,
                         const std::string& folder,
                         std::string_view settings = {},
                         const OnStep& on_step = {});

}  // namespace tessera
