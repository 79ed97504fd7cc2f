// What every verb shares: errors become one line and an exit code, signals a cancellation, output
// goes to stdout and talk to stderr.
#pragma once

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
struct Verb {
  const char* name;
  const char* summary;
  std::function<int()> (*add)(CLI::App& app);
};

/// Parses and runs; prints help when asked. Verbs listed in `elsewhere` belong to the other
/// program.
int run(int argc, char** argv, const std::vector<Verb>& verbs, const std::vector<Verb>& elsewhere);

/// Set by SIGINT and SIGTERM.
CancelToken& cancel_token();

/// For options that are numbers: from 0, or above it, to 2^40, beyond which no count of tokens
/// means anything and sums of bytes overflow. None of them takes NaN, as CLI::Range of doubles
/// does.
CLI::Validator not_negative();
CLI::Validator positive();
/// From 0 to 1.
CLI::Validator fraction();
/// Any number but NaN and the infinities.
CLI::Validator finite();
/// A seed: the parser would wrap a negative one around.
CLI::Validator seed();

/// An option that is repeated for every text. The parser takes one in brackets for a list of
/// several where it may, and this says that it may not.
CLI::Option* add_texts(CLI::App& app,
                       const std::string& name,
                       std::vector<std::string>& texts,
                       const std::string& help);

/// "--json" on what reports: the flag and the printing.
void print_json(const Json& json);
/// What was printed is out; throws Error(resource) where stdout takes no more: a full disk, a pipe
/// that nobody reads any longer.
void flush_output();

/// Help text under the options: "Examples:" and the given lines.
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
// Verbs that load libtorch.
std::function<int()> add_generate(CLI::App&);
std::function<int()> add_chat(CLI::App&);
std::function<int()> add_serve(CLI::App&);
std::function<int()> add_forward(CLI::App&);
std::function<int()> add_embed(CLI::App&);
std::function<int()> add_eval(CLI::App&);
std::function<int()> add_index(CLI::App&);
std::function<int()> add_search(CLI::App&);
std::function<int()> add_train(CLI::App&);
std::function<int()> add_finetune(CLI::App&);
std::function<int()> add_classify(CLI::App&);
std::function<int()> add_bench(CLI::App&);
/// A verb below bench.
std::function<int()> add_bench_mixers(CLI::App& bench);
std::function<int()> add_bench_quant(CLI::App& bench);
std::function<int()> add_bench_sampling(CLI::App& bench);
std::function<int()> add_bench_grammar(CLI::App& bench);
std::function<int()> add_verify(CLI::App&);
std::function<int()> add_doctor(CLI::App&);
/// `convert` where it distils.
std::function<int()> add_distilling_convert(CLI::App&);
/// `quantize` where it measures importance.
std::function<int()> add_measuring_quantize(CLI::App&);

const std::vector<Verb>& plain_verbs();
const std::vector<Verb>& tensor_verbs();

}  // namespace tessera::cli
