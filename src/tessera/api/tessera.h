// tessera as a C++ library: models, text, numbers, training. What an installed package has; it
// needs no header of another library.
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
// Errors: tessera::Error, whose kind() says whose mistake it is. Nothing else is thrown.
// Threads: a Model may be used by many threads; its calls run one after another, each on all
// threads of set_threads(). Stable within 0.x minor versions: all of this header, the names of
// settings, the C interface.
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
/// Threads of every call; 0 = the cores that the process may use.
void set_threads(int count);

/// float32 numbers, row after row.
struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<float> values = {};

  const float* row(int64_t r) const { return values.data() + r * columns; }
};

struct Completion {
  std::string text;                // of the new tokens, without what stopped it
  std::vector<int64_t> token_ids;  // new ones
  int64_t prompt_tokens = 0;
  std::string finish_reason;  // "stop" (end of text, a stop string), "length" or "cancelled"
};

/// Takes text as it becomes certain, never half a character; false ends the answer after this
/// token.
using OnText = std::function<bool(std::string_view text)>;

/// A model ready to run: a Hugging Face folder, a GGUF file, a run's folder, or the name of one in
/// the Hugging Face cache ("org/name:Q4_K_M"; nothing is downloaded). Its weights stay mapped, in
/// their storage type. Movable.
class Model {
 public:
  /// Settings: "adapters" (a list of folders), "arithmetic" ("default": 15-bit activations in
  /// products with quantised weights, "exact": float32, "fast": 8 bits), "blocks" (a type, such as
  /// "q8_0", that float weights are quantised to).
  explicit Model(const std::string& path, std::string_view settings = {});
  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  /// As generate() reads a prompt: with the tokens that the model expects around a text (BOS),
  /// unless `special` is false; what spells a special token becomes that token, unless
  /// `parse_special` is false.
  std::vector<int64_t> tokenize(std::string_view text,
                                bool special = true,
                                bool parse_special = true) const;
  std::string detokenize(const std::vector<int64_t>& ids) const;

  /// Goes on with a prompt; of an encoder-decoder, the answer to a source.
  Completion generate(std::string_view prompt,
                      std::string_view settings = {},
                      const OnText& on_text = {}) const;
  Completion generate(const std::vector<int64_t>& prompt,
                      std::string_view settings = {},
                      const OnText& on_text = {}) const;
  /// The next answer of a conversation by the model's chat template. `messages` is a JSON list of
  /// {"role": "user", "content": "..."}, as chat completions have it.
  Completion chat(std::string_view messages,
                  std::string_view settings = {},
                  const OnText& on_text = {}) const;

  /// Logits of the vocabulary behind each token, [tokens, vocabulary]; of a classifier, [1,
  /// classes].
  Matrix logits(const std::vector<int64_t>& ids) const;
  /// Behind the final norm, [tokens, width].
  Matrix hidden_states(const std::vector<int64_t>& ids) const;
  /// A vector per text, [texts, width], pooled and normalised as the model says. Settings:
  /// "pooling", "normalize", "dimensions", "prompt", "max_tokens".
  Matrix embed(const std::vector<std::string>& texts, std::string_view settings = {}) const;

  /// The resolved spec, as JSON.
  std::string spec() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// What an architecture costs, as JSON: parameters, FLOPs per token, bytes of state. `spec` is a
/// spec in JSON, the file of one, or a model, whose weights are not read. At most 2,048 tokens of
/// context without `context`.
std::string plan(const std::string& spec, int64_t context = 0);

/// Takes a line of the log (JSON: step, loss, lr, ...) and the steps that there are; false ends the
/// run behind a checkpoint.
using OnStep = std::function<bool(std::string_view line, int64_t steps)>;

/// Trains by a recipe's file into a run's folder; the newest checkpoint's path. Settings: "set" (a
/// list of overrides, as "train.steps=100"), "resume" (true goes on from the newest checkpoint).
/// Throws Error(cancelled) where `on_step` ended it.
std::string train_recipe(const std::string& recipe,
                         const std::string& folder,
                         std::string_view settings = {},
                         const OnStep& on_step = {});

}  // namespace tessera
