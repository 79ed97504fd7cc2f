// Text with keys and values in pages and in fewer bits: the same text whatever the pages, shared
// prefixes and beams, and how far a likelihood moves.
#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/infer/engine/beam.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/infer/evaluation/evaluate.h"
#include "tessera/infer/infer_testing.h"
#include "tessera/model/kv_quantization.h"

namespace tessera::infer::kv_test {
namespace {

using spec::KvType;

model::State state_of(const model::Model& model, int64_t rows, const spec::KvOptions& kv) {
  return {model.spec(), rows, 0, at::TensorOptions().dtype(at::kFloat), kv};
}

void feed(const model::Model& model,
          model::State& state,
          const std::vector<std::vector<int64_t>>& rows) {
  const at::NoGradGuard no_gradients;
  std::vector<int64_t> starts;
  for (size_t r = 0; r < rows.size(); ++r) starts.push_back(state.length(static_cast<int64_t>(r)));
  model::ForwardOptions options;
  options.state = &state;
  model.hidden(nn::Batch::of(rows, starts), options);
}

const std::string& layers(const std::string& name) {
  static const auto all = tiny_layers();
  for (const auto& [known, text] : all)
    if (known == name) return text;
  throw std::out_of_range(name);
}

TEST(KeysAndValues, TextDoesNotDependOnPages) {
  for (const auto& [name, text] : tiny_layers()) {
    const model::Model model = tiny_model(text, 3);
    const std::vector<std::vector<int64_t>> prompts{random_tokens(9, 1), random_tokens(31, 2)};
    GenerateOptions options;
    options.max_new_tokens = 24;
    options.kv.page = 0;
    const Generations want = generate(model, nullptr, prompts, options);
    for (const int64_t page : {1, 2, 16, 1000})
      for (const int64_t lookup : {0, 3}) {
        options.kv.page = page;
        options.speculation.lookup = lookup;
        const Generations got = generate(model, nullptr, prompts, options);
        for (size_t r = 0; r < prompts.size(); ++r)
          EXPECT_EQ(got.rows[r].token_ids, want.rows[r].token_ids) << name << " page " << page;
      }
    options.kv.page = -1;
    EXPECT_THROW(generate(model, nullptr, prompts, options), Error);
  }
}

TEST(KeysAndValues, RowsShareAPrefix) {
  const model::Model model = tiny_model(layers("attention"), 3);  // two layers: k and v each
  constexpr int64_t kBuffers = 4, kPage = 4;
  model::State prefix = state_of(model, 1, {.page = kPage});
  feed(model, prefix, {random_tokens(10, 1)});
  EXPECT_EQ(prefix.pages(), 3 * kBuffers);
  model::State rows = prefix.select(std::vector<int64_t>(8, 0));
  EXPECT_EQ(rows.pages(), 3 * kBuffers);  // eight rows, nothing copied
  EXPECT_EQ(rows.bytes(), 8 * prefix.bytes());
  EXPECT_LT(rows.page_bytes(), rows.bytes());
  std::vector<std::vector<int64_t>> next;
  for (int64_t r = 0; r < 8; ++r) next.push_back({r});
  feed(model, rows, next);
  // two full pages stay one; the third is copied for each row
  EXPECT_EQ(rows.pages(), (2 + 8) * kBuffers);
  EXPECT_EQ(prefix.pages(), 3 * kBuffers);
  EXPECT_EQ(rows.pool().live(), (2 + 8 + 1) * kBuffers);
  rows = state_of(model, 1, {.page = kPage});
  EXPECT_EQ(prefix.pool().live(), 3 * kBuffers);
}

TEST(KeysAndValues, PagesRoundUpWhatAStateHolds) {
  for (const auto& [name, text] : tiny_layers()) {
    const model::Model model = tiny_model(text, 3);
    for (const int64_t page : {1, 7, 64})
      for (const KvType type : {KvType::f32, KvType::int8}) {
        if (type == KvType::int8 && (name == "mamba2" || name == "rwkv7")) continue;  // no keys
        model::State state = state_of(model, 2, {.type = type, .page = page});
        feed(model, state, {random_tokens(40, 1), random_tokens(3, 2)});
        int64_t entries = 0, rounding = 0;
        for (const model::BranchState& branch : model::state_layout(model.spec(), type))
          for (const spec::StateDecl& decl : branch.tensors) {
            if (decl.kind == spec::StateDecl::Kind::fixed) continue;
            for (const int64_t length : {40, 3})
              entries += decl.kept(length) * decl.bytes_per_entry();
            const int64_t rows = decl.keep > 0 ? std::min(page, decl.keep) : page;
            rounding += 2 * (decl.keep > 0 ? 2 : 1) * (rows - 1) * decl.bytes_per_entry();
          }
        EXPECT_GE(state.page_bytes(), entries) << name;
        EXPECT_LE(state.page_bytes(), entries + rounding) << name << " page " << page;
      }
  }
}

TEST(KeysAndValues, BeamsShareWhatTheyHaveInCommon) {
  const model::Model model = tiny_model(layers("attention"), 3);
  GenerateOptions options;
  options.max_new_tokens = 12;
  std::vector<std::vector<int64_t>> found;
  for (const int64_t page : {0, 1, 4}) {
    options.kv.page = page;
    found.push_back(beam_search(model, nullptr, {random_tokens(20, 1)}, options, {.beams = 4})
                        .rows[0]
                        .token_ids);
    EXPECT_EQ(found.back(), found.front()) << page;
  }
  // as the search arranges its rows: four beams after a long prompt hold it once
  model::State state = state_of(model, 1, {.page = 4});
  feed(model, state, {random_tokens(20, 1)});
  const int64_t prompt = state.pages();
  state = state.select({0, 0, 0, 0});
  for (int64_t step = 0; step < 4; ++step) {
    feed(model, state, {{1}, {2}, {3}, {4}});
    state = state.select({0, 0, 1, 3});
  }
  EXPECT_EQ(prompt, 5 * 4);
  EXPECT_LE(state.pages(), prompt + 4 * 4);
  EXPECT_EQ(state.pool().live(), state.pages());  // those of dropped beams are free
}

TEST(KeysAndValues, ALikelihoodMovesLittle) {
  const model::Model model = tiny_model(layers("attention"), 3);
  const std::vector<int64_t> ids = random_tokens(400, 5);
  EvalOptions options{.window = 100};
  const double exact = evaluate(model, ids, options).nll;
  double before = 0;
  // the wider the type's steps, the further: f16 2^-11, bf16 2^-8, int8 1/254 of the largest, e4m3
  // 2^-4 of each number
  for (const auto& [type, bound] : std::vector<std::pair<KvType, double>>{
           {KvType::f16, 1e-4}, {KvType::bf16, 1e-3}, {KvType::int8, 3e-3}, {KvType::fp8, 2e-2}}) {
    options.kv.type = type;
    const double moved = std::abs(evaluate(model, ids, options).nll - exact);
    EXPECT_LT(moved, bound) << name_of(type);
    EXPECT_GT(moved, 0) << name_of(type);
    // carried windows are one pass, whatever their length
    options.carry = true;
    const double carried = evaluate(model, ids, options).nll;
    options.window = 37;
    EXPECT_NEAR(evaluate(model, ids, options).nll, carried, 1e-9) << name_of(type);
    options = {.window = 100};
    before = moved;
  }
  EXPECT_GT(before, 1e-5);
}

/// Heads wide enough for blocks of four bits: attention, its patterns, its latent form.
constexpr std::pair<const char*, const char*> kWide[] = {
    {"attention",
     R"({"type": "attention", "n_heads": 2, "n_kv_heads": 1, "head_dim": 32, "position": "rope"})"},
    {"sinks", R"({"type": "attention", "n_heads": 2, "head_dim": 32, "position": "rope",
                  "pattern": {"type": "sink_window", "first": 2, "width": 9}})"},
    {"strided", R"({"type": "attention", "n_heads": 2, "head_dim": 32,
                    "pattern": {"type": "strided", "stride": 3}})"},
    {"latent", R"({"type": "latent_attention", "n_heads": 2, "kv_lora_rank": 32,
                   "qk_nope_head_dim": 4, "qk_rope_head_dim": 32, "position": "rope"})"}};

