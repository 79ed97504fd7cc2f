#include "tessera/train/objective/preference/preference_source.h"

#include "tessera/convert/tokenizer.h"
#include "tessera/train/objective/chat/chat_source.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::preference_source_test {
namespace {

const text::ChatPrompt& prompts() {
  static const text::ChatPrompt chatml =
      prompts_of({.format = "chatml"}, convert::find_tokenizer("bytes"));
  return chatml;
}

PreferencePair read(const std::string& line) {
  return read_pair(json_of(line), {}, "a.jsonl: line 1", prompts);
}

std::string text_of(const std::vector<int64_t>& ids) {
  return {ids.begin(), ids.end()};
}

TEST(PreferencePair, ReadsTheFormsThatPeopleHave) {
  const PreferencePair plain =
      read(R"({"prompt": "2+2=", "chosen": "4", "rejected": "5", "score": 1})");
  EXPECT_EQ(plain.prompt.text, "2+2=");
  EXPECT_EQ(plain.chosen.text, "4");
  EXPECT_EQ(plain.rejected.text, "5");
  EXPECT_FALSE(plain.rendered);

  const std::string user = R"({"role": "user", "content": "Hi"})",
                    yo = R"({"role": "assistant", "content": "Yo"})",
                    no = R"({"role": "assistant", "content": "No"})";
  const std::string lines[] = {
      R"({"prompt": [)" + user + R"(], "chosen": [)" + yo + R"(], "rejected": [)" + no + "]}",
      R"({"prompt": [)" + user + R"(], "chosen": "Yo", "rejected": "No"})",
      R"({"prompt": "Hi", "chosen": [)" + yo + R"(], "rejected": [)" + no + "]}",
      R"({"chosen": [)" + user + "," + yo + R"(], "rejected": [)" + user + "," + no + "]}",
      // the prompt once more beside whole conversations
      R"({"prompt": "Hi", "chosen": [)" + user + "," + yo + R"(], "rejected": [)" + user + "," +
          no + "]}"};
  for (const std::string& line : lines) {
    SCOPED_TRACE(line);
    const PreferencePair pair = read(line);
    EXPECT_EQ(pair.prompt.text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    EXPECT_EQ(pair.chosen.text, "Yo<|im_end|>");
    EXPECT_EQ(pair.rejected.text, "No<|im_end|>");
    EXPECT_TRUE(pair.rendered);
  }
}

TEST(PreferencePair, StringsWithoutAPromptHaveItInCommon) {
  // as trl.data_utils.extract_prompt() of TRL 0.24 cuts them
  const PreferencePair sky =
      read(R"({"chosen": "The sky is blue.", "rejected": "The sky is green."})");
  EXPECT_EQ(sky.prompt.text, "The sky is");
  EXPECT_EQ(sky.chosen.text, " blue.");
  EXPECT_EQ(sky.rejected.text, " green.");
  // characters stay whole
  const PreferencePair accents = read(R"({"chosen": "ca\u00e9", "rejected": "ca\u00e8"})");
  EXPECT_EQ(accents.prompt.text, "ca");
  EXPECT_EQ(accents.chosen.text, "\u00e9");
}

TEST(PreferencePair, LlamaFactorysLayoutsAreMessages) {
  const std::string prompt = "<|im_start|>user\nAdd.\n2 2<|im_end|>\n<|im_start|>assistant\n";
  for (const char* line :
       {R"({"instruction": "Add.", "input": "2 2", "chosen": "4", "rejected": "5"})",
        R"({"conversations": [{"from": "human", "value": "Add.\n2 2"}],
            "chosen": {"from": "gpt", "value": "4"}, "rejected": {"from": "gpt", "value": "5"}})"}) {
    const PreferencePair pair = read(line);
    EXPECT_EQ(pair.prompt.text, prompt);
    EXPECT_EQ(pair.chosen.text, "4<|im_end|>");
    EXPECT_EQ(pair.rejected.text, "5<|im_end|>");
  }
}

TEST(PreferencePair, SaysWhatIsWrongWithALine) {
  const auto bad = [](const char* line, const char* what) {
    SCOPED_TRACE(line);
    expect_error(ErrorKind::file, what, [&] { read(line); });
  };
  bad("[1]", "a.jsonl: line 1: found an array; expected an object with \"prompt\", \"chosen\"");
  bad(R"({"prompt": "a", "chosen": "b"})", "\"rejected\" is missing");
  bad(R"({"chosen": "b", "rejected": "c"})",
      "\"prompt\" is missing, and the answers do not begin alike");
  bad(R"({"prompt": "a", "chosen": 1, "rejected": "c"})", "\"chosen\" is an integer");
  bad(R"({"prompt": "", "chosen": "b", "rejected": "c"})", "\"prompt\" is empty");
  bad(R"({"prompt": "a", "chosen": [], "rejected": "c"})",
      "\"chosen\" is an array and \"rejected\" a string");
  const auto talk = [](const char* first, const char* last) {
    return fmt::format(R"([{{"role": "user", "content": "{}"}}, {{"role": "{}", "content": "x"}}])",
                       first, last);
  };
  const auto pair = [](const std::string& chosen, const std::string& rejected) {
    return R"({"chosen": )" + chosen + R"(, "rejected": )" + rejected + "}";
  };
  bad(pair(talk("a", "assistant"), talk("b", "assistant")).c_str(), "message 1 differs");
  bad(pair(talk("a", "assistant"), talk("a", "user")).c_str(), "the last message is of \"user\"");
  bad(R"({"chosen": [{"role": "assistant", "content": "x"}],
          "rejected": [{"role": "assistant", "content": "y"}]})",
      "there is no message before the answers");
  bad(pair(talk("a", "assistant"), R"([{"role": "assistant", "content": "y"}])").c_str(),
      "\"chosen\" has 2 messages and \"rejected\" 1");
}

