#include "tessera/train/recipe/recipe.h"

#include "tessera/train/recipe/recipe_defaults.h"

#include "tessera/train/train_testing.h"

namespace tessera::train::recipe_test {
namespace {

std::string spec_error(const std::vector<std::string>& overrides) {
  return test::error_of(ErrorKind::spec,
                        [&] { read_recipe(tiny_recipe("a.txt"), "/data", overrides); });
}

TEST(Recipe, DefaultsThatChangeGradientsOrSamplesAreSaid) {
  Json json = tiny_recipe("a.txt");
  json["schedule"] = {{"warmup", 2}};
  EXPECT_EQ(defaults_in_force(read_recipe(json, "")),
            "defaults in force: gradients clipped at norm 1 (train.clip_norm), weight decay 0.1 "
            "(optimizer.weight_decay), cosine schedule down to 0.1 of the rate (schedule)");
  json["train"]["clip_norm"] = 1;
  json["optimizer"]["weight_decay"] = 0.1;
  json["schedule"]["type"] = "cosine";
  EXPECT_EQ(defaults_in_force(read_recipe(json, "")), "");
}

TEST(Recipe, PathsAreRelativeToItsFolder) {
  const Recipe recipe = read_recipe(tiny_recipe("a.txt"), "/data/run", {"data.tokenizer=../tok"});
  EXPECT_EQ(recipe.data.files().train, std::vector<std::string>{"/data/run/a.txt"});
  EXPECT_EQ(recipe.data.tokenizer(), "/data/tok");
}

TEST(Recipe, ResolvedReadsBackEqual) {
  const Json once = resolve(read_recipe(tiny_recipe("a.txt"), "/data"));
  EXPECT_EQ(resolve(read_recipe(once, "")), once) << once.dump(2);
  EXPECT_EQ(once["optimizer"]["betas"], Json({0.9, 0.95}));
}

TEST(Recipe, SpecFromAFileWithOverridesInside) {
  const TemporaryFolder folder;
  Json json = tiny_recipe("a.txt");
  folder.write("model.json", "// a comment\n" + json["spec"].dump());
  json["spec"] = "model.json";
  folder.write("recipe.json", json.dump());
  const Recipe recipe = load_recipe(
      folder / "recipe.json", {"spec.layers[0].repeat=3", "optimizer.lr=0.5", "train.steps=7"});
  EXPECT_EQ(recipe.spec.layers.size(), 3u);
  EXPECT_EQ(recipe.optimizer.lr, 0.5);
  EXPECT_EQ(recipe.train.steps, 7);
}

TEST(Recipe, ExtendsAnother) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "deep/er");
  Json base = tiny_recipe("a.txt");
  folder.write("base.json", "// shared\n" + base.dump());
  folder.write("deep/middle.json", R"({"extends": "../base.json", "data": {"tokenizer": "tok"},
                                       "optimizer": {"lr": 0.5}})");
  folder.write("deep/er/recipe.json", R"({"extends": "../middle.json",
    "data": {"train": ["b.txt"], "valid_fraction": null},
    "spec": {"layers": [{"repeat": 3, "mixer": {"type": "linear_attention", "n_heads": 2}}]}})");
  const Recipe recipe = load_recipe(folder / "deep/er/recipe.json", {"spec.ffn.d_hidden=48"});
  EXPECT_EQ(recipe.spec.layers.size(), 3u);
  EXPECT_EQ(recipe.spec.d_model, 16);
  EXPECT_EQ(recipe.optimizer.lr, 0.5);
  EXPECT_EQ(recipe.data.files().valid_fraction, 0);
  // every path is relative to the file it stands in
  EXPECT_EQ(recipe.data.files().train,
            std::vector<std::string>{(folder / "deep/er/b.txt").string()});
  EXPECT_EQ(recipe.data.tokenizer(), (folder / "deep/tok").string());
  EXPECT_EQ(load_recipe(folder / "deep/middle.json").data.files().train,
            std::vector<std::string>{(folder / "a.txt").string()});
  // the same from where the command line stands
  EXPECT_EQ(
      load_recipe(std::filesystem::relative(folder / "deep/er/recipe.json")).data.files().train,
      recipe.data.files().train);
  // and by its bare name
  const auto here = std::filesystem::current_path();
  std::filesystem::current_path(folder / "deep");
  EXPECT_EQ(load_recipe("middle.json").data.tokenizer(), (folder / "deep/tok").string());
  std::filesystem::current_path(here);

  folder.write("loop.json", R"({"extends": "loop.json"})");
  expect_error(ErrorKind::spec, "[extends] more than 8",
               [&] { load_recipe(folder / "loop.json"); });
  folder.write("list.json", R"({"extends": ["base.json"]})");
  expect_error(ErrorKind::spec, "[extends] found a", [&] { load_recipe(folder / "list.json"); });
}

