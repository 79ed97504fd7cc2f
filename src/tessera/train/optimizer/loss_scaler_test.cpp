// The trace is that of torch.amp.GradScaler with growth_interval 3.
#include "tessera/train/optimizer/loss_scaler.h"

#include "tessera/train/train_testing.h"

namespace tessera::train::loss_scaler_test {
namespace {

TEST(LossScaler, TraceOfTorch) {
  const char* finite = "110111100111";
  const double want[] = {65536, 65536, 32768, 32768, 32768, 65536,
                         65536, 32768, 16384, 16384, 16384, 32768};
  LossScaler scaler(65536, 3);
  for (size_t i = 0; finite[i] != 0; ++i) {
    EXPECT_EQ(scaler.update(finite[i] == '1'), finite[i] == '1');
    EXPECT_EQ(scaler.scale(), want[i]) << i;
    // one that goes on from a checkpoint is the same
    LossScaler other(1, 3);
    other.restore(scaler.to_json(), "here");
    scaler = other;
  }
}

TEST(LossScaler, EndsWhereNoSmallerScaleHelps) {
  LossScaler twenty(0x1p40);
  for (int i = 0; i < 19; ++i) EXPECT_FALSE(twenty.update(false));
  expect_error(ErrorKind::input, "not finite in 20 updates in a row",
               [&] { twenty.update(false); });
  LossScaler small(2);
  EXPECT_FALSE(small.update(false));
  expect_error(ErrorKind::input, "the loss divided by 2 by now", [&] { small.update(false); });
  LossScaler saved(0x1p100);
  for (int i = 0; i < 100; ++i) saved.update(i % 19 == 0);
  EXPECT_EQ(saved.to_json()["skipped"], 4);
}

TEST(LossScaler, OfAnotherCheckpointIsRefused) {
  LossScaler scaler;
  for (const char* json :
       {"null", "{}", R"({"scale": 0.5, "good": 0, "skipped": 0})",
        R"({"scale": 2, "good": -1, "skipped": 0})", R"({"scale": "2", "good": 1, "skipped": 0})",
        R"({"scale": 2, "good": 1})"})
    expect_error(ErrorKind::file, "[checkpoint] here: \"loss_scale.",
                 [&] { scaler.restore(spec::parse_json(json, "test"), "here"); });
}

}  // namespace
}  // namespace tessera::train::loss_scaler_test
