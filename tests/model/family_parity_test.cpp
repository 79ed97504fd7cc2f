// Parity of every family (family_parity.h), and what the goldens hold.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "model/family_parity.h"
#include "tessera/base/testing.h"
#include "tessera/convert/family.h"
#include "tessera/format/safetensors.h"
#include "tessera/format/wav.h"
#include "tessera/infer/encoders/log_mel.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/infer/loading/tensor_files.h"
#include "tessera/spec/json.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using family_parity::all_cases;
using family_parity::Case;
using family_parity::CaseFolder;
using family_parity::kFamilies;
using family_parity::read_story;

class FamilyParity : public ::testing::TestWithParam<Case> {};

TEST_P(FamilyParity, LogitsAndGreedyText) {
  family_parity::expect_parity(GetParam(), at::kCPU);
}

INSTANTIATE_TEST_SUITE_P(Goldens,
                         FamilyParity,
                         ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.title(); });

/// A rising tone from `first` Hz on and noise, 1.25 s of 16 bits, as tools/golden/sound.py makes
/// it.
void write_sweep(const fs::path& path, double first) {
  constexpr uint32_t kSamples = 20000;
  std::string wav = "RIFF....WAVEfmt ";
  const auto number = [&](uint32_t value, int bytes) {
    wav.append(reinterpret_cast<const char*>(&value), static_cast<size_t>(bytes));
  };
  number(16, 4), number(1, 2), number(1, 2), number(16000, 4), number(32000, 4), number(2, 2);
  number(16, 2), wav += "data", number(2 * kSamples, 4);
  for (int64_t n = 0; n < kSamples; ++n) {
    const double s = static_cast<double>(n) / 16000;
    const double tone = std::sin(2 * M_PI * (first * s + 1500 * s * s)),
                 noise = static_cast<double>((n * 7919 + 104729) % 65537) / 32768 - 1;
    number(static_cast<uint32_t>(
               static_cast<int32_t>(std::nearbyint((0.4 * tone + 0.05 * noise) * 32767))),
           2);
  }
  std::ofstream(path, std::ios::binary) << wav;
}

TEST(FamilySounds, AFileIsAnsweredAsTheReferenceAnswersIt) {
  const fs::path folder = fs::path(TESSERA_SOURCE_DIR) / "tests/golden/sound";
  const infer::LoadedModel loaded = infer::load_model(folder);
  const test::TemporaryFolder scratch;
  infer::GenerateOptions options;
  options.max_new_tokens = 16;
  infer::LogMelOptions mels;
  mels.mels = 8;
  const spec::Json answers = read_story(folder / "case.json")["answers"];
  ASSERT_EQ(answers.size(), 2u);
  for (const spec::Json& answer : answers) {
    write_sweep(scratch / "a.wav", answer["first_hz"]);
    options.features.push_back(
        infer::log_mel(format::mono(format::open_wav(scratch / "a.wav")), mels));
  }
  const infer::Generations got = infer::generate(loaded.model, nullptr, {}, options);
  for (size_t i = 0; i < answers.size(); ++i)
    EXPECT_EQ(got.rows[i].token_ids, answers[i]["token_ids"].get<std::vector<int64_t>>());
}

TEST(FamilyGgufs, ExpertsAreMultipliedFromTheirBlocks) {
  // their parity above is that of numbers which stay as they lie in the file
  for (const auto& [file, dtype] : {std::pair{"mixtral/gguf/blocks.gguf", DType::q4_0},
                                    std::pair{"gpt_oss/gguf/blocks.gguf", DType::mxfp4},
                                    std::pair{"gpt_oss/mxfp4", DType::mxfp4}}) {
    const auto loaded = infer::load_model(kFamilies / file);
    int stacks = 0;
    for (const auto& [decl, weight] : loaded.model.weights().all()) {
      if (decl.shape.size() != 3) continue;
      ++stacks;
      EXPECT_EQ(weight->dtype(), dtype) << decl.name;
      EXPECT_EQ(weight->slice(1).dtype(), dtype) << decl.name;
    }
    EXPECT_EQ(stacks, 6) << file;
  }
}

TEST(FamilyGoldens, GreedyTextsAreVaried) {
  // a text that repeats one token would be met by a model that is wrong in much
  constexpr size_t kDistinct = 8;
  for (const Case& c : all_cases()) {
    const CaseFolder folder(c);
    const Tensor ids =
        infer::tensor_or_undefined(format::open_safetensors(folder.io()), "greedy_ids");
    SCOPED_TRACE(c.title());
    if (!ids.defined()) {
      // only what reads whole rows is without a next token
      if (c.name == "base") {
        EXPECT_EQ(infer::load_model(folder.path()).model.spec().arch, model::Arch::encoder);
      }
      continue;
    }
    EXPECT_EQ(ids.numel(), 16);
    const std::set<int64_t> distinct(ids.const_data_ptr<int64_t>(),
                                     ids.const_data_ptr<int64_t>() + ids.numel());
    // a variation may be listed by the generator, with its reason; a base case never
    const spec::Json& story = folder.story();
    const bool listed = story.contains("greedy") && story["greedy"].contains("few");
    if (c.name == "base" || (story["io"] == c.name && !listed)) {
      EXPECT_GE(distinct.size(), kDistinct);
    }
  }
}

TEST(FamilyGoldens, CoverEveryFamily) {
  std::set<std::string> with_goldens, known;
  for (const Case& c : all_cases()) with_goldens.insert(c.family);
  convert::FamilySet set = convert::FamilySet::load();
  for (const std::string& name : set.names())
    if (set.named(name).dialects.contains("hf") || set.named(name).dialects.contains("gguf"))
      known.insert(name);
  EXPECT_EQ(with_goldens, known);
}

}  // namespace
}  // namespace tessera
