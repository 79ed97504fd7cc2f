// The field's words: words.txt says which standard term stands where in the guides and in the help,
// and which words do not. What people search for is found in headings and first sentences.
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <vector>

#include "cli_testing.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

struct Term {
  std::string text, page;  // below docs, or "-"
  bool in_rows = false;
  std::vector<std::string> verbs;
};

struct Table {
  std::vector<Term> terms;
  std::vector<std::string> forbidden, forbidden_in_messages, forbidden_in_comments;
};

/// Columns are two spaces apart or more.
Table read_table(std::istream& in) {
  Table table;
  std::string section;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    if (line[0] == '[') {
      section = line;
    } else if (section == "[forbidden]") {
      table.forbidden.push_back(line);
    } else if (section == "[forbidden in messages]") {
      table.forbidden_in_messages.push_back(line);
    } else if (section == "[forbidden in comments]") {
      table.forbidden_in_comments.push_back(line);
    } else {
      static const std::regex columns(R"((.*?)  +(row )?(\S+)(?: +(.*))?)");
      std::smatch cells;
      if (!std::regex_match(line, cells, columns)) {
        ADD_FAILURE() << "words.txt: " << line;
        continue;
      }
      Term term{cells[1].str(), cells[3].str(), cells[2].matched, {}};
      std::istringstream verbs(cells[4].str());
      for (std::string verb; verbs >> verb;) term.verbs.push_back(verb);
      table.terms.push_back(term);
    }
  }
  return table;
}

/// In lower case, without marks of Markdown; hyphens are spaces and -ise is -ize.
std::string plain(const std::string& text) {
  static const std::regex link(R"(\[([^\]]*)\]\([^)]*\))"),
      ise(R"(is(e|ed|es|er|ers|ing|ation)\b)");
  std::string out;
  bool space = true;
  for (const char c : std::regex_replace(text, link, "$1")) {
    if (c == '`' || c == '*') continue;
    const bool blank = c == '-' || std::isspace(static_cast<unsigned char>(c)) != 0;
    if (!blank) out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (blank && !space) out += ' ';
    space = blank;
  }
  return std::regex_replace(out, ise, "iz$1");
}

/// "**Lead.** One. Two." has the first sentence "**Lead.** One".
std::string first_sentence(const std::string& paragraph) {
  size_t begin = 0;
  if (paragraph.starts_with("**")) begin = std::min(paragraph.find("**", 2), paragraph.size());
  static const std::regex end(R"([.:] )");
  std::smatch found;
  const std::string rest = paragraph.substr(std::min(begin + 3, paragraph.size()));
  return paragraph.substr(0, paragraph.size() - rest.size()) +
         (std::regex_search(rest, found, end) ? found.prefix().str() : rest);
}

/// What people find on a page: headings, first sentences of sections and of paragraphs with a bold
/// lead; and, apart, rows of tables and items of lists.
struct Places {
  std::string heads, rows;
};

