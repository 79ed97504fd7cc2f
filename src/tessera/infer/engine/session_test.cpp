#include "tessera/infer/engine/session.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"
#include "tessera/format/safetensors.h"
#include "tessera/infer/engine/beam.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/infer/infer_testing.h"
#include "tessera/text/tokenizer/byte_tokenizer.h"

namespace tessera::infer::session_test {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::TemporaryFolder;
using Ids = std::vector<int64_t>;

/// For a session of one row that goes on by itself.
const std::vector<Ids> kNoPrompt(1);

Ids behind(Ids begin, const Ids& rest) {
  begin.insert(begin.end(), rest.begin(), rest.end());
  return begin;
}

std::vector<Ids> tokens_of(const Generations& generations) {
  std::vector<Ids> rows;
  for (const Generation& row : generations.rows) rows.push_back(row.token_ids);
  return rows;
}

/// Writes a session and reads it back, as a process that ends does.
Session reopened(const Session& session, const model::Model& model, int64_t max_pending) {
  const TemporaryFolder folder;
  const std::string print = fingerprint(model, nullptr);
  save_session(folder / "session", session, print);
  return load_session(folder / "session", model, print, max_pending);
}

/// Every way that text is made in.
std::vector<GenerateOptions> ways() {
  std::vector<GenerateOptions> all(3);
  all[1].sampling = {.temperature = 0.9, .repetition_penalty = 1.05, .seed = 11};
  all[2].sampling = {.temperature = 0.8, .seed = 3};
  all[2].speculation.lookup = 3;
  return all;
}

/// The text in one go, and in parts of the given lengths with a file between them.
void expect_uninterrupted(const model::Model& model, const std::vector<Ids>& prompts) {
  for (GenerateOptions options : ways()) {
    if (options.speculation.on() && !model.spec().no_state_reason().empty()) continue;
    options.max_new_tokens = 24;
    const auto want = tokens_of(generate(model, nullptr, prompts, options));
    Session session;
    options.session = &session;
    std::vector<Ids> got(prompts.size()), next = prompts;
    for (const int64_t n : {1, 9, 0, 14}) {
      options.max_new_tokens = n;
      const auto rows = tokens_of(generate(model, nullptr, next, options));
      for (size_t r = 0; r < got.size(); ++r) got[r] = behind(got[r], rows[r]);
      session = reopened(session, model, options.speculation.max_pending());
      EXPECT_EQ(session.seed, options.sampling.seed);
      next.assign(prompts.size(), {});
    }
    EXPECT_EQ(got, want);
  }
}

class Sessions : public ::testing::TestWithParam<std::pair<std::string, std::string>> {};

TEST_P(Sessions, GoOnAsIfUninterrupted) {
  const model::Model model = tiny_model(GetParam().second, 7);
  expect_uninterrupted(model, {random_tokens(11, 1), random_tokens(3, 2)});
}

// what comes next in a conversation is read behind all that was said
TEST_P(Sessions, TakeFurtherPrompts) {
  const model::Model model = tiny_model(GetParam().second, 7);
  GenerateOptions options;
  options.max_new_tokens = 9;
  options.sampling = {.temperature = 0.9, .seed = 5};
  const Ids first = random_tokens(8, 1), second = random_tokens(6, 2);
  const Ids said = generate(model, nullptr, {first}, options).rows[0].token_ids;
  const Ids all = behind(behind(first, said), second);
  const Generation want = generate(model, nullptr, {all}, options).rows[0];
  Session session;
  options.session = &session;
  generate(model, nullptr, {first}, options);
  session = reopened(session, model, 0);
  const Generation got = generate(model, nullptr, {second}, options).rows[0];
  EXPECT_EQ(got.token_ids, want.token_ids);
  EXPECT_EQ(got.prompt_tokens, want.prompt_tokens);
  EXPECT_EQ(got.cached_tokens, 8 + 9 - 1);  // all but the last token said had been fed
}

INSTANTIATE_TEST_SUITE_P(Kinds,
                         Sessions,
                         ::testing::ValuesIn(tiny_memories()),
                         [](const auto& info) { return info.param.first; });

TEST(Session, BesideAnEncoderTheAnswerGoesOn) {
  for (const char* mixer : {R"({"type": "attention", "n_heads": 2, "position": "rope"})",
                            R"({"type": "mamba2", "n_heads": 4, "d_state": 8})"})
    expect_uninterrupted(tiny_pair(mixer, 7), {random_tokens(11, 1), random_tokens(3, 2)});
}

TEST(Session, WithoutAStateItsTokensAreComputedAgain) {
  for (const char* layers :
       {R"({"mixer": {"type": "lsh_attention", "n_heads": 2, "n_buckets": [4], "chunk": 4}})",
        R"({"mixer": {"type": "attention", "n_heads": 2, "position": {"type": "rope",
            "scaling": {"type": "dynamic", "factor": 2, "original_length": 8}}}})"})
    expect_uninterrupted(tiny_model(layers, 7), {random_tokens(11, 1), random_tokens(3, 2)});
}

