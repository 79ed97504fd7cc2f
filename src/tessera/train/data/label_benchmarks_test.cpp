// Files of GLUE, SuperGLUE and Long Range Arena, in the layouts that their authors publish.
#include "tessera/train/data/label_benchmarks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tessera/base/testing.h"
#include "tessera/train/data/image_files.h"
#include "tessera/train/data/label_examples.h"
#include "tessera/train/data/listops.h"
#include "tessera/train/data/pathfinder.h"

namespace tessera::train::label_benchmarks_test {
namespace {

using test::TemporaryFolder;
using Names = std::vector<std::string>;

TEST(LabelBenchmarks, AreFoundByTheirNames) {
  for (const char* name : {"glue:stsb", "STS-B", "stsb", "sts_b"})
    EXPECT_EQ(find_label_benchmark(name)->name, "glue:stsb") << name;
  EXPECT_EQ(find_label_benchmark("glue:SST-2")->name, "glue:sst2");
  EXPECT_EQ(find_label_benchmark("superglue:rte")->text, Names{"premise"});
  EXPECT_EQ(find_label_benchmark("rte")->text, Names{"sentence1"});
  EXPECT_EQ(find_label_benchmark("copa"), nullptr);  // a task of log-likelihoods
  EXPECT_EQ(find_label_benchmark("classification"), nullptr);
  test::expect_error(ErrorKind::usage, "--task glue:cloa; expected one of glue:cola, glue:sst2",
                     [] { find_label_benchmark("glue:cloa"); });
}

TEST(LabelBenchmarks, ClassesOfAHead) {
  const LabelBenchmark& mnli = *find_label_benchmark("mnli");
  EXPECT_EQ(benchmark_classes(mnli, {"LABEL_0", "LABEL_1", "LABEL_2"}), mnli.classes);
  EXPECT_EQ(benchmark_classes(mnli, {"0", "1", "2"}), mnli.classes);
  EXPECT_EQ(benchmark_classes(mnli, {"CONTRADICTION", "NEUTRAL", "ENTAILMENT"}),
            (Names{"contradiction", "neutral", "entailment"}));
  EXPECT_EQ(benchmark_classes(mnli, {"a", "b", "c"}), Names{});
  EXPECT_EQ(benchmark_classes(mnli, {"entailment", "not_entailment"}), Names{});
}

/// The pairs of a file of JSON lines, or of one object or list on several lines.
std::vector<LabelledText> pairs_of(RecordLayout layout, const std::string& lines) {
  const TemporaryFolder folder;
  const bool is_list = lines.ends_with('\n') || lines.starts_with('[');
  LabelData data;
  data.train = {folder.write("train.jsonl", is_list ? lines : "[" + lines + "]")};
  data.layout = layout;
  check_label_data(data, "data");
  return read_texts(data, LabelSplit::train, LabelOf::one_class);
}

/// "text | text_b -> label (candidate)".
std::string shown_pair(const LabelledText& one) {
  return one.text + " | " + one.text_b + " -> " + one.labels.at(0) +
         (one.candidate.empty() ? "" : " (" + one.candidate + ")");
}

TEST(LongRangeArena, PairsOfRetrievalHaveNoLineOfNames) {
  const LabelBenchmark& retrieval = *find_label_benchmark("lra:retrieval");
  const TemporaryFolder folder;
  LabelData data;
  data.train = {folder.write("new_aan_pairs.train.tsv",
                             "1.0\tP10-1\tP11-2\tb'Parsing'\tb'Trees \"and\" rules'\n"
                             "0.0\tP10-1\tW09-3\tb'Parsing'\tb'Speech'\n")};
  data.columns = retrieval.columns;
  data.text_key = retrieval.text.at(0);
  data.text_b_key = retrieval.text_b.at(0);
  data.label_key = retrieval.label.at(0);
  check_label_data(data, "data");
  const auto pairs = read_texts(data, LabelSplit::train, LabelOf::one_class);
  ASSERT_EQ(pairs.size(), 2u);
  EXPECT_EQ(shown_pair(pairs[0]), "b'Parsing' | b'Trees \"and\" rules' -> 1.0");
  EXPECT_EQ(shown_pair(pairs[1]), "b'Parsing' | b'Speech' -> 0.0");
  EXPECT_EQ(retrieval.classes, (Names{"0.0", "1.0"}));
}

TEST(SuperGlue, ChoicesOfCopa) {
  const auto pairs =
      pairs_of(RecordLayout::copa,
               "{\"premise\": \"It fell.\", \"choice1\": \"It broke.\", \"choice2\": \"I slept.\", "
               "\"question\": \"effect\", \"label\": 0, \"idx\": 0}\n"
               "{\"premise\": \"It fell.\", \"choice1\": \"A\", \"choice2\": \"B\", \"question\": "
               "\"cause\", \"label\": 1, \"idx\": 1}\n");
  ASSERT_EQ(pairs.size(), 4u);
  EXPECT_EQ(shown_pair(pairs[0]), "It fell. What was the effect? | It broke. -> true");
  EXPECT_EQ(shown_pair(pairs[1]), "It fell. What was the effect? | I slept. -> false");
  EXPECT_EQ(shown_pair(pairs[3]), "It fell. What was the cause? | B -> true");
  EXPECT_EQ(pairs[0].group, pairs[1].group);
  EXPECT_NE(pairs[1].group, pairs[2].group);
}

TEST(SuperGlue, AnswersOfMultiRc) {
  const auto own =
      pairs_of(RecordLayout::multirc, R"({"idx": 0, "passage": {"text": "P.", "questions": [
      {"question": "Q?", "idx": 0, "answers": [{"text": "a", "idx": 0, "label": 1},
                                               {"text": "b", "idx": 1, "label": 0}]},
      {"question": "R?", "idx": 1, "answers": [{"text": "c", "idx": 2, "label": 1}]}]}})");
  const auto flat = pairs_of(
      RecordLayout::multirc,
      R"([{"paragraph": "P.", "question": "Q?", "answer": "a", "label": 1, "idx": {"paragraph": 0, "question": 0, "answer": 0}},
          {"paragraph": "P.", "question": "Q?", "answer": "b", "label": 0, "idx": {"paragraph": 0, "question": 0, "answer": 1}},
          {"paragraph": "P.", "question": "R?", "answer": "c", "label": 1, "idx": {"paragraph": 0, "question": 1, "answer": 2}}])");
  ASSERT_EQ(own.size(), 3u);
  ASSERT_EQ(flat.size(), 3u);
  EXPECT_EQ(shown_pair(own[0]), "P. | Q? a -> true (a)");
  for (const auto* all : {&own, &flat}) {
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(shown_pair((*all)[i]), shown_pair(own[i]));
    EXPECT_EQ((*all)[0].group, (*all)[1].group);
    EXPECT_NE((*all)[1].group, (*all)[2].group);
  }
}

