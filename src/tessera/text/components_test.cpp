// Every component of tokenizer.json against what the `tokenizers` library makes of the same texts.
#include <gtest/gtest.h>

#include "tessera/text/decoder.h"
#include "tessera/text/normalizer.h"
#include "tessera/text/pre_tokenizer.h"
#include "tessera/text/tokenizer_json.h"

namespace tessera::text {
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
}  // namespace tessera::text
