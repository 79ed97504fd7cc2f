// What every verb shares: errors become one line and an exit code, signals a cancellation, output
// goes to stdout and talk to stderr.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "tessera/base/cancel.h"
#include "tessera/base/error.h"
#include "tessera/spec/json.h"

namespace tessera::cli {

using spec::Json;

inline constexpr int kExitOk = 0, kExitFailed = 1, kExitUsage = 2, kExitCheckNotMet = 3;

/// One verb: adds its options to `app`; what it returns runs after parsing and gives the exit code.
/// Without `add` the other program has it.
struct Verb {
  const char* name;
  const char* group;  // of the help
  const char* summary;
  std::function<int()> (*add)(CLI::App& app);
};

/// Parses and runs; prints help when asked. `args`: the program first.
int run(const std::vector<std::string>& args, const std::vector<Verb>& verbs);

/// Set by SIGINT and SIGTERM.
CancelToken& cancel_token();

/// For options that are numbers: from 0, or above it, to 2^40, beyond which no count of tokens
/// means anything and sums of bytes overflow. None of them takes NaN, as CLI::Range of doubles
/// does.
CLI::Validator not_negative();
CLI::Validator positive();
/// From 0, or -1 = as many as there can be, which without_limit() makes a number.
CLI::Validator count_or_all();
int64_t without_limit(int64_t count);
/// From 0 to 1.
CLI::Validator fraction();
/// Any number but NaN and the infinities.
CLI::Validator finite();
/// A seed: the parser would wrap a negative one around.
CLI::Validator seed();

/// An option that is repeated for every text. The parser takes one in brackets for a list of
/// several where it may, and this says that it may not.
/// Token ids, "1,2,3" or one after another. An empty id, as in "1,,2", is refused.
CLI::Option* add_ids(CLI::App& app,
                     const std::string& name,
                     std::vector<int64_t>& ids,
                     const std::string& help);
CLI::Option* add_texts(CLI::App& app,
                       const std::string& name,
                       std::vector<std::string>& texts,
                       const std::string& help);

/// "--json" on what reports: the flag and the printing.
void print_json(const Json& json);
/// What was printed is out; throws Error(resource) where stdout takes no more: a full disk, a pipe
/// that nobody reads any longer.
void flush_output();

/// Options that are added from now on stand in this group of the help; groups stand in the order of
/// their first option.
void group(CLI::App& app, const char* name);
/// The model as the first argument, or by -m, --model.
CLI::Option* add_model(CLI::App& app,
                       std::string& model,
                       const std::string& help =
                           "model: Hugging Face or tessera folder, GGUF "
                           "file, run, or ORG/NAME in the Hugging Face cache (`tessera pull`)");
/// The value of an option names a model, an adapter or a tokenizer: a path, or a name in the cache
/// of the Hugging Face hub, which becomes the path that it stands for when all options are read
/// (hub/find_model.h).
CLI::Option* names_model(CLI::Option* option, std::string& value);
CLI::Option* names_model(CLI::Option* option, std::filesystem::path& value);
CLI::Option* names_model(CLI::Option* option, std::vector<std::string>& values);
/// -o, --out, --output: one option of every verb that writes. `names`: further ones.
CLI::Option* add_out(CLI::App& app,
                     std::string& out,
                     const std::string& help,
                     const std::string& names = "");
void add_threads(CLI::App& app, int& threads);
CLI::Option* add_families(CLI::App& app, std::string& folder);
CLI::Option* add_adapters(CLI::App& app, std::vector<std::string>& adapters);
/// --set, for recipes and specs.
void add_overrides(CLI::App& app, std::vector<std::string>& overrides, const std::string& what);

/// "Examples:" and the given lines, which the help has before the options.
void examples(CLI::App& app, std::initializer_list<const char*> lines);

// Verbs that need no tensors.
std::function<int()> add_tokenize(CLI::App&);
std::function<int()> add_train_tokenizer(CLI::App&);
std::function<int()> add_show(CLI::App&);
std::function<int()> add_plan(CLI::App&);
std::function<int()> add_list(CLI::App&);
std::function<int()> add_convert(CLI::App&);
std::function<int()> add_data(CLI::App&);
std::function<int()> add_quantize(CLI::App&);
std::function<int()> add_docs(CLI::App&);
std::function<int()> add_runs(CLI::App&);
std::function<int()> add_pull(CLI::App&);
std::function<int()> add_models(CLI::App&);
std::function<int()> add_rm(CLI::App&);
// Verbs that load libtorch.
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
std::function<int()> add_finetune(CLI::App&);
std::function<int()> add_classify(CLI::App&);
std::function<int()> add_bench(CLI::App&);
/// A verb below bench.
std::function<int()> add_bench_mixers(CLI::App& bench);
std::function<int()> add_bench_quant(CLI::App& bench);
std::function<int()> add_bench_sampling(CLI::App& bench);
std::function<int()> add_bench_grammar(CLI::App& bench);
std::function<int()> add_bench_speculation(CLI::App& bench);
std::function<int()> add_verify(CLI::App&);
std::function<int()> add_doctor(CLI::App&);
/// `convert` where it distils.
std::function<int()> add_distilling_convert(CLI::App&);
/// `quantize` where it measures importance.
std::function<int()> add_measuring_quantize(CLI::App&);

/// Of `tessera`: all, those with tensors without `add`.
const std::vector<Verb>& plain_verbs();

}  // namespace tessera::cli
