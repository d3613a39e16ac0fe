// What a receiver reports of its splits: sums that compose, exact counts, and lists that stay small.
#include "runtime/receiver/delivery_ledger.h"

#include <doctest/doctest.h>

#include "runtime/report/report.h"

namespace penstock {
namespace {

SampleRecord unusable(int64_t position) {
  SampleRecord record;
  record.planned.position = position;
  record.planned.index = position * 2;
  record.key = "cat/" + std::to_string(position) + ".jpg";
  record.reason = "JPEG: premature end of the data";
  return record;
}

Delivery of_epoch(int64_t epoch) {
  Delivery delivery;
  delivery.epoch = epoch;
  delivery.images = 1;
  return delivery;
}

TEST_CASE("an unusable sample is counted once, however often and in whatever order it is delivered") {
  DeliveryLedger ledger;
  for (const int64_t position : {5, 3, 5, 4, 3}) ledger.delivered("train", of_epoch(0), {}, {unusable(position)});
  ledger.delivered("train", of_epoch(1), {}, {unusable(3)});
  SampleRecord padding = unusable(9);
  padding.padding = true;
  ledger.delivered("train", of_epoch(1), {}, {padding});
  const auto split = ledger.to_json({})["train"];
  CHECK(split["bad_sample_count"] == 4);
  CHECK(split["bad_samples"].size() == 4);
  CHECK(split["bad_samples"][1]["position"] == 3);
  CHECK(split["images"] == 7);
}

TEST_CASE("unusable samples of older epochs take no memory, and are counted once all the same") {
  DeliveryLedger ledger;
  const auto deliver = [&](int64_t epoch, int64_t first, int64_t end) {
    for (int64_t position = first; position < end; ++position) {
      ledger.delivered("train", of_epoch(epoch), {}, {unusable(position)});
    }
  };
  for (int64_t epoch = 0; epoch < 50; ++epoch) deliver(epoch, 0, 100);
  deliver(49, 0, 100);
  deliver(48, 50, 100);
  CHECK(ledger.kept_positions() == 200);
  CHECK(ledger.to_json({})["train"]["bad_sample_count"] == 5000);
  // An epoch that broke off, and was left for others, is gone over again, to its end this time.
  deliver(7, 0, 120);
  CHECK(ledger.to_json({})["train"]["bad_sample_count"] == 5020);
  deliver(8, 0, 100);
  deliver(9, 0, 100);
  deliver(7, 0, 120);
  CHECK(ledger.to_json({})["train"]["bad_sample_count"] == 5020);
  CHECK(ledger.kept_positions() <= 200);
}

TEST_CASE("a million unusable samples are a list of a thousand and a count, in a report of some hundred kilobytes") {
  DeliveryLedger ledger;
  constexpr int64_t count = 1'000'000;
  for (int64_t position = 0; position < count; ++position) {
    ledger.delivered("train", of_epoch(0), {}, {unusable(position)});
  }
  const nlohmann::json rank = {{"role", "trainer"}, {"splits", ledger.to_json({})}};
  const std::string text = rank.dump();
  CHECK(text.size() < 400'000);
  const auto split = rank["splits"]["train"];
  CHECK(split["bad_sample_count"] == count);
  CHECK(split["bad_samples"].size() == kMostBadSamples);
  CHECK(split["bad_samples"].back()["position"] == kMostBadSamples - 1);

  // Where there are several trainers, the report lists the first ones, too.
  const nlohmann::json report = merge_reports({text, text});
  CHECK(report["splits"]["train"]["bad_sample_count"] == 2 * count);
  CHECK(report["splits"]["train"]["bad_samples"].size() == kMostBadSamples);
  CHECK(report["splits"]["train"]["bad_samples"].back()["position"] == kMostBadSamples / 2 - 1);
  CHECK(report_text(report).find("and 1999980 more (--json lists the first 1000)") != std::string::npos);
}

TEST_CASE("the report says whether a split is one to train with, where several trainers are added, too") {
  DeliveryLedger ledger;
  Delivery evaluated = of_epoch(0);
  evaluated.mode = Mode::eval;
  ledger.delivered("train", of_epoch(0), {}, {});
  ledger.delivered("val", evaluated, {}, {});
  const nlohmann::json rank = {{"role", "trainer"}, {"splits", ledger.to_json({})}};
  CHECK(rank["splits"]["train"]["mode"] == "train");
  CHECK(rank["splits"]["val"]["mode"] == "eval");
  const nlohmann::json report = merge_reports({rank.dump(), rank.dump()});
  CHECK(report["splits"]["train"]["mode"] == "train");
  CHECK(report["splits"]["val"]["mode"] == "eval");
}

TEST_CASE("of very many ranges the latest are listed, and the others counted") {
  DeliveryLedger ledger;
  constexpr int64_t ranges = DeliveryLedger::kMostRanges + 5;
  for (int64_t epoch = 0; epoch < ranges; ++epoch) ledger.range_ended("train", {epoch, 0, 3, {}});
  ledger.range_ended("train", {ranges, 2, 2, {}});  // nothing was delivered
  const auto split = ledger.to_json({})["train"];
  CHECK(split["ranges"].size() == DeliveryLedger::kMostRanges);
  CHECK(split["ranges"][0]["epoch"] == 5);
  CHECK(split["ranges_left_out"] == 5);
}

}  // namespace
}  // namespace penstock
