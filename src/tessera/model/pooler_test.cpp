// What stands for a document, and classes of it, in encoders and decoders.
#include "tessera/model/model.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::model::pooler_test {
namespace {

using ops::gen;
using Rows = std::vector<std::vector<int64_t>>;

ModelSpec spec_of(const char* arch, const Json& pooler, const Json& head = nullptr) {
  Json json = spec::parse_json(R"({
    "tessera": 1, "vocab": 13, "d_model": 8,
    "mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
    "ffn": {"type": "glu", "d_hidden": 12}, "layers": [{"repeat": 2}]})",
                               "test");
  json["arch"] = arch;
  json["heads"] = Json::array({pooler});
  if (!head.is_null()) json["heads"].push_back(head);
  return read_model_spec(json);
}

Json bare(const char* of) {
  return {{"type", "pooler"}, {"dense", false}, {"act", "identity"}, {"of", of}};
}

TEST(Pooler, TakesOneVectorOfEachDocument) {
  const nn::Batch batch = nn::Batch::of(Rows{{1, 2, 3}, {4}, {5, 6}});
  const Tensor h_ND = gen({6, 8}, 0.7, 0.2).to(at::kFloat);
  const auto rows = [&](int64_t begin, int64_t n) { return h_ND.narrow(0, begin, n); };
  const auto pooled = [&](const char* of) {
    const ModelSpec spec = spec_of("encoder", bare(of));
    return Model(spec, Weights::initial(spec, 1)).pooled(h_ND, batch);
  };
  EXPECT_TRUE(at::equal(pooled("first"), at::cat({rows(0, 1), rows(3, 1), rows(4, 1)})));
  EXPECT_TRUE(at::equal(pooled("last"), at::cat({rows(2, 1), rows(3, 1), rows(5, 1)})));
  const auto each = [&](auto&& of) {
    return at::stack({of(rows(0, 3)), of(rows(3, 1)), of(rows(4, 2))});
  };
  EXPECT_TRUE(at::allclose(pooled("mean"), each([](const Tensor& h) { return h.mean(0); })));
  EXPECT_TRUE(at::equal(pooled("max"), each([](const Tensor& h) { return h.amax(0); })));
}

TEST(Pooler, OfADecoderItsOwnLastTokenAloneOrAmongOthers) {
  const ModelSpec spec =
      spec_of("decoder", bare("last"), {{"type", "classifier"}, {"n_labels", 3}, {"bias", false}});
  const Model model(spec, Weights::initial(spec, 2));
  const auto classes = [&](const Rows& rows) {
    const nn::Batch batch = nn::Batch::of(rows);
    const at::NoGradGuard no_gradients;
    return model.logits(model.pooled(model.hidden(batch), batch));
  };
  const Rows rows = {{1, 2, 3, 4, 5}, {6}, {7, 8, 9}};
  const Tensor all = classes(rows);
  ASSERT_EQ(all.sizes(), (std::vector<int64_t>{3, 3}));
  for (size_t i = 0; i < rows.size(); ++i)
    EXPECT_TRUE(at::equal(classes({rows[i]})[0], all[static_cast<int64_t>(i)]));
  // what stands before the last token counts
  EXPECT_FALSE(at::equal(classes({{2, 2, 3, 4, 5}})[0], all[0]));
  EXPECT_FALSE(model.has_head());
}

}  // namespace
}  // namespace tessera::model::pooler_test
