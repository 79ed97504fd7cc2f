#include "tessera/cli/answer_lines.h"

#include <algorithm>
#include <sstream>

#include "tessera/base/text_input.h"

namespace tessera::cli {

void AnswerLines::add(CLI::App& app) {
  auto* lines = app.add_option(
      "--prompts-from", file,
      "JSON lines, or - for stdin: every line is printed again with an answer, to learn from");
  app.add_option("--prompt-key", prompt_key, "with --prompts-from: key of the prompt in a line")
      ->capture_default_str()
      ->needs(lines);
  app.add_option("--answer-key", answer_key,
                 "with --prompts-from: key of the answer; the prompt's own = both as one text")
      ->capture_default_str()
      ->needs(lines);
  app.add_option("--at-once", at_once, "with --prompts-from: lines that are answered side by side")
      ->capture_default_str()
      ->needs(lines)
      ->check(positive());
}

void AnswerLines::run(const std::function<std::vector<std::string>(const std::vector<std::string>&,
                                                                   int64_t)>& answer) const {
  const std::string where = file == "-" ? "stdin" : file;
  std::vector<Json> lines;
  std::vector<std::string> prompts;
  std::istringstream text(read_text_input(file, &cancel_token()));
  int64_t number = 0;
  for (std::string line; std::getline(text, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string place = fmt::format("{}:{}", where, number);
    Json json = spec::parse_json(line, place);
    if (!json.is_object() || !json.contains(prompt_key) || !json[prompt_key].is_string())
      fail(ErrorKind::file, place,
           "no text under \"{}\"; expected an object that has one, or "
           "another --prompt-key",
           prompt_key);
    prompts.push_back(json[prompt_key].get<std::string>());
    lines.push_back(std::move(json));
  }
  if (lines.empty()) fail(ErrorKind::file, where, "no lines; expected JSON objects");
  for (int64_t first = 0; first < std::ssize(lines); first += at_once) {
    const int64_t n = std::min(at_once, std::ssize(lines) - first);
    const auto begin = prompts.begin() + first;
    const std::vector<std::string> answers = answer({begin, begin + n}, first);
    for (int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<size_t>(first + i);
      const std::string& said = answers.at(static_cast<size_t>(i));
      lines[at][answer_key] = answer_key == prompt_key ? prompts[at] + said : said;
      fmt::print("{}\n", lines[at].dump(-1, ' ', false, Json::error_handler_t::replace));
    }
    flush_output();
    fmt::print(stderr, "{} of {} lines\n", first + n, lines.size());
  }
}

}  // namespace tessera::cli
