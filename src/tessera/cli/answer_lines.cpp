#include "tessera/cli/answer_lines.h"

#include <algorithm>
#include <sstream>

#include "tessera/base/text_input.h"
#include "tessera/text/corpus_scores.h"
#include "tessera/text/utf8.h"

namespace tessera::cli {

void AnswerLines::add(CLI::App& app) {
  auto* lines = app.add_option(
      "--prompts-from", file,
      "batch inference from JSON lines (- = stdin): each is printed with its completion");
  app.add_option("--prompt-key", prompt_key, "JSON key of the prompt")
      ->capture_default_str()
      ->needs(lines);
  app.add_option("--answer-key", answer_key,
                 "JSON key of the completion; the prompt's own key = appended to the prompt")
      ->capture_default_str()
      ->needs(lines);
  app.add_option("--expected-key", expected_key,
                 "JSON key of the reference: BLEU, chrF (as sacrebleu) and exact match are printed")
      ->needs(lines);
  app.add_option("--at-once", at_once, "batch size of --prompts-from")
      ->capture_default_str()
      ->needs(lines)
      ->check(positive());
}

void AnswerLines::run(const std::function<std::vector<std::string>(const std::vector<std::string>&,
                                                                   int64_t)>& answer) const {
  const std::string where = file == "-" ? "stdin" : file;
  std::vector<Json> lines;
  std::vector<std::string> prompts, expected;
  std::istringstream text(read_text_input(file, &cancel_token()));
  int64_t number = 0;
  for (std::string line; std::getline(text, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string place = fmt::format("{}:{}", where, number);
    Json json = spec::parse_json(line, place);
    const auto text_of = [&](const std::string& key, const char* flag) {
      if (!json.is_object() || !json.contains(key) || !json[key].is_string())
        fail(ErrorKind::file, place,
             "no text under \"{}\"; expected an object that has one, or another {}", key, flag);
      return json[key].get<std::string>();
    };
    prompts.push_back(text_of(prompt_key, "--prompt-key"));
    if (!expected_key.empty()) expected.push_back(text_of(expected_key, "--expected-key"));
    lines.push_back(std::move(json));
  }
  if (lines.empty()) fail(ErrorKind::file, where, "no lines; expected JSON objects");
  text::CorpusScores scores;
  int64_t same = 0;
  for (int64_t first = 0; first < std::ssize(lines); first += at_once) {
    const int64_t n = std::min(at_once, std::ssize(lines) - first);
    const auto begin = prompts.begin() + first;
    const std::vector<std::string> answers = answer({begin, begin + n}, first);
    for (int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<size_t>(first + i);
      const std::string& said = answers.at(static_cast<size_t>(i));
      if (!expected.empty()) {
        scores.add(text::to_valid_utf8(said), expected[at]);
        same += said == expected[at] ? 1 : 0;
      }
      lines[at][answer_key] = answer_key == prompt_key ? prompts[at] + said : said;
      fmt::print("{}\n", lines[at].dump(-1, ' ', false, Json::error_handler_t::replace));
    }
    flush_output();
    fmt::print(stderr, "{} of {} lines\n", first + n, lines.size());
  }
  if (!expected.empty())
    fmt::print(stderr, "BLEU {:.2f}, chrF {:.2f}, length ratio {:.3f}, exact match {} of {}\n",
               scores.bleu(), scores.chrf(), scores.length_ratio(), same, lines.size());
}

}  // namespace tessera::cli
