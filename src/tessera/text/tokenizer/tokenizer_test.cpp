#include "tessera/base/output_file.h"
#include "tessera/text/tokenizer/tokenizer.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/rng.h"
#include "tessera/base/testing.h"
#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/byte_level.h"
#include "tessera/text/tokenizer/byte_tokenizer.h"
#include "tessera/text/tokenizer/regex.h"
#include "tessera/text/tokenizer_files/tokenizer_json.h"
#include "tessera/text/utf8.h"

namespace tessera::text::tokenizer_test {
namespace {

using spec::Json;
using test::error_of;
using test::TemporaryFolder;
using Ids = std::vector<int32_t>;

// All 256 byte characters as tokens 0 to 255, two merges, and special tokens from 258 on.
Json byte_level_json() {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[byte_characters()[static_cast<size_t>(byte)]] = byte;
  vocab["he"] = 256;
  vocab["\xC4\xA0he"] = 257;  // U+0120 is the space
  Json added = Json::array();
  for (const auto& [id, content] : {std::pair(258, "<|im_start|>"), std::pair(259, "<|im_end|>")})
    added.push_back({{"id", id}, {"content", content}, {"special", true}, {"normalized", false}});
  return {{"version", "1.0"},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"h e", "\xC4\xA0 he"}}}}};
}

Tokenizer byte_level() {
  return tokenizer_from_json(byte_level_json().dump(), "test");
}

std::string error_with(std::initializer_list<std::pair<const char*, Json>> changes) {
  Json json = byte_level_json();
  for (const auto& [pointer, value] : changes) json[Json::json_pointer(pointer)] = value;
  return error_of([&] { tokenizer_from_json(json.dump(), "t"); });
}

TEST(ByteAlphabet, IsGpt2s) {
  std::string all;
  for (const std::string& character : byte_characters()) all += character;
  std::string joined;
  append_as_byte_characters(joined, " \n\x7F\xAD!\xFF");
  EXPECT_EQ(joined, "ĠĊġŃ!ÿ");
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  EXPECT_EQ(bytes_of_token(all), bytes);
  EXPECT_EQ(bytes_of_token("a b"), std::nullopt);
  EXPECT_EQ(bytes_of_token("\xC5\x84"), std::nullopt);  // U+0144, one beyond the alphabet
}

TEST(Utf8, ReplacesMaximalSubparts) {
  // Unicode 15, table 3-8 and its neighbours
  EXPECT_EQ(to_valid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), "��������A");
  EXPECT_EQ(to_valid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), "��������A");
  EXPECT_EQ(to_valid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), "�����A��B");
  EXPECT_EQ(to_valid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), "����A");
  EXPECT_EQ(to_valid_utf8("é日😀"), "é日😀");
}

TEST(Utf8, AssemblerAgreesWithWholeText) {
  const RandomKey key(3);
  for (uint64_t n = 0; n < 200; ++n) {
    std::string text;
    for (uint64_t i = 0; i < 30; ++i) {
      const uint32_t bits = key.fold(n).bits(i);
      text += bits % 3 == 0 ? std::string("日😀é").substr(bits / 3 % 9, 3)
                            : std::string(1, static_cast<char>(bits >> 8));
    }
    Utf8Assembler assembler;
    std::string out;
    for (const char byte : text) {
      assembler.push({&byte, 1}, out);
      EXPECT_TRUE(is_valid_utf8(out));
    }
    assembler.finish(out);
    EXPECT_EQ(out, to_valid_utf8(text));
  }
}

TEST(Tokenizer, SpecialTokensInTextOnlyOnRequest) {
  const Tokenizer t = byte_level();
  const std::string text = "he<|im_end|> he";
  EXPECT_EQ(t.encode(text, {true, true}), (Ids{256, 259, 257}));
  const Ids plain = t.encode(text);
  EXPECT_EQ(plain.size(), 2 + std::string("<|im_end|>").size());
  for (const int32_t id : plain) EXPECT_FALSE(t.is_special(id));
  EXPECT_EQ(t.decode(plain), text);
  EXPECT_EQ(t.decode(Ids{256, 259, 257}), "he he");
  EXPECT_EQ(t.decode(Ids{256, 259, 257}, false), text);
}

