// Training of encoders by tokens in an order that is drawn, and the attention of two streams
// (nn/token_order.h).
#include "tessera/infer/loading/load_model.h"
#include "tessera/ops/ops_testing.h"
#include "tessera/train/loop/batch_tensors.h"
#include "tessera/train/loop/trainer.h"
#include "tessera/train/objective/loss.h"
#include "tessera/train/objective/objective.h"
#include "tessera/train/objective/permutation/permutation_objective.h"
#include "tessera/train/runs/run_folder.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::permutation_test {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int64_t>;

/// A text whose tokens with a rank are asked for.
PackedBatch in_order(const Ids& ids, const Ids& ranks, int64_t mask_id) {
  PackedBatch text;
  text.ids = ids;
  for (size_t i = 0; i < ids.size(); ++i) text.targets.push_back(ranks[i] > 0 ? ids[i] : -1);
  text.pieces.push_back({0, 0, static_cast<int64_t>(std::ssize(ids))});
  return with_queries(text, ranks, mask_id);
}

void append(PackedBatch& to, const PackedBatch& one) {
  PackedDocument piece = one.pieces.front();
  piece.begin = std::ssize(to.ids);
  piece.row = std::ssize(to.pieces);
  to.pieces.push_back(piece);
  to.ids.insert(to.ids.end(), one.ids.begin(), one.ids.end());
  to.targets.insert(to.targets.end(), one.targets.begin(), one.targets.end());
  to.orders.push_back(one.orders.front());
}

/// The logits of what a batch asks for.
Tensor logits_of(const model::Model& model, const PackedBatch& packed) {
  const Tensor asked = (targets_of(packed) >= 0).nonzero().flatten();
  return model.logits(hidden_of(model, packed, batch_of(packed), {}).index_select(0, asked));
}

TEST(Permutation, QueriesStandBehindTheirText) {
  PackedBatch text;
  text.ids = {5, 6, 7, 8, 9};
  text.targets = {-1, 6, 7, -1, -1};
  text.pieces = {{0, 0, 3}, {0, 3, 2}};
  const PackedBatch out = with_queries(text, {0, 2, 1, 0, 0}, 99);
  EXPECT_EQ(out.ids, (Ids{5, 6, 7, 99, 99, 8, 9}));
  EXPECT_EQ(out.targets, (Ids{-1, -1, -1, 6, 7, -1, -1}));
  EXPECT_EQ(out.n_targets, 2);
  ASSERT_EQ(out.pieces.size(), 2u);
  EXPECT_EQ(out.pieces[1].begin, 5);
  EXPECT_EQ(out.pieces[0].length, 5);
  EXPECT_EQ(out.orders[0]->places, (Ids{1, 2}));
  EXPECT_EQ(out.orders[1]->queries(), 0);
  const nn::Batch batch = batch_of(out);
  EXPECT_EQ(batch.longest(), 3);
  EXPECT_TRUE(batch.positions_N.equal(at::tensor(Ids{0, 1, 2, 1, 2, 0, 1}, at::kLong)));
}

TEST(Permutation, GoldenOfXlNet) {
  const fs::path golden = fs::path(TESSERA_SOURCE_DIR) / "tests/golden";
  const Json facts = spec::read_json_file(golden / "permutation.json");
  const infer::LoadedModel loaded = infer::load_model(golden / "families/xlnet/base");
  // without gradients by kernels, with them by operations of tensors
  std::map<std::string, model::WeightPtr> weights;
  for (const auto& [decl, weight] : loaded.model.weights().all())
    weights[decl.name] = std::make_shared<const ops::Weight>(
        ops::Weight::dense(decl.name, weight->tensor().clone().requires_grad_(true)));
  const model::Model learns(loaded.model.spec(),
                            model::Weights::check(loaded.model.spec(), std::move(weights)));
  PackedBatch all;
  std::vector<Tensor> wanted;
  for (const Json& one : facts["cases"]) {
    const PackedBatch packed =
        in_order(one["ids"].get<Ids>(), one["ranks"].get<Ids>(), facts["mask_id"].get<int64_t>());
    std::vector<Tensor> rows;
    for (const Json& row : one["logits"]) rows.push_back(at::tensor(row.get<std::vector<float>>()));
    wanted.push_back(at::stack(rows));
    {
      const at::NoGradGuard no_gradients;
      ops::expect_near(logits_of(loaded.model, packed), wanted.back(), 1e-4);
    }
    ops::expect_near(logits_of(learns, packed), wanted.back(), 1e-4);
    Tensor logits = logits_of(learns, packed).detach();
    Ids targets;
    for (const int64_t target : packed.targets)
      if (target >= 0) targets.push_back(target);
    const TokenLosses sums = cross_entropy_(logits, at::tensor(targets, at::kLong), {});
    EXPECT_NEAR(sums.nll / static_cast<double>(targets.size()), one["nll"].get<double>(), 1e-5);
    append(all, packed);
  }
  ASSERT_EQ(wanted.size(), 4u);
  const at::NoGradGuard no_gradients;
  ops::expect_near(logits_of(loaded.model, all), at::cat(wanted), 1e-4);
}

