// The list of heads: what it accepts, refuses and writes.
#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/nn/head/head_list.h"
#include "tessera/nn/registry.h"

namespace tessera::nn::heads_plain_test {
namespace {

using spec::Json;

class Heads : public testing::Test {
 protected:
  void SetUp() override {
    register_mechanisms();
    scope_.d_model = 8;
    scope_.width = 8;
    scope_.vocab = 11;
    scope_.causal = false;
    embed_ = spec::read_part(spec::Slot::embed, "token", scope_);
  }
  HeadList read(const char* text) const {
    return read_heads(spec::parse_json(text, "test"), nullptr, embed_, scope_);
  }
  std::string refusal(const char* text) const {
    return test::error_of([&] { read(text); });
  }
  static Json dump(const HeadList& heads) {
    Json json = Json::object();
    dump_heads(heads, json);
    return json;
  }

  spec::Scope scope_;
  spec::AnyPart embed_;
};

TEST_F(Heads, OneOrSeveral) {
  EXPECT_EQ(read(R"({"head": "tied"})").logits.type(), "tied");
  EXPECT_FALSE(read(R"({"head": null})").logits);
  EXPECT_FALSE(read("{}").logits);
  EXPECT_EQ(read(R"({"head": "pooler"})").pooler.type(), "pooler");
  const HeadList both = read(R"({"heads": ["pooler", {"type": "classifier", "n_labels": 3}]})");
  EXPECT_EQ(both.logits.type(), "classifier");
  EXPECT_EQ(both.pooler.type(), "pooler");
  // two words for one pooling; the first is what is written
  const HeadList cls = read(R"({"head": {"type": "pooler", "of": "cls"}})"),
                 first = read(R"({"head": {"type": "pooler", "of": "first"}})");
  EXPECT_EQ(spec::dump_part(cls.pooler), spec::dump_part(first.pooler));
  EXPECT_EQ(spec::dump_part(cls.pooler)["of"], "first");
  EXPECT_TRUE(read(R"({"heads": []})").logits.mechanism == nullptr);
}

TEST_F(Heads, WrittenAsTheyAreRead) {
  for (const char* text : {R"({"head": null})", R"({"head": "masked_lm"})",
                           R"({"heads": ["masked_lm", "pooler"]})", R"({"heads": ["pooler"]})"}) {
    const Json written = dump(read(text));
    EXPECT_EQ(dump(read(written.dump().c_str())), written) << text;
    EXPECT_EQ(written.contains("heads"),
              std::string_view(text).find("pooler") != std::string::npos);
  }
}

TEST_F(Heads, RefusesWhatDoesNotFit) {
  EXPECT_EQ(refusal(R"({"heads": ["tied", "linear"]})"),
            "[heads[1]] \"tied\" and \"linear\" both give logits; expected one of them");
  EXPECT_EQ(refusal(R"({"heads": ["pooler", "pooler"]})"),
            "[heads[1]] \"pooler\" and \"pooler\" both pool; expected one of them");
  EXPECT_EQ(refusal(R"({"heads": [{"type": "classifier", "n_labels": 3}]})"),
            "[heads] head \"classifier\" needs a pooler: add \"pooler\" to \"heads\"");
  EXPECT_EQ(refusal(R"({"head": "tied", "heads": []})"),
            "[heads] given together with \"head\"; expected one of them");
  EXPECT_EQ(refusal(R"({"heads": "tied"})").substr(0, 7), "[heads]");
  EXPECT_EQ(refusal(R"({"heads": [null]})"),
            R"([heads[0]] found null; expected a head: {"type": ...})");
  EXPECT_EQ(refusal(R"({"head": {"type": "tied", "width": 6}})"),
            "[head] \"tied\" multiplies vectors of width 6 by token vectors of width 8; give the "
            "head \"width\": 8");
}

TEST_F(Heads, ANormBelongsToALayerBeforeTheLogits) {
  for (const char* head : {R"({"head": {"type": "span", "norm": "layer_norm"}})",
                           R"({"heads": [{"type": "classifier", "n_labels": 3, "of": "tokens",
                                          "norm": "layer_norm"}]})"})
    EXPECT_NE(refusal(head).find("give \"transform\": true"), std::string::npos) << head;
  const HeadList whole = read(
      R"({"head": {"type": "span", "transform": true, "norm": "layer_norm", "transform_bias": false}})");
  spec::ParamList list;
  whole.logits.config->params(list, scope_);
  std::vector<std::string> names;
  for (const spec::ParamDecl& decl : list.all()) names.push_back(decl.name);
  EXPECT_EQ(names, (std::vector<std::string>{"transform.weight", "norm.weight", "norm.bias",
                                             "weight", "bias"}));
}

TEST_F(Heads, PoolersOfDecodersReadWhatHasSeenAll) {
  scope_.causal = true;
  EXPECT_EQ(
      refusal(R"({"head": "pooler"})"),
      "[head.of] \"first\" needs an encoder: a decoder's first token has seen nothing but itself; "
      "expected \"last\", \"mean\" or \"max\"");
  for (const char* of : {"last", "mean", "max"})
    EXPECT_TRUE(read(Json{{"head", {{"type", "pooler"}, {"of", of}}}}.dump().c_str()).pooler) << of;
  EXPECT_TRUE(read(R"({"head": {"type": "classifier", "n_labels": 2, "of": "tokens"}})").logits);
}

TEST_F(Heads, ClassesHaveANameEachOrNone) {
  const HeadList named = read(
      R"({"head": {"type": "classifier", "n_labels": 2, "of": "tokens", "labels": ["no", "yes"]}})");
  EXPECT_EQ(dump(named)["head"]["labels"], (Json{"no", "yes"}));
  EXPECT_EQ(
      refusal(
          R"({"head": {"type": "classifier", "n_labels": 2, "of": "tokens", "labels": ["no"]}})"),
      "[head.labels] 1 names; expected n_labels = 2, or none");
}

}  // namespace
}  // namespace tessera::nn::heads_plain_test
