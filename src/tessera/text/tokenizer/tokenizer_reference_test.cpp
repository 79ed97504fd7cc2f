// Ids against the reference libraries, run on the spot: TESSERA_REFERENCE_PYTHON names a Python
// with `tokenizers` and `gguf`. TESSERA_REQUIRE_REFERENCE=1 turns skipping into failure.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <unordered_map>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/text/tokenizer_files/gguf_tokenizer.h"

namespace tessera::text::tokenizer_reference_test {
namespace {

using spec::Json;
namespace fs = std::filesystem;

// Lines of text_reference.py, read from a pipe.
class Reference {
 public:
  Reference(const std::string& python, const std::string& kind, const fs::path& source, int count)
      : pipe_(popen(fmt::format("'{}' '{}/tools/golden/text_reference.py' {} '{}' {}",
                                python,
                                TESSERA_SOURCE_DIR,
                                kind,
                                source.string(),
                                count)
                        .c_str(),
                    "r")) {}
  ~Reference() {
    if (pipe_ != nullptr) pclose(pipe_);
  }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;

  std::optional<Json> next() {
    char* line = nullptr;
    size_t capacity = 0;
    const ssize_t length = pipe_ == nullptr ? -1 : getline(&line, &capacity, pipe_);
    const std::unique_ptr<char, decltype(&std::free)> owner(line, &std::free);
    if (length <= 0) return std::nullopt;
    return Json::parse(std::string_view(line, static_cast<size_t>(length)));
  }

 private:
  FILE* pipe_;
};

// Where scripts/setup.sh keeps what it downloads.
fs::path cache() {
  const char* cache = std::getenv("TESSERA_CACHE");
  const char* home = std::getenv("HOME");
  return cache != nullptr ? fs::path(cache)
                          : fs::path(home == nullptr ? "." : home) / ".cache/tessera";
}

class AgainstReference : public testing::Test {
 protected:
  void SetUp() override {
    const char* python = std::getenv("TESSERA_REFERENCE_PYTHON");
    const char* data = std::getenv("TESSERA_TEST_DATA");
    const char* required = std::getenv("TESSERA_REQUIRE_REFERENCE");
    if (python == nullptr || data == nullptr) {
      ASSERT_FALSE(required != nullptr && std::string_view(required) == "1")
          << "TESSERA_REFERENCE_PYTHON and TESSERA_TEST_DATA must be set";
      GTEST_SKIP() << "TESSERA_REFERENCE_PYTHON or TESSERA_TEST_DATA is not set";
    }
    python_ = python;
    data_ = data;
  }

  // Skips, or fails where the reference is required.
  static bool missing(const fs::path& file) {
    if (fs::exists(file)) return false;
    const char* required = std::getenv("TESSERA_REQUIRE_REFERENCE");
    EXPECT_FALSE(required != nullptr && std::string_view(required) == "1") << file << " is missing";
    return true;
  }

  struct Agreement {
    int rows = 0;
    int wrong = 0;
    int not_restored = 0;  // decode(encode(s)) != s
  };

  static Agreement compare(const Tokenizer& t, Reference& reference) {
    Agreement out;
    while (const auto row = reference.next()) {
      ++out.rows;
      const auto text = (*row)["text"].get<std::string>();
      const bool parses = !(*row)["parsed"].is_null();
      const auto plain = t.encode(text, {false, false});
      bool right = Json(plain) == (*row)["plain"];
      right = right && (!parses || Json(t.encode(text, {false, true})) == (*row)["parsed"]);
      right = right && Json(t.encode(text, {true, parses})) == (*row)["wrapped"];
      if (!(*row)["decoded"].is_null())
        right = right && Json(t.decode(plain, false)) == (*row)["decoded"];
      if (t.decode(t.encode(text)) != text) ++out.not_restored;
      if (!right && out.wrong++ < 3) ADD_FAILURE() << *row << "\nfound " << Json(plain);
    }
    return out;
  }

  Agreement compare_json(const std::string& name, int count) {
    const fs::path file = data_ / "tokenizers" / name / "tokenizer.json";
    Reference reference(python_, "json", file, count);
    EXPECT_TRUE(reference.next()) << "the reference script fails";
    return compare(load_tokenizer(file), reference);
  }

