// The report of a job: what all ranks have to say, added up, and one sentence on what held it up.
//
//   nlohmann::json report = merge_reports(rank_reports);      // for --json
//   std::string text = report_text(report);                   // for people
//
// merge_reports: `splits.NAME.{arithmetic, mode, order_hash, pixel_hash, images, batches, images_per_s, wait_fraction,
//   bad_samples, bad_sample_count}` over all trainers (hashes are sums, so they compose; the list has the first ones, the
//   count has all), `ranks` as reported, `bottleneck` the sentence.
//   images counts padding, too, of which `padding` says how many there are; report_text tells them apart.
//   images_per_s counts the time between a trainer's first next() and its last batch; wait_fraction is the share of
//   that time that its program spent waiting for data. Both are means over trainers weighted by their time;
//   images_per_s is the trainers' sum.
//   The rank of the coordinator says what the balancer has learned (coordinator/balance_report.h).
// report_text: splits, ranks (what loaders did by the time between a trainer's first next() and its last batch), leases, what chunks cost, which loaders are slow, what went over each link between nodes,
//   how reads ran ahead where they had to (and why io_uring was refused, where it was), what was learned of the photos,
//   the sentence.
// Failure: Error(runtime) for a text that is no report.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace penstock {

inline constexpr size_t kMostBadSamples = 1000;  // that a split's list names

nlohmann::json merge_reports(const std::vector<std::string>& rank_reports);
std::string report_text(const nlohmann::json& report);

// "Decoding held the job up: ...", from a merged report's ranks and splits.
std::string bottleneck_sentence(const nlohmann::json& report);

}  // namespace penstock