TEST(SuperGlue, EntitiesOfRecord) {
  const std::string text = "Zoë met Bo.\\n@highlight\\nBo won";
  const auto own = pairs_of(
      RecordLayout::record,
      "{\"source\": \"x\", \"idx\": 0, \"passage\": {\"text\": \"" + text +
          R"(", "entities": [{"start": 0, "end": 2}, {"start": 8, "end": 9}, {"start": 23, "end": 24}]},
             "qas": [{"query": "@placeholder won", "idx": 0, "answers": [{"start": 8, "end": 9, "text": "Bo"}]}]})");
  const auto flat = pairs_of(
      RecordLayout::record,
      "{\"passage\": \"" + text +
          R"(", "query": "@placeholder won", "entities": ["Zoë", "Bo"], "answers": ["Bo", "Bo"],
                                    "idx": {"passage": 0, "query": 0}})");
  for (const auto* all : {&own, &flat}) {
    ASSERT_EQ(all->size(), 2u);
    EXPECT_EQ(shown_pair((*all)[0]), "Zoë met Bo. Bo won | Zoë won -> false (Zoë)");
    EXPECT_EQ(shown_pair((*all)[1]), "Zoë met Bo. Bo won | Bo won -> true (Bo)");
  }
}

TEST(SuperGlue, WordsAndSpans) {
  const auto words = pairs_of(
      RecordLayout::wic,
      R"({"word": "bank", "sentence1": "A bank.", "sentence2": "A river bank.", "idx": 0, "label": false,
          "start1": 2, "start2": 8, "end1": 6, "end2": 12, "version": 1.1})");
  EXPECT_EQ(shown_pair(words.at(0)), "bank: A bank. | A river bank. -> false");
  // as T5 marks them
  const char* target =
      R"("target": {"span1_index": 0, "span1_text": "The men", "span2_index": 5, "span2_text": "they"})";
  const auto spans = pairs_of(
      RecordLayout::wsc,
      std::string(
          R"({"idx": 0, "label": true, "text": "The men ran away because they feared.", )") +
          target + "}");
  EXPECT_EQ(spans.at(0).text, "* The men * ran away because # they # feared.");
  const auto flat = pairs_of(
      RecordLayout::wsc,
      R"({"text": "He saw that Bo ran.", "span1_index": 3, "span1_text": "Bo", "span2_index": 0, "span2_text": "He", "label": 0})");
  EXPECT_EQ(flat.at(0).text, "# He # saw that * Bo * ran.");
}

