// Every JSON example of the guides of specs, training and fine-tuning is read, as a spec, a recipe,
// a part of one, or an example of data.
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "tessera/nn/registry.h"
#include "tessera/train/data/chat_data.h"
#include "tessera/train/objective/contrastive/contrastive_recipe.h"
#include "tessera/train/objective/preference/preference_source.h"
#include "tessera/train/recipe/recipe.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::guide_test {
namespace {

struct Snippet {
  std::string where, text;
};

/// Indented blocks, and what stands between backquotes, that begin as JSON or as a key of it.
std::vector<Snippet> snippets(const std::string& page) {
  const std::string path = std::string(TESSERA_SOURCE_DIR) + "/docs/guide/" + page,
                    text = read_text_file(path);
  std::vector<Snippet> out;
  const auto add = [&](const std::string& found, int64_t line) {
    const bool key = found.starts_with('"') && found.find("\": ") != std::string::npos;
    if (found.starts_with("{\"") || found.starts_with("{ \"") || key)
      out.push_back({fmt::format("{}:{}", page, line), found});
  };
  std::string block;
  int64_t number = 0, begins = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.starts_with("    ")) {
      if (block.empty()) begins = number;
      block += line.substr(4) + "\n";
      continue;
    }
    add(block, begins);
    block.clear();
    for (size_t open = line.find('`'); open != line.npos;) {
      const size_t close = line.find('`', open + 1);
      if (close == line.npos) break;
      add(line.substr(open + 1, close - open - 1), number);
      open = line.find('`', close + 1);
    }
  }
  add(block, begins);
  return out;
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size())
    text.replace(at, from.size(), to);
}

/// What an example leaves open: other parts, other keys, a model.
std::string filled_in(std::string text) {
  replace_all(text, "\"mixer\": {...}", "\"mixer\": {\"type\": \"attention\", \"n_heads\": 4}");
  replace_all(text, "\"ffn\": {...}", "\"ffn\": {\"type\": \"glu\", \"d_hidden\": 64}");
  replace_all(text, "\"norm\": {...}", "\"norm\": \"rms_norm\"");
  replace_all(text, ", ...}", "}");
  replace_all(text, ", \"tokenizer\": ...", "");
  replace_all(text, "[...]", "[]");
  replace_all(text, ": MODEL", ": \"model\"");
  replace_all(text, ": N", ": 10");
  replace_all(text, ": T", ": 0.5");
  return text.find("base_d_model / d_model") == text.npos ? text : "";
}

Json base_spec() {
  return json_of(R"({"tessera": 1, "arch": "decoder", "vocab": 320, "d_model": 64,
      "mixer": {"type": "attention", "n_heads": 4, "position": "rope"},
      "ffn": {"type": "glu", "d_hidden": 64}, "layers": [{}, {}], "head": "tied"})");
}

Json base_recipe() {
  return {{"spec", base_spec()},
          {"data", {{"train", {"a.txt"}}, {"valid_fraction", 0.1}}},
          {"train",
           {{"steps", 5000}, {"batch", 4}, {"length", 64}, {"accumulate", 2}, {"eval_every", 10}}},
          {"optimizer", {{"lr", 0.001}}}};
}

/// Every name of a property in a schema.
void add_names(const Json& schema, std::set<std::string>& names) {
  if (schema.is_object())
    for (const auto& [key, value] : schema.items()) {
      if (key == "properties" && value.is_object())
        for (const auto& [name, inner] : value.items()) names.insert(name);
      add_names(value, names);
    }
  if (schema.is_array())
    for (const Json& one : schema) add_names(one, names);
}

class Guide : public testing::TestWithParam<const char*> {
 protected:
  Guide() {
    nn::register_mechanisms();
    add_names(model::spec_schema(), names_);
    add_names(recipe_schema(), names_);
  }

  /// A part of a spec, in its place.
  void read_in_spec(const std::string& key, const Json& value) {
    Json spec = base_spec();
    if (key == "head" || key == "heads") spec.erase("head");
    spec[key] = value;
    if (key == "init") spec["head"] = "linear";
    if (key == "embed" && value.is_object() && value.value("type", "") == "patches") {
      spec["arch"] = "encoder";
      spec["vocab"] = 1;
      spec["head"] = nullptr;
      spec["mixer"].erase("position");
    }
    model::read_model_spec(spec);
  }