TEST(Tokenizer, NamesTokens) {
  const Tokenizer t = byte_level();
  EXPECT_EQ(t.vocab_size(), 260);
  EXPECT_EQ(t.token(257), "Ġhe");
  EXPECT_EQ(t.token(258), "<|im_start|>");
  EXPECT_EQ(t.id("<|im_end|>"), 259);
  EXPECT_EQ(t.id("he"), 256);
  EXPECT_EQ(t.id("hex"), std::nullopt);
  EXPECT_EQ(error_of([&] { t.token(260); }), "[tokenizer] no token has id 260; expected 0 to 259");
  EXPECT_EQ(t.decode(Ids{256, 260, -5, 51199, 257}), "he he");
  EXPECT_EQ(t.bos(), std::nullopt);
}

TEST(Tokenizer, InvalidUtf8BecomesReplacementCharacter) {
  const Tokenizer t = byte_level();
  EXPECT_EQ(t.encode("he\xFF"), t.encode("he�"));
  EXPECT_EQ(t.encode(""), Ids{});
}

TEST(Tokenizer, ConfigNamesRolesAndTemplate) {
  const auto config = R"({"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"},
                          "pad_token": null, "chat_template": "{{ x }}", "model_max_length": 9})";
  const Tokenizer t = tokenizer_from_json(byte_level_json().dump(), "test", {config});
  EXPECT_EQ(t.bos(), 258);
  EXPECT_EQ(t.eos(), 259);
  EXPECT_EQ(t.pad(), std::nullopt);
  EXPECT_EQ(t.chat_template(), "{{ x }}");
}

// what transformers reads of the same folders
TEST(Tokenizer, TemplatesStandInFilesOfTheirOwn) {
  const test::TemporaryFolder folder;
  folder.write("tokenizer.json", byte_level_json().dump());
  const auto templates = [&] {
    const Tokenizer t = load_tokenizer(folder.path());
    return std::pair(t.chat_template(), t.tool_template());
  };
  using Two = std::pair<std::string, std::string>;
  EXPECT_EQ(templates(), (Two{"", ""}));
  folder.write("chat_template.json", R"({"chat_template": "of a processor"})");
  EXPECT_EQ(templates(), (Two{"of a processor", "of a processor"}));
  folder.write("tokenizer_config.json", R"({"chat_template": "in config"})");
  EXPECT_EQ(templates(), (Two{"in config", "in config"}));
  folder.write("tokenizer_config.json", R"({"chat_template": [
      {"name": "default", "template": "one"}, {"name": "tool_use", "template": "tools"}]})");
  EXPECT_EQ(templates(), (Two{"one", "tools"}));
  folder.write("chat_template.jinja", "own");
  EXPECT_EQ(templates(), (Two{"own", "tools"}));
}

TEST(Tokenizer, StreamsWholeCharacters) {
  const Tokenizer t = byte_level();
  const std::string text = "日本 he 👩‍👩‍👧 é\xFF";
  const Ids ids = t.encode(text);
  StreamDecoder decoder(t);
  std::string out;
  for (int round = 0; round < 2; ++round) {  // finish() makes it as new
    out.clear();
    for (const int32_t id : ids) {
      const std::string part = decoder.push(id);
      EXPECT_TRUE(is_valid_utf8(part));
      out += part;
    }
    out += decoder.finish();
    EXPECT_EQ(out, t.decode(ids));
  }
  decoder.push(0xE6);
  decoder.push(0x97);
  EXPECT_EQ(decoder.finish(), "�");
}