// the token that ends a text is none of it, so that its state is not one token behind
TEST(Session, GoesOnBehindTheEndOfAText) {
  for (const auto& [name, layers] : tiny_layers()) {
    const model::Model model = tiny_model(layers, 7);
    GenerateOptions options;
    options.max_new_tokens = 30;
    const Ids prompt = random_tokens(6, 1);
    const Ids free = generate(model, nullptr, {prompt}, options).rows[0].token_ids;
    for (const int64_t lookup : {0, 3}) {
      Session session;
      options.session = &session;
      options.speculation.lookup = lookup;
      options.stop_ids = {free[12]};
      const Generation stopped = generate(model, nullptr, {prompt}, options).rows[0];
      ASSERT_EQ(stopped.finish_reason, "stop") << name;
      const auto said = static_cast<int64_t>(stopped.token_ids.size());
      ASSERT_LE(said, 12);
      session = reopened(session, model, options.speculation.max_pending());
      EXPECT_EQ(session.state.length(0), 6 + said) << name;
      // it stops there again, and goes on where it may
      EXPECT_EQ(generate(model, nullptr, kNoPrompt, options).rows[0].token_ids, Ids{}) << name;
      options.stop_ids.clear();
      options.max_new_tokens = 30 - said;
      EXPECT_EQ(
          behind(stopped.token_ids, generate(model, nullptr, kNoPrompt, options).rows[0].token_ids),
          free)
          << name;
      options.session = nullptr;
      options.max_new_tokens = 30;
    }
  }
}

TEST(Session, TextGoesOnWithinIt) {
  const model::Model model = tiny_model(tiny_layers()[0].second, 7, 256);
  const text::Tokenizer tokenizer = text::byte_tokenizer();
  GenerateOptions options;
  options.max_new_tokens = 20;
  const std::string want = generate(model, &tokenizer, {{72, 101}}, options).rows[0].text;
  Session session;
  options.session = &session;
  options.max_new_tokens = 10;
  const Generation first = generate(model, &tokenizer, {{72, 101}}, options).rows[0];
  const Generation second = generate(model, &tokenizer, kNoPrompt, options).rows[0];
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>(session.rows[0].tokens.begin() + 2,
                                                  session.rows[0].tokens.end())),
            want);
  EXPECT_EQ(second.prompt_tokens, 12);
  EXPECT_EQ(second.cached_tokens, 11);
}

/// A session of a few tokens, saved.
struct Saved {
  model::Model model;
  TemporaryFolder folder;
  fs::path file = folder / "session";
  std::string print;
  Session session;

  explicit Saved(const std::string& layers) : model(tiny_model(layers, 7)) {
    GenerateOptions options;
    options.max_new_tokens = 5;
    options.session = &session;
    generate(model, nullptr, {random_tokens(4, 1), random_tokens(3, 2)}, options);
    print = fingerprint(model, nullptr);
    save_session(file, session, print);
  }
  Session load(const std::string& print_of) const { return load_session(file, model, print_of); }
};

TEST(Session, OfAnotherModelIsRefused) {
  const Saved saved(tiny_layers()[0].second);
  const auto refused = [&](const model::Model& model, const text::Tokenizer* tokenizer,
                           const std::string& part) {
    expect_error(ErrorKind::file, part,
                 [&] { load_session(saved.file, model, fingerprint(model, tokenizer)); });
  };
  refused(tiny_model(tiny_layers()[0].second, 8), nullptr,
          "made by another model: it differs in weights");
  refused(tiny_model(tiny_layers()[1].second, 7), nullptr, "it differs in spec and weights");
  const text::Tokenizer bytes = text::byte_tokenizer();
  refused(saved.model, &bytes, "it differs in tokenizer");
  const model::Model again = tiny_model(tiny_layers()[0].second, 7);
  EXPECT_EQ(load_session(saved.file, again, fingerprint(again, nullptr)).rows.size(), 2u);
}

