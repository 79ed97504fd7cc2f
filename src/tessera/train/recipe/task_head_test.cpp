#include "tessera/train/recipe/task_head.h"

#include "tessera/train/train_testing.h"

namespace tessera::train::task_head_test {
namespace {

constexpr const char* kTwo = R"({"type": "classification", "labels": ["no", "yes"]})";

Json heads(const char* spec, const char* objective, bool replace = true) {
  return with_task_head(json_of(spec), json_of(objective), replace).spec.value("heads", Json());
}

TEST(TaskHead, TakesThePlaceOfAnother) {
  EXPECT_EQ(
      heads(R"({"arch": "encoder", "heads": ["masked_lm", "pooler"]})", kTwo),
      json_of(
          R"([{"type": "classifier", "n_labels": 2, "labels": ["no", "yes"]}, {"type": "pooler"}])"));
  EXPECT_EQ(heads(R"({"arch": "encoder", "head": null})", R"({"type": "regression"})"),
            json_of(R"([{"type": "classifier", "n_labels": 1}, {"type": "pooler"}])"));
  EXPECT_EQ(heads(R"({"arch": "decoder", "head": "tied"})", kTwo),
            json_of(R"([{"type": "classifier", "n_labels": 2, "labels": ["no", "yes"]},
                        {"type": "pooler", "of": "last", "dense": false, "act": "identity"}])"));
  EXPECT_EQ(
      heads(R"({"arch": "encoder", "heads": ["pooler"]})",
            R"({"type": "token_classification", "labels": ["O", "B-X", "I-X"]})"),
      json_of(
          R"([{"type": "classifier", "n_labels": 3, "of": "tokens", "labels": ["O", "B-X", "I-X"]}])"));
  EXPECT_EQ(heads(R"({"arch": "encoder"})", R"({"type": "question_answering"})"),
            json_of(R"([{"type": "span"}])"));
  EXPECT_EQ(heads(R"({"arch": "encoder", "heads": ["pooler"]})",
                  R"({"type": "classification", "labels": ["a", "b"], "pool": "mean"})")[1],
            json_of(R"({"type": "pooler", "of": "mean", "dense": false, "act": "identity"})"));
}

TEST(TaskHead, KeepsOneThatFits) {
  const char* spec = R"({"arch": "encoder",
      "heads": [{"type": "classifier", "n_labels": 2, "labels": ["no", "yes"]}, {"type": "pooler", "of": "mean"}]})";
  const TaskHead kept = with_task_head(json_of(spec), json_of(kTwo), true);
  EXPECT_EQ(kept.spec, json_of(spec));
  EXPECT_EQ(kept.note, "");
  // names are given to a head without them, and to the head of a spec of one's own
  for (const bool replace : {false, true})
    EXPECT_EQ(
        heads(
            R"({"arch": "encoder", "heads": [{"type": "classifier", "n_labels": 2}, {"type": "pooler"}]})",
            kTwo, replace)[0]["labels"],
        (Json{"no", "yes"}));
  // other names are other classes
  const TaskHead other = with_task_head(
      json_of(spec), json_of(R"({"type": "classification", "labels": ["bad", "good"]})"), true);
  EXPECT_EQ(other.note, "head \"classifier\" replaced by a new one: 2 classes");
  EXPECT_EQ(heads(R"({"arch": "encoder", "heads": ["masked_lm"]})", kTwo, false),
            json_of(R"(["masked_lm"])"));
}

TEST(TaskHead, Refuses) {
  expect_error(ErrorKind::spec, "another order than the model's", [] {
    heads(
        R"({"arch": "encoder", "heads": [{"type": "classifier", "n_labels": 2, "labels": ["yes", "no"]}, "pooler"]})",
        kTwo);
  });
  expect_error(ErrorKind::spec, "[objective.labels] missing",
               [] { heads(R"({"arch": "encoder"})", R"({"type": "classification"})"); });
}

}  // namespace
}  // namespace tessera::train::task_head_test