TEST(SuperGlue, BadRecordsGiveOneLine) {
  for (const auto& [layout, line, message] :
       {std::tuple{RecordLayout::copa, R"({"premise": "a"})", "line 1: no \"question\""},
        {RecordLayout::copa,
         R"({"premise": "a", "question": "why", "choice1": "b", "choice2": "c"})",
         "\"question\" is \"why\"; expected \"cause\" or \"effect\""},
        {RecordLayout::wic, R"({"word": "a", "sentence1": "a", "sentence2": "a", "label": -1})",
         "\"label\" is -1; expected true or false"},
        {RecordLayout::multirc, R"({"passage": {"text": "P", "questions": 3}})",
         "\"questions\" is"},
        {RecordLayout::record,
         R"({"passage": {"text": "P", "entities": [{"start": 0, "end": 5}]}, "qas": []})",
         "an entity of characters 0 to 5; expected a part of the passage, which has 1"}})
    test::expect_error(ErrorKind::file, message,
                       [&, layout = layout, line = line] { pairs_of(layout, line); });
  LabelData table;
  table.train = {"a.tsv"};
  table.layout = RecordLayout::wic;
  test::expect_error(ErrorKind::spec, "data.layout", [&] { check_label_data(table, "data"); });
}

// additions.md 11
TEST(ListOps, Values) {
  for (const auto& [source, value] : {std::pair{"[MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]", 5},
                                      {"[SM 7 8 [MED 3 4 ] ]", 8},
                                      {"[MED 1 2 8 9 ]", 5},
                                      {"( ( ( [MAX 2 ) ( ( ( [SM 9 ) 9 ) ] ) ) ] )", 8}})
    EXPECT_EQ(listops_value(listops_symbols(source, "here"), "here"), value) << source;
  EXPECT_EQ(listops_symbols("( ( [MIN 4 ) ] )", "here"), "m4]");
  for (const auto& [source, message] : {std::pair{"[MAX 4", "without its ]"},
                                        {"[MAX ]", "without arguments"},
                                        {"4 4", "1 tokens after the tree"},
                                        {"[MEAN 4 ]", "\"[MEAN\"; expected tokens of ListOps"},
                                        {"]", "token 1 is no operator"}})
    test::expect_error(ErrorKind::file, message, [&, source = source] {
      listops_value(listops_symbols(source, "here"), "here");
    });
}