TEST(Recipe, ErrorsNamePathAndRemedy) {
  EXPECT_NE(
      spec_error({"lr=1"}).find("[recipe] unknown key \"lr\" (did you mean \"optimizer.lr\"?)"),
      std::string::npos);
  EXPECT_NE(
      spec_error({"train.step=3"}).find("[train] unknown key \"step\" (did you mean \"steps\"?)"),
      std::string::npos);
  EXPECT_NE(spec_error({"optimizer.lr=fast"}).find("[optimizer.lr] found a string"),
            std::string::npos);
  EXPECT_NE(spec_error({"schedule.type=cosin"}).find("did you mean \"cosine\"?"),
            std::string::npos);
  EXPECT_NE(spec_error({"schedule.type=cosine", "schedule.decay_fraction=0.3"})
                .find("[schedule] unknown key \"decay_fraction\""),
            std::string::npos);
  EXPECT_NE(spec_error({"schedule.type=cosine", "schedule.cycle=2"})
                .find("[schedule] unknown key \"cycle\" (did you mean \"cycles\"?)"),
            std::string::npos);
  EXPECT_NE(spec_error({"adapter.type=prefix", "adapter.rank=4"})
                .find("[adapter] unknown key \"rank\"; valid keys: tokens, save"),
            std::string::npos);
  EXPECT_NE(spec_error({"optimizer.betas=[0.9,1]"})
                .find("[optimizer.betas[1]] found 1; expected less than 1"),
            std::string::npos);
  for (const char* wrong :
       {"data.valid_fraction=1", "schedule.warmup_fraction=1.5", "schedule.final_fraction=1.5"})
    EXPECT_NE(spec_error({wrong}).find("expected "), std::string::npos) << wrong;
  EXPECT_NE(spec_error({"schedule.type=wsd", "schedule.decay_fraction=1.5"})
                .find("[schedule.decay_fraction] found 1.5; expected at most 1"),
            std::string::npos);
  EXPECT_NE(spec_error({"train.batch=0"}).find("[train.batch] found 0; expected at least 1"),
            std::string::npos);
  EXPECT_NE(spec_error({"train.batch=4611686018427387904"}).find("[train.batch]"),
            std::string::npos);
  for (const auto& [key, most] : {std::pair("train.threads", "4096"),
                                  {"train.length", "2147483648"},
                                  {"train.accumulate", "2147483648"},
                                  {"train.curriculum.from", "2147483648"},
                                  {"train.steps", "1099511627776"},
                                  {"train.eval_every", "1099511627776"},
                                  {"checkpoint.keep", "1099511627776"},
                                  {"schedule.warmup", "1099511627776"}})
    EXPECT_NE(
        spec_error({fmt::format("{}=4611686018427387904", key)})
            .find(fmt::format("[{}] found 4611686018427387904; expected at most {}", key, most)),
        std::string::npos)
        << key;
  EXPECT_NE(spec_error({"optimizer.lr=1e300"})
                .find("[optimizer.lr] found 1e+300; expected a magnitude of at most"),
            std::string::npos);
  EXPECT_NE(spec_error({"data.valid=[\"b\"]"}).find("[data.valid_fraction] given together"),
            std::string::npos);
  EXPECT_NE(spec_error({"data.train=[]"}).find("[data.train] no files"), std::string::npos);
  EXPECT_NE(spec_error({"schedule.warmup=9", "schedule.warmup_fraction=0.5"})
                .find("[schedule.warmup_fraction] given together with warmup"),
            std::string::npos);
  EXPECT_NE(spec_error({"spec.layers[0].mixer.n_heads=7"}).find("does not divide"),
            std::string::npos);
  EXPECT_NE(spec_error({"train.l2_wrap=-1"}).find("[train.l2_wrap] found -1; expected at least 0"),
            std::string::npos);
  EXPECT_NE(
      spec_error({"train.l2_wrap=1e-4", "spec.head=null"}).find("[spec.head] missing; a model"),
      std::string::npos);
  EXPECT_NE(spec_error({"train.l2_wrap=1e-4", "spec.head=null", "spec.arch=encoder"})
                .find("[spec.arch] \"encoder\" cannot be trained to predict the next token"),
            std::string::npos);
}

TEST(Recipe, AnInitWithoutASpecIsReadFirst) {
  const auto error = [](const char* init) -> std::string {
    try {
      read_recipe(spec::parse_json(fmt::format(R"({{"init": {}}})", init), "recipe"), {}, {});
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(error(R"({"form": "a"})").find("[init] unknown key \"form\" (did you mean \"from\"?)"),
            std::string::npos);
  EXPECT_NE(error("7").find("[init]"), std::string::npos);
  EXPECT_NE(error("{}").find("from"), std::string::npos);
  EXPECT_NE(error("null").find("[recipe] \"spec\" is missing"), std::string::npos);
}

TEST(Recipe, DifferencesThatMatterAreNamed) {
  const auto resolved = [](const std::vector<std::string>& overrides) {
    return resolve(read_recipe(tiny_recipe("a.txt"), "/data", overrides));
  };
  const Json before = resolved({});
  EXPECT_EQ(differing_key(before, resolved({"optimizer.lr=0.02"})), "optimizer.lr");
  EXPECT_EQ(differing_key(before, resolved({"train.seed=1"})), "train.seed");
  EXPECT_EQ(differing_key(before, resolved({"spec.ffn.d_hidden=48"})),
            "spec.layers[0].branches[1].ffn.d_hidden");
  EXPECT_EQ(differing_key(before, resolved({"train.steps=99"})), "train.steps");
  EXPECT_EQ(differing_key(before, resolved({"train.log_every=7", "checkpoint.keep=9",
                                            "train.threads=1", "data.train=[\"b.txt\"]"})),
            "");
  // a constant rate does not depend on where the run ends
  const Json constant = resolved({R"(schedule={"type":"constant"})"});
  EXPECT_EQ(
      differing_key(constant, resolved({R"(schedule={"type":"constant"})", "train.steps=99"})), "");
  // what a file holds may be anything
  for (const char* text : {"[]", "{}", R"({"schedule": [1]})", R"({"schedule": {"type": 2}})"})
    EXPECT_NE(differing_key(json_of(text), constant), "") << text;
}

TEST(Recipe, KeysToIgnoreNeedAModel) {
  expect_error(ErrorKind::usage, "--ignore-key logit_scale: the recipe opens no model; expected",
               [] {
                 read_recipe(spec::parse_json(R"({"data": {"train": ["a"]}})", "test"), "", {},
                             {"logit_scale"});
               });
}

}  // namespace
}  // namespace tessera::train::recipe_test