/// One merge, of "a" and "b".
text::Tokenizer merging(const TemporaryFolder& folder) {
  return convert::find_tokenizer(folder.write("tokenizer.json", R"({
    "added_tokens": [{"id": 3, "content": "<end>", "special": true, "single_word": false,
                      "lstrip": false, "rstrip": false, "normalized": false}],
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})"));
}

TEST(PairTokens, PromptAndAnswersAreTokenisedApart) {
  const TemporaryFolder folder;
  const text::Tokenizer tokenizer = merging(folder);
  const PairTokens pair = tokens_of({{"aa", ""}, {"bb", ""}, {"ab", ""}}, tokenizer, 3, prompts);
  EXPECT_EQ(pair.prompt, (std::vector<int64_t>{0, 0}));  // whole, "aabb" is a, ab, b
  EXPECT_EQ(pair.chosen, (std::vector<int64_t>{1, 1, 3}));
  EXPECT_EQ(pair.rejected, (std::vector<int64_t>{2, 3}));
  // messages bring what ends an answer; what was said in them is no special token
  const text::ChatPrompt own(tokenizer, "{{ messages[0].content }}<end>", "test");
  const auto part = [](const std::string& what, char input) {
    return text::MarkedText{what, std::string(what.size(), input)};
  };
  const PairTokens rendered =
      tokens_of({part("a<end>", 0), part("b<end>", 0), part("b", 1), true}, tokenizer, 3,
                [&]() -> const text::ChatPrompt& { return own; });
  EXPECT_EQ(rendered.prompt, (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(rendered.chosen, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(rendered.rejected, (std::vector<int64_t>{1}));
}

TEST(PreferenceSource, MessagesNeedATemplate) {
  const TemporaryFolder folder;
  Json json = tiny_recipe(folder.write(
      "pairs.jsonl", R"({"prompt": "Hi", "chosen": [{"role": "assistant", "content": "Yo"}],
                         "rejected": [{"role": "assistant", "content": "No"}]})"));
  std::string line = read_text_file(json["data"]["train"][0].get<std::string>());
  std::erase(line, '\n');
  json["data"] = {{"train", {folder.write("pairs.jsonl", line)}}, {"format", "jsonl"}};
  json["train"]["length"] = 100;
  json["objective"] = {{"type", "preference"}};
  expect_error(ErrorKind::spec,
               "[objective.format] missing, and the tokenizer has no chat template",
               [&] { open_source(read_recipe(json, ""), folder / "cache"); });
  json["objective"]["format"] = "chatml";
  const auto source = open_source(read_recipe(json, ""), folder / "cache");
  std::vector<int64_t> begun;
  const PackedBatch batch = source->train(0, 1, begun);
  EXPECT_EQ(batch.n_targets, 2 * 12);
}

struct Setting {
  TemporaryFolder folder;
  std::string lines;
  Json json = tiny_recipe("");

  void add(const std::string& prompt, const std::string& chosen, const std::string& rejected) {
    lines += Json{{"prompt", prompt}, {"chosen", chosen}, {"rejected", rejected}}.dump() + "\n";
  }
  Recipe recipe(const std::vector<std::string>& changes = {}) {
    json["data"] = {{"train", {folder.write("pairs.jsonl", lines)}}, {"format", "jsonl"}};
    json["objective"] = {{"type", "preference"}};
    return read_recipe(json, "", changes);
  }
};

TEST(PreferenceSource, APairIsTwoDocumentsOfOneRow) {
  Setting s;
  s.add("abc", "de", "xyz");
  s.add("once", "u", "w");
  const auto source = open_source(s.recipe({"data.valid_fraction=0.6"}), s.folder / "cache");
  EXPECT_EQ(source->valid_samples(), 1);
  std::vector<int64_t> begun;
  const PackedBatch batch = source->train(4, 1, begun);
  EXPECT_EQ(batch.first_sample, 4);
  EXPECT_EQ(text_of(batch.ids), "abcdabcxy");
  ASSERT_EQ(batch.pieces.size(), 2u);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(batch.pieces[i].row, 0);
  EXPECT_EQ(batch.pieces[1].begin, 4);
  EXPECT_EQ(batch.pieces[1].length, 5);
  EXPECT_EQ(batch.targets, (std::vector<int64_t>{-1, -1, 'd', 'e', -1, -1, 'x', 'y', 'z'}));
  EXPECT_EQ(batch.n_targets, 5);
  EXPECT_EQ(batch.items, std::vector<int64_t>{0});
  EXPECT_EQ(batch.names, (std::vector<std::string>{"chosen", "rejected"}));
  const PackedBatch held = source->valid({0});
  EXPECT_EQ(text_of(held.ids), "onceonce");
  EXPECT_EQ(held.items, std::vector<int64_t>{1});
}

TEST(PreferenceSource, CutsPromptsFromTheLeftAndLeavesOutWhatDoesNotFit) {
  Setting s;
  s.add("0123456789", "abc", "wxyz123");  // 10 prompt tokens and 6 more inputs: as many as fit
  s.add("0123456789+", "abc", "wxyz123");
  s.add("?", std::string(17, 'a'), "b");
  s.add("?", "same", "same");
  const auto source = open_source(s.recipe(), s.folder / "cache");
  std::vector<int64_t> begun;
  std::string seen;
  for (int64_t sample = 0; sample < 2; ++sample)
    seen += text_of(source->train(sample, 1, begun).ids) + "|";
  for (const char* text : {"0123456789ab0123456789wxyz12|", "123456789+ab123456789+wxyz12|"})
    EXPECT_NE(seen.find(text), std::string::npos) << seen;
  const auto notes = source->notes();
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_EQ(notes[0], "1 pair skipped: prompt and answer exceed train.length = 16");
  EXPECT_EQ(notes[1], "1 pair skipped: equal answers");
}

TEST(PreferenceSource, ABadRecipeIsSaidBeforeThereIsAFolder) {
  Setting s;
  s.add("a", "b", "c");
  const auto refused = [&](const char* change, const char* what) {
    SCOPED_TRACE(change);
    expect_error(ErrorKind::spec, what, [&] { s.recipe({change}); });
  };
  refused("data.format=\"text\"", "[data.format] found \"text\"; objective \"preference\" reads");
  refused("objective.beta=0", "[objective.beta] found 0; expected more than 0");
  refused("objective.smoothing=0.5", "[objective.smoothing] found 0.5; expected less than 0.5");
  refused("objective={\"type\": \"preference\", \"loss\": \"ipo\", \"smoothing\": 0.1}",
          "[objective.smoothing] has no meaning for loss \"ipo\"");
  refused("objective.margin=1", "[objective.margin] has no meaning for loss \"dpo\"");
  refused("objective={\"type\": \"preference\", \"loss\": \"orpo\", \"by_length\": false}",
          "[objective.by_length] false, but the odds");
  refused("objective.format=\"mine\"", "[objective.format] found \"mine\"; expected one of chatml");
  refused("objective.los=\"ipo\"", "los");
  refused(
      "train.z_loss=0.1",
      "[train.z_loss] a term of the losses of single tokens, which objective \"preference\" has");
  refused("train.curriculum={\"from\": 4, \"steps\": 3}", "[train.curriculum]");
  refused("spec.arch=\"encoder\"", "[spec.arch]");
}

TEST(PreferenceSource, WhatIsWrongWithTheDataIsSaidBeforeTheFirstStep) {
  Setting s;
  s.lines = "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n\n{\"prompt\": \"a\"}\n";
  expect_error(ErrorKind::file, "pairs.jsonl: line 3: \"chosen\" is missing",
               [&] { open_source(s.recipe(), s.folder / "cache"); });
  s.lines = "";
  s.add("a", "same", "same");
  expect_error(ErrorKind::input,
               "the train split has no pair; expected at least one: 1 pair skipped: equal answers",
               [&] { open_source(s.recipe(), s.folder / "cache"); });
  s.lines = "";
  s.add("a", "", "c");
  expect_error(ErrorKind::input, "line 1: \"chosen\" has no token",
               [&] { open_source(s.recipe(), s.folder / "cache"); });
}

}  // namespace
}  // namespace tessera::train::preference_source_test