TEST(Tokenizer, PrimedStreamContinues) {
  Json json = byte_level_json();
  json["decoder"] = {{"type", "Sequence"},
                     {"decoders",
                      {{{"type", "ByteLevel"}},
                       {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
  const Tokenizer t = tokenizer_from_json(json.dump(), "test");
  StreamDecoder fresh(t);
  EXPECT_EQ(fresh.push(257), "he");
  StreamDecoder primed(t);
  primed.prime(Ids{256});
  EXPECT_EQ(primed.push(257), " he");
}

TEST(ByteTokenizer, AnyBytesAndSpecials) {
  const Tokenizer t = byte_tokenizer({{"<bos>", "<eos>"}, "<bos>", "<eos>"});
  EXPECT_EQ(t.vocab_size(), 258);
  EXPECT_EQ(t.encode(std::string_view("\xFF\0a", 3)), (Ids{256, 255, 0, 97}));
  EXPECT_EQ(t.encode("a<eos>", {false, true}), (Ids{97, 257}));
  EXPECT_EQ(t.encode("<eos>", {false, false}).size(), 5u);
  EXPECT_EQ(t.bos(), 256);
  EXPECT_EQ(t.eos(), 257);
  EXPECT_EQ(t.decode(t.encode("日本")), "日本");
  EXPECT_EQ(byte_tokenizer().vocab_size(), 256);
  EXPECT_NE(error_of([] {
              byte_tokenizer({{"<a>"}, "<b>", ""});
            }).find("[bytes] \"<b>\""),
            std::string::npos);
}

TEST(TokenizerJson, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(error_with({{"/model/dropout", 0.1}}),
            "[t: model] dropout = 0.1; only tokenizers without dropout are supported");
  EXPECT_EQ(error_with({{"/model/continuing_subword_prefix", "##"}}),
            "[t: model] continuing_subword_prefix = \"##\" is not supported; expected none");
  EXPECT_EQ(error_with({{"/model/type", "WordLevel"}}),
            "[t: model] model \"WordLevel\" is not supported; expected BPE, WordPiece or Unigram");
  EXPECT_EQ(error_with({{"/extra", 1}}).substr(0, 29), "[t] key \"extra\" is not known;");
  EXPECT_NE(error_with({{"/normalizer", {{"type", "ByteLevel"}}}}).find("normalizer \"ByteLevel\""),
            std::string::npos);
  EXPECT_NE(error_with({{"/pre_tokenizer/trim", true}}).find("[t: pre_tokenizer] key \"trim\""),
            std::string::npos);
  EXPECT_NE(error_with({{"/decoder", {{"type", "CTC"}}}}).find("decoder \"CTC\""),
            std::string::npos);
  EXPECT_NE(error_with({{"/post_processor", {{"type", "X"}}}}).find("post-processor \"X\""),
            std::string::npos);
}

TEST(TokenizerJson, PutsBetweenPairsWhatItsPostProcessorSays) {
  const auto pair = [](const Json& post_processor) {
    Json json = byte_level_json();
    json["post_processor"] = post_processor;
    return tokenizer_from_json(json.dump(), "t").surround(Ids{10}, Ids{11, 12}).ids;
  };
  const auto special = [](const char* id, int type) {
    return Json{{"SpecialToken", {{"id", id}, {"type_id", type}}}};
  };
  const auto text = [](const char* id, int type) {
    return Json{{"Sequence", {{"id", id}, {"type_id", type}}}};
  };
  const Json specials = {{"<s>", {{"id", "<s>"}, {"ids", {1}}, {"tokens", {"<s>"}}}},
                         {"</s>", {{"id", "</s>"}, {"ids", {2}}, {"tokens", {"</s>"}}}}};
  const Json single = {special("<s>", 0), text("A", 0), special("</s>", 0)};
  Json json = {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", specials}};
  EXPECT_EQ(pair(json), (Ids{1, 10, 2, 11, 12, 2}));
  json["pair"] = {special("<s>", 0),  text("A", 0), special("</s>", 0),
                  special("</s>", 0), text("B", 0), special("</s>", 0)};
  EXPECT_EQ(pair(json), (Ids{1, 10, 2, 2, 11, 12, 2}));
  json = {{"type", "RobertaProcessing"}, {"sep", {"</s>", 2}}, {"cls", {"<s>", 1}}};
  EXPECT_EQ(pair(json), (Ids{1, 10, 2, 2, 11, 12, 2}));
  json["type"] = "BertProcessing";
  EXPECT_EQ(pair(json), (Ids{1, 10, 2, 11, 12, 2}));
  EXPECT_EQ(pair(nullptr), (Ids{10, 11, 12}));
}

TEST(TokenizerJson, RefusesBrokenVocabularies) {
  EXPECT_EQ(error_with({{"/model/vocab/he", 255}}),
            "[t: model] id 255 has two tokens, \"ÿ\" and \"he\"");
  EXPECT_EQ(error_with({{"/model/vocab/he", -1}}).substr(0, 38),
            "[t: model] token \"he\" has id -1; expec");
  EXPECT_EQ(error_with({{"/model/vocab/he", 4000000000}}).substr(0, 35),
            "[t: model] token \"he\" has id 400000");
  EXPECT_EQ(error_with({{"/model/merges/0", "h x"}}),
            "[t: model] merge 0 (\"h\" + \"x\"): \"hx\" is not in the vocabulary");
  EXPECT_NE(error_with({{"/model/merges/0", {"h"}}}), "");
  EXPECT_NE(error_with({{"/model/merges/0", "he"}}), "");
  EXPECT_EQ(error_with({{"/model/unk_token", "nope"}}),
            "[t: model] unk_token \"nope\" is not in the vocabulary");
  EXPECT_EQ(error_with({{"/added_tokens/1/id", 258}}),
            "[t] id 258 has two added tokens, \"<|im_start|>\" and \"<|im_end|>\"");
  EXPECT_EQ(error_with({{"/added_tokens/1/id", 7}}).substr(0, 35),
            "[t] id 7 is \"ć\" in the vocabulary,");
  EXPECT_NE(error_with({{"/added_tokens/1/id", 3999999}}), "");
  EXPECT_EQ(error_with({{"/added_tokens/1/content", "he"}}),
            "[t] added token \"he\" has id 259, in the vocabulary 256");
  EXPECT_NE(error_with({{"/post_processor",
                         {{"type", "BertProcessing"}, {"sep", {"x", 900}}, {"cls", {"y", 1}}}}}),
            "");
}

TEST(TokenizerJson, HostilePatternsEndInErrors) {
  const auto with_pattern = [](const std::string& pattern) {
    Json json = byte_level_json();
    json["pre_tokenizer"] = {
        {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
    return tokenizer_from_json(json.dump(), "t");
  };
  for (const char* pattern : {"(", "[a", "a{2,1}", "[a&&b]", "[a[b]]", "\\h", "(*COMMIT)a",
                              "(?C1)a", "(?m)a", "\\", "\\C"})
    EXPECT_NE(error_of([&] { with_pattern(pattern); }), "") << pattern;
  const Tokenizer slow = with_pattern("(a|aa|aaa)+b");
  EXPECT_NE(error_of([&] { slow.encode(std::string(200, 'a') + "cb"); }).find("limit"),
            std::string::npos);
  EXPECT_NE(error_of([&] { with_pattern(std::string(40000, 'a')); }), "");
}

const char* const kDigitPatterns[] = {R"(\d{1,3}(?=(?:\d{3})*\b))",
                                      R"(\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N})))",
                                      R"((?=(\d{3})+(?!\d)))"};

// Patterns that group digits from the right are run by hand; in brackets PCRE2 runs them.
TEST(Regex, GroupsOfDigitsAreThoseOfThePattern) {
  const std::vector<std::string> characters = {"1",      "2",      "34",     "567",    "\u0663",
                                               "\u00b2", "\u2167", "x",      "\u00e9", " ",
                                               ",",      "_",      "\u24b6", "\u4e2d"};
  uint64_t state = 1;
  const auto draw = [&] { return state = state * 6364136223846793005u + 1442695040888963407u; };
  for (const char* pattern : kDigitPatterns) {
    const Regex by_hand(pattern, "t"), by_engine(fmt::format("(?:{})", pattern), "t");
    for (int i = 0; i < 500; ++i) {
      std::string text;
      for (uint64_t n = draw() >> 60; n > 0; --n)
        text += characters[(draw() >> 33) % characters.size()];
      const auto spans = [&](const Regex& regex) {
        std::string out;
        for (const Span& s : regex.spans(text))
          out += fmt::format("{}-{}{} ", s.begin, s.end, s.is_match ? "!" : "");
        return out;
      };
      ASSERT_EQ(spans(by_hand), spans(by_engine)) << pattern << " on " << text;
    }
  }
}

// Each match of such a pattern looks to the end of the number: a search would not end.
TEST(Regex, LongNumbersAreGroupedInLinearTime) {
  const std::string digits(5'000'000, '7');
  for (const char* pattern : kDigitPatterns)
    EXPECT_GE(Regex(pattern, "t").spans(digits).size(), 1'600'000u) << pattern;
}

TEST(TokenizerJson, GrowthIsLimited) {
  Json json = byte_level_json();
  Json steps = Json::array();
  for (int i = 0; i < 40; ++i)
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaaaaaa"}});
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  const Tokenizer t = tokenizer_from_json(json.dump(), "t");
  EXPECT_NE(error_of([&] { t.encode("a"); }).find("grow beyond"), std::string::npos);
}

// Runs that make naive algorithms quadratic: such a one would not end.
TEST(Tokenizer, LongRunsAreRead) {
  Json json = byte_level_json();
  json["normalizer"] = {{"type", "NFC"}};
  const Tokenizer t = tokenizer_from_json(json.dump(), "t");
  std::vector<std::string> texts = {"a", "", std::string(1000000, ' ')};
  for (int i = 0; i < 300000; ++i)
    texts[0] += i % 2 == 0 ? "\xCC\x81" : "\xCC\xA3";  // above, below
  for (int i = 0; i < 500000; ++i) texts[1] += "he";
  for (const std::string& text : texts)
    EXPECT_EQ(t.decode(t.encode(text)).size(), text.size()) << text.substr(0, 4);
  EXPECT_EQ(t.encode(texts[1]), Ids(500000, 256));
}

TEST(LoadTokenizer, ToldApartByContent) {
  const TemporaryFolder folder;
  EXPECT_NE(error_of([&] { load_tokenizer(folder.path()); }).find("no tokenizer.json"),
            std::string::npos);
  write_file_atomically(folder / "tokenizer.json", "\n " + byte_level_json().dump());
  write_file_atomically(folder / "tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  write_file_atomically(folder / "model.gguf", "GGUF....");
  EXPECT_EQ(load_tokenizer(folder.path()).eos(), 259);
  EXPECT_EQ(load_tokenizer(folder / "tokenizer.json").eos(), std::nullopt);
  EXPECT_NE(error_of([&] { load_tokenizer(folder / "model.gguf"); }).find("a GGUF file"),
            std::string::npos);
  write_file_atomically(folder / "vocab.txt", "[UNK]\n[CLS]\n[SEP]\na\nA\n");
  EXPECT_EQ(load_tokenizer(folder / "vocab.txt").encode("A"), (Ids{1, 3, 2}));
  EXPECT_EQ(load_tokenizer(folder.path()).eos(), 259);  // tokenizer.json comes first
  std::filesystem::remove(folder / "tokenizer.json");
  write_file_atomically(folder / "tokenizer_config.json", R"({"do_lower_case": false})");
  EXPECT_EQ(load_tokenizer(folder.path()).encode("A"), (Ids{1, 4, 2}));
  EXPECT_NE(error_of([&] { load_tokenizer(folder / "missing"); }).find("No such file"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::text::tokenizer_test