TEST(Session, TheTypeOfNothingMeansNothing) {
  const model::Model model = tiny_model(tiny_layers()[2].second, 7);  // mamba2
  Session session;
  GenerateOptions options;
  options.session = &session;
  options.max_new_tokens = 4;
  generate(model, nullptr, {random_tokens(5, 1)}, options);
  const TemporaryFolder folder;
  const fs::path file = folder / "session";
  const std::string print = fingerprint(model, nullptr);
  save_session(file, session, print);
  expect_error(ErrorKind::spec, "no layer of this model keeps keys and values",
               [&] { load_session(file, model, print, 0, {.type = spec::KvType::int8}); });
  // a file may name another one all the same
  const format::TensorFile saved = format::open_safetensors(file);
  format::StringMap metadata = saved.metadata();
  metadata["kv_type"] = "int8";
  metadata["session_checksum"] = session_checksum(saved.tensors(), metadata);
  format::write_safetensors(folder / "named", saved.tensors(), metadata);
  EXPECT_EQ(load_session(folder / "named", model, print).state.length(0), session.state.length(0));
}

// what is kept in fewer bits goes on in them
TEST(Session, KeysAndValuesStayInTheirBits) {
  const model::Model model = tiny_model(tiny_layers()[1].second, 7);
  for (const spec::KvType type : {spec::KvType::f16, spec::KvType::int8}) {
    GenerateOptions options;
    options.kv.type = type;
    options.max_new_tokens = 20;
    const Ids prompt = random_tokens(9, 1);
    const Ids want = generate(model, nullptr, {prompt}, options).rows[0].token_ids;
    PrefixCache cache(model, {.snapshot_every = 4, .least = 1});
    options.prefix_cache = &cache;
    for (const int round : {0, 1})
      EXPECT_EQ(generate(model, nullptr, {prompt}, options).rows[0].token_ids, want) << round;
    EXPECT_EQ(cache.stats().hits, 1);
    Session session;
    options.session = &session;
    options.max_new_tokens = 8;
    const Ids first = generate(model, nullptr, {prompt}, options).rows[0].token_ids;
    const TemporaryFolder folder;
    const fs::path file = folder / "session";
    const std::string print = fingerprint(model, nullptr);
    save_session(file, session, print);
    const std::string name = spec::name_of(type);
    expect_error(ErrorKind::file,
                 "has a KV cache of type " + name + ", this run f32; use --kv-type " + name,
                 [&] { load_session(file, model, print); });
    // the same of a session in memory
    GenerateOptions other = options;
    other.prefix_cache = nullptr;
    other.kv = {};
    expect_error(ErrorKind::input, "KV cache of type " + name + " cannot join",
                 [&] { generate(model, nullptr, kNoPrompt, other); });
    session = load_session(file, model, print, 0, options.kv);
    options.max_new_tokens = 12;
    const Ids second = generate(model, nullptr, kNoPrompt, options).rows[0].token_ids;
    EXPECT_EQ(behind(first, second), want);
  }
}

// one number of one weight among many
TEST(Session, FingerprintsTellWeightsApart) {
  const model::Model model = tiny_model(tiny_layers()[0].second, 7);
  const std::string before = fingerprint(model, nullptr);
  EXPECT_EQ(fingerprint(model, nullptr), before);
  model.weights().find("layers.1.ffn.down.weight")->dense_tensor()[3][4].add_(1e-3);
  EXPECT_NE(fingerprint(model, nullptr), before);
}

