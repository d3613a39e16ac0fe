// Which keys of cards say nothing in which jobs.
#include "runtime/job/card_keys.h"

#include <doctest/doctest.h>

using namespace penstock;

TEST_CASE("a job that says nothing of cards has nothing without effect") {
  Job job;
  for (const ExecutorKind executor : {ExecutorKind::cpu, ExecutorKind::automatic, ExecutorKind::card}) {
    job.loader.executor = executor;
    CHECK(card_keys_without_effect(job).empty());
  }
}

TEST_CASE("keys of cards where there are none") {
  Job job;
  job.loader.executor = ExecutorKind::cpu;
  job.loader.cards = 2;
  CHECK(card_keys_without_effect(job) == "without effect, because loader.executor is cpu: loader.cards");
  // One reason is enough.
  job.loader.nvjpeg = NvjpegUse::nearest;
  CHECK(card_keys_without_effect(job) ==
        "without effect, because loader.executor is cpu: loader.cards and loader.nvjpeg");
}

TEST_CASE("nvJPEG, whose pixels no job of exact arithmetic may have") {
  Job job;
  job.loader.executor = ExecutorKind::automatic;
  job.loader.nvjpeg = NvjpegUse::interpolated;
  CHECK(card_keys_without_effect(job) == "without effect, because arithmetic is exact: loader.nvjpeg");
  job.arithmetic = "fast";
  CHECK(card_keys_without_effect(job).empty());
}

TEST_CASE("links, where no memory is shared") {
  Job job;
  job.loader.executor = ExecutorKind::card;
  job.loader.card_links = CardLinksKind::nccl;
  CHECK(card_keys_without_effect(job) == "without effect, because loader.card_share_mb is 0: loader.card_links");
  job.loader.card_share_mb = 1;
  CHECK(card_keys_without_effect(job).empty());
}
