// Adds the reports of a job that was interrupted and resumed: what all its runs delivered together, and whether that is
// every step once.
//
//   const nlohmann::json joined = join_reports({{"run1.json", report}, {"run2.json", report}}, {});
//   std::string text = joined_text(joined);                    // for people
//
// joined["splits"][NAME] = {order_hash, pixel_hash (sums over all ranges), arithmetic, batches (of every replica),
//   first_epoch, first_step, last_epoch, end_step, reports (how many have some of it)}. The hashes are those of one run
//   that was not interrupted, whatever its loaders and, where the global batch is the same, its replicas.
// Refused, as Error(runtime) that names split, epoch, steps and reports:
//   - a step that two ranges have, or that is in none between those that are there;
//   - replicas of one report that have not delivered the same steps;
//   - a report whose last epoch is not at its end where the next report goes on with another epoch;
//   - a report whose ranges are not all there (a report keeps the latest 10,000), or do not add up to its hashes;
//   - different arithmetics.
// Within one report an epoch may be broken off, and epochs left out: the program did so. A split whose epochs a program
//   iterates again and again (a validation set by set_epoch(0)) cannot be joined: choose others by name.
// Thread-safety: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace penstock {

using NamedReport = std::pair<std::string, nlohmann::json>;  // of `run --json`, and what to call it

// `splits`: those of these names; empty: all.
nlohmann::json join_reports(const std::vector<NamedReport>& reports, const std::set<std::string>& splits);
std::string joined_text(const nlohmann::json& joined);

}  // namespace penstock