TEST(KeysAndValues, FourBitsMoveALikelihoodAndGiveTheSameTextHoweverItIsMade) {
  for (const auto& [name, mixer] : kWide) {
    SCOPED_TRACE(name);
    const model::Model model = tiny_model(fmt::format(R"({{"repeat": 2, "mixer": {}}})", mixer), 3);
    const std::vector<int64_t> ids = random_tokens(300, 5);
    EvalOptions eval{.window = 100};
    const double exact = evaluate(model, ids, eval).nll;
    eval.kv.type = KvType::int4;
    const double moved = std::abs(evaluate(model, ids, eval).nll - exact);
    EXPECT_GT(moved, 0);
    EXPECT_LT(moved, 0.1);
    const std::vector<std::vector<int64_t>> prompts{random_tokens(9, 1), random_tokens(31, 2)};
    GenerateOptions options;
    options.max_new_tokens = 12;
    options.kv = {KvType::int4, 0};
    const Generations want = generate(model, nullptr, prompts, options);
    for (const int64_t chunk : {1, 5, 1000}) {
      options.prefill_chunk = chunk;
      options.kv.page = 16;
      const Generations got = generate(model, nullptr, prompts, options);
      for (size_t r = 0; r < prompts.size(); ++r)
        EXPECT_EQ(got.rows[r].token_ids, want.rows[r].token_ids) << chunk;
    }
  }
  // heads of other widths are refused by their layer
  test::expect_error(ErrorKind::spec, "layers.0.mixer] keeps \"k\" in rows of 8 numbers", [&] {
    model::check_kv_type(tiny_model(layers("attention"), 3).spec(), KvType::int4);
  });
}

TEST(KeysAndValues, FewBitsGiveTheSameTextHoweverItIsMade) {
  for (const char* name : {"attention", "window"}) {
    const model::Model model = tiny_model(layers(name), 3);
    const std::vector<std::vector<int64_t>> prompts{random_tokens(9, 1), random_tokens(31, 2)};
    for (const KvType type : {KvType::bf16, KvType::int8, KvType::fp8}) {
      GenerateOptions options;
      options.max_new_tokens = 16;
      options.kv = {type, 0};
      std::vector<std::vector<int64_t>> alone;
      for (const auto& prompt : prompts)
        alone.push_back(generate(model, nullptr, {prompt}, options).rows[0].token_ids);
      for (const int64_t chunk : {1, 5, 1000})
        for (const int64_t page : {1, 16}) {
          options.prefill_chunk = chunk;
          options.kv.page = page;
          const Generations got = generate(model, nullptr, prompts, options);
          for (size_t r = 0; r < prompts.size(); ++r)
            EXPECT_EQ(got.rows[r].token_ids, alone[r])
                << name << " " << name_of(type) << " chunk " << chunk << " page " << page;
        }
    }
  }
}

}  // namespace
}  // namespace tessera::infer::kv_test