TEST(Session, PromptsFitItsRows) {
  const Saved saved(tiny_layers()[2].second);
  Session session = saved.session;
  GenerateOptions options;
  options.session = &session;
  expect_error(ErrorKind::usage, "1 prompts for a session of 2",
               [&] { generate(saved.model, nullptr, {{1}}, options); });
  options.context = 12;
  expect_error(ErrorKind::input, "prompt 0 has 4 tokens after the 9 of the session", [&] {
    generate(saved.model, nullptr, {{1, 2, 3, 4}, {}}, options);
  });
  EXPECT_EQ(session.rows[0].tokens, saved.session.rows[0].tokens);
  expect_error(ErrorKind::usage, "a session has one sequence", [&] {
    beam_search(saved.model, nullptr, {{1}, {1}}, options, {.beams = 2});
  });
  const model::Model pair = tiny_pair(R"({"type": "attention", "n_heads": 2})", 7);
  Session answer;
  options.session = &answer;
  options.context = 0;
  options.max_new_tokens = 3;
  generate(pair, nullptr, {{5, 6, 7}}, options);
  expect_error(ErrorKind::usage, "give no prompt",
               [&] { generate(pair, nullptr, {{5}}, options); });
}

TEST(Session, AFileThatCannotBeWrittenKeepsTheOldOne) {
  const Saved saved(tiny_layers()[0].second);
  const std::string before = read_text_file(saved.file);
  expect_error(ErrorKind::resource, "cannot write", [&] {
    const tessera::test::SmallFiles full(100);
    save_session(saved.file, saved.session, saved.print);
  });
  EXPECT_EQ(read_text_file(saved.file), before);
}

/// Loading is refused with one line of Error(file), or gives the same session.
void expect_refused_or_same(const Saved& saved, const std::string& content, int64_t& refused) {
  std::ofstream(saved.file, std::ios::binary) << content;
  try {
    const Session loaded = saved.load(saved.print);
    ASSERT_EQ(loaded.seed, saved.session.seed);
    ASSERT_EQ(loaded.rows.size(), saved.session.rows.size());
    for (size_t r = 0; r < loaded.rows.size(); ++r)
      ASSERT_EQ(loaded.rows[r].tokens, saved.session.rows[r].tokens);
    const auto a = loaded.state.pack(""), b = saved.session.state.pack("");
    ASSERT_EQ(a.metadata, b.metadata);
    for (size_t i = 0; i < a.values.size(); ++i) ASSERT_TRUE(at::equal(a.values[i], b.values[i]));
  } catch (const Error& error) {
    ++refused;
    ASSERT_EQ(error.kind(), ErrorKind::file) << error.what();
    ASSERT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
  }
}

class DamagedSession : public ::testing::TestWithParam<const char*> {
 protected:
  std::string layers() const {
    for (const auto& [name, layers] : tiny_memories())
      if (name == GetParam()) return layers;
    return "";
  }
};

TEST_P(DamagedSession, IsRefusedWhereverItIsCut) {
  const Saved saved(layers());
  const std::string whole = read_text_file(saved.file);
  uint64_t header = 0;
  std::copy_n(whole.data(), sizeof header, reinterpret_cast<char*>(&header));
  int64_t refused = 0, cuts = 0;
  for (size_t n = 0; n < whole.size(); n += n < header + 8 ? 1 : 97, ++cuts)
    expect_refused_or_same(saved, whole.substr(0, n), refused);
  EXPECT_EQ(refused, cuts);
  refused = 0;
  expect_refused_or_same(saved, whole + "x", refused);
  EXPECT_EQ(refused, 1);
  expect_refused_or_same(saved, whole, refused);
  EXPECT_EQ(refused, 1);
}

TEST_P(DamagedSession, IsRefusedWhereverAByteIsWrong) {
  const Saved saved(layers());
  const std::string whole = read_text_file(saved.file);
  uint64_t header = 0;
  std::copy_n(whole.data(), sizeof header, reinterpret_cast<char*>(&header));
  int64_t refused = 0, tried = 0, spaces = 0;
  for (size_t at = 0; at < whole.size(); at += at < header + 8 ? 1 : 41) {
    if (at >= 8 && at < 8 + header && whole[at] == ' ') ++spaces;
    for (const char bit : {1, 16}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ bit);
      ++tried;
      expect_refused_or_same(saved, damaged, refused);
    }
  }
  // a space may become another blank, and nothing else
  EXPECT_GE(refused, tried - 2 * spaces);
}

INSTANTIATE_TEST_SUITE_P(Kinds,
                         DamagedSession,
                         ::testing::Values("attention", "hybrid", "sinks", "compressive"));

