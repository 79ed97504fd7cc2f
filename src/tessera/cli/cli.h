// Shared by all commands: errors become one line and an exit code, signals cancel, results go to
// stdout and messages to stderr.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "tessera/base/cancel.h"
#include "tessera/base/error.h"
#include "tessera/spec/json.h"

namespace tessera::cli {

using spec::Json;

inline constexpr int kExitOk = 0, kExitFailed = 1, kExitUsage = 2, kExitCheckNotMet = 3;
/// The program that reads standard output ended before it had all (`| head`): 128 + SIGPIPE, as a
/// shell reports programs that the signal ends.
inline constexpr int kExitReaderLeft = 141;

/// A command: adds its options to `app` and returns the function to run after parsing, which gives
/// the exit code. Without `add`, the other program implements it.
struct Verb {
  const char* name;
  const char* group;  // of the help
  const char* summary;
  std::function<int()> (*add)(CLI::App& app);
};

/// What the program with tensors adds to run().
struct TensorHooks {
  /// Gets each file of TESSERA_PLUGINS and --plugin before a verb runs; without it, the other
  /// program loads plugins.
  void (*load_plugin)(const std::filesystem::path&) = nullptr;
  /// The message of an error of libtorch that has a remedy; "" for others.
  std::string (*explain)(const std::exception&) = nullptr;
};

/// Parses and runs; prints help on request. `args`: the program first.
int run(const std::vector<std::string>& args,
        const std::vector<Verb>& verbs,
        const TensorHooks& hooks = {});

/// Whether a verb reads specs, so that it has --plugin.
bool takes_plugins(std::string_view verb);

/// Requested by SIGINT and SIGTERM.
CancelToken& cancel_token();

/// For numeric options: from 0, or above 0, to 2^40, beyond which token counts have no meaning and
/// byte sums overflow. Unlike CLI::Range of doubles they reject NaN.
CLI::Validator not_negative();
CLI::Validator positive();
/// From 0, or -1 = no limit, which without_limit() converts to a number.
CLI::Validator count_or_all();
int64_t without_limit(int64_t count);
/// From 0 to 1.
CLI::Validator fraction();
/// Any number except NaN and the infinities.
CLI::Validator finite();
/// A seed; the parser alone would wrap negative values.
CLI::Validator seed();

/// Token ids, "1,2,3" or repeated. An empty id, as in "1,,2", is an error.
CLI::Option* add_ids(CLI::App& app,
                     const std::string& name,
                     std::vector<int64_t>& ids,
                     const std::string& help);
/// An option that is repeated for every text. Text in brackets is one text, not a list.
CLI::Option* add_texts(CLI::App& app,
                       const std::string& name,
                       std::vector<std::string>& texts,
                       const std::string& help);

/// "--json" of reporting commands: the flag and the printing.
void print_json(const Json& json);
/// Flushes stdout; throws Error(resource) if that fails: a full disk, or a closed pipe.
void flush_output();

/// Options added from now on are in this group of the help; groups are in the order of their first
/// option.
void group(CLI::App& app, const char* name);
/// The model as first argument, or with -m, --model.
CLI::Option* add_model(CLI::App& app,
                       std::string& model,
                       const std::string& help =
                           "model: Hugging Face or tessera folder, GGUF "
                           "file, run, or ORG/NAME in the Hugging Face cache (`tessera pull`)");
/// The option names a model, an adapter or a tokenizer: a path, or a name in the Hugging Face
/// cache, which is replaced by its path when all options are parsed (hub/find_model.h).
CLI::Option* names_model(CLI::Option* option, std::string& value);
CLI::Option* names_model(CLI::Option* option, std::filesystem::path& value);
CLI::Option* names_model(CLI::Option* option, std::vector<std::string>& values);
/// -o, --out, --output: the same option for every command that writes. `names`: additional ones.
CLI::Option* add_out(CLI::App& app,
                     std::string& out,
                     const std::string& help,
                     const std::string& names = "");
void add_threads(CLI::App& app, int& threads);
/// TESSERA_DEVICE; "cpu" without it.
std::string device_of_environment();
/// Prints that `what` computes on the CPU, if TESSERA_DEVICE names another device.
void note_cpu(const std::string& what);
CLI::Option* add_families(CLI::App& app, std::string& folder);
CLI::Option* add_adapters(CLI::App& app, std::vector<std::string>& adapters);
/// --set, for recipes and specs.
void add_overrides(CLI::App& app, std::vector<std::string>& overrides, const std::string& what);

/// "Examples:" and the given lines, before the options in the help.
void examples(CLI::App& app, std::initializer_list<const char*> lines);

// Commands without tensors.
std::function<int()> add_tokenize(CLI::App&);
std::function<int()> add_train_tokenizer(CLI::App&);
std::function<int()> add_show(CLI::App&);
std::function<int()> add_plan(CLI::App&);
std::function<int()> add_advise(CLI::App&);
std::function<int()> add_list(CLI::App&);
std::function<int()> add_convert(CLI::App&);
std::function<int()> add_model_families(CLI::App&);
std::function<int()> add_data(CLI::App&);
std::function<int()> add_quantize(CLI::App&);
std::function<int()> add_docs(CLI::App&);
std::function<int()> add_runs(CLI::App&);
std::function<int()> add_pull(CLI::App&);
std::function<int()> add_models(CLI::App&);
std::function<int()> add_rm(CLI::App&);
std::function<int()> add_new_plugin(CLI::App&);
// Commands that load libtorch.
std::function<int()> add_generate(CLI::App&);
std::function<int()> add_chat(CLI::App&);
std::function<int()> add_serve(CLI::App&);
std::function<int()> add_forward(CLI::App&);
std::function<int()> add_embed(CLI::App&);
std::function<int()> add_eval(CLI::App&);
std::function<int()> add_index(CLI::App&);
std::function<int()> add_search(CLI::App&);
std::function<int()> add_init(CLI::App&);
std::function<int()> add_train(CLI::App&);
std::function<int()> add_sweep(CLI::App&);
std::function<int()> add_compare(CLI::App&);
std::function<int()> add_finetune(CLI::App&);
std::function<int()> add_classify(CLI::App&);
std::function<int()> add_bench(CLI::App&);
/// A subcommand of bench.
std::function<int()> add_bench_mixers(CLI::App& bench);
std::function<int()> add_bench_quant(CLI::App& bench);
std::function<int()> add_bench_sampling(CLI::App& bench);
std::function<int()> add_bench_grammar(CLI::App& bench);
std::function<int()> add_bench_speculation(CLI::App& bench);
std::function<int()> add_verify(CLI::App&);
std::function<int()> add_doctor(CLI::App&);
/// `convert` with distillation.
std::function<int()> add_distilling_convert(CLI::App&);
/// `families` with the check of a drafted family by a text.
std::function<int()> add_proving_families(CLI::App&);
/// `plan` with the memory of a device.
std::function<int()> add_fitting_plan(CLI::App&);
/// `quantize` with importance measurement.
std::function<int()> add_measuring_quantize(CLI::App&);

/// The commands of `tessera`; those with tensors have no `add`.
const std::vector<Verb>& plain_verbs();

}  // namespace tessera::cli
