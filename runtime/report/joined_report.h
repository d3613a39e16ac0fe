// Adds the reports of a job that was interrupted and resumed: what all its runs delivered together, and whether that is
// every step once.
//
//   const nlohmann::json joined = join_reports({{"run1.json", report}, {"run2.json", report}}, {});
//   std::string text = joined_text(joined);                    // for people
//
// joined["splits"][NAME] = {mode, order_hash, pixel_hash (sums over all ranges), arithmetic, batches (of every replica),
//   first_epoch, first_step, last_epoch, end_step, reports (how many have some of it)}. The hashes are those of one run
//   that was not interrupted, whatever its loaders and, where the global batch is the same, its replicas.
// Refused, as Error(runtime) that names split, epoch, steps and reports:
//   - a step that two ranges have, or that is in none between those that are there;
//   - replicas of one report that have not delivered the same steps;
//   - a report whose last epoch is not at its end where the next report goes on with another epoch;
//   - a report whose ranges are not all there (a report keeps the latest 10,000), or do not add up to its hashes;
//   - different arithmetics, or modes.
// Within one report an epoch may be broken off, and epochs left out: the program did so. A split of mode train whose
//   epochs a program iterates again and again (by set_epoch(0)) cannot be joined: choose others by name.
// Splits of mode eval are evaluated again and again, mostly as epoch 0 each time, so a step that stands twice says nothing
//   of a job that was resumed. They are joined only where they are named; joined["left_out"] has the names of the others.
//   A named one says whether all evaluations saw the same: those of the same steps of one epoch have to have the same
//   hashes, an epoch has to have as many steps in each report, and steps that begin in mid-epoch have to go on where
//   others end. The result counts each step once, of each epoch those of its longest evaluation: its hashes and batches
//   are those of one evaluation, however many there were. Besides, it has `evaluations`, the number of those that came as
//   far as the longest one of their epoch, and `broken_off`, the number of the others.
// Thread-safety: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace penstock {

// The report in what a `run --json` printed, which stands last: a program may have printed before it. Discarded: there is
// none.
nlohmann::json printed_report(std::string text);

using NamedReport = std::pair<std::string, nlohmann::json>;  // of `run --json`, and what to call it

// `splits`: those of these names; empty: all but those of mode eval.
nlohmann::json join_reports(const std::vector<NamedReport>& reports, const std::set<std::string>& splits);
std::string joined_text(const nlohmann::json& joined);

}  // namespace penstock
