#include "runtime/coordinator/sample_placement.h"

#include <algorithm>
#include <map>
#include <utility>

namespace penstock {

SamplePlacement::SamplePlacement(int64_t size, const std::vector<Readable>& disks) : size_(size), disks_(disks) {
  // Where disk number `second` begins to have samples, or ceases to.
  std::vector<std::pair<int64_t, size_t>> changes;
  for (size_t d = 0; d < disks.size(); ++d) {
    for (const int64_t bound : disks[d]->bounds()) changes.emplace_back(bound, d);
  }
  std::sort(changes.begin(), changes.end());
  std::vector<bool> has(disks.size(), false);
  std::map<std::vector<bool>, int32_t> known;
  std::vector<int64_t> missing;
  auto change = changes.begin();
  for (int64_t at = 0; at < size;) {
    for (; change != changes.end() && change->first == at; ++change) has[change->second] = !has[change->second];
    const int64_t next = change == changes.end() ? size : change->first;
    const int32_t group = known.try_emplace(has, static_cast<int32_t>(known.size())).first->second;
    if (group_at_.empty() || group_at_.back() != group) {
      begins_.push_back(at);
      group_at_.push_back(group);
    }
    if (std::find(has.begin(), has.end(), true) == has.end()) {
      if (!missing.empty() && missing.back() == at) {
        missing.back() = next;
      } else {
        missing.insert(missing.end(), {at, next});
      }
    }
    at = next;
  }
  groups_ = std::ssize(known);
  held_.resize(disks.size());
  for (const auto& [holders, group] : known) {
    for (size_t d = 0; d < disks.size(); ++d) {
      if (holders[d]) held_[d].push_back(group);
    }
  }
  for (std::vector<int64_t>& held : held_) std::sort(held.begin(), held.end());
  missing_ = IndexRanges(std::move(missing), size);
}

int64_t SamplePlacement::group_of(int64_t index) const noexcept {
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), index);
  return group_at_[static_cast<size_t>(after - begins_.begin() - 1)];
}

std::vector<int64_t> SamplePlacement::held_by(const Readable& ranges) const {
  for (size_t d = 0; d < disks_.size(); ++d) {
    if (disks_[d] == ranges || *disks_[d] == *ranges) return held_[d];
  }
  std::vector<bool> holds(static_cast<size_t>(groups_), true);
  const std::vector<int64_t>& bounds = ranges->bounds();
  size_t r = 0;  // the first range that does not end before the run
  for (size_t i = 0; i < begins_.size(); ++i) {
    const int64_t begin = begins_[i];
    const int64_t end = i + 1 < begins_.size() ? begins_[i + 1] : size_;
    while (r < bounds.size() && bounds[r + 1] <= begin) r += 2;
    const bool inside = r < bounds.size() && bounds[r] <= begin && bounds[r + 1] >= end;
    if (!inside) holds[static_cast<size_t>(group_at_[i])] = false;
  }
  std::vector<int64_t> out;
  for (int64_t group = 0; group < groups_; ++group) {
    if (holds[static_cast<size_t>(group)]) out.push_back(group);
  }
  return out;
}

BatchCut cut_batch(const BatchPlan& batch, const SamplePlacement& placement, int32_t chunk_samples) {
  std::vector<std::pair<int64_t, int32_t>> by_group;
  for (const PlannedSample& sample : batch) {
    by_group.emplace_back(placement.group_of(sample.index), static_cast<int32_t>(by_group.size()));
  }
  std::sort(by_group.begin(), by_group.end());
  BatchCut cut;
  for (const auto& [group, row] : by_group) cut.rows.push_back(row);
  for (auto at = by_group.begin(); at != by_group.end();) {
    const auto end = std::find_if(at, by_group.end(), [&](const auto& one) { return one.first != at->first; });
    const int64_t rows = end - at;
    const int64_t chunks = (rows + chunk_samples - 1) / chunk_samples;
    for (int64_t c = 1; c <= chunks; ++c) {
      cut.ends.push_back(static_cast<int32_t>(at - by_group.begin() + rows * c / chunks));
      cut.groups.push_back(at->first);
    }
    at = end;
  }
  return cut;
}

void LoaderDisks::forget(PeerId loader) {
  const auto found = readable_.find(loader);
  if (found == readable_.end()) return;
  lost_[loader] = std::move(found->second);
  readable_.erase(found);
}

void LoaderDisks::set(PeerId loader, IndexRanges ranges) {
  readable_.erase(loader);
  lost_.erase(loader);
  for (const auto& [other, same] : readable_) {
    if (*same != ranges) continue;
    readable_[loader] = same;
    return;
  }
  readable_[loader] = std::make_shared<const IndexRanges>(std::move(ranges));
}

Readable LoaderDisks::of(PeerId loader) const {
  const auto found = readable_.find(loader);
  return found == readable_.end() ? nullptr : found->second;
}

bool LoaderDisks::all_have_all(int64_t size) const {
  return std::all_of(readable_.begin(), readable_.end(),
                     [size](const auto& item) { return item.second->samples() == size; });
}

IndexRanges LoaderDisks::missing(int64_t size) const {
  std::vector<Readable> disks;
  for (const auto& [loader, readable] : readable_) disks.push_back(readable);
  return SamplePlacement(size, disks).missing();
}

std::shared_ptr<const SamplePlacement> LoaderDisks::placement(int64_t size, BackgroundWork& background) {
  std::vector<Readable> disks;
  size_t ranges = 0;
  std::map<PeerId, Readable> said = readable_;
  said.insert(lost_.begin(), lost_.end());
  for (const auto& [loader, readable] : said) {
    if (std::find(disks.begin(), disks.end(), readable) != disks.end()) continue;
    disks.push_back(readable);
    ranges += readable->count();
  }
  const auto same = [](const Readable& a, const Readable& b) { return a == b || *a == *b; };
  if (!made_.valid() || !std::equal(disks.begin(), disks.end(), made_of_.begin(), made_of_.end(), same)) {
    made_of_ = disks;
    std::function<std::shared_ptr<const SamplePlacement>()> make = [size, disks = std::move(disks)] {
      return std::make_shared<const SamplePlacement>(size, disks);
    };
    if (ranges <= kAtOnce) {
      std::promise<std::shared_ptr<const SamplePlacement>> at_once;
      at_once.set_value(make());
      made_ = at_once.get_future().share();
    } else {
      made_ = background.run(std::move(make));
    }
  }
  return is_ready(made_) ? made_.get() : nullptr;
}

}  // namespace penstock
