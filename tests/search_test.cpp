// The site of the documentation: built without a dead link, and its search finds what people ask.
// search_questions.txt has questions and the places that answer them. The site is built and
// searched where TESSERA_DOCS_PYTHON (scripts/setup.sh docs) is set; `tessera search` is asked the
// same where all-minilm-l6-v2 (scripts/setup.sh minilm) is there.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <vector>

#include "cli_testing.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// How far down a reader looks.
constexpr size_t kFirst = 3;
/// Questions whose page `tessera search` does not find: bare abbreviations say little to the
/// encoder.
constexpr size_t kMostMissed = 2;

struct Question {
  std::string text;
  std::vector<std::string> places;  // "page" or "page#beginning of a section's name"
};

/// Lines "question", two spaces or more, "place place ...".
std::vector<Question> read_questions(std::istream& in) {
  std::vector<Question> out;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t end = line.find("  ");
    if (end == std::string::npos) throw std::runtime_error("search_questions.txt: " + line);
    Question question{line.substr(0, end), {}};
    std::istringstream places(line.substr(end));
    for (std::string place; places >> place;) question.places.push_back(place);
    if (question.places.empty()) throw std::runtime_error("search_questions.txt: " + line);
    out.push_back(question);
  }
  return out;
}

std::vector<Question> questions() {
  std::ifstream file(kSource / "tests/search_questions.txt");
  return read_questions(file);
}

/// Whether `location` ("page" or "page#section") is the place: a page is not any of its sections.
bool is_place(const std::string& location, const std::string& place) {
  return place.find('#') == std::string::npos ? location == place : location.starts_with(place);
}

bool found_among_first(const std::vector<std::string>& locations, const Question& question) {
  for (size_t i = 0; i < std::min(kFirst, locations.size()); ++i)
    for (const std::string& place : question.places)
      if (is_place(locations[i], place)) return true;
  return false;
}

std::string listed(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += "\n  " + line;
  return out;
}

/// guide/chat.html#x -> guide/chat#x
std::string without_suffix(std::string location) {
  const size_t at = location.find(".html");
  return at == std::string::npos ? location : location.erase(at, 5);
}

// --- the site ---

/// Tags of a page by which a browser loads something, but from the page's own folder.
std::vector<std::string> outside_requests(const std::string& page) {
  std::vector<std::string> found;
  for (const char* tag : {"<script", "<img", "<iframe", "<link"})
    for (size_t at = page.find(tag); at != std::string::npos; at = page.find(tag, at + 1)) {
      const std::string text = page.substr(at, page.find('>', at) - at);
      const bool outside = text.find("=\"http") != std::string::npos ||
                           text.find("=http") != std::string::npos ||
                           text.find("=\"//") != std::string::npos;
      if (outside && text.find("canonical") == std::string::npos) found.push_back(text);
    }
  return found;
}

void expect_pages(const fs::path& site) {
  EXPECT_EQ(outside_requests("<script src=\"http://a/b.js\"></script>").size(), 1u);
  int files = 0, formulas = 0;
  for (const auto& entry : fs::recursive_directory_iterator(site)) {
    if (entry.path().extension() != ".html") continue;
    ++files;
    const std::string page = read_text_file(entry.path().string());
    if (page.find("class=\"formula\"") != std::string::npos) ++formulas;
    EXPECT_EQ(page.find("class=\"arithmatex\""), std::string::npos) << entry.path();
    for (const std::string& tag : outside_requests(page))
      ADD_FAILURE() << entry.path().string() << " loads " << tag;
  }
  EXPECT_GT(files, 70);
  EXPECT_GT(formulas, 0);
  EXPECT_TRUE(fs::exists(site / "search/search_index.js"));
}

/// Every place of the questions is one of the site's.
void expect_places(const fs::path& site) {
  const Json index = Json::parse(read_text_file((site / "search/search_index.json").string()));
  std::vector<std::string> locations;
  for (const Json& doc : index.at("docs"))
    locations.push_back(without_suffix(doc.at("location").get<std::string>()));
  for (const Question& question : questions())
    for (const std::string& place : question.places)
      EXPECT_TRUE(std::any_of(locations.begin(), locations.end(),
                              [&](const std::string& one) { return is_place(one, place); }))
          << "\"" << question.text << "\": " << place << " is no place of the site";
}

/// tools/site/search.py runs the site's own search.
void expect_found(const fs::path& site, const std::string& python, const fs::path& folder) {
  const std::vector<Question> asked = questions();
  {
    std::ofstream queries(folder / "queries");
    for (const Question& question : asked) queries << question.text << "\n";
  }
  const std::string command = "'" + python + "' '" + (kSource / "tools/site/search.py").string() +
                              "' '" + site.string() + "' <'" + (folder / "queries").string() +
                              "' >'" + (folder / "found").string() + "' 2>'" +
                              (folder / "log").string() + "'";
  ASSERT_EQ(std::system(command.c_str()), 0) << read_text_file((folder / "log").string());
  std::ifstream found(folder / "found");
  for (const Question& question : asked) {
    std::string line;
    ASSERT_TRUE(std::getline(found, line)) << question.text;
    std::vector<std::string> locations;
    const Json results = Json::parse(line);
    for (const Json& result : results) locations.push_back(without_suffix(result.at(1)));
    EXPECT_TRUE(found_among_first(locations, question))
        << "\"" << question.text << "\" finds" << listed(locations);
  }
}

