#include "tessera/train/recipe/aliases.h"

#include "tessera/train/recipe/recipe.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::aliases_test {
namespace {

Json resolved(const Json& json, const std::vector<std::string>& overrides = {}) {
  return resolve(read_recipe(json, "", overrides));
}

TEST(RecipeAliases, AreReadAsTheKeptNames) {
  Json kept = tiny_recipe("a.txt");
  kept["data"]["valid_fraction"] = 0.5;
  Json named = kept;
  kept["train"]["accumulate"] = 3;
  kept["train"]["clip_norm"] = 0.5;
  kept["train"]["recompute"] = {{"of", "layers"}};
  kept["optimizer"]["average"] = {{"decay", 0.99}};
  kept["stop"] = {{"patience", 2}, {"reach", 1.5}};
  named["train"]["gradient_accumulation"] = 3;
  named["train"]["max_grad_norm"] = 0.5;
  named["train"]["gradient_checkpointing"] = true;
  named["train"]["sequence_length"] = named["train"]["length"];
  named["train"].erase("length");
  named["optimizer"]["ema"] = {{"decay", 0.99}};
  named["early_stopping"] = {{"patience", 2}, {"target", 1.5}};
  EXPECT_EQ(resolved(named), resolved(kept));
  const Json train = resolved(named)["train"];
  EXPECT_EQ(train["accumulate"], 3);
  EXPECT_EQ(train["recompute"]["of"], "layers");
  EXPECT_FALSE(train.contains("gradient_accumulation"));
}

TEST(RecipeAliases, AValueIsReadAsTheKeptOne) {
  Json kept = tiny_recipe("a.txt"), named = kept;
  for (Json* recipe : {&kept, &named}) (*recipe)["train"]["carry_limit"] = 64;
  kept["train"]["windows"] = "carried";
  named["train"]["windows"] = "tbptt";
  EXPECT_EQ(resolved(named), resolved(kept));
}

TEST(RecipeAliases, EveryOneIsRenamed) {
  for (const RecipeAlias& name : recipe_aliases()) {
    Json recipe = {{"train", Json::object()},
                   {"optimizer", Json::object()},
                   {"stop", Json::object()},
                   {"objective", Json::object()}};
    if (*name.section == '\0') recipe.erase(name.kept);
    Json& section = *name.section == '\0' ? recipe : recipe[name.section];
    const bool value = *name.key != '\0';
    section[value ? name.key : name.alias] = value ? Json(name.alias) : Json(7);
    use_kept_names(recipe);
    const Json& after = *name.section == '\0' ? recipe : recipe[name.section];
    EXPECT_EQ(after[value ? name.key : name.kept], value ? Json(name.kept) : Json(7)) << name.alias;
    EXPECT_FALSE(after.contains(name.alias)) << name.alias;
  }
}

TEST(RecipeAliases, BothNamesOfAKeyAreRefused) {
  Json json = tiny_recipe("a.txt");
  json["train"]["clip_norm"] = 1;
  json["train"]["max_grad_norm"] = 2;
  const std::string error = test::error_of(ErrorKind::spec, [&] { read_recipe(json, ""); });
  EXPECT_EQ(error,
            "[train.clip_norm] \"max_grad_norm\" is another name of it, and both are given; leave "
            "one of them out");
}

TEST(RecipeAliases, OverridesAndDerivedRecipesMayUseEither) {
  Json json = tiny_recipe("a.txt");
  json["train"]["accumulate"] = 2;
  EXPECT_EQ(resolved(json, {"train.gradient_accumulation=4"})["train"]["accumulate"], 4);
  EXPECT_EQ(resolved(json, {"train.gradient_checkpointing=true"})["train"]["recompute"]["of"],
            "layers");
  const TemporaryFolder folder;
  folder.write("base.json", json.dump());
  folder.write("recipe.json", R"({"extends": "base.json", "train": {"gradient_accumulation": 8}})");
  EXPECT_EQ(resolve(load_recipe(folder / "recipe.json", {}))["train"]["accumulate"], 8);
}

}  // namespace
}  // namespace tessera::train::aliases_test