/// The file with something else in it, its checksum made right: what a checksum cannot tell.
class ForgedSession : public ::testing::Test {
 protected:
  using Change = std::function<void(std::vector<format::TensorView>&, format::StringMap&)>;

  void expect_refused(const std::string& part, const Change& change) {
    const format::TensorFile file = format::open_safetensors(saved_.file);
    std::vector<format::TensorView> views = file.tensors();
    format::StringMap metadata = file.metadata();
    change(views, metadata);
    metadata["session_checksum"] = session_checksum(views, metadata);
    const TemporaryFolder folder;
    const fs::path forged = folder / "forged";
    format::write_safetensors(forged, views, metadata);
    expect_error(ErrorKind::file, part, [&] { load_session(forged, saved_.model, saved_.print); });
  }

  static format::TensorView& named(std::vector<format::TensorView>& views,
                                   const std::string& name) {
    return *std::find_if(views.begin(), views.end(),
                         [&](const auto& view) { return view.name == name; });
  }
  /// Another tensor of that many zero bytes in a tensor's place.
  void replace(std::vector<format::TensorView>& views,
               const std::string& name,
               DType dtype,
               std::vector<int64_t> shape) {
    format::TensorView& view = named(views, name);
    view.dtype = dtype;
    view.shape = std::move(shape);
    view.data =
        std::as_bytes(std::span(zeros_))
            .first(static_cast<size_t>(storage_bytes(dtype, format::element_count(view.shape))));
  }

  Saved saved_{tiny_layers()[4].second};
  std::vector<char> zeros_ = std::vector<char>(1 << 16, 0);
};

TEST_F(ForgedSession, TypesAndShapesAreChecked) {
  expect_refused("expected token ids",
                 [&](auto& views, auto&) { replace(views, "tokens.0", DType::f32, {9}); });
  expect_refused("expected token ids", [&](auto& views, auto&) {
    replace(views, "tokens.0", DType::i64, {3, 3});
  });
  expect_refused("expected token ids",
                 [&](auto& views, auto&) { replace(views, "tokens.0", DType::i64, {0}); });
  expect_refused("but texts of 3",
                 [&](auto& views, auto&) { replace(views, "tokens.0", DType::i64, {3}); });
  expect_refused("is no part of this model's state",
                 [&](auto& views, auto&) { named(views, "0.0.s").name = "0.0.t"; });
  expect_refused("\"0.0.s\" is i64; expected f32", [&](auto& views, auto&) {
    replace(views, "0.0.s", DType::i64, named(views, "0.0.s").shape);
  });
  expect_refused("has another shape", [&](auto& views, auto&) {
    replace(views, "0.0.s", DType::f32, {1, 2, 3});
  });
  expect_refused("expected inputs of width 16", [&](auto& views, auto&) {
    views.push_back(
        {"0.0.replay", DType::f32, {1, 15}, std::as_bytes(std::span(zeros_)).first(60)});
  });
}

TEST_F(ForgedSession, NumbersAreChecked) {
  const auto metadata = [&](const std::string& key, const std::string& value,
                            const std::string& part) {
    expect_refused(part, [&](auto&, auto& all) { all[key] = value; });
  };
  metadata("tessera_session", "2", "session of version \"2\"");
  metadata("rows", "0", "expected 1 to");
  metadata("rows", "1", "");  // its second row is no part of a state of one
  metadata("rows", "3", "tokens.2");
  metadata("rows", "99999999999999999999", "expected a number");
  metadata("seed", "-1", "expected a number");
  metadata("length.0", "100000000000000", "");
  metadata("length.0", "x", "expected a number");
  expect_refused("not a session", [&](auto&, auto& all) { all.erase("seed"); });
  expect_refused("not a session", [&](auto&, auto& all) { all.erase("tessera_session"); });
}

TEST(Session, OtherFilesAreNone) {
  const Saved saved(tiny_layers()[0].second);
  const auto says = [&](const std::string& content, const std::string& part) {
    std::ofstream(saved.file, std::ios::binary) << content;
    expect_error(ErrorKind::file, part, [&] { saved.load(saved.print); });
  };
  says("", "safetensors");
  says("Once upon a time there was a file", "safetensors");
  format::write_safetensors(saved.file, {}, {});
  expect_error(ErrorKind::file, "not a session", [&] { saved.load(saved.print); });
}

}  // namespace
}  // namespace tessera::infer::session_test