// training.md 2.1: 3,000 trees of the small form; their spread over 3,000 trees
TEST(ListOps, TreesAreDistributedAsTheGenerators) {
  const ListOpsOptions small{.max_depth = 5, .max_args = 5, .min_length = 16, .max_length = 128};
  int64_t draws = 0;
  const auto trees = make_listops(small, 3000, 1, &draws);
  std::set<std::string> sources;
  Names symbols;
  std::vector<int64_t> values;
  for (const ListOpsTree& tree : trees) {
    EXPECT_TRUE(sources.insert(tree.source).second);
    symbols.push_back(listops_symbols(tree.source, "tree"));
    values.push_back(tree.value);
    EXPECT_GT(symbols.back().size(), 16u);
    EXPECT_LT(symbols.back().size(), 128u);
    EXPECT_EQ(listops_value(symbols.back(), "tree"), tree.value);
  }
  const ListOpsBaselines baselines = listops_baselines(symbols, values);
  EXPECT_NEAR(3000.0 / static_cast<double>(draws), 0.095, 0.005);
  EXPECT_NEAR(baselines.mean_length, 30.4, 0.8);
  EXPECT_NEAR(baselines.majority, 0.116, 0.02);
  EXPECT_NEAR(baselines.root_operator, 0.243, 0.03);
  EXPECT_EQ(make_listops(small, 10, 1)[9].source, trees[9].source);
  EXPECT_NE(make_listops(small, 10, 2)[9].source, trees[9].source);
  test::expect_error(ErrorKind::usage, "expected at least 2, 2 and a range",
                     [] { make_listops({.max_args = 1}, 1, 0); });
}

TEST(ListOps, FilesAreReadAsOneCharacterAToken) {
  const TemporaryFolder folder;
  LabelData data;
  data.train = {
      folder.write("basic_train.tsv", "Source\tTarget\n( ( ( [MAX 2 ) 9 ) ] )\t9\n[SM 1 2 ]\t3\n")};
  data.format = LabelFormat::listops;
  const auto texts = read_texts(data, LabelSplit::train, LabelOf::one_class);
  ASSERT_EQ(texts.size(), 2u);
  EXPECT_EQ(texts[0].text, "M29]");
  EXPECT_EQ(texts[0].labels, Names{"9"});
  EXPECT_EQ(texts[1].text, "s12]");
  data.train = {folder.write("other.tsv", "text\tlabel\na\tb\n")};
  test::expect_error(ErrorKind::file, "no column \"Source\"",
                     [&] { read_texts(data, LabelSplit::train, LabelOf::one_class); });
}

// training.md 2.1
TEST(ImageFiles, CifarIsGrey) {
  const TemporaryFolder folder;
  std::string file;
  for (const auto& [label, r, g, b] :
       {std::tuple{7, 255, 0, 0}, {2, 0, 255, 0}, {0, 12, 200, 77}}) {
    file += static_cast<char>(label);
    for (const int plane : {r, g, b}) file.append(1024, static_cast<char>(plane));
  }
  LabelData data;
  data.train = {folder.write("test_batch.bin", file)};
  const auto images = read_texts(data, LabelSplit::train, LabelOf::one_class);
  ASSERT_EQ(images.size(), 3u);
  const std::vector<std::pair<int, const char*>> want = {{76, "7"}, {149, "2"}, {130, "0"}};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(images[i].text, std::string(1024, static_cast<char>(want[i].first)));
    EXPECT_EQ(images[i].labels, Names{want[i].second});
  }
  data.train = {folder.write("short.bin", file.substr(0, 3000))};
  test::expect_error(ErrorKind::file, "3000 bytes; expected records of 3073",
                     [&] { read_texts(data, LabelSplit::train, LabelOf::one_class); });
}

