// The sentence on what held a job up, and what the text says of the balancer.
#include "runtime/report/report.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace penstock {
namespace {

using nlohmann::json;

// Two trainers on host a, two loaders of four threads on host b, ten seconds.
struct Job {
  double wait_s = 5;
  double second_wait_s = 5;
  double busy_fraction = 0.3;
  double second_busy_fraction = -1;  // as the first loader's
  double second_lived_s = 10;
  double receiver_busy_s = 1;
  json links = json::array();
  bool slow = false;
  double fixed_us = 120;
  int64_t cpus = 0;  // of each node; 0: it does not say
  double read_s = 0;
  double python_s = 0;
  int64_t padding = 0;
  int64_t loader_images = 0;  // of each
  bool lost = false;          // another loader, which sends no report

  std::string report_of(int rank) const {
    json report = {{"rank", rank}, {"host", rank < 2 ? "a" : "b"}, {"elapsed_s", rank == 3 ? second_lived_s : 10.0}};
    if (rank < 2) {
      report["role"] = "trainer";
      report["trainer"] = rank;
      report["receiver_busy_s"] = rank == 1 ? receiver_busy_s : receiver_busy_s / 2;
      report["splits"]["train"] = {{"order_hash", std::string(32, '0')},
                                   {"pixel_hash", std::string(32, '0')},
                                   {"images", 1000},
                                   {"batches", 10},
                                   {"wait_s", rank == 0 ? wait_s : second_wait_s},
                                   {"elapsed_s", 10.0},
                                   {"padding", padding},
                                   {"bad_samples", json::array()}};
    } else {
      const double busy = rank == 3 && second_busy_fraction >= 0 ? second_busy_fraction : busy_fraction;
      report.update({{"role", "loader"}, {"threads", 4}, {"busy_fraction", busy}, {"decode_s", 10.0}});
      report.update({{"read_s", read_s}, {"python_s", python_s}, {"images", loader_images}});
      if (cpus > 0) report["cpus"] = cpus;
    }
    if (rank == 0) {
      report["coordinating_s"] = 0.2;
      if (lost) report.update({{"lost_loaders", json::array({"rank 4 (loader, host b)"})}, {"losses", 1}});
      report["leases"] = {{"granted", 12345}, {"regranted", 3}, {"hedged", 1}};
      report["balance"] = {{"costs",
                            {{{"executors", "cpu"},
                              {"chunks", 100},
                              {"mean_us", 8310.0},
                              {"fixed_us", fixed_us},
                              {"ns_per_byte", 3.0},
                              {"ns_per_pixel", 2.0}}}},
                           {"loaders",
                            {{{"rank", 2}, {"chunks", 90}, {"speed", 1.0}, {"slow", false}},
                             {{"rank", 3}, {"chunks", 10}, {"speed", 0.2}, {"slow", slow}}}},
                           {"links", links},
                           {"nodes", {0, 0, 1, 1}}};
    }
    return report.dump();
  }
  json merged() const { return merge_reports({report_of(0), report_of(1), report_of(2), report_of(3)}); }
  std::string sentence() const { return merged()["bottleneck"]; }
};

json link(int from, int to, double megabytes, const json& peak_mb_per_s) {
  return {{"from", from},     {"to", to},
          {"chunks", 100},    {"bytes", megabytes * 1e6},
          {"mb_per_s", 99.0}, {"peak_mb_per_s", peak_mb_per_s},
          {"latency_ms", 1.0}};
}

bool says(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

TEST_CASE("a link that was full nearly all the time is named, with its hosts and its rate") {
  Job job;
  job.links = json::array({link(1, 0, 118, 12.0), link(0, 0, 5000, json())});
  CHECK(says(job.sentence(), "The network held the job up: the programs waited for data 50 % of the time"));
  CHECK(says(job.sentence(), "the link from b to a carried 11.8 MB/s on average, 12.0 at its best"));
}

TEST_CASE(
    "a link with time to spare, or of which nothing is known, is not to blame; nor one beside threads that are busy") {
  Job job;
  job.links = json::array({link(1, 0, 60, 12.0)});
  CHECK(says(job.sentence(), "Nobody was busy"));
  job.links = json::array({link(1, 0, 118, 36.0)});  // it carried three times as much for a moment
  CHECK(says(job.sentence(), "Nobody was busy"));
  job.links = json::array({link(1, 0, 118, json())});
  CHECK(says(job.sentence(), "Nobody was busy"));
  job.links = json::array({link(1, 0, 118, 12.0)});
  job.busy_fraction = 0.8;
  CHECK(says(job.sentence(), "Decoding held the job up"));
  job.busy_fraction = 0.95;
  CHECK(says(job.sentence(), "Decoding held the job up"));
  job.wait_s = job.second_wait_s = 0.1;
  CHECK(says(job.sentence(), "The training programs set the pace"));
}

TEST_CASE("one loader that is always busy is named, where others have nothing to do or are gone") {
  Job job;
  job.links = json::array({link(1, 0, 118, 12.0)});
  job.busy_fraction = 0.98;
  job.second_busy_fraction = 0.02;
  CHECK(says(job.sentence(), "Decoding held the job up"));
  CHECK(says(job.sentence(), "the loaders' threads were 50 % busy (those of rank 2 (loader, host b) 98 %)"));
  job.second_busy_fraction = 0.9;
  job.second_lived_s = 2;  // it left
  CHECK(says(job.sentence(), "the loaders' threads were 97 % busy, "));
}

TEST_CASE("ranks that stand out are named") {
  Job job;
  job.second_wait_s = 0.5;
  job.wait_s = 8;
  CHECK_FALSE(says(job.sentence(), "that of"));  // twice the mean at the most, with two of them
  job.wait_s = 5;
  job.receiver_busy_s = 9.9;
  job.second_wait_s = 5;
  CHECK(says(job.sentence(), "(rank 1 (trainer 1, host a) most, 99 %)"));
  job.receiver_busy_s = 1;
  job.slow = true;
  CHECK(says(job.sentence(), "Slow beside the others of their kind: rank 3 (loader, host b)."));
}

TEST_CASE("threads that had work most of the time are not told to be idle") {
  Job job;
  job.wait_s = job.second_wait_s = 0.6;
  job.busy_fraction = 0.67;
  CHECK(says(job.sentence(), "Batches were late now and then: the programs waited for data 6.0 % of the time"));
  CHECK(says(job.sentence(), "the loaders' threads were 67 % busy"));
  CHECK_FALSE(says(job.sentence(), "Nobody was busy"));
  job.busy_fraction = 0.2;
  CHECK(says(job.sentence(), "Nobody was busy"));
  job.wait_s = job.second_wait_s = 9.9;  // not now and then
  CHECK_FALSE(says(job.sentence(), "now and then"));
}

TEST_CASE("a data set in Python is not taken for a disk") {
  Job job;
  job.busy_fraction = 0.98;
  job.read_s = 35;
  job.python_s = 35;
  CHECK(says(job.sentence(), "The data set in Python held the job up"));
  CHECK(says(job.sentence(), "78 % of it in this stage; make its __getitem__ faster, or raise loader.threads"));
  CHECK_FALSE(says(job.sentence(), "storage"));
  job.cpus = 8;
  CHECK(
      says(job.sentence(),
           "make its __getitem__ faster, or start loaders on further nodes (all 8 CPUs of host b have work already, so "
           "more threads there would not help)."));
  CHECK_FALSE(says(job.sentence(), "penstock index"));
  job.cpus = 0;
  job.python_s = 5;  // another split's
  CHECK(says(job.sentence(), "Reading files held the job up"));
}

TEST_CASE("more threads are advised only where some node has CPUs for them") {
  Job job;
  job.busy_fraction = 0.98;
  job.cpus = 8;  // host b has two loaders of four threads
  CHECK(says(job.sentence(), "all 8 CPUs of host b have work already"));
  CHECK_FALSE(says(job.sentence(), "raise loader.threads"));
  job.cpus = 9;
  CHECK(says(job.sentence(), "raise loader.threads or start more loaders"));
  CHECK_FALSE(says(job.sentence(), "work already"));
}

TEST_CASE("loaders' rows leave out the time before the first batch was asked for; padding is no image") {
  Job job;
  job.second_lived_s = 40;  // 30 of them before
  job.second_busy_fraction = 0.2;
  const std::string text = report_text(job.merged());
  CHECK(says(text, "    3  loader              0            0         0      80 %       20 %"));
  CHECK(says(text, "split train: 2,000 images in 20 batches, 200 images/s"));
  job.padding = 3;
  CHECK(says(report_text(job.merged()), "split train: 1,994 images and 6 of padding in 20 batches, "));
}

TEST_CASE("what lost loaders have made is told, as they have no row") {
  Job job;
  job.loader_images = 900;
  CHECK_FALSE(says(report_text(job.merged()), "came from loaders"));
  job.lost = true;
  CHECK(
      says(report_text(job.merged()),
           "at least 200 of the 2,000 samples that were delivered came from loaders that were lost and are not in the "
           "table\nlost on the way: rank 4 (loader, host b); "));
  job.loader_images = 1000;
  CHECK_FALSE(says(report_text(job.merged()), "came from loaders"));
}

TEST_CASE("the text has leases, costs, speeds and links") {
  Job job;
  job.links = json::array({link(1, 0, 118, 12.0), link(0, 0, 5000, json())});
  job.slow = true;
  const std::string text = report_text(job.merged());
  CHECK(says(text,
             "leases: 12,345 granted, 3 of them a second time, 1 because the first holder was late; "
             "granting them took rank 0 (trainer 0, host a) 2.0 % of its time\n"));
  CHECK(says(text, "cost of a chunk on a thread: 8.31 ms on average, 0.12 ms + 3.00 ns a byte + 2.00 ns a pixel\n"));
  job.fixed_us = -18440;
  CHECK(says(report_text(job.merged()), "cost of a chunk on a thread: 8.31 ms on average\n"));
  CHECK(says(text, "rank 3 (loader, host b) is slow: 0.33 of the mean speed\n"));
  CHECK(says(text, "speeds of the loaders, beside their mean: 0.33 to 1.67\n"));
  CHECK(says(text, "link b to a: 100 chunks, 118 MB, 12.0 MB/s at its best\n"));
  CHECK_FALSE(says(text, "link a to a"));
}

}  // namespace
}  // namespace penstock
