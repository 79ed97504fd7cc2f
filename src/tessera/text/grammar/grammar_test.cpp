#include "tessera/text/grammar/grammar.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "tessera/base/rng.h"
#include "tessera/base/testing.h"
#include "tessera/text/grammar/grammar_constraint.h"
#include "tessera/text/grammar/regex_grammar.h"
#include "tessera/text/utf8.h"

namespace tessera::text::grammar_test {
namespace {

std::shared_ptr<const TokenTrie> tokens_of(const std::vector<std::string>& texts) {
  std::vector<std::optional<std::string>> tokens;
  for (const std::string& text : texts)
    tokens.push_back(text.empty() ? std::nullopt : std::optional(text));
  return std::make_shared<const TokenTrie>(std::move(tokens));
}

std::set<int64_t> allowed(const ConstraintState& state, size_t n) {
  std::vector<uint64_t> bits((n + 63) / 64);
  state.allow(bits);
  std::set<int64_t> ids;
  for (size_t id = 0; id < 64 * bits.size(); ++id)
    if (has_bit(bits, static_cast<int64_t>(id))) ids.insert(static_cast<int64_t>(id));
  return ids;
}

bool in_language(std::string_view gbnf, std::string_view text) {
  static const auto letters = tokens_of({"a"});
  return GrammarConstraint(parse_gbnf(gbnf, "test"), letters, "test").holds(text);
}

// by hand, after the notation's own rules
TEST(Gbnf, ReadsTheNotation) {
  const auto check = [](const std::string& gbnf, const std::vector<std::string>& in,
                        const std::vector<std::string>& out) {
    SCOPED_TRACE(gbnf);
    for (const std::string& text : in) EXPECT_TRUE(in_language(gbnf, text)) << text;
    for (const std::string& text : out) EXPECT_FALSE(in_language(gbnf, text)) << text;
  };
  check("root ::= \"ab\" | \"c\"", {"ab", "c"}, {"", "a", "abc", "abab"});
  check("root ::= [a-c]{2,3}", {"ab", "cca"}, {"a", "abca", "ad"});
  check("root ::= [a-c]{2}", {"ab"}, {"a", "abc"});
  check("root ::= [a-c]{2,} \"!\"", {"ab!", "abcabc!"}, {"a!", "!", "ab"});
  check("root ::= (\"a\" \"b\"?)* ", {"", "a", "ab", "aab", "abaab"}, {"b", "abb"});
  check("root ::= x+ # a comment | \"z\"\nx ::= \"a\" |\n  \"b\"\n  | \"c\"", {"a", "cab"},
        {"", "z", "d"});
  check("root ::= [^\"\\\\]+", {"é", "a\n", "€𝄞"}, {"\"", "a\\", "\xC3"});
  check("root ::= [\\x41\\u00e9-\\u00EB\\U0001F600]", {"A", "é", "ë", "😀"}, {"B", "ì", "😁"});
  check("root ::= \"\\t\\\"\\x42\\u20AC\"", {"\t\"B€"}, {"t"});
  check("root ::= .", {"\n", "é", "😀"}, {"", "ab", "\xED\xA0\x80", "\xC0\x80"});
  check("root ::= [a\\-z]", {"a", "-", "z"}, {"b"});
  check("root ::= [a-]", {"a", "-"}, {"b"});
  check("root ::= \"\"", {""}, {"a"});
  check("root ::=\n  (\n \"a\" # one\n | \"b\"\n ) other\nother ::= \"!\"", {"a!", "b!"}, {"a"});
  check("root ::= (\"a\"?){3} \"b\"", {"b", "ab", "aaab"}, {"aaaab"});
  check("root ::= (\"a\"*){2,5} \"b\"", {"b", "aaaaaaaaab"}, {"c"});
  check("root ::= (\"a\" | \"bc\"){2,4}{2}", {"aaaa", "abcabc", "aabcaaaaa"}, {"aaa", "aaaaaaaaa"});
  check("root ::= \"(\" root \")\" | \"x\"", {"x", "((x))"}, {"(x", "x)"});
  // a rule that nobody comes back from is left out
  check("root ::= \"a\" | \"b\" loop\nloop ::= \"c\" loop", {"a"}, {"b", "bc"});
}

TEST(Gbnf, SaysWhatIsWrongAndWhere) {
  const auto refused = [](const std::string& gbnf, const char* what) {
    SCOPED_TRACE(gbnf);
    test::expect_error(ErrorKind::input, what, [&] { parse_gbnf(gbnf, "g"); });
  };
  refused("", "rule \"root\" is used, but not defined");
  refused("root ::= \"a\n", "line 1: a text that does not end on its line");
  refused("root ::= [a", "a text that does not end");
  refused("root ::= [b-a]", "a range whose end is before its beginning");
  refused("root ::= (\"a\"", "expected )");
  refused("root ::= \"a\")", "expected the end of the line; found \")\"");
  refused("root = \"a\"", "expected ::= after the name of a rule");
  refused("\nroot ::= x", "rule \"x\" is used, but not defined");
  refused("root ::= \"a\"\nroot ::= \"b\"", "line 2: rule \"root\" is defined twice");
  refused("root ::= \"\\q\"", "expected \\n \\r");
  refused("root ::= \"\\u12\"", "expected 4 hexadecimal digits");
  refused("root ::= \"\\ud800\"", "no character has this code");
  refused("root ::= \"a\"{3,2}", "{m,n} with n below m");
  refused("root ::= \"a\"{99999999}", "a repetition of more than 1000000");
  refused("root ::= root \"a\" | \"b\"", "left recursion: root -> root");
  refused("root ::= x \"a\"\nx ::= \"\" y\ny ::= \"b\"? root | \"c\"",
          "left recursion: root -> x -> y -> root");
  refused("root ::= \"a\" root", "no text fits rule \"root\"");
  refused("root ::= <[x]>", "expected the id of a token");
  refused("root ::= <think", "a token without its >");
  refused(std::string(70, '(').insert(0, "root ::= "), "groups deeper than 64");
  refused("root ::= \"" + std::string(300'000, 'a') + "\"", "expected at most 262144");
  refused("root ::= \"\xFF\"", "no UTF-8");
}

TEST(Gbnf, WhatIsWrittenIsReadAgain) {
  const std::string gbnf =
      "root ::= (\"a\" | [^\\\"\\-x-z\\n])+ x{2,5} (\"b\"{3}){2,} \"\\\\\\\"\" <think>? !<[7]>\n"
      "x ::= \"\" | [\\u00E9\\U0001F600]* \"c\"\n";
  const Grammar once = parse_gbnf(gbnf, "test");
  EXPECT_EQ(parse_gbnf(once.to_gbnf(), "test").to_gbnf(), once.to_gbnf());
  EXPECT_NE(once.to_gbnf().find("x{2,5}"), std::string::npos) << once.to_gbnf();
}

// --- against a reading of texts that knows nothing of bytes, stacks or states

/// The ends of what a node may read from a place of a text on.
class Definition {
 public:
  Definition(const Grammar& g, std::string text) : g_(g), text_(std::move(text)) {}
  bool holds() {
    return ends(g_.rules()[static_cast<size_t>(g_.root())].body, 0).contains(text_.size());
  }

 private:
  std::set<size_t> ends(int32_t number, size_t from) {
    const auto key = std::pair(number, from);
    if (const auto found = known_.find(key); found != known_.end()) return found->second;
    const Grammar::Node& node = g_.node(number);
    std::set<size_t> out;
    switch (node.kind) {
      case Grammar::Kind::literal:
        if (text_.compare(from, node.text.size(), node.text) == 0)
          out.insert(from + node.text.size());
        break;
      case Grammar::Kind::chars:
        if (const size_t n = from < text_.size() ? character_length(text_, from) : 0; n > 0)
          for (const auto& [a, b] : node.ranges)
            if (const char32_t c = code_point_at(text_, from, n); a <= c && c <= b)
              out.insert(from + n);
        break;
      case Grammar::Kind::sequence:
        out.insert(from);
        for (const int32_t part : node.parts) out = behind(part, out);
        break;
      case Grammar::Kind::choice:
        for (const int32_t part : node.parts) out.merge(ends(part, from));
        break;
      case Grammar::Kind::repeat: {
        std::set<size_t> at = {from};
        // a round that reads nothing is worth no further one
        const int64_t most =
            node.most == Grammar::kAnyTimes
                ? std::max<int64_t>(node.least, static_cast<int64_t>(text_.size()) + 1)
                : node.most;
        for (int64_t n = 0; n <= most && !at.empty(); ++n) {
          if (n >= node.least) out.insert(at.begin(), at.end());
          if (n < most) at = behind(node.parts[0], at);
        }
        break;
      }
      case Grammar::Kind::rule:
        out = ends(g_.rules()[static_cast<size_t>(node.rule)].body, from);
        break;
      default:
        break;
    }
    return known_[key] = out;
  }
  std::set<size_t> behind(int32_t part, const std::set<size_t>& from) {
    std::set<size_t> out;
    for (const size_t at : from) out.merge(ends(part, at));
    return out;
  }
  const Grammar& g_;
  std::string text_;
  std::map<std::pair<int32_t, size_t>, std::set<size_t>> known_;
};

/// A grammar of a few rules over a, b, c and é, which may be of no use.
Grammar random_grammar(uint64_t seed) {
  Grammar g;
  uint64_t drawn = 0;
  const RandomKey key(seed);
  const auto below = [&](uint32_t n) { return static_cast<int32_t>(key.bits(drawn++) % n); };
  const int32_t n_rules = 1 + below(3);
  for (int32_t r = 0; r < n_rules; ++r) g.rule(r == 0 ? "root" : fmt::format("r{}", r));
  g.set_root(0);
  const std::function<int32_t(int)> part = [&](int depth) -> int32_t {
    switch (depth > 3 ? below(3) : below(9)) {
      case 0:
        return g.literal(
            std::vector<const char*>{"a", "b", "ab", "ca", "é"}[static_cast<size_t>(below(5))]);
      case 1:
        return g.chars(below(2) == 0 ? CharacterRanges{{'a', 'b'}} : complement({{'a', 'a'}}));
      case 2:
        return depth > 3 ? g.literal("c") : g.call(below(static_cast<uint32_t>(n_rules)));
      case 3:
      case 4: {
        std::vector<int32_t> parts;
        for (int32_t i = below(4); i > 0; --i) parts.push_back(part(depth + 1));
        return g.sequence(std::move(parts));
      }
      case 5:
      case 6: {
        std::vector<int32_t> parts;
        for (int32_t i = 1 + below(3); i > 0; --i) parts.push_back(part(depth + 1));
        return g.choice(std::move(parts));
      }
      default: {
        const int64_t least = below(3);
        return g.repeat(part(depth + 1), least,
                        below(3) == 0 ? Grammar::kAnyTimes : least + below(3));
      }
    }
  };
  for (int32_t r = 0; r < n_rules; ++r) g.define(r, part(0));
  return g;
}

TEST(GrammarConstraint, HoldsWhatTheDefinitionHolds) {
  const std::vector<std::string> pieces = {"a",    "b",  "c",  "é",   "\xC3",
                                           "\xA9", "ab", "ca", "abc", "d"};
  const auto vocabulary = tokens_of(pieces);
  std::vector<std::string> texts = {""};
  for (size_t i = 0; i < texts.size(); ++i)
    for (const char* c : {"a", "b", "c", "é", "d"})
      if (texts[i].size() < 4) texts.push_back(texts[i] + c);
  size_t used = 0, refused = 0, members = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const Grammar g = random_grammar(seed);
    std::optional<GrammarConstraint> constraint;
    try {
      constraint.emplace(g, vocabulary, "test");
    } catch (const Error& error) {
      // left recursion, or no text
      ASSERT_EQ(error.kind(), ErrorKind::input);
      ++refused;
      continue;
    }
    ++used;
    std::set<std::string> language;
    for (const std::string& text : texts) {
      const bool want = Definition(g, text).holds();
      ASSERT_EQ(constraint->holds(text), want) << g.to_gbnf() << text;
      if (want) language.insert(text);
    }
    members += language.size();
    // tokens, from the texts of two tokens on
    for (const std::string& before :
         {std::string(), std::string("a"), std::string("ab"), std::string("\xC3")}) {
      const auto state = constraint->start();
      bool there = true;
      for (size_t i = 0; i < before.size() && there; ++i) {
        const auto piece = std::find(pieces.begin(), pieces.end(), std::string(1, before[i]));
        there = state->accept(piece - pieces.begin());
      }
      const auto goes_on = [&](const std::string& beginning) {
        const auto found = language.lower_bound(beginning);
        return found != language.end() && found->starts_with(beginning);
      };
      ASSERT_TRUE(there || !goes_on(before)) << g.to_gbnf() << before;
      if (!there) continue;
      ASSERT_EQ(state->may_end(), language.contains(before)) << g.to_gbnf() << before;
      const auto ids = allowed(*state, pieces.size());
      // nothing leads astray
      ASSERT_TRUE(state->may_end() || !ids.empty() || before == "\xC3") << g.to_gbnf() << before;
      for (size_t id = 0; id < pieces.size(); ++id) {
        const bool in = ids.contains(static_cast<int64_t>(id));
        ASSERT_TRUE(in || !goes_on(before + pieces[id])) << g.to_gbnf() << before << pieces[id];
        const auto copy = state->clone();
        ASSERT_EQ(copy->accept(static_cast<int64_t>(id)), in)
            << g.to_gbnf() << before << pieces[id];
      }
    }
  }
  EXPECT_GT(used, 1000U);
  EXPECT_GT(refused, 100U);
  EXPECT_GT(members, 10'000U);
}

// masks of places that differ by counts are made of each other: they hold to what tokens themselves
// are told, in any order of coming to them
TEST(GrammarConstraint, CountsShareWhatTheyDoNotChange) {
  const std::vector<std::string> pieces = {"a",  "b",    "ab",   "aab",      "é",    "\xC3", "\xA9",
                                           "aé", "bbbb", "aaaa", "aaaaaaaa", ",",    ",a",   "x",
                                           "a,", "ax",   "\"",   "a\"",      "aa\"x"};
  const auto vocabulary = tokens_of(pieces);
  const auto vocabulary_size = static_cast<int64_t>(pieces.size());
  for (const char* source :
       {"root ::= [abé]{0,300} \"x\"", "root ::= [abé]{20,40} \"x\"?",
        "root ::= ([ab]{1,9} \",\"){0,12} \"x\"", "root ::= ((\"a\" | \"ab\"){2,30} \"x\"?){1,7}",
        "root ::= ([ab]? \",\"?){0,40} \"x\"", "root ::= \"a\"{0,15} [ab]{0,15} \"x\"",
        "root ::= .{3,60} \"\\\"x\"", "root ::= ([ab]{3} | \"é\"){0,25}",
        "root ::= \"a\"{5,} [b]{0,11} <[0]>?"}) {
    SCOPED_TRACE(source);
    const GrammarConstraint constraint(parse_gbnf(source, "test"), vocabulary, "test");
    for (uint64_t seed = 0; seed < 30; ++seed) {
      const RandomKey key(seed);
      auto state = constraint.start();
      for (uint64_t t = 0; t < 120; ++t) {
        std::vector<int64_t> ids;
        for (int64_t id = 0; id < vocabulary_size; ++id)
          if (state->clone()->accept(id)) ids.push_back(id);
        // some places are passed by, so that others come to be the first of their kind
        if (key.bits(2 * t) % 3 > 0) {
          ASSERT_EQ(allowed(*state, pieces.size()), std::set<int64_t>(ids.begin(), ids.end()))
              << "seed " << seed << ", token " << t;
        }
        if (ids.empty()) break;
        ASSERT_TRUE(state->accept(ids[key.bits(2 * t + 1) % ids.size()]));
      }
    }
  }
  // a long repetition looks at the whole vocabulary a few times, not at each of its places
  const GrammarConstraint longest(parse_gbnf("root ::= [ab]{0,2000}", "test"), vocabulary, "test");
  auto state = longest.start();
  for (int i = 0; i < 2000; ++i) {
    const auto ids = allowed(*state, pieces.size());
    const auto left = static_cast<size_t>(2000 - i);
    for (int64_t id = 0; id < vocabulary_size; ++id) {
      const std::string& piece = pieces[static_cast<size_t>(id)];
      ASSERT_EQ(ids.contains(id),
                piece.size() <= left && piece.find_first_not_of("ab") == std::string::npos)
          << i << " " << piece;
    }
    ASSERT_TRUE(state->accept(0));
  }
  EXPECT_EQ(longest.counts().masks, 2000U);
  EXPECT_LE(longest.counts().walks, 10U);
}

TEST(GrammarConstraint, AllowsTheTokensThatGoOn) {
  const std::vector<std::string> pieces = {
      "a", "A", "\"", "\xC3", "\xA9", "é", "A\xC3", "\xE2\x82", "\xAC", "\xFF", "AA", "AAA", "A\""};
  const auto vocabulary = tokens_of(pieces);
  const GrammarConstraint constraint(parse_gbnf("root ::= [^a-z\"]{1,2}", "test"), vocabulary,
                                     "test");
  using Ids = std::set<int64_t>;
  const auto behind = [&](std::vector<int64_t> ids) {
    auto state = constraint.start();
    for (const int64_t id : ids) EXPECT_TRUE(state->accept(id));
    return state;
  };
  EXPECT_EQ(allowed(*behind({}), 13), (Ids{1, 3, 5, 6, 7, 10}));
  EXPECT_EQ(allowed(*behind({1}), 13), (Ids{1, 3, 5, 7}));
  EXPECT_TRUE(behind({1})->may_end());
  EXPECT_FALSE(behind({1})->must_end());
  EXPECT_EQ(allowed(*behind({3}), 13), (Ids{4, 8}));
  EXPECT_FALSE(behind({3})->may_end());
  EXPECT_EQ(allowed(*behind({10}), 13), Ids{});
  EXPECT_TRUE(behind({10})->must_end());
  EXPECT_FALSE(behind({1})->accept(2));
}

TEST(GrammarConstraint, NamesTokens) {
  std::vector<std::optional<std::string>> tokens = {"a", "b", std::nullopt, "<think>"};
  const auto vocabulary = std::make_shared<const TokenTrie>(std::move(tokens));
  const auto at = [&](const std::string& gbnf, std::vector<int64_t> ids) {
    const GrammarConstraint constraint(parse_gbnf(gbnf, "test"), vocabulary, "test");
    auto state = constraint.start();
    for (const int64_t id : ids) EXPECT_TRUE(state->accept(id));
    return allowed(*state, 4);
  };
  using Ids = std::set<int64_t>;
  EXPECT_EQ(at("root ::= \"a\" <[2]> \"b\"", {}), (Ids{0}));
  EXPECT_EQ(at("root ::= \"a\" <[2]> \"b\"", {0}), (Ids{2}));
  EXPECT_EQ(at("root ::= \"a\" <[2]> \"b\"", {0, 2}), (Ids{1}));
  EXPECT_EQ(at("root ::= <think> \"a\"", {}), (Ids{3}));
  EXPECT_EQ(at("root ::= !<think>* \"a\"", {}), (Ids{0, 1}));
  EXPECT_EQ(at("root ::= !<[0]>", {}), (Ids{1, 3}));
  // special tokens are no text
  EXPECT_EQ(at("root ::= .*", {}), (Ids{0, 1, 3}));
  test::expect_error(ErrorKind::input, "token <[4]>; expected ids from 0 to 3",
                     [&] { at("root ::= <[4]>", {}); });
  test::expect_error(ErrorKind::input, "the vocabulary has no token <tool>",
                     [&] { at("root ::= <tool>", {}); });
}

TEST(GrammarConstraint, FreeTextEndsAtItsMarker) {
  for (const std::string marker : {"<tool>", "aab", "abab", "é€é", "x"}) {
    SCOPED_TRACE(marker);
    Grammar g;
    g.set_root(g.rule("root"));
    g.define(g.root(), g.sequence({g.up_to(marker), g.literal("!")}));
    const GrammarConstraint constraint(g, tokens_of({"a"}), "test");
    Grammar without;
    without.set_root(without.rule("root"));
    without.define(without.root(), without.without(marker));
    const GrammarConstraint free(without, tokens_of({"a"}), "test");
    const RandomKey key(hash_name(marker));
    std::vector<std::string> letters;
    for_each_character(marker, [&](char32_t, size_t begin, size_t end) {
      letters.push_back(marker.substr(begin, end - begin));
    });
    letters.push_back("z");
    for (uint64_t i = 0; i < 3000; ++i) {
      std::string text;
      for (uint64_t n = key.bits(64 * i) % 14; n > 0; --n)
        text += letters[key.bits(64 * i + n) % letters.size()];
      const size_t at = text.find(marker);
      EXPECT_EQ(free.holds(text), at == std::string::npos) << text;
      EXPECT_EQ(constraint.holds(text + "!"),
                at != std::string::npos && at + marker.size() == text.size())
          << text;
    }
    EXPECT_TRUE(constraint.holds("zz" + marker + "!"));
  }
}

TEST(GrammarConstraint, ForgetsWhatTakesTooMuchAndGoesOn) {
  const auto vocabulary = tokens_of({"a", "(", ")", "((", "))"});
  const Grammar g = parse_gbnf("root ::= \"(\" root \")\" | \"a\"", "test");
  const GrammarConstraint small(g, vocabulary, "test", {.most_bytes = 20'000});
  const GrammarConstraint large(g, vocabulary, "test");
  const auto a = small.start(), b = large.start();
  const RandomKey key(1);
  int64_t depth = 0;
  for (uint64_t i = 0; i < 400; ++i) {
    ASSERT_EQ(allowed(*a, 5), allowed(*b, 5)) << i;
    const int64_t id = key.bits(i) % 2 == 0 ? 1 : 3;
    depth += id == 1 ? 1 : 2;
    ASSERT_TRUE(a->accept(id));
    ASSERT_TRUE(b->accept(id));
  }
  ASSERT_TRUE(a->accept(0));
  ASSERT_TRUE(b->accept(0));
  for (; depth > 0; --depth) {
    ASSERT_FALSE(a->must_end());
    ASSERT_EQ(allowed(*a, 5), allowed(*b, 5)) << depth;
    ASSERT_TRUE(a->accept(2));
    ASSERT_TRUE(b->accept(2));
  }
  EXPECT_TRUE(a->must_end());
  EXPECT_GT(small.counts().restarts, 2U);
  EXPECT_LT(small.counts().bytes, 60'000U);
  EXPECT_EQ(large.counts().restarts, 0U);
}

TEST(GrammarConstraint, SaysWhatItExpects) {
  const auto vocabulary = tokens_of({"a", "b", "x"});
  const auto said = [&](const std::string& gbnf, std::vector<int64_t> ids) {
    const GrammarConstraint constraint(parse_gbnf(gbnf, "test"), vocabulary, "test");
    auto state = constraint.start();
    for (const int64_t id : ids) EXPECT_TRUE(state->accept(id));
    return state->expected();
  };
  EXPECT_EQ(said("root ::= [ab]", {}), "'a' or 'b'");
  EXPECT_EQ(said("root ::= \"a\" word\nword ::= [^ ]*", {0}), "more of \"word\" or the end");
  EXPECT_EQ(said("root ::= \"a\" \"\\n\"?", {0}), "byte 0A or the end");
}

// --- patterns, by hand after ECMA-262

TEST(RegexGrammar, HoldsWhatThePatternMatches) {
  const auto check = [](const std::string& pattern, const std::vector<std::string>& in,
                        const std::vector<std::string>& out) {
    SCOPED_TRACE(pattern);
    const GrammarConstraint constraint(regex_grammar(pattern, "test"), tokens_of({"a"}), "test");
    for (const std::string& text : in) EXPECT_TRUE(constraint.holds(text)) << text;
    for (const std::string& text : out) EXPECT_FALSE(constraint.holds(text)) << text;
  };
  check("[a-c]+\\d{2,3}", {"a12", "cab123"}, {"12", "a1", "a1234"});
  check("a|bc|", {"a", "bc", ""}, {"b", "abc"});
  check("(?:ab)*?c", {"c", "ababc"}, {"abab"});
  check("(?<year>\\d{4})-(\\w)", {"2024-x"}, {"2024-"});
  check("[^\\s\\]]\\.", {"a."}, {" .", "].", "ab"});
  check("\\u00e9\\x41\\u{1F600}", {"éA😀"}, {"A"});
  check("a{,2}", {"a{,2}"}, {"aa"});
  check("^abc$", {"abc"}, {"xabc"});
  check(".", {"a", "é"}, {"\n", "\r"});
  check("\\S\\D\\W", {"aa-"}, {" a-", "a1-", "aaa"});
  const auto refused = [](const std::string& pattern, const char* what) {
    SCOPED_TRACE(pattern);
    test::expect_error(ErrorKind::input, what, [&] { regex_grammar(pattern, "test"); });
  };
  refused("(?=a)", "look-around");
  refused("(?<!a)b", "look-around");
  refused("(a)\\1", "a back-reference");
  refused("\\bword", "\\b and its like");
  refused("\\p{L}", "\\p, \\k or \\c");
  refused("(a", "a ( without its )");
  refused("a)", "a ) without its (");
  refused("[a", "a [ without its ]");
  refused("*a", "a repetition of nothing");
  refused("a{3,2}", "{m,n} with n below m");
  refused("\\", "a \\ at the end");
}

// --- whole vocabularies

// what a token adds to a text is what the decoder makes of it there
TEST(TokenTrie, BytesAreThoseOfTheDecoder) {
  const char* data = std::getenv("TESSERA_TEST_DATA");
  if (data == nullptr) GTEST_SKIP() << "TESSERA_TEST_DATA is not set";
  for (const char* name : {"llama2", "phi-2", "roberta-base"}) {
    SCOPED_TRACE(name);
    const Tokenizer tokenizer = load_tokenizer(std::string(data) + "/tokenizers/" + name);
    const auto before = tokenizer.encode("The quick brown fox", {.add_special = false});
    StreamDecoder decoder(tokenizer);
    size_t checked = 0;
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      const auto bytes = tokenizer.bytes_of(id);
      if (!bytes || !is_valid_utf8(*bytes)) continue;
      decoder.finish();
      decoder.prime(before);
      std::string text = decoder.push(id);
      text += decoder.finish();
      ASSERT_EQ(text, *bytes) << id;
      ++checked;
    }
    EXPECT_GT(checked, static_cast<size_t>(tokenizer.vocab_size()) / 2);
  }
}

}  // namespace
}  // namespace tessera::text::grammar_test
