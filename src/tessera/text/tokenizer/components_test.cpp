// Every component of tokenizer.json against what the `tokenizers` library makes of the same texts.
#include <gtest/gtest.h>

#include "tessera/text/tokenizer/decoder.h"
#include "tessera/text/tokenizer/normalizer.h"
#include "tessera/text/tokenizer/pre_tokenizer.h"
#include "tessera/text/tokenizer_files/tokenizer_json.h"
#include "tessera/text/utf8.h"

namespace tessera::text::components_test {
namespace {

using spec::Json;

const Json& golden() {
  static const Json value =
      spec::read_json_file(TESSERA_SOURCE_DIR "/tests/golden/text/components.json");
  return value;
}

TEST(Normalizers, AgainstTokenizers) {
  for (const Json& entry : golden()["normalizers"]) {
    const auto normalizer = make_normalizer(entry["json"], "normalizer");
    for (size_t i = 0; i < golden()["texts"].size(); ++i) {
      const auto text = golden()["texts"][i].get<std::string>();
      EXPECT_EQ(normalize(normalizer.get(), text).text, entry["out"][i].get<std::string>())
          << entry["json"] << " on " << golden()["texts"][i];
    }
  }
}

TEST(PreTokenizers, AgainstTokenizers) {
  for (const Json& entry : golden()["pre_tokenizers"]) {
    const auto pre_tokenizer = make_pre_tokenizer(entry["json"], "pre_tokenizer");
    for (size_t i = 0; i < golden()["texts"].size(); ++i) {
      const auto text = golden()["texts"][i].get<std::string>();
      Pieces pieces;
      if (!text.empty()) pieces.list.push_back({text, true, kNoToken});
      pre_tokenizer->apply(pieces);
      std::vector<std::string> found;
      for (const Piece& piece : pieces.list) found.emplace_back(piece.text);
      EXPECT_EQ(found, entry["out"][i].get<std::vector<std::string>>())
          << entry["json"] << " on " << golden()["texts"][i];
    }
  }
}

// `ranges` holds first, last, first, last, ...
void expect_property(const Json& ranges, bool (*has)(char32_t), const char* name) {
  size_t next = 0;
  int wrong = 0;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    while (next < ranges.size() && ranges[next + 1].get<uint32_t>() < c) next += 2;
    const bool expected = next < ranges.size() && ranges[next].get<uint32_t>() <= c;
    if (has(c) != expected && wrong++ < 5)
      ADD_FAILURE() << name << " of U+" << std::hex << static_cast<uint32_t>(c);
  }
  EXPECT_EQ(wrong, 0) << name;
  EXPECT_GT(ranges.size(), 0u);
}

TEST(Characters, AgainstTokenizers) {
  const Json& expected = golden()["characters"][0];
  expect_property(
      expected["dropped"],
      [](char32_t c) { return c == 0xFFFD || (is_control(c) && c != 9 && c != 10 && c != 13); },
      "dropped");
  expect_property(
      expected["space"],
      [](char32_t c) {
        return is_white_space(c) && (!is_control(c) || c == 9 || c == 10 || c == 13);
      },
      "space");
  expect_property(expected["ideograph"], &is_ideograph, "ideograph");
  expect_property(expected["punctuation"], &is_punctuation, "punctuation");
  expect_property(expected["mark"], &is_nonspacing_mark, "mark");
}

std::string decode(const std::vector<DecodeStagePointer>& prototypes, const Json& tokens) {
  std::vector<std::unique_ptr<DecodeStage>> stages;
  for (const auto& prototype : prototypes) stages.push_back(prototype->clone());
  std::string out;
  std::function<void(size_t, std::string_view, bool)> run = [&](size_t at, std::string_view text,
                                                                bool ends) {
    if (at == stages.size()) {
      out += text;
      return;
    }
    stages[at]->push(text, ends, [&, at](std::string_view t, bool e) { run(at + 1, t, e); });
  };
  for (const Json& token : tokens) run(0, token.get<std::string>(), true);
  for (size_t i = 0; i < stages.size(); ++i)
    stages[i]->finish([&, i](std::string_view t, bool e) { run(i + 1, t, e); });
  return out;
}

TEST(Decoders, AgainstTokenizers) {
  for (const Json& entry : golden()["decoders"]) {
    const auto stages = make_decoder(entry["json"], "decoder");
    for (size_t i = 0; i < golden()["tokens"].size(); ++i) {
      if (entry["out"][i].is_null()) continue;  // the library panics
      EXPECT_EQ(decode(stages, golden()["tokens"][i]), entry["out"][i].get<std::string>())
          << entry["json"] << " on " << golden()["tokens"][i];
    }
  }
}

TEST(TokenizerJson, SmallTokenizersAgainstTokenizers) {
  for (const Json& entry : golden()["tokenizers"]) {
    const Tokenizer tokenizer = tokenizer_from_json(entry["json"].dump(), "small");
    Json shown = entry["json"];
    shown["model"].erase("vocab");
    for (const Json& row : entry["cases"]) {
      const auto text = row["text"].get<std::string>();
      EXPECT_EQ(Json(tokenizer.encode(text, {false, true})), row["parsed"]) << shown << row["text"];
      EXPECT_EQ(Json(tokenizer.encode(text, {false, false})), row["plain"]) << shown << row["text"];
      EXPECT_EQ(Json(tokenizer.encode(text, {true, true})), row["wrapped"]) << shown << row["text"];
    }
  }
}

}  // namespace
}  // namespace tessera::text::components_test