  std::string python_;
  fs::path data_;
};

constexpr int kStrings = 20000;

TEST_F(AgainstReference, Phi2) {
  const Agreement a = compare_json("phi-2", kStrings);
  EXPECT_EQ(a.rows, kStrings);
  EXPECT_EQ(a.wrong, 0);
  EXPECT_EQ(a.not_restored, 0);
}

TEST_F(AgainstReference, RobertaBase) {
  const Agreement a = compare_json("roberta-base", kStrings);
  EXPECT_EQ(a.rows, kStrings);
  EXPECT_EQ(a.wrong, 0);
  EXPECT_EQ(a.not_restored, 0);
}

TEST_F(AgainstReference, Llama2) {  // U+2581 in a text comes back as a space, so no round trip
  const Agreement a = compare_json("llama2", kStrings);
  EXPECT_EQ(a.rows, kStrings);
  EXPECT_EQ(a.wrong, 0);
}

TEST_F(AgainstReference, T5Small) {  // its character map loses spaces and signs, so no round trip
  const Agreement a = compare_json("t5-small", kStrings);
  EXPECT_EQ(a.rows, kStrings);
  EXPECT_EQ(a.wrong, 0);
}

// A vocabulary of words loses spaces and cases, so no round trip.
TEST_F(AgainstReference, MiniLm) {
  const fs::path folder = cache() / "all-minilm-l6-v2";
  for (const auto& [kind, name] :
       {std::pair("json", "tokenizer.json"), std::pair("vocab", "vocab.txt")}) {
    if (missing(folder / name)) GTEST_SKIP() << folder / name << " is missing";
    Reference reference(python_, kind, folder / name, kStrings);
    ASSERT_TRUE(reference.next());
    const Agreement a = compare(load_tokenizer(folder / name), reference);
    EXPECT_EQ(a.rows, kStrings) << name;
    EXPECT_EQ(a.wrong, 0) << name;
  }
}

// What transformers reads beside a vocab.txt: added tokens in both forms, and their flags. Contents
// are in normal form where they are looked for after normalization: tokenizers 0.23 decodes that.
TEST_F(AgainstReference, AddedTokensBesideAVocabulary) {
  const fs::path lines = cache() / "all-minilm-l6-v2/vocab.txt";
  if (missing(lines)) GTEST_SKIP() << lines << " is missing";
  using Files = std::vector<std::pair<const char*, const char*>>;
  const Files cases[] = {
      {{"tokenizer_config.json",
        R"({"tokenizer_class": "BertTokenizer", "mask_token": "[MASK]", "added_tokens_decoder": {
             "0": {"content": "[PAD]", "special": true},
             "103": {"content": "[MASK]", "lstrip": true, "special": true},
             "1037": {"content": "a", "single_word": true},
             "30522": {"content": "<new>"}, "30523": {"content": "[X]", "special": true},
             "30524": {"content": "É", "normalized": false, "rstrip": true},
             "30525": {"content": "hello World", "normalized": false, "lstrip": true},
             "30526": {"content": "日本", "single_word": true, "normalized": false}}})"}},
      {{"tokenizer_config.json", R"({"do_lower_case": false, "bos_token": "<s>"})"},
       {"added_tokens.json", R"({"[X]": 30523, "<new>": 30522, "Tokenizer": 30524})"},
       {"special_tokens_map.json",
        R"({"mask_token": {"content": "[MASK]", "lstrip": true, "normalized": true},
            "extra_special_tokens": ["[X]", "<e>"]})"}},
      {{"tokenizer_config.json",
        R"({"strip_accents": false, "extra_special_tokens": ["<e>", "é"], "eos_token": "world"})"}}};
  for (const Files& files : cases) {
    const test::TemporaryFolder folder;
    fs::copy_file(lines, folder / "vocab.txt");
    for (const auto& [name, content] : files) folder.write(name, content);
    Reference reference(python_, "folder", folder.path(), kStrings / 4);
    ASSERT_TRUE(reference.next());
    const Agreement a = compare(load_tokenizer(folder.path()), reference);
    EXPECT_EQ(a.rows, kStrings / 4);
    EXPECT_EQ(a.wrong, 0);
  }
}

TEST_F(AgainstReference, ScoreFile) {
  const fs::path file = data_ / "stories260k" / "tok512.bin";
  Reference reference(python_, "scores", file, kStrings);
  ASSERT_TRUE(reference.next());
  const Agreement a = compare(load_tokenizer(file, 512), reference);
  EXPECT_EQ(a.rows, kStrings);
  EXPECT_EQ(a.wrong, 0);
  EXPECT_EQ(a.not_restored, 0);
}

template <class Value>
std::optional<Value> optional_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::nullopt;
  return found->get<Value>();
}

