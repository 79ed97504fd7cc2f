// Prompts against RULER's template (tools/golden/ruler.py); documents against their definition.
#include "tessera/infer/evaluation/ruler_questions.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "tessera/base/testing.h"
#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/byte_tokenizer.h"

namespace tessera::infer::ruler_questions_test {
namespace {

using spec::Json;
using test::TemporaryFolder;

const char* const kSquad = R"({"data": [
  {"title": "a", "paragraphs": [
    {"context": "Bern is the capital.", "qas": [
      {"question": "Capital?", "is_impossible": false, "answers": [{"text": "Bern", "answer_start": 0}]},
      {"question": "Why?", "is_impossible": true, "answers": []}]},
    {"context": "Aare is a river.", "qas": [
      {"question": "River?", "answers": [{"text": "Aare"}, {"text": "the Aare"}]}]}]},
  {"title": "b", "paragraphs": [{"context": "Other one.", "qas": []}, {"context": "Other two.", "qas": []}]}]})";
const char* const kHotpot = R"([
  {"question": "Q?", "answer": "yes", "context": [["T1", ["One.", " Two."]], ["T2", ["Three."]]]},
  {"question": "R?", "answer": "no", "context": [["T2", ["Three."]], ["T3", ["Four."]]]}])";

size_t count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) ++n;
  return n;
}

TEST(RulerQuestions, PromptIsThatOfItsTemplate) {
  const Json story = spec::read_json_file(std::filesystem::path(TESSERA_SOURCE_DIR) /
                                          "tests/golden/tasks/ruler.json");
  EXPECT_EQ(question_prompt("<context>", "<query>"), story["questions"].get<std::string>());
  for (const char* name : {"qa_1", "qa_2"})
    EXPECT_EQ(find_ruler_task(name)->answer_tokens, story["answer_tokens"]["questions"]);
}

TEST(RulerQuestions, FilesOfSquadAndHotpot) {
  const TemporaryFolder folder;
  const RulerQuestions squad = read_ruler_questions(folder.write("squad.json", kSquad));
  EXPECT_EQ(squad.documents, (std::vector<std::string>{"Aare is a river.", "Bern is the capital.",
                                                       "Other one.", "Other two."}));
  ASSERT_EQ(squad.questions.size(), 2U);
  EXPECT_EQ(squad.questions[1].query, "River?");
  EXPECT_EQ(squad.questions[1].answers, (std::vector<std::string>{"Aare", "the Aare"}));
  EXPECT_EQ(squad.questions[1].documents, (std::vector<size_t>{0}));
  EXPECT_EQ(squad.questions[1].of_article, (std::vector<size_t>{1}));
  const RulerQuestions hotpot = read_ruler_questions(folder.write("hotpot.json", kHotpot));
  EXPECT_EQ(hotpot.documents,
            (std::vector<std::string>{"T1\nOne. Two.", "T2\nThree.", "T3\nFour."}));
  EXPECT_EQ(hotpot.questions[1].documents, (std::vector<size_t>{1, 2}));
  // an export of `datasets`
  const RulerQuestions exported = read_ruler_questions(folder.write("e.json", R"([
    {"question": "Q?", "answer": "yes",
     "context": {"title": ["T1", "T2"], "sentences": [["One.", " Two."], ["Three."]]}}])"));
  EXPECT_EQ(exported.documents, (std::vector<std::string>{"T1\nOne. Two.", "T2\nThree."}));
}

TEST(RulerQuestions, DocumentsOfTheQuestionComeFirst) {
  const TemporaryFolder folder;
  const RulerQuestions squad = read_ruler_questions(folder.write("squad.json", kSquad));
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const RandomKey key(seed);
    const auto prompt = [&](int64_t n) { return make_ruler_question(squad, 0, n, key).prompt; };
    EXPECT_EQ(count(prompt(1), "Document "), 1U);
    EXPECT_EQ(count(prompt(1), "Bern is"), 1U);
    // then those of its article
    EXPECT_EQ(count(prompt(2), "Aare is"), 1U);
    EXPECT_EQ(count(prompt(3), "Other "), 1U);
    // then all of them again
    EXPECT_EQ(count(prompt(8), "Document "), 8U);
    EXPECT_EQ(count(prompt(8), "Bern is"), 2U);
    EXPECT_EQ(prompt(8), prompt(8));
  }
  std::set<std::string> orders;
  for (uint64_t seed = 0; seed < 40; ++seed)
    orders.insert(make_ruler_question(squad, 0, 2, RandomKey(seed)).prompt);
  EXPECT_EQ(orders.size(), 2U);
}

TEST(RulerQuestions, TheLongestThatFits) {
  const TemporaryFolder folder;
  const RulerQuestions hotpot = read_ruler_questions(folder.write("hotpot.json", kHotpot));
  const text::Tokenizer bytes = text::byte_tokenizer();
  const RulerTask& task = *find_ruler_task("qa_2");
  const RulerExample made = make_ruler_question(hotpot, 1, task, bytes, 3000, RandomKey(0));
  const auto n = std::ssize(made.prompt) + task.answer_tokens;
  EXPECT_LE(n, 3000);
  EXPECT_GT(n, 2960);
  EXPECT_EQ(made.answers, (std::vector<std::string>{"no"}));
  test::expect_error(ErrorKind::usage, "question 2 of qa_2 with 100 tokens; expected at least",
                     [&] { make_ruler_question(hotpot, 1, task, bytes, 100, RandomKey(0)); });
}

TEST(RulerQuestions, RefusesOtherFilesInOneLine) {
  const TemporaryFolder folder;
  for (
      const char* text :
      {"{}", "[]", "[1]", "1", R"({"data": 1})", R"({"data": []})",
       R"({"data": [{"paragraphs": [1]}]})",
       R"({"data": [{"paragraphs": [{"context": "a", "qas": [1]}]}]})",
       R"({"data": [{"paragraphs": [{"context": "a", "qas": [{"question": "q", "answers": 1}]}]}]})",
       R"([{"question": "q"}])", R"([{"question": "q", "answer": "a", "context": []}])",
       R"([{"question": "q", "answer": "a", "context": [["t", 1]]}])",
       R"([{"question": "", "answer": "a", "context": [["t", ["s"]]]}])"}) {
    const std::string message =
        test::error_of([&] { read_ruler_questions(folder.write("x.json", text)); });
    EXPECT_NE(message.find("expected"), std::string::npos) << text << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace tessera::infer::ruler_questions_test