TEST(ImageFiles, IdxHasItsLabelsInAnotherFile) {
  const TemporaryFolder folder;
  const std::string images = idx_images({{0, 1, 2, 255}, {9, 8, 7, 6}}, 2);
  // the header of MNIST
  EXPECT_EQ(images.substr(0, 16), std::string("\0\0\x08\x03\0\0\0\2\0\0\0\2\0\0\0\2", 16));
  EXPECT_EQ(idx_labels({3, 1}), std::string("\0\0\x08\x01\0\0\0\2\3\1", 10));
  LabelData data;
  data.train = {folder.write("train-images-idx3-ubyte", images)};
  data.train_labels = {folder.write("train-labels-idx1-ubyte", idx_labels({3, 1}))};
  check_label_data(data, "data");
  const auto texts = read_texts(data, LabelSplit::train, LabelOf::one_class);
  ASSERT_EQ(texts.size(), 2u);
  EXPECT_EQ(texts[0].text, std::string("\0\1\2\xff", 4));
  EXPECT_EQ(texts[1].labels, Names{"1"});
  data.train_labels = {folder.write("bad-labels", idx_labels({3, 1}) + "x")};
  test::expect_error(ErrorKind::file, "11 bytes; expected 10",
                     [&] { read_texts(data, LabelSplit::train, LabelOf::one_class); });
  data.train_labels = {folder.write("labels", "3\n1\n")};
  data.train = {folder.write("bad-idx3-ubyte", images.substr(0, 20))};
  test::expect_error(ErrorKind::file, "20 bytes; expected 24",
                     [&] { read_texts(data, LabelSplit::train, LabelOf::one_class); });
}

// training.md 2.1
TEST(Pathfinder, PixelsAreDistances) {
  const Dash dash{{2, 2}, {5, 3.5}};
  const PathPoint mark{6, 6};
  const std::vector<uint8_t> pixels = draw_paths(8, {&dash, 1}, {&mark, 1});
  const std::vector<std::pair<size_t, std::vector<uint8_t>>> rows = {
      {1, {0, 56, 63, 0, 0, 0, 0, 0}},
      {2, {0, 56, 148, 148, 63, 0, 0, 0}},
      {3, {0, 0, 0, 63, 148, 96, 0, 0}},
      {5, {0, 0, 0, 0, 107, 255, 255, 107}}};
  for (const auto& [row, want] : rows)
    EXPECT_EQ(std::vector<uint8_t>(pixels.begin() + 8 * static_cast<std::ptrdiff_t>(row),
                                   pixels.begin() + 8 * static_cast<std::ptrdiff_t>(row + 1)),
              want)
        << row;
}

// training.md 6.12
TEST(Pathfinder, LabelsDoNotFollowFromTheMarks) {
  const auto easy = PathfinderOptions::of_level("easy");
  constexpr int64_t kImages = 1000;
  int64_t connected = 0;
  std::vector<std::pair<double, bool>> by_distance;
  for (int64_t i = 0; i < kImages; ++i) {
    const PathfinderImage image =
        make_pathfinder(easy, RandomKey(1).fold(static_cast<uint64_t>(i)));
    ASSERT_EQ(image.pixels.size(), 1024u);
    EXPECT_GE(image.distance, 5);
    connected += image.connected ? 1 : 0;
    by_distance.emplace_back(image.distance, image.connected);
  }
  // 2,000 images: 0.5 +- 0.03; of 1,000 the standard deviation is 0.016
  EXPECT_NEAR(static_cast<double>(connected) / kImages, 0.5, 0.05);
  std::sort(by_distance.begin(), by_distance.end());
  // the best threshold on the distance, either way round
  int64_t below = 0, best = 0;
  for (const auto& [distance, is_connected] : by_distance) {
    below += is_connected ? 1 : -1;
    best = std::max({best, kImages - connected + below, connected - below});
  }
  EXPECT_LE(static_cast<double>(best) / kImages, 0.57);
  EXPECT_EQ(make_pathfinder(easy, RandomKey(7)).pixels, make_pathfinder(easy, RandomKey(7)).pixels);
  EXPECT_NO_THROW(make_pathfinder(PathfinderOptions::of_level("hard"), RandomKey(1)));
  test::expect_error(ErrorKind::usage, "expected easy, medium or hard",
                     [] { PathfinderOptions::of_level("simple"); });
}

}  // namespace
}  // namespace tessera::train::label_benchmarks_test