GgufTokenizerData data_of(const Json& metadata) {
  GgufTokenizerData data;
  data.model = metadata.at("model").get<std::string>();
  data.pre = optional_of<std::string>(metadata, "pre").value_or("");
  data.tokens = metadata.at("tokens").get<std::vector<std::string>>();
  data.scores = optional_of<std::vector<float>>(metadata, "scores").value_or(std::vector<float>());
  data.token_types = metadata.at("token_type").get<std::vector<int32_t>>();
  data.merges = optional_of<std::vector<std::string>>(metadata, "merges")
                    .value_or(std::vector<std::string>());
  data.bos_id = optional_of<int64_t>(metadata, "bos_token_id");
  data.eos_id = optional_of<int64_t>(metadata, "eos_token_id");
  data.unk_id = optional_of<int64_t>(metadata, "unknown_token_id");
  data.pad_id = optional_of<int64_t>(metadata, "padding_token_id");
  data.add_bos = optional_of<bool>(metadata, "add_bos_token");
  data.add_space_prefix = optional_of<bool>(metadata, "add_space_prefix");
  return data;
}

TEST_F(AgainstReference, SmolLm2FromGguf) {
  const fs::path file = cache() / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf";
  if (missing(file)) GTEST_SKIP() << file << " is missing";
  Reference reference(python_, "gguf", file, kStrings);
  const auto about = reference.next();
  ASSERT_TRUE(about);
  const Tokenizer t = tokenizer_from_gguf(data_of(about->at("gguf")), "SmolLM2");
  EXPECT_EQ(t.bos(), t.id("<|im_start|>"));
  EXPECT_EQ(t.eos(), t.id("<|im_end|>"));
  const Agreement a = compare(t, reference);
  EXPECT_EQ(a.rows, kStrings);
  EXPECT_EQ(a.wrong, 0);
  EXPECT_EQ(a.not_restored, 0);
}

// The same vocabulary by scores instead of merges, as a GGUF has it. The merges were made from
// scores: all merges into a token stand together, and those of a token with a higher score come
// before.
TEST_F(AgainstReference, Llama2AsScores) {
  const fs::path file = data_ / "tokenizers" / "llama2" / "tokenizer.json";
  const Json model = spec::read_json_file(file)["model"];
  GgufTokenizerData data;
  data.model = "llama";
  data.tokens.resize(model["vocab"].size());
  std::unordered_map<std::string, size_t> ids;
  for (const auto& [token, id] : model["vocab"].items()) {
    data.tokens.at(id.get<size_t>()) = token;
    ids.emplace(token, id.get<size_t>());
  }
  data.scores.assign(data.tokens.size(), 0);
  for (size_t rank = model["merges"].size(); rank-- > 0;) {
    std::string result = model["merges"][rank].get<std::string>();
    result.erase(result.find(' '), 1);
    if (const auto id = ids.find(result); id != ids.end())
      data.scores.at(id->second) = -static_cast<float>(rank);
  }
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    data.token_types.push_back(id == 0 ? 2 : id < 3 ? 3 : id < 259 ? 6 : 1);
  }
  data.bos_id = 1;
  data.eos_id = 2;
  data.unk_id = 0;
  const Tokenizer t = tokenizer_from_gguf(data, "scores");
  EXPECT_EQ(t.encode("")[0], 1);
  Reference reference(python_, "json", file, kStrings);
  ASSERT_TRUE(reference.next());
  int rows = 0;
  int wrong = 0;
  while (const auto row = reference.next()) {
    const auto text = (*row)["text"].get<std::string>();
    ++rows;
    const auto found = t.encode(text, {false, false});
    if (Json(found) != (*row)["plain"] && wrong++ < 3)
      ADD_FAILURE() << *row << "\nfound " << Json(found);
    if (Json(t.decode(found, false)) != (*row)["decoded"] && wrong++ < 3) ADD_FAILURE() << *row;
  }
  EXPECT_EQ(rows, kStrings);
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace tessera::text::tokenizer_reference_test