  /// A section of a recipe, or a key of one, in its place.
  void read_in_recipe(const std::string& key, const Json& value) {
    Json recipe = base_recipe();
    if (key == "init" && value.contains("from")) return;  // a model
    const Json type = value.is_object() ? value.value("type", Json()) : Json();
    if (key == "objective") {
      // what it needs of the model stands in other tests: here its keys are read
      const Json schema = recipe_schema()["properties"]["objective"];
      std::set<std::string> known;
      add_names(schema, known);
      for (const auto& [name, inner] : value.items())
        EXPECT_TRUE(name == "type" || known.count(name) == 1) << name;
      EXPECT_NE(schema.dump().find("\"" + type.get<std::string>() + "\""), std::string::npos)
          << type;
      return;
    }
    if (key == "adapter") {
      spec::read_union<AdapterRecipe>(value, {});
      return;
    }
    if (key == "experts")
      recipe["spec"]["ffn"] = {{"type", "moe"},
                               {"n_experts", 8},
                               {"router", {{"type", "top_k"}, {"k", 2}, {"balance", true}}},
                               {"expert", {{"type", "glu"}, {"d_hidden", 8}}}};
    if (key == "groups")
      recipe["optimizer"]["groups"] = value;
    else if (key == "average")
      recipe["optimizer"]["average"] = value;
    else if (key == "recompute" || key == "curriculum" || key == "early_exit")
      recipe["train"][key] = value;
    else if (key == "train" || key == "checkpoint" || key == "stop" || key == "watch")
      recipe[key].update(value);
    else
      recipe[key] = value;
    if (key == "data" && type == "mqar") recipe["spec"]["vocab"] = 8192;
    read_recipe(recipe, "");
  }

  void read(const Json& json) {
    if (json.contains("tessera")) {
      model::read_model_spec(json);
    } else if (json.contains("branches")) {
      Json spec = base_spec();
      // a branch that reads an earlier one, under residuals that allow it
      spec["layers"] = {json};
      model::read_model_spec(spec);
    } else if (json.contains("mixer") && json.size() > 1) {
      Json spec = base_spec();
      spec["residual"] = "post_norm";
      spec["layers"] = {{{"branches", {json, {{"mixer", spec["mixer"]}}}}}};
      model::read_model_spec(spec);
    } else if (json.contains("chosen")) {
      const auto none = []() -> const text::ChatPrompt& {
        throw Error(ErrorKind::usage, "guide", "a template");
      };
      try {
        read_pair(json, {}, "line", none);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();
      }
    } else if (chat_layout_of(json, "messages")) {
      EXPECT_FALSE(conversation_in(json, "messages", "line").messages.empty());
    } else {
      for (const auto& [key, value] : json.items()) read_key(key, value);
    }
  }

  /// A section where the schema has one of that name, else a key that it knows anywhere.
  void read_key(const std::string& key, const Json& value) {
    const bool parts = value.is_object() || value.is_array();
    const std::set<std::string> spec_keys = {"ffn",   "norm",     "mixer", "head",      "embed",
                                             "depth", "residual", "heads", "predictors"},
                                recipe_keys = {"objective", "optimizer",  "adapter", "stop",
                                               "watch",     "checkpoint", "experts", "groups",
                                               "average",   "recompute",  "train",   "curriculum",
                                               "early_exit"};
    if (key == "init" && value.is_object() && value.contains("type"))
      read_in_spec(key, value);
    else if (spec_keys.count(key) == 1 && (parts || value.is_string()))
      read_in_spec(key, value);
    else if (recipe_keys.count(key) == 1 && parts)
      read_in_recipe(key, value);
    else if (key == "data" && parts && !value.contains("text_key"))
      read_in_recipe(key, value);
    else
      EXPECT_TRUE(names_.count(key) == 1 || data_keys_.count(key) == 1) << "unknown key " << key;
  }

  std::set<std::string> names_;
  /// Keys of lines of data.
  const std::set<std::string> data_keys_ = {"text",  "positive", "negatives", "weight",
                                            "train", "loss",     "label",     "extends"};
};

TEST_P(Guide, EveryExampleIsRead) {
  int64_t read_ones = 0;
  for (const Snippet& snippet : snippets(GetParam())) {
    SCOPED_TRACE(snippet.where + ": " + snippet.text);
    const std::string text = filled_in(snippet.text);
    if (text.empty()) continue;
    const std::string whole = text.starts_with('"') ? "{" + text + "}" : text;
    try {
      if (whole.starts_with("{\"prompt\"") && whole.find('\n') != whole.npos) {
        // one example a line
        for (size_t at = 0; at < whole.size();) {
          const size_t end = std::min(whole.find('\n', at), whole.size());
          if (end > at) read(json_of(whole.substr(at, end - at)));
          at = end + 1;
        }
      } else {
        read(json_of(whole));
      }
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    ++read_ones;
  }
  EXPECT_GT(read_ones, 10);
}

INSTANTIATE_TEST_SUITE_P(Pages, Guide, testing::Values("specs.md", "training.md", "finetuning.md"));

}  // namespace
}  // namespace tessera::train::guide_test
