// Scores of files against what other libraries compute.
#include "tessera/train/loop/evaluate_data.h"

#include "tessera/base/base64.h"
#include "tessera/base/mapped_file.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::evaluate_data_test {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = fs::path(TESSERA_SOURCE_DIR) / "tests/golden/sentence";

/// A folder of sentence-transformers, as tools/golden/sentence_modules.py saved it.
void put_model(const TemporaryFolder& folder, const Json& files) {
  for (const auto& one : fs::directory_iterator(kGolden / "base"))
    fs::copy_file(one.path(), folder / one.path().filename().string());
  for (const auto& [path, content] : files.items()) {
    fs::create_directories((folder / path).parent_path());
    fs::remove(folder / path);
    folder.write(path, content.is_string() ? bytes_of_base64(content.get<std::string>()).value()
                                           : content.dump());
  }
}

// tools/golden/similarity.py: the EmbeddingSimilarityEvaluator of sentence-transformers 6.2
TEST(EvaluateData, SimilaritiesAreThoseOfSentenceTransformers) {
  const Json cases = spec::read_json_file(kGolden / "cases.json")["cases"],
             story = spec::read_json_file(kGolden / "similarity.json");
  std::string csv = "sentence1,sentence2,score\n", tsv = "text\ttext_b\tlabel\n", jsonl;
  for (const Json& pair : story["pairs"]) {
    const std::string a = pair[0], b = pair[1], score = pair[2].dump();
    csv += fmt::format("\"{}\",{},{}\n", a, b, score);
    tsv += fmt::format("{}\t{}\t{}\n", a, b, score);
    jsonl += Json{{"sentence1", a}, {"sentence2", b}, {"similarity_score", pair[2]}}.dump() + "\n";
  }
  for (const auto& [name, want] : story["cases"].items()) {
    SCOPED_TRACE(name);
    const TemporaryFolder folder;
    put_model(folder, cases[name]["files"]);
    for (const auto& [file, content] :
         {std::pair{"sts.csv", csv}, {"sts.tsv", tsv}, {"sts.jsonl", jsonl}}) {
      DataEvaluationOptions how;
      how.data.model = folder.path().string();
      how.data.data = {folder.write(file, content)};
      how.cache = folder / "cache";
      for (const int64_t batch : {1, 7}) {
        how.data.batch = batch;
        const DataEvaluation got = evaluate_data(how);
        EXPECT_EQ(got.task, "similarity") << file;
        EXPECT_EQ(got.examples, std::ssize(story["pairs"]));
        ASSERT_EQ(got.result.scores.size(), want.size());
        for (const auto& [key, value] : want.items())
          // vectors agree within 1e-5 (infer/encoders/embed_test.cpp)
          EXPECT_NEAR(got.result.scores.at(key), value.get<double>(), 1e-5) << file << key;
      }
    }
  }
}

TEST(EvaluateData, SimilarityNeedsPairsWithANumber) {
  const Json cases = spec::read_json_file(kGolden / "cases.json")["cases"];
  const TemporaryFolder folder;
  put_model(folder, cases["mean"]["files"]);
  DataEvaluationOptions how;
  how.data.model = folder.path().string();
  how.data.task = "similarity";
  const auto refused = [&](const char* content, const std::string& words) {
    how.data.data = {folder.write("a.csv", content)};
    const std::string message = test::error_of([&] { evaluate_data(how); });
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  refused("text,score\na cat,1\nthe dog,2\n", "[eval] no column for the second text");
  refused("text,text_b\na cat,the cat\nthe dog,a\n", "name it with --label-key NAME");
  refused("text,text_b,score\na cat,the cat,near\nthe dog,a,2\n", "expected a number");
  // of training there is no such task
  FinetuneOptions train;
  train.model = how.data.model;
  train.data = how.data.data;
  train.task = "similarity";
  EXPECT_NE(
      test::error_of([&] { plan_finetune(train); }).find("--task similarity; expected one of"),
      std::string::npos);
}

}  // namespace
}  // namespace tessera::train::evaluate_data_test
