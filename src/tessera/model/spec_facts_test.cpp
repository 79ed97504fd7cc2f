// Parts whose selection for a token hangs on later ones: said when training starts, refused where
// text is generated unless the part can do without the future.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/model/model_spec.h"
#include "tessera/nn/registry.h"
#include "tessera/spec/fields.h"

namespace tessera::model {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// A feed-forward layer of the tokens that win a place in a document of limited room.
struct LimitedRoomConfig final : spec::Config {
  bool predicts = false;
  static constexpr auto fields() {
    return std::tuple{spec::field("predicts", &LimitedRoomConfig::predicts, "who wins, causally")};
  }
  static spec::Info info() {
    return {.summary = "s",
            .paper = "p",
            .year = 2024,
            .causality = spec::Causality::selection,
            .forms = {}};
  }
  bool selects_without_future() const override { return predicts; }
};

ModelSpec read(const std::string& layers, const char* arch = "decoder") {
  nn::register_mechanisms();
  if (spec::find_mechanism(spec::Slot::ffn, "limited_room") == nullptr)
    spec::add_mechanism(spec::make_mechanism<LimitedRoomConfig>(spec::Slot::ffn, "limited_room"));
  return read_model_spec(spec::parse_json(
      fmt::format(R"({{"tessera": 1, "arch": "{}", "vocab": 8, "d_model": 8, "norm": "rms_norm",
                      "layers": [{}], "head": "linear"}})",
                  arch, layers),
      "test"));
}

const std::string kLimited =
    R"({"mixer": {"type": "attention", "n_heads": 2}, "ffn": "limited_room"})";
const std::string kPredicted =
    R"({"mixer": {"type": "attention", "n_heads": 2}, "ffn": {"type": "limited_room", "predicts": true}})";
const std::string kPlain =
    R"({"mixer": {"type": "attention", "n_heads": 2}, "ffn": {"type": "mlp", "d_hidden": 8}})";
const std::string kHashed =
    R"({"mixer": {"type": "lsh_attention", "n_heads": 2}, "ffn": {"type": "mlp", "d_hidden": 8}})";

TEST(Selection, IsSaidOnceAndRefusedWithoutAPredictor) {
  const ModelSpec spec = read(kLimited + "," + kPlain + "," + kLimited);
  const std::string note = spec.selection_note();
  EXPECT_THAT(note, AllOf(HasSubstr("limited_room: what a token sees"), HasSubstr("later tokens"),
                          HasSubstr("will not generate")));
  EXPECT_EQ(note.find('\n'), std::string::npos);
  EXPECT_THAT(spec.no_generation_reason(),
              AllOf(HasSubstr("limited_room selects by tokens that are not there yet"),
                    HasSubstr("causal predictor"), HasSubstr("drops nothing")));
}

TEST(Selection, GeneratesWithAPredictor) {
  const ModelSpec spec = read(kPredicted);
  EXPECT_THAT(spec.selection_note(), HasSubstr("limited_room: what a token sees"));
  EXPECT_EQ(spec.selection_note().find("generate"), std::string::npos);
  EXPECT_EQ(spec.no_generation_reason(), "");
  // one part that cannot is enough
  EXPECT_THAT(read(kPredicted + "," + kLimited).no_generation_reason(), HasSubstr("limited_room"));
}

TEST(Selection, OfReformerIsSaidAndDecodesByWholePasses) {
  const ModelSpec spec = read(kHashed);
  EXPECT_THAT(spec.selection_note(), HasSubstr("lsh_attention: what a token sees"));
  EXPECT_EQ(spec.no_generation_reason(), "");
}

TEST(Selection, IsNoMatterWithoutAFuture) {
  EXPECT_EQ(read(kPlain).selection_note(), "");
  EXPECT_EQ(read(kPlain).no_generation_reason(), "");
  EXPECT_EQ(read(kLimited, "encoder").selection_note(), "");  // sees everything anyway
}

TEST(RecordedSteps, APartMaySayWhyItHasNone) {
  const auto reason = [](const std::string& layers, spec::KvType type = spec::KvType::f32) {
    return read(layers).not_recorded_reason(type);
  };
  const std::string attention =
      R"({"mixer": {"type": "attention", "n_heads": 2}, "ffn": {"type": "mlp", "d_hidden": 8}})";
  EXPECT_EQ(reason(attention), "");
  EXPECT_EQ(reason(attention, spec::KvType::f16), "");
  EXPECT_EQ(reason(attention, spec::KvType::int8), "a KV cache of type int8");
  EXPECT_EQ(reason(R"({"mixer": {"type": "attention", "n_heads": 2, "pattern": {"type": "window",
                                 "width": 4}}, "ffn": {"type": "mlp", "d_hidden": 8}})"),
            "");
  EXPECT_EQ(reason(R"({"mixer": {"type": "attention", "n_heads": 2, "pattern": {"type": "strided",
                                 "stride": 4}}, "ffn": {"type": "mlp", "d_hidden": 8}})"),
            "pattern \"strided\" has no recorded step");
  EXPECT_EQ(reason(R"({"mixer": {"type": "attention", "n_heads": 2, "temperature": {"scale": 0.1}},
                       "ffn": {"type": "mlp", "d_hidden": 8}})"),
            "mixer \"attention\": its temperature is computed from positions on the host");
  EXPECT_EQ(reason(R"({"mixer": {"type": "attention", "n_heads": 2, "position": {"type": "rope",
                       "scaling": {"type": "dynamic", "factor": 2, "original_length": 8}}},
                       "ffn": {"type": "mlp", "d_hidden": 8}})"),
            "position \"rope\": its angles change with the length");
  EXPECT_EQ(reason(R"({"mixer": {"type": "attention", "n_heads": 2},
                       "ffn": {"type": "moe", "n_experts": 4, "router": {"type": "top_k", "k": 2},
                               "expert": {"type": "mlp", "d_hidden": 8}}})"),
            "ffn \"moe\" has no recorded step");
}

}  // namespace
}  // namespace tessera::model