struct Setting {
  TemporaryFolder folder;
  Json json = tiny_recipe(folder.write("a.txt", counting_text(4000)));

  Setting() {
    json["spec"]["arch"] = "encoder";
    json["spec"]["vocab"] = 257;
    json["spec"]["head"] = {{"type", "masked_lm"}};
    json["objective"] = {{"type", "permutation"}, {"mask_id", 256}, {"rate", 0.25}};
  }
  Recipe recipe(const std::vector<std::string>& changes = {}) const {
    return read_recipe(json, "", changes);
  }
  model::Model in_double(const std::vector<std::string>& changes = {}) const {
    const Recipe own = recipe(changes);
    return {own.spec, model::Weights::initial(own.spec, 3, at::kDouble)};
  }
};

TEST(Permutation, NobodyHearsOfWhatIsGivenLater) {
  const Setting s;
  const Ids ids = {40, 41, 42, 43, 44, 45, 46, 47}, ranks = {0, 3, 0, 1, 4, 0, 2, 0};
  for (const char* position :
       {R"("rope")", R"("t5")", R"("xl")", R"({"type": "deberta", "max_relative": 4})"}) {
    SCOPED_TRACE(position);
    const model::Model model =
        s.in_double({fmt::format("spec.layers[0].mixer.position={}", position)});
    const auto asked = [&](const Ids& text) {
      return logits_of(model, in_order(text, ranks, 256));
    };
    const Tensor before = asked(ids);
    for (size_t i = 0; i < ids.size(); ++i) {
      Ids other = ids;
      other[i] = 200;
      const Tensor after = asked(other);
      int64_t m = 0;
      for (const int64_t rank : ranks) {
        if (rank == 0) continue;
        // tokens of rank 0 are known to all, others to those behind them
        EXPECT_EQ(before[m].equal(after[m]), rank <= ranks[i])
            << "token " << i << ", rank " << rank;
        ++m;
      }
    }
  }
}

TEST(Permutation, GradientsAreThoseOfTheLoss) {
  const Setting s;
  const model::Model model = s.in_double();
  const PackedBatch packed = in_order({40, 41, 42, 43, 44, 45, 46}, {0, 3, 0, 1, 0, 4, 2}, 256);
  const nn::Batch batch = batch_of(packed);
  const auto loss = [&] {
    const at::NoGradGuard no_gradients;
    Tensor logits = logits_of(model, packed);
    Ids targets;
    for (const int64_t target : packed.targets)
      if (target >= 0) targets.push_back(target);
    return cross_entropy_(logits, at::tensor(targets, at::kLong), {}).nll;
  };
  for (const auto& [decl, weight] : model.weights().all())
    Tensor(weight->dense_tensor()).requires_grad_(true);
  loss_and_backward(model, model.hidden(batch), targets_of(packed), {.scale = 1});
  for (const char* name : {"embed.token.weight", "layers.0.mixer.k.weight",
                           "layers.1.mixer.q.weight", "layers.0.ffn.down.weight"}) {
    const Tensor weight = model.weights().find(name)->dense_tensor();
    const Tensor direction = 0.01 * ops::gen(weight.sizes().vec(), 0.7, 0.1).to(at::kDouble);
    const double along = (weight.grad() * direction).sum().item<double>();
    const auto moved = [&](double by) {
      const at::NoGradGuard no_gradients;
      Tensor(weight).add_(direction, by);
      const double out = loss();
      Tensor(weight).add_(direction, -by);
      return out;
    };
    constexpr double kStep = 1e-5;
    EXPECT_NEAR((moved(kStep) - moved(-kStep)) / (2 * kStep), along, 1e-7 * (1 + std::abs(along)))
        << name;
  }
}

TEST(Permutation, ATextAloneIsTheSameAmongOthers) {
  const Setting s;
  const model::Model model = s.in_double();
  PackedBatch all;
  std::vector<Tensor> alone;
  for (const int64_t n : {1, 7, 63}) {
    Ids ids, ranks;
    for (int64_t i = 0; i < n; ++i) {
      ids.push_back((i * 37 + n) % 256);
      ranks.push_back(i % 3 == 0 ? i / 3 + 1 : 0);
    }
    const PackedBatch one = in_order(ids, ranks, 256);
    alone.push_back(logits_of(model, one));
    append(all, one);
  }
  EXPECT_TRUE(at::allclose(logits_of(model, all), at::cat(alone), 0, 1e-10));
}

