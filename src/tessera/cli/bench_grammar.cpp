// tessera bench grammar: what it costs to hold a text to a form, by grammar and vocabulary.
#include <ctime>

#include "tessera/base/cpu.h"
#include "tessera/base/rng.h"
#include "tessera/cli/constraint_flags.h"
#include "tessera/convert/tokenizer.h"

namespace tessera::cli {
namespace {

struct BenchGrammarArgs {
  std::string tokenizer;
  ConstraintFlags constraint;
  int tokens = 400;
  bool json = false;
};

constexpr const char* kPerson = R"({"type": "object", "properties": {
  "name": {"type": "string", "maxLength": 40}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
  "mail": {"type": "string", "pattern": "^[a-z0-9.]+@[a-z0-9]+\\.[a-z]{2,3}$"},
  "tags": {"type": "array", "items": {"enum": ["a", "b", "long"]}, "maxItems": 5},
  "home": {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}},
  "required": ["name", "age"], "additionalProperties": false})";

/// Of this thread: one thread does all of it, and what others do is not counted.
double processor_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

/// How long each token's mask took on one way through the language, chosen by `seed`.
std::vector<double> masks_of(const text::Constraint& constraint,
                             int64_t vocab,
                             int tokens,
                             uint64_t seed) {
  std::vector<double> ms;
  std::vector<uint64_t> bits((static_cast<size_t>(vocab) + 63) / 64);
  const RandomKey key(seed);
  auto state = constraint.start();
  for (int t = 0; t < tokens; ++t) {
    const double start = processor_ms();
    state->allow(bits);
    ms.push_back(processor_ms() - start);
    std::vector<int64_t> ids;
    for (int64_t id = 0; id < vocab; ++id)
      if (text::has_bit(bits, id)) ids.push_back(id);
    if (ids.empty() || !state->accept(ids[key.bits(static_cast<uint64_t>(t)) % ids.size()]))
      state = constraint.start();
  }
  std::sort(ms.begin(), ms.end());
  return ms;
}

int bench_grammar(const BenchGrammarArgs& o) {
  const text::Tokenizer tokenizer = convert::find_tokenizer(o.tokenizer);
  const double start = processor_ms();
  const auto vocabulary = std::make_shared<const text::TokenTrie>(tokenizer);
  const double tree_ms = processor_ms() - start;
  if (!o.json)
    fmt::print("{} tokens, {} nodes of their tree in {:.1f} ms\n", vocabulary->size(),
               vocabulary->nodes().size(), tree_ms);
  std::vector<std::pair<std::string, std::function<text::Grammar()>>> grammars = {
      {"json", [] { return text::json_object_grammar(); }},
      {"schema",
       [] { return text::schema_grammar(spec::parse_json(kPerson, "schema"), "schema").grammar; }},
      {"any text", [] { return text::parse_gbnf("root ::= .*", "bench"); }},
      {"counted", [] { return text::parse_gbnf("root ::= [a-zA-Z ,.]{0,2000}", "bench"); }}};
  if (o.constraint.on()) grammars = {{"yours", [&] { return o.constraint.language(); }}};
  Json rows = Json::array();
  for (const auto& [name, make] : grammars) {
    const double begin = processor_ms();
    const text::GrammarConstraint constraint(make(), vocabulary, name);
    const double compile_ms = processor_ms() - begin;
    Json row{{"grammar", name}, {"compile_ms", compile_ms}};
    // the first text of a grammar, the same again, and another one
    for (const auto& [when, seed] : {std::pair{"cold", 1}, {"warm", 1}, {"other", 2}}) {
      const std::vector<double> ms =
          masks_of(constraint, vocabulary->size(), o.tokens, static_cast<uint64_t>(seed));
      row[when] = {{"p50_ms", ms[ms.size() / 2]},
                   {"p99_ms", ms[ms.size() * 99 / 100]},
                   {"most_ms", ms.back()}};
      if (!o.json)
        fmt::print("{:<9} {:<5}  p50 {:>7.3f}  p99 {:>7.3f}  max {:>7.3f} ms per token\n", name,
                   when, ms[ms.size() / 2], ms[ms.size() * 99 / 100], ms.back());
    }
    const auto counts = constraint.counts();
    row["remembered_bytes"] = counts.bytes;
    row["walks"] = counts.walks;
    if (!o.json)
      fmt::print("{:<9} compiled in {:.2f} ms; {} cached masks, {} walks, {:.1f} MiB\n", name,
                 compile_ms, counts.masks, counts.walks,
                 static_cast<double>(counts.bytes) / 0x1p20);
    rows.push_back(std::move(row));
  }
  if (o.json)
    print_json({{"rows", rows},
                {"tokens", vocabulary->size()},
                {"tree_ms", tree_ms},
                {"cpu", cpu_info().model}});
  return kExitOk;
}

}  // namespace

std::function<int()> add_bench_grammar(CLI::App& app) {
  auto o = std::make_shared<BenchGrammarArgs>();
  group(app, "Workload");
  names_model(
      app.add_option("tokenizer,-m,--model", o->tokenizer, "model, tokenizer file, or \"bytes\"")
          ->required(),
      o->tokenizer);
  group(app, "Constrained decoding");
  o->constraint.add(app);
  group(app, "Workload");
  app.add_option("--tokens", o->tokens, "length of the random test text, tokens")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  app.add_flag("--json", o->json, "rows as JSON");
  examples(app, {"tessera bench grammar model.gguf",
                 "tessera bench grammar folder --json-schema s.json"});
  return [o] { return bench_grammar(*o); };
}

}  // namespace tessera::cli
