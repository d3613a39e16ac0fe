#include "runtime/receiver/delivery_ledger.h"

#include <algorithm>

#include "runtime/base/histogram_json.h"
#include "runtime/report/report.h"

namespace penstock {
namespace {

nlohmann::json range_json(const DeliveredRange& range) {
  return {{"epoch", range.epoch},
          {"first_step", range.first_step},
          {"end_step", range.end_step},
          {"order_hash", range.hash.order.hex()},
          {"pixel_hash", range.hash.pixel.hex()}};
}

}  // namespace

// Positions come in order but for iterations that go over an epoch again.
bool DeliveryLedger::BadPlaces::insert(int64_t position) {
  if (position >= first && position <= last) return false;
  const auto place = std::lower_bound(positions.begin(), positions.end(), position);
  if (place != positions.end() && *place == position) return false;
  positions.insert(place, position);
  return true;
}

void DeliveryLedger::BadPlaces::shorten() {
  if (positions.empty()) return;
  const bool any_before = last >= first;
  first = any_before ? std::min(first, positions.front()) : positions.front();
  last = any_before ? std::max(last, positions.back()) : positions.back();
  positions = {};
}

// Two epochs are kept in full, because an evaluation of one may go on while the next one begins.
bool DeliveryLedger::Split::is_new(int64_t epoch, int64_t position) {
  auto& [latest, before] = last_epochs;
  if (epoch != latest) {
    if (epoch != before && before >= 0) bad_places[before].shorten();
    before = latest;
    latest = epoch;
  }
  return bad_places[epoch].insert(position);
}

size_t DeliveryLedger::kept_positions() const {
  size_t sum = 0;
  for (const auto& [name, split] : splits_) {
    for (const auto& [epoch, places] : split.bad_places) sum += places.positions.size();
  }
  return sum;
}

void DeliveryLedger::delivered(const std::string& name, const Delivery& delivery, const StreamHash& hash,
                               const std::vector<SampleRecord>& records) {
  Split& split = splits_[name];
  split.hash += hash;
  split.arithmetic = delivery.arithmetic;
  split.mode = delivery.mode;
  split.epoch_steps = delivery.epoch_steps;
  split.epoch_samples = delivery.epoch_samples;
  split.totals.images += delivery.images;
  ++split.totals.batches;
  split.totals.wait_ns += delivery.wait_ns;
  split.totals.elapsed_ns += delivery.elapsed_ns;
  if (delivery.elapsed_ns > delivery.wait_ns) split.step_ns.add(delivery.elapsed_ns - delivery.wait_ns);
  for (const SampleRecord& record : records) {
    split.totals.padding += record.padding ? 1 : 0;
    if (record.reason.empty() || record.padding) continue;
    split.substituted += record.substituted ? 1 : 0;
    if (!split.is_new(delivery.epoch, record.planned.position)) continue;
    if (++split.bad_count > static_cast<int64_t>(kMostBadSamples)) continue;
    split.bad.push_back({{"epoch", delivery.epoch},
                         {"position", record.planned.position},
                         {"index", record.planned.index},
                         {"path", record.key},
                         {"reason", record.reason},
                         {"substitute", record.substituted ? nlohmann::json(record.index) : nlohmann::json(nullptr)}});
  }
}

void DeliveryLedger::range_ended(const std::string& split, const DeliveredRange& range) {
  if (range.end_step <= range.first_step) return;
  Split& of = splits_[split];
  of.ranges.push_back(range);
  if (of.ranges.size() <= kMostRanges) return;
  of.ranges.pop_front();
  ++of.older_ranges;
}

nlohmann::json DeliveryLedger::to_json(const std::vector<std::pair<std::string, DeliveredRange>>& open) const {
  nlohmann::json all = nlohmann::json::object();
  for (const auto& [name, split] : splits_) {
    nlohmann::json& out = all[name];
    out["arithmetic"] = name_of(split.arithmetic);
    out["mode"] = name_of(split.mode);
    out["order_hash"] = split.hash.order.hex();
    out["pixel_hash"] = split.hash.pixel.hex();
    out["epoch_steps"] = split.epoch_steps;
    out["epoch_samples"] = split.epoch_samples;
    out["images"] = split.totals.images;
    out["padding"] = split.totals.padding;
    out["batches"] = split.totals.batches;
    out["wait_s"] = as_seconds(split.totals.wait_ns);
    out["elapsed_s"] = as_seconds(split.totals.elapsed_ns);
    out["step_ns"] = histogram_json(split.step_ns);
    out["bad_samples"] = split.bad;
    out["bad_sample_count"] = split.bad_count;
    out["substituted"] = split.substituted;
    out["ranges"] = nlohmann::json::array();
    if (split.older_ranges > 0) out["ranges_left_out"] = split.older_ranges;
    for (const DeliveredRange& range : split.ranges) out["ranges"].push_back(range_json(range));
    for (const auto& [owner, range] : open) {
      if (owner == name && range.end_step > range.first_step) out["ranges"].push_back(range_json(range));
    }
  }
  return all;
}

DeliveryLedger::Totals DeliveryLedger::totals() const {
  Totals sum;
  for (const auto& [name, split] : splits_) {
    sum.images += split.totals.images;
    sum.padding += split.totals.padding;
    sum.batches += split.totals.batches;
    sum.wait_ns += split.totals.wait_ns;
    sum.elapsed_ns += split.totals.elapsed_ns;
  }
  return sum;
}

}  // namespace penstock