TEST(Permutation, OrdersAreAFunctionOfTheSampleAndInWhatIsHeldOutOfNothingElse) {
  Setting s;
  const auto one = open_objective(s.recipe(), s.folder / "cache");
  s.json["train"]["seed"] = 2;
  const auto other = open_objective(s.recipe(), s.folder / "cache");
  EXPECT_EQ(one->name(), "permutation");
  std::vector<int64_t> begun;
  const PackedBatch all = one->source().train(8, 4, begun),
                    last = one->source().train(11, 1, begun);
  EXPECT_EQ(all.n_targets, 16);
  EXPECT_EQ(all.ids.size(), 4u * 20);
  EXPECT_EQ(one->denominators(all).of("loss"), 16);
  EXPECT_EQ(all.orders.back()->ranks, last.orders.back()->ranks);
  Ids ranks = last.orders.back()->ranks;
  std::sort(ranks.begin(), ranks.end());
  EXPECT_EQ(Ids(ranks.end() - 5, ranks.end()), (Ids{0, 1, 2, 3, 4}));
  const PackedBatch held = one->source().valid({0, 5}), of_other = other->source().valid({0, 5});
  EXPECT_EQ(held.ids, of_other.ids);
  EXPECT_EQ(held.orders.back()->ranks, of_other.orders.back()->ranks);
  EXPECT_NE(all.orders.back()->ranks, other->source().train(8, 4, begun).orders.back()->ranks);
  EXPECT_NE(all.orders.front()->ranks, all.orders.back()->ranks);
}

TEST(Permutation, WhatWouldHearOfOthersIsRefused) {
  const Setting s;
  const auto refused = [&](const std::string& change, const char* what) {
    SCOPED_TRACE(change);
    expect_error(ErrorKind::spec, what, [&] { s.recipe({change}); });
  };
  refused(
      "spec.layers[0].mixer={\"type\": \"linear_attention\", \"n_heads\": 2}",
      "\"linear_attention\" does not support an order of tokens; objective \"permutation\" needs");
  refused("spec.layers[0].mixer.pattern={\"type\": \"window\", \"width\": 4}",
          "\"window\" is a pattern of its own");
  refused(
      "spec.embed={\"type\": \"token\", \"position\": {\"type\": \"convolutional\", \"kernel\": 3, "
      "\"groups\": 1}}",
      "\"convolutional\" reads the tokens between");
  refused("spec.arch=\"decoder\"", "\"permutation\" with arch \"decoder\"");
  refused("objective.rate=2", "[objective.rate]");
  refused("objective.mask_id=257",
          "[objective.mask_id] found 257; the spec has a vocabulary of 257");
  refused("objective.mask=0.8", "mask");
}

TEST(Permutation, LearnsAndGoesOnWithTheSameBits) {
  Setting s;
  s.json["spec"]["layers"][0]["mixer"]["dropout"] = 0.1;
  s.json["train"]["steps"] = 60;
  s.json["train"]["accumulate"] = 2;
  s.json["checkpoint"]["every"] = 25;
  const Recipe recipe = s.recipe();
  const TrainResult whole = train(recipe, s.folder / "whole", {});
  ASSERT_TRUE(whole.last && whole.last->valid_loss && whole.last->accuracy);
  // eleven characters: ln 11 is what their number alone gives
  EXPECT_LT(*whole.last->valid_loss, 2.397895);

  CancelToken cancel;
  const auto stop = [&](const LogLine& line, int64_t) {
    if (line.step == 31) cancel.request(15);
  };
  expect_error(ErrorKind::cancelled, "",
               [&] { train(recipe, s.folder / "cut", {.cancel = &cancel, .on_step = stop}); });
  train(recipe, s.folder / "cut", {.resume = true});
  s.json["train"]["recompute"] = {{"of", "layers"}};
  train(s.recipe(), s.folder / "again", {});
  for (const char* other : {"cut", "again"})
    for (const char* file : {"model.safetensors", "optimizer.safetensors"})
      EXPECT_TRUE(read_text_file(checkpoint_folder(s.folder / "whole", 60) / file) ==
                  read_text_file(checkpoint_folder(s.folder / other, 60) / file))
          << other << ": " << file;
}

}  // namespace
}  // namespace tessera::train::permutation_test
