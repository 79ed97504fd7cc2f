// Text from any model that tessera reads:  story MODEL PROMPT
#include <tessera/tessera.h>

#include <iostream>

int main(int argc, char** argv) try {
  if (argc != 3) return std::cerr << "usage: " << argv[0] << " MODEL PROMPT\n", 2;
  const tessera::Model model(argv[1]);
  const auto completion = model.generate(argv[2], R"({"max_new_tokens": 64, "temperature": 0})",
                                         [](std::string_view text) {
                                           std::cout << text << std::flush;
                                           return true;
                                         });
  std::cout << "\n";
  std::cerr << completion.token_ids.size() << " tokens, " << completion.finish_reason << "\n";
} catch (const tessera::Error& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