Places places_of(const std::string& page) {
  Places out;
  std::istringstream lines(page);
  std::string paragraph;
  bool after_heading = false, code = false;
  const auto end_paragraph = [&] {
    if (!paragraph.empty() && (after_heading || paragraph.starts_with("**")))
      out.heads += first_sentence(paragraph) + "\n";
    if (!paragraph.empty()) after_heading = false;
    paragraph.clear();
  };
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```")) code = !code;
    if (code || line.starts_with("    ")) continue;
    if (line.starts_with('#')) {
      end_paragraph();
      out.heads += line + "\n";
      after_heading = true;
    } else if (line.starts_with('|') || line.starts_with("- ")) {
      end_paragraph();
      out.rows += line + "\n";
    } else if (line.empty()) {
      end_paragraph();
    } else {
      paragraph += (paragraph.empty() ? "" : " ") + line;
    }
  }
  end_paragraph();
  return {plain(out.heads), plain(out.rows)};
}

/// Whether a term begins at a word of the text; a short one (NaN, EMA) ends there too, but for a
/// plural's s.
bool has(const std::string& text, const std::string& term) {
  const std::string sought = plain(term);
  const auto letter = [&](size_t i) {
    return i < text.size() && std::isalnum(static_cast<unsigned char>(text[i])) != 0;
  };
  for (size_t at = 0; (at = text.find(sought, at)) != std::string::npos; ++at) {
    const size_t end = at + sought.size();
    const bool ends = !letter(end) || (text[end] == 's' && !letter(end + 1));
    if ((at == 0 || !letter(at - 1)) && (ends || sought.size() > 4)) return true;
  }
  return false;
}

bool found_on(const Places& places, const Term& term) {
  return has(places.heads, term.text) || (term.in_rows && has(places.rows, term.text));
}

/// Forbidden phrases of a text, as whole words; options such as --anew are none.
std::vector<std::string> forbidden_in(const std::string& text,
                                      const std::vector<std::string>& phrases) {
  std::string flat;
  for (const char c : text) {
    const bool blank = std::isspace(static_cast<unsigned char>(c)) != 0;
    if (!blank)
      flat += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else if (!flat.ends_with(' '))
      flat += ' ';
  }
  const auto in_word = [&](size_t at) {
    return at < flat.size() && (std::isalnum(static_cast<unsigned char>(flat[at])) != 0 ||
                                flat[at] == '_' || flat[at] == '-');
  };
  std::vector<std::string> out;
  for (std::string phrase : phrases) {
    std::transform(phrase.begin(), phrase.end(), phrase.begin(), ::tolower);
    for (size_t at = 0; (at = flat.find(phrase, at)) != std::string::npos; at += phrase.size())
      if ((at == 0 || !in_word(at - 1)) && !in_word(at + phrase.size())) {
        out.push_back(phrase + ": ..." + flat.substr(at - std::min<size_t>(at, 40), 100) + "...");
        break;
      }
  }
  return out;
}

Table table() {
  std::ifstream file(kSource / "tests/words.txt");
  return read_table(file);
}

class Words : public CliRunner {
 protected:
  std::string help(const std::string& verb) {
    const Outcome outcome = run(verb + " --help");
    EXPECT_EQ(outcome.code, 0) << verb << outcome.err;
    return outcome.out;
  }
};

TEST_F(Words, StandardTermsAreInHeadingsAndFirstSentences) {
  std::map<std::string, Places> pages;
  for (const Term& term : table().terms) {
    if (term.page == "-") continue;
    const fs::path path = kSource / "docs" / term.page;
    ASSERT_TRUE(fs::exists(path)) << path;
    if (!pages.contains(term.page)) pages[term.page] = places_of(read_text_file(path));
    EXPECT_TRUE(found_on(pages.at(term.page), term))
        << "\"" << term.text << "\" is in no heading or first sentence"
        << (term.in_rows ? " or row" : "") << " of docs/" << term.page;
  }
  EXPECT_GT(pages.size(), 15u);
}

TEST_F(Words, StandardTermsAreInTheHelpOfTheirVerbs) {
  std::map<std::string, std::string> helps;
  for (const Term& term : table().terms)
    for (const std::string& verb : term.verbs) {
      if (!helps.contains(verb)) helps[verb] = plain(help(verb));
      EXPECT_TRUE(has(helps.at(verb), term.text))
          << "\"" << term.text << "\" is not in `tessera " << verb << " --help`";
    }
  EXPECT_GT(helps.size(), 15u);
}

TEST_F(Words, NoPageAndNoHelpHasOtherWords) {
  const std::vector<std::string> phrases = table().forbidden;
  ASSERT_GT(phrases.size(), 40u);
  std::vector<fs::path> pages = {kSource / "README.md"};
  for (const auto& entry : fs::recursive_directory_iterator(kSource / "docs"))
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  for (const fs::path& page : pages)
    for (const std::string& one : forbidden_in(read_text_file(page), phrases))
      ADD_FAILURE() << page << ": " << one;
  std::vector<std::string> verbs = {""};
  const std::string all = help("");
  static const std::regex verb(R"(\n  ([a-z][a-z-]*) {2,}[A-Z])");
  for (std::sregex_iterator m(all.begin(), all.end(), verb), end; m != end; ++m)
    verbs.push_back((*m)[1].str());
  EXPECT_GT(verbs.size(), 20u);
  for (const char* below : {"mixers", "quant", "sampling", "grammar", "guesses"})
    verbs.push_back(std::string("bench ") + below);
  for (const std::string& one : verbs)
    for (const std::string& found : forbidden_in(help(one), phrases))
      ADD_FAILURE() << "tessera " << one << " --help: " << found;
}

struct SourceText {
  std::string text;
  size_t line = 0;  // its first
};

struct SourceTexts {
  std::vector<SourceText> literals, comments;
};

/// The strings of a C++ source, adjacent ones joined, and its comments, those of adjacent lines
/// joined; includes and raw strings (templates, pages) are left out.
SourceTexts texts_of(const std::string& source) {
  SourceTexts out;
  size_t line = 1, comment_line = 0;  // the last one
  bool joined = false;                // literal to the one before: only blanks lie between
  for (size_t i = 0; i < source.size(); ++i) {
    const char c = source[i];
    if (c == '\n') ++line;
    if (std::isspace(static_cast<unsigned char>(c)) != 0) continue;
    if (source.compare(i, 2, "//") == 0) {
      const size_t end = std::min(source.find('\n', i), source.size());
      const std::string text =
          source.substr(i, end - i).substr(std::min(source.find_first_not_of("/<", i), end) - i);
      if (comment_line == 0 || comment_line + 1 < line) out.comments.push_back({"", line});
      out.comments.back().text += text + " ";
      comment_line = line;
      i = end - 1;
    } else if (source.compare(i, 8, "#include") == 0) {
      i = std::min(source.find('\n', i), source.size()) - 1;
    } else if (source.compare(i, 3, "R\"(") == 0) {
      const size_t end = std::min(source.find(")\"", i), source.size());
      line +=
          static_cast<size_t>(std::count(source.begin() + static_cast<std::ptrdiff_t>(i),
                                         source.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
      i = end + 1;
      joined = false;
    } else if (c == '\'' &&
               (i == 0 || std::isalnum(static_cast<unsigned char>(source[i - 1])) == 0)) {
      for (++i; i < source.size() && source[i] != '\''; ++i)
        if (source[i] == '\\') ++i;
      joined = false;
    } else if (c == '"') {
      if (!joined) out.literals.push_back({"", line});
      for (++i; i < source.size() && source[i] != '"'; ++i) {
        if (source[i] == '\\') ++i;
        out.literals.back().text += source[i];
      }
      joined = true;
    } else {
      joined = false;
    }
  }
  return out;
}

/// Messages, help and progress lines speak the field's terms.
TEST(Messages, HaveNoOtherWords) {
  const Table words = table();
  std::vector<std::string> phrases = words.forbidden;
  phrases.insert(phrases.end(), words.forbidden_in_messages.begin(),
                 words.forbidden_in_messages.end());
  ASSERT_GT(words.forbidden_in_messages.size(), 15u);
  size_t literals = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kSource / "src/tessera")) {
    const std::string path = entry.path().string();
    const bool source = path.ends_with(".cpp") || path.ends_with(".h") || path.ends_with(".def");
    if (!source || path.ends_with("_test.cpp") || path.ends_with("_testing.h")) continue;
    for (const SourceText& literal : texts_of(read_text_file(path)).literals) {
      ++literals;
      for (const std::string& found : forbidden_in(literal.text, phrases))
        ADD_FAILURE() << path << ":" << literal.line << ": " << found;
    }
  }
  EXPECT_GT(literals, 10000u);
}

/// Comments of headers speak the field's terms.
TEST(Comments, HaveNoOtherWords) {
  const Table words = table();
  std::vector<std::string> phrases = words.forbidden;
  phrases.insert(phrases.end(), words.forbidden_in_comments.begin(),
                 words.forbidden_in_comments.end());
  ASSERT_GT(words.forbidden_in_comments.size(), 20u);
  size_t comments = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kSource / "src/tessera")) {
    if (entry.path().extension() != ".h") continue;
    for (const SourceText& comment : texts_of(read_text_file(entry.path())).comments) {
      ++comments;
      for (const std::string& found : forbidden_in(comment.text, phrases))
        ADD_FAILURE() << entry.path() << ":" << comment.line << ": " << found;
    }
  }
  EXPECT_GT(comments, 1500u);
}

// the checks themselves
TEST(Messages, WhatIsPlantedIsFound) {
  const std::vector<SourceText> found =
      texts_of(
          "#include \"beside.h\"\n// \"beside\"\nfail(\"one be\"\n     \"side \\\"two\\\"\", '\"', "
          "\"x\");\n"
          "R\"(beside)\";\nf(1'000, \"y\");")
          .literals;
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].text, "one beside \"two\"");
  EXPECT_EQ(found[0].line, 3u);
  EXPECT_EQ(found[1].text, "x");
  EXPECT_EQ(found[2].text, "y");
  EXPECT_EQ(forbidden_in(found[0].text, {"beside"}).size(), 1u);
}

TEST(Comments, WhatIsPlantedIsFound) {
  const std::vector<SourceText> found =
      texts_of(
          "#include \"let/go.h\"\n// A row lets\n//\n/// go of\nint beside = f(\"// beside\", '/');"
          "  ///< Rests.\nint b;  // not beside-s\n\n// end")
          .comments;
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].line, 2u);
  EXPECT_EQ(forbidden_in(found[0].text, {"lets go of"}).size(), 1u);
  EXPECT_EQ(forbidden_in(found[0].text, {"rests", "let go", "beside"}).size(), 1u);
  EXPECT_EQ(found[1].line, 8u);
  EXPECT_EQ(forbidden_in(found[1].text, {"end"}).size(), 1u);
}

TEST(WordsTable, WhatIsPlantedIsFound) {
  std::istringstream text(
      "# a comment\n[terms]\nspeculative decoding   guide/x.md   generate chat\n"
      "weight decay   row guide/x.md\nstop string   -   generate\n[forbidden]\nanew\nis said\n");
  const Table table = read_table(text);
  ASSERT_EQ(table.terms.size(), 3u);
  EXPECT_EQ(table.terms[0].text, "speculative decoding");
  EXPECT_EQ(table.terms[0].verbs, (std::vector<std::string>{"generate", "chat"}));
  EXPECT_TRUE(table.terms[1].in_rows);
  EXPECT_EQ(table.terms[2].page, "-");
  const Places places = places_of(
      "# Page\n\nThe first sentence quantises. Speculative decoding is in the second.\n\n"
      "A further paragraph on speculative decoding.\n\n**Self-speculative.** It drafts. More.\n\n"
      "    # speculative decoding in code\n\n| `weight decay` | 0 |\n");
  EXPECT_FALSE(found_on(places, table.terms[0]));
  EXPECT_TRUE(found_on(places, table.terms[1]));
  EXPECT_FALSE(found_on(places, {"weight decay", "", false, {}}));
  EXPECT_TRUE(has(places.heads, "quantizes"));
  EXPECT_TRUE(has(places.heads, "self speculative. it drafts"));
  EXPECT_FALSE(has(places.heads, "more"));
  EXPECT_TRUE(found_on(places_of("## Speculative\tdecoding: `--draft`\n"), table.terms[0]));
  EXPECT_EQ(forbidden_in("It draws\n  Anew; --anew, renewanew.", table.forbidden).size(), 1u);
  EXPECT_EQ(forbidden_in("What is\nsaid. --anew is said-so", table.forbidden).size(), 1u);
  EXPECT_TRUE(forbidden_in("nothing --anew", table.forbidden).empty());
}

}  // namespace
}  // namespace tessera
