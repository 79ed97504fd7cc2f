// A grammar, and a text that goes through it as far as it may.
#include "fuzz.h"

#include "tessera/text/grammar/grammar_constraint.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(grammar) {
  static const auto bytes = [] {
    std::vector<std::optional<std::string>> tokens;
    for (int b = 0; b < 256; ++b) tokens.emplace_back(std::string(1, static_cast<char>(b)));
    tokens.emplace_back("ab");
    return std::make_shared<const text::TokenTrie>(std::move(tokens));
  }();
  const auto parts = fuzz::parts_of<2>(input);
  fuzz::run(
      [&] {
        const text::Grammar grammar = text::parse_gbnf(parts[0], "fuzz");
        const std::string written = grammar.to_gbnf();
        fuzz::check(text::parse_gbnf(written, "fuzz").to_gbnf() == written,
                    "what is written reads the same");
        const text::GrammarConstraint constraint(grammar, bytes, "fuzz");
        const auto state = constraint.start();
        std::vector<uint64_t> bits(5);
        for (const char c : parts[1].substr(0, 64)) {
          state->allow(bits);
          const auto id = static_cast<uint8_t>(c);
          fuzz::check(state->clone()->accept(256) == text::has_bit(bits, 256),
                      "a token is taken where it may come");
          fuzz::check(state->may_end() || std::any_of(bits.begin(), bits.end(),
                                                      [](uint64_t word) { return word != 0; }),
                      "every text that was begun has an end");
          const bool may = text::has_bit(bits, id);
          fuzz::check(state->accept(id) == may, "a byte is taken where it may come");
          if (!may) break;
        }
        fuzz::check(!state->expected().empty(), "what is expected has words");
      },
      {ErrorKind::input});
}
