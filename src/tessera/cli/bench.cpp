#include <chrono>
#include <optional>
#include <utility>

#include "tessera/base/cpu.h"
#include "tessera/base/threads.h"
#include "tessera/cli/bench_limits.h"
#include "tessera/cli/device_flag.h"
#include "tessera/cli/kv_flags.h"
#include "tessera/cli/load_flags.h"
#include "tessera/cli/model_source.h"
#include "tessera/cli/product_flags.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/model/call_plan.h"
#include "tessera/model/recorded_steps.h"

namespace tessera::cli {
namespace {

struct BenchArgs {
  LoadFlags loading;
  std::string model;
  int64_t prefill = 512, decode = 64, rows = 1, fill = 0;
  std::vector<int64_t> depths = {0};
  KvFlags kv;
  ProductFlags products;
  DeviceFlag device;
  int threads = 0, repeats = 3;
  bool json = false, matrices = false;
};

using Clock = std::chrono::steady_clock;

/// Some ids that differ, the same on every run.
std::vector<int64_t> some_ids(int64_t n, int64_t vocab) {
  std::vector<int64_t> ids;
  const RandomKey key(1);
  for (int64_t i = 0; i < n; ++i)
    ids.push_back(
        static_cast<int64_t>(key.bits(static_cast<uint64_t>(i)) % static_cast<uint64_t>(vocab)));
  return ids;
}

/// The same ids for every row of the state, of which all are equally long. What a call that is the
/// first reads counts as given. By a recorded step, where `steps` serve the call.
double feed(const model::Model& model,
            model::State* state,
            const std::vector<int64_t>& ids,
            model::RecordedSteps* steps = nullptr) {
  const auto start = Clock::now();
  model::ForwardOptions options;
  options.state = state;
  options.cancel = &cancel_token();
  const int64_t before = state != nullptr ? state->length(0) : 0;
  const auto rows = static_cast<size_t>(state != nullptr ? state->rows() : 1);
  nn::Batch batch = nn::Batch::of(std::vector(rows, ids), std::vector(rows, before));
  std::vector<int64_t> last;
  for (nn::Segment& segment : batch.segments) {
    // later calls see what was before them, whatever of that was the prefix
    segment.prefix = before == 0 ? static_cast<int64_t>(ids.size()) : 1;
    last.push_back(segment.begin + segment.length - 1);
  }
  Tensor hidden = steps != nullptr ? steps->hidden(batch, *state) : Tensor();
  if (!hidden.defined()) hidden = model.hidden(batch, options);
  // a copy to the host waits for a device, as sampling does
  model.logits(hidden.index_select(0, at::tensor(last, at::kLong).to(hidden.device()))).cpu();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

constexpr int64_t kFill = 1024;  // tokens of a call that makes the depth

/// Adds n tokens to a row without computing anything: the keys and values of its last ones once
/// more.
void repeat_last(const model::ModelSpec& spec, model::State& state, int64_t n) {
  nn::Batch batch =
      nn::Batch::of({std::vector<int64_t>(static_cast<size_t>(n), 0)}, {state.length(0)});
  const auto layout = model::state_layout(spec);
  for (size_t b = 0; b < layout.size(); ++b) {
    nn::RowState& row = *state.branch(b, batch)[0];
    row.begin_call(false);
    for (size_t d = 0; d < layout[b].tensors.size(); ++d) {
      nn::TokenBuffer& tokens = row.tokens(d);
      const int64_t from = std::max(tokens.first(), tokens.length() - n);
      const Tensor last = tokens.joined(from, tokens.length());
      tokens.append(last.index_select(0, at::arange(n, at::kLong).remainder(last.size(0))));
    }
    row.end_call(Tensor(), batch.segments[0]);
  }
  state.advance(batch);
}

/// A state of `depth` tokens; returns the seconds that it took.
double fill(const model::Model& model, model::State& state, int64_t depth, int64_t computed) {
  const auto start = Clock::now();
  for (int64_t done = 0; done < depth;) {
    const int64_t n = std::min(kFill, depth - done);
    if (computed > 0 && done >= computed)
      repeat_last(model.spec(), state, n);
    else
      feed(model, &state, some_ids(n, model.spec().vocab));
    done += n;
  }
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Keys and values can be repeated, what a layer makes of all tokens cannot.
void check_fill(const BenchArgs& o, const model::ModelSpec& spec) {
  if (o.fill == 0) return;
  for (const model::BranchState& branch : model::state_layout(spec))
    for (const spec::StateDecl& decl : branch.tensors)
      if (decl.kind != spec::StateDecl::Kind::per_token || decl.every != 1 || branch.selective ||
          branch.name == model::kIds)
        fail(ErrorKind::usage, "bench",
             "--fill {}, but the state of {} (\"{}\") depends on all tokens; leave it out", o.fill,
             branch.name, decl.name);
}

/// Every limit that a row would meet, before anything is measured.
void check_depths(const BenchArgs& o, const model::ModelSpec& spec) {
  const int64_t positions = spec.max_positions();
  const model::CallPlan calls(spec);
  for (const int64_t depth : o.depths) {
    const auto check = [&](const char* what, int64_t tokens, int64_t call) {
      const int64_t end = depth + tokens;
      if (tokens == 0) return;
      if (positions > 0 && end > positions)
        fail(ErrorKind::usage, "bench",
             "--depth {} and --{} {} are {} tokens; this model has positions for {}", depth, what,
             tokens, end, positions);
      // a call that begins the row may be of any length
      const int64_t fill = depth > 0 ? std::min(depth, kFill) : std::min(call, tokens);
      if (const int64_t until = calls.until(std::max<int64_t>(fill, 1)); end > fill && end > until)
        fail(
            ErrorKind::usage, "bench",
            "--depth {} and --{} {} are {} tokens, and all angles of this model change after {}: a "
            "state cannot be continued beyond; expected fewer",
            depth, what, tokens, end, calls.until_in_cuts());
    };
    check("prefill", o.prefill, o.prefill);
    check("decode", o.decode, 1);
  }
}

/// A model without a state: no depth and no decoding.
void check_stateless(const BenchArgs& o, const std::string& reason) {
  for (const int64_t depth : o.depths)
    if (depth > 0)
      fail(ErrorKind::usage, "bench",
           "--depth {} needs a model with a state, but {}; expected depth 0", depth, reason);
  if (o.prefill == 0)
    fail(ErrorKind::usage, "bench",
         "--prefill 0 leaves nothing to measure: decoding needs a state, but {}", reason);
}

Json measure(const BenchArgs& o,
             const model::Model& model,
             const std::optional<Limits>& limits,
             int64_t depth,
             bool stateful) {
  const int64_t vocab = model.spec().vocab;
  std::vector<double> depths, prefill, decode;
  int64_t state_bytes = 0;
  std::optional<model::RecordedSteps> steps;
  if (stateful && model::RecordedSteps::unavailable_reason(model, o.kv.options().type).empty())
    steps.emplace(model);
  for (int repeat = 0; repeat < o.repeats; ++repeat) {
    if (!stateful) {
      prefill.push_back(feed(model, nullptr, some_ids(o.prefill, vocab)));
      continue;
    }
    model::State state(model.spec(), 1, 0,
                       at::TensorOptions(model::device_of(model)).dtype(at::kFloat),
                       o.kv.options());
    depths.push_back(fill(model, state, depth, o.fill));
    if (o.prefill > 0) {
      model::State copy = state.fork();
      prefill.push_back(feed(model, &copy, some_ids(o.prefill, vocab)));
    }
    state = state.select(std::vector<int64_t>(static_cast<size_t>(o.rows), 0));
    double seconds = 0;
    // the first step is recorded
    if (steps && o.decode > 0) feed(model, &state, {0}, &*steps);
    for (const int64_t id : some_ids(o.decode, vocab))
      seconds += feed(model, &state, {id}, steps ? &*steps : nullptr);
    if (o.decode > 0) decode.push_back(seconds);
    state_bytes = state.bytes();
  }
  Json row = {{"depth", depth},
              {"rows", o.rows},
              {"replayed_steps", steps ? steps->replayed() : 0},
              {"kv_type", o.kv.type},
              {"kv_page", o.kv.page},
              {"products", o.products.name()},
              {"activation_bits", o.products.activation_bits()},
              {"state_bytes", state_bytes},
              {"threads", thread_count()},
              {"repeats", o.repeats}};
  if (depth > 0 && !depths.empty()) row["depth_seconds"] = median(depths);
  if (o.fill > 0) row["computed_of_depth"] = std::min(depth, (o.fill + kFill - 1) / kFill * kFill);
  if (!prefill.empty()) {
    const double seconds = median(prefill);
    row["prefill_tokens_per_s"] = static_cast<double>(o.prefill) / seconds;
    if (limits)
      row["prefill_limits"] =
          Work::of_call(model, 1, o.prefill, depth + o.prefill / 2, 0).as_json(seconds, *limits);
  }
  if (!decode.empty()) {
    const double seconds = median(decode);
    row["decode_tokens_per_s"] = static_cast<double>(o.decode * o.rows) / seconds;
    if (limits)
      row["decode_limits"] = Work::of_call(model, o.rows, 1, depth + o.decode / 2, state_bytes)
                                 .as_json(seconds / static_cast<double>(o.decode), *limits);
  }
  return row;
}

void print_row(const BenchArgs& o, const Json& row) {
  fmt::print("depth {:>6}:", row["depth"].get<int64_t>());
  const char* between = " ";
  for (const auto& [what, tokens] :
       {std::pair{"prefill", o.prefill}, std::pair{"decode", o.decode}})
    if (const auto found = row.find(std::string(what) + "_tokens_per_s"); found != row.end()) {
      fmt::print("{}{} {} tokens {:>8.1f} tokens/s", between, what, tokens, found->get<double>());
      between = ", ";
    }
  fmt::print(" (medians of {}, {} thread{})\n", o.repeats, thread_count(),
             thread_count() == 1 ? "" : "s");
  for (const char* what : {"prefill", "decode"})
    if (const auto found = row.find(std::string(what) + "_limits"); found != row.end()) {
      const Json& at = *found;
      fmt::print(
          "  {}: {:.0f} % of memory bandwidth ({:.1f} GB/s), {:.0f} % of compute peak ({:.0f} "
          "GFLOP/s): "
          "limited by {}\n",
          what, 100 * at["read_share"].get<double>(), at["read_bytes_per_s"].get<double>() / 1e9,
          100 * at["flops_share"].get<double>(), at["flops_per_s"].get<double>() / 1e9,
          at["limited_by"] == "reading"      ? "memory bandwidth"
          : at["limited_by"] == "arithmetic" ? "compute"
                                             : "neither");
    }
}

void print_matrices(const std::vector<MatrixRate>& rates, const Limits& limits) {
  fmt::print(
      "memory bandwidth {:.1f} GB/s ({} thread{}); products of one row by matrix, of which "
      "small ones come from a cache:\n",
      limits.read_bytes_per_s / 1e9, thread_count(), thread_count() == 1 ? "" : "s");
  for (const MatrixRate& rate : rates)
    fmt::print("  {:<24} {:<12} {:>8.1f} MB {:>6.1f} GB/s {:>4.0f} %\n", rate.name,
               fmt::format("{}", fmt::join(rate.types, ", ")),
               static_cast<double>(rate.bytes) / 1e6, rate.read_bytes_per_s / 1e9,
               100 * rate.read_bytes_per_s / limits.read_bytes_per_s);
}

int bench(BenchArgs& o) {
  // not required by the parser: `bench mixers` has none
  if (o.model.empty())
    fail(ErrorKind::usage, "bench", "model is required; `tessera bench --help` shows examples");
  if (o.threads > 0) set_thread_count(o.threads);
  const infer::LoadedModel loaded = o.device.loaded([&] {
    return infer::load_model(o.model, o.kv.loading(o.loading), {}, o.products.products());
  });
  say_differences(loaded.source);
  o.products.check(loaded.model);
  const model::Model& model = loaded.model;
  if (model.spec().encoder)
    fail(ErrorKind::usage, "bench",
         "{} is an encoder-decoder; only decoders have a prefill and decode benchmark", o.model);
  o.kv.check(model, o.products);
  const std::string stateless = model::CallPlan(model.spec()).whole_reason();
  bool left_out = false;
  if (!stateless.empty()) {
    check_stateless(o, stateless);
    left_out = std::exchange(o.decode, 0) > 0;
  }
  check_depths(o, model.spec());
  check_fill(o, model.spec());
  if (left_out)
    fmt::print(stderr, "no decode: this model cannot continue from a state: {}\n", stateless);
  const at::NoGradGuard no_gradients;
  // limits of the processor
  std::optional<Limits> limits;
  const at::Device device = model::device_of(model);
  if (device.is_cpu()) limits = Limits::measure(model);
  if (o.matrices && !limits)
    fail(ErrorKind::usage, "bench",
         "--matrices measures memory bandwidth on a CPU; found device {}", device.str());
  Json rows = Json::array();
  for (const int64_t depth : o.depths) {
    rows.push_back(measure(o, model, limits, depth, stateless.empty()));
    if (!o.json) print_row(o, rows.back());
  }
  Json report = {{"rows", rows},
                 {"model", o.model},
                 {"device", device.str()},
                 {"cpu", cpu_info().model},
                 {"target", name_of(cpu_info().allowed)}};
  if (limits) {
    report["read_bytes_per_s"] = limits->read_bytes_per_s;
    report["flops_per_s"] = limits->flops_per_s;
  }
  if (o.matrices) {
    Json& matrices = report["matrices"] = Json::array();
    const std::vector<MatrixRate> rates = MatrixRate::measure(model);
    if (!o.json) print_matrices(rates, *limits);
    for (const MatrixRate& rate : rates) matrices.push_back(rate.as_json(*limits));
  }
  if (o.json) print_json(report);
  return kExitOk;
}

}  // namespace

std::function<int()> add_bench(CLI::App& app) {
  auto o = std::make_shared<BenchArgs>();
  group(app, "Workload");
  add_model(app, o->model)->required(false);
  app.add_option("--prefill,-p,--n-prompt", o->prefill, "prompt tokens, in one pass")
      ->capture_default_str()
      ->check(not_negative());
  app.add_option("--decode,-n,--n-gen", o->decode, "generated tokens, one at a time")
      ->capture_default_str()
      ->check(not_negative());
  app.add_option("--rows,-b,--batch-size", o->rows,
                 "batch size (sequences); tokens/s are of all of them")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--depth,-d,--n-depth", o->depths,
                 "context tokens already in the KV cache, comma-separated")
      ->delimiter(',')
      ->check(not_negative())
      ->capture_default_str();
  app.add_option("--fill", o->fill,
                 "compute only the first N tokens of the depth and replicate their KV cache; 0 = "
                 "compute all")
      ->capture_default_str()
      ->check(not_negative());
  app.add_option("--repeats,-r,--repetitions", o->repeats, "repetitions (median)")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_flag("--matrices", o->matrices,
               "memory bandwidth reached by products of one row, by kind of matrix");
  app.add_flag("--json", o->json, "rows as JSON");
  group(app, "KV cache");
  o->kv.add(app);
  group(app, "Precision and performance");
  o->products.add(app);
  o->device.add(app);
  add_threads(app, o->threads);
  group(app, "Model");
  o->loading.add(app);
  examples(
      app,
      {"tessera bench model.gguf --prefill 512 --decode 64 --depth 0,4096 --threads 2 --json",
       "tessera bench model.gguf --prefill 0 --depth 8192 --kv-type int8",
       "tessera bench model.gguf --prefill 0 --depth 131072 --fill 1024",
       "tessera bench model.gguf --prefill 0 --rows 8",
       "tessera bench model.gguf --prefill 0 --matrices", "tessera bench sampling --vocab 131072",
       "tessera bench grammar model.gguf", "tessera bench speculative model.gguf --text notes.txt",
       "tessera bench mixers --only mamba2,attention",
       "tessera bench quant SmolLM2-135M --text wiki.txt"});
  CLI::App* mixers = app.add_subcommand(
      "mixers",
      "Measures time and memory of one layer of every mixer, pattern and position by length");
  CLI::App* sampling = app.add_subcommand(
      "sampling", "Measures the time to sample one token, by vocabulary and filter");
  CLI::App* quant = app.add_subcommand(
      "quant",
      "Compares quantization types: size, perplexity, KL divergence, top-1 agreement, speed");
  CLI::App* grammar = app.add_subcommand(
      "grammar", "Measures constrained decoding: time per token by grammar and vocabulary");
  CLI::App* speculative =
      app.add_subcommand("speculative", "Measures speculative decoding against plain decoding");
  speculative->alias("guesses");
  quant->alias("quantization");
  for (CLI::App* below : {mixers, sampling, quant, grammar, speculative})
    below->group("Benchmarks");
  return [o, mixers, sampling, quant, grammar, speculative,
          run_speculation = add_bench_speculation(*speculative),
          run_quant = add_bench_quant(*quant), run_mixers = add_bench_mixers(*mixers),
          run_sampling = add_bench_sampling(*sampling), run_grammar = add_bench_grammar(*grammar)] {
    if (mixers->parsed()) return run_mixers();
    if (quant->parsed()) return run_quant();
    if (grammar->parsed()) return run_grammar();
    if (speculative->parsed()) return run_speculation();
    return sampling->parsed() ? run_sampling() : bench(*o);
  };
}

}  // namespace tessera::cli