TEST(Site, HasNoDeadLinkAndItsSearchFindsWhatPeopleAsk) {
  const char* python = std::getenv("TESSERA_DOCS_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "TESSERA_DOCS_PYTHON is not set (scripts/setup.sh docs)";
  const test::TemporaryFolder folder;
  const fs::path site = folder / "site", log = folder / "log";
  const std::string command = "cd '" + kSource.string() + "' && NO_MKDOCS_2_WARNING=1 '" +
                              std::string(python) + "' -m mkdocs build --strict -d '" +
                              site.string() + "' >'" + log.string() + "' 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0) << read_text_file(log.string());
  expect_pages(site);
  expect_places(site);
  expect_found(site, python, folder.path());
}

// --- tessera search ---

/// docs/howto/json.md:3-10 -> howto/json
std::string page_of(const std::string& source, const fs::path& docs) {
  const std::string file = source.substr(0, source.rfind(':'));
  return fs::path(file).lexically_relative(docs).replace_extension().string();
}

bool is_howto(const std::string& place) {
  return place.starts_with("howto/");
}

class Encoder : public CliRunner {};

/// Questions that a how-to page answers find it also by what they mean.
TEST_F(Encoder, SearchFindsTheHowToPages) {
  const char* cache = std::getenv("TESSERA_CACHE");
  const char* home = std::getenv("HOME");
  const fs::path caches = cache != nullptr
                              ? fs::path(cache)
                              : fs::path(home == nullptr ? "/" : home) / ".cache/tessera";
  const fs::path model = caches / "all-minilm-l6-v2";
  if (!fs::exists(model / "model.safetensors"))
    GTEST_SKIP() << "there is no all-minilm-l6-v2 (scripts/setup.sh minilm)";
  const fs::path docs = kSource / "docs";
  const std::string index = (folder_ / "docs.index").string();
  const Outcome made = run("index '" + (docs / "howto").string() + "' --name .md --with '" +
                           model.string() + "' --out '" + index + "'");
  ASSERT_EQ(made.code, 0) << made.err;
  size_t asked = 0, missed = 0;
  std::string wrong;
  for (Question question : questions()) {
    if (std::none_of(question.places.begin(), question.places.end(), is_howto)) continue;
    // passages have no headings: the page counts
    for (std::string& place : question.places) place = place.substr(0, place.find('#'));
    ++asked;
    const Outcome found = run("search '" + index + "' '" + question.text + "' --top " +
                              std::to_string(kFirst) + " --json");
    ASSERT_EQ(found.code, 0) << question.text << found.err;
    std::vector<std::string> pages;
    const Json hits = Json::parse(found.out);
    for (const Json& hit : hits) pages.push_back(page_of(hit.at("source"), docs));
    if (found_among_first(pages, question)) continue;
    ++missed;
    wrong += "\n\"" + question.text + "\" finds" + listed(pages);
  }
  EXPECT_GE(asked, 60u);
  EXPECT_LE(missed, kMostMissed) << missed << " of " << asked << wrong;
}

// --- the checks themselves ---

TEST(SearchQuestions, ThereAreManyAndNoneTwice) {
  const std::vector<Question> all = questions();
  std::set<std::string> texts;
  for (const Question& question : all) EXPECT_TRUE(texts.insert(question.text).second);
  EXPECT_GE(texts.size(), 120u);
}

TEST(SearchQuestions, AWrongPlaceIsNotAccepted) {
  std::istringstream text("# comment\n\nwhy cut   howto/cut guide/a#stop\n");
  const std::vector<Question> read = read_questions(text);
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(read[0].text, "why cut");
  EXPECT_EQ(read[0].places, (std::vector<std::string>{"howto/cut", "guide/a#stop"}));
  std::istringstream no_place("why cut  \n");
  EXPECT_THROW(read_questions(no_place), std::runtime_error);
  EXPECT_TRUE(found_among_first({"x", "y", "guide/a#stop-sequences"}, read[0]));
  EXPECT_FALSE(found_among_first({"x", "y", "z", "howto/cut"}, read[0]));
  EXPECT_FALSE(found_among_first({"guide/a", "guide/a#other", "howto/cut#part"}, read[0]));
  EXPECT_EQ(page_of("/d/docs/howto/json.md:1-9", "/d/docs"), "howto/json");
  EXPECT_EQ(without_suffix("guide/chat.html#x"), "guide/chat#x");
}

}  // namespace
}  // namespace tessera
