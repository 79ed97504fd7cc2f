#include "tessera/train/data/sample_view.h"

#include "tessera/text/tokenizer/byte_tokenizer.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::sample_view_test {
namespace {

TEST(SampleView, SaysWhatIsReadAndAsked) {
  const text::Tokenizer tokenizer = text::byte_tokenizer();
  const text::Tokenizer* bytes = &tokenizer;
  PackedBatch batch;
  batch.ids = {'a', 300, 'c', 'd', 'x', 'y'};
  batch.targets = {-1, 'b', -1, -1, 'y', 301};
  batch.pieces = {{0, 0, 4, 0}, {0, 4, 2, 1}};
  EXPECT_EQ(lines_of(batch, 0, bytes),
            (std::vector<std::string>{"  reads         4 tokens: \"a\" <300> \"cd\"",
                                      "  asks          at 1: \"b\""}));
  EXPECT_EQ(lines_of(batch, 1, bytes),
            (std::vector<std::string>{"  reads         2 tokens: \"xy\"",
                                      "  asks          at 0 to 1: \"y\" <301>"}));
  batch.sources = {{'q', '\n'}, {'r'}};
  batch.pieces[0].prefix = 2;
  batch.targets[1] = -1;
  EXPECT_EQ(
      lines_of(batch, 0, bytes),
      (std::vector<std::string>{"  encoder reads 2 tokens: \"q\\n\"",
                                "  reads         4 tokens: \"a\" <300> \"cd\"",
                                "  given         the first 2 tokens", "  asks          nothing"}));
  const spec::Json view = view_of(batch, 1, bytes);
  EXPECT_EQ(view["row"], 0);
  EXPECT_EQ(view["targets"], (spec::Json{'y', 301}));
  EXPECT_EQ(view["encoder_reads"]["ids"], spec::Json{'r'});
  EXPECT_EQ(view["reads"]["tokens"], (spec::Json{"x", "y"}));
  EXPECT_EQ(shown(batch.ids, nullptr), "97 300 99 100 120 121");
}

}  // namespace
}  // namespace tessera::train::sample_view_test
