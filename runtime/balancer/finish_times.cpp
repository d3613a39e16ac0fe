#include "runtime/balancer/finish_times.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace penstock {

namespace {

constexpr int64_t kUnknownWork_ns = 1'000'000;  // before any chunk was made
constexpr double kNewest = 0.05;                // weight of the newest chunk in a mean
constexpr int64_t kFewestSamples = 8;           // of a loader, before its speed says something
constexpr double kSlowFactor = 3;
constexpr double kNotSlowFactor = 2;

// A number that is the same in every run.
uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t bits = (a + 1) * 0x9e3779b97f4a7c15u ^ (b + 1) * 0xd1342543de82ef95u;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  return bits ^ (bits >> 31);
}

void mean(double& of, int64_t newest) {
  const auto value = static_cast<double>(newest);
  of = of == 0 ? value : of + kNewest * (value - of);
}

}  // namespace

void FinishTimes::opened(LeaseStreamState& stream, int64_t now_ns) {
  links.begin(now_ns);
  stream.mean_bytes = mean_bytes_;
  stream.mean_pixels = mean_pixels_;
}

void FinishTimes::produced(LoaderState& loader, LeaseStreamState* stream, const ChunkProduced& event,
                           int64_t granted_ns, int64_t now_ns) {
  CostModel& model = models_[index_of(loader.executor_class)];
  loader.speed.observe(model.predict_ns(event.bytes, event.pixels), event.busy_ns);
  model.observe(event.bytes, event.pixels, event.busy_ns);
  mean(mean_bytes_, event.bytes), mean(mean_pixels_, event.pixels);
  if (event.busy_ns > 0) {
    mean(loader.chunk_ns, static_cast<int64_t>(loader.at_its_threads_ns(static_cast<double>(event.busy_ns))));
  }
  if (granted_ns >= 0 && event.held_ns >= 0)
    mean(loader.way_ns, std::max<int64_t>(1, now_ns - granted_ns - event.held_ns));
  if (stream != nullptr) mean(stream->mean_bytes, event.bytes), mean(stream->mean_pixels, event.pixels);
}

int64_t FinishTimes::work_ns(const LoaderState& loader, const LeaseStreamState& stream, const ChunkState& chunk) const {
  const CostModel& its = model(loader.executor_class);
  if (its.samples() == 0) return kUnknownWork_ns;
  const double bytes = chunk.bytes > 0 ? static_cast<double>(chunk.bytes) : stream.mean_bytes;
  const double pixels = stream.mean_bytes > 0 ? stream.mean_pixels * (bytes / stream.mean_bytes) : stream.mean_pixels;
  const double ns = its.predict_ns(static_cast<int64_t>(bytes), static_cast<int64_t>(pixels));
  return std::max<int64_t>(1, static_cast<int64_t>(ns));
}

int64_t FinishTimes::link_ns(const LoaderState& loader, const LeaseStreamState& stream, int64_t now_ns) const {
  return links.expected_ns({loader.node, stream.opened.node}, stream.opened.payload_bytes, now_ns);
}

bool FinishTimes::link_is_full(const LoaderState& loader, const LeaseStreamState& stream) const {
  return links.is_full({loader.node, stream.opened.node}, stream.opened.payload_bytes);
}

int64_t FinishTimes::finish_ns(const LoaderState& loader, const LeaseStreamState& stream, const ChunkState& chunk,
                               int64_t now_ns) const {
  const int64_t own_ns = loader.at_its_speed_ns(work_ns(loader, stream, chunk));
  const int64_t at_home_ns = loader.ready_ns() + own_ns;
  return loader.node == stream.opened.node ? at_home_ns : at_home_ns + own_ns / 4 + link_ns(loader, stream, now_ns);
}

bool FinishTimes::is_near(const LoaderState& loader, const LeaseStreamState& stream, const ChunkState& chunk,
                          const LoaderRegistry& loaders, int64_t now_ns) const {
  const int32_t home = stream.opened.node;
  if (loader.node == home) return true;
  if (!links.is_known({loader.node, home}) && !loaders.of_node(home).empty()) return false;
  return is_short(link_ns(loader, stream, now_ns), work_ns(loader, stream, chunk), loader);
}

bool FinishTimes::is_short(int64_t link_ns, int64_t work_ns, const LoaderState& loader) {
  return static_cast<double>(link_ns) <= static_cast<double>(work_ns) / loader.speed.value() / 4;
}

// Looked at again every few milliseconds alone: in a fleet whose links are slow it is asked for with every grant. Of many
// loaders it looks at some, spread evenly, which stand for the others, and at all of the receiver's node.
const FinishTimes::Supply& FinishTimes::near_supply(const LeaseStreamState& stream, const ChunkState& first,
                                                    const Others& others, bool slow_too, int64_t now_ns) {
  constexpr size_t kMostLooks = 256;
  const std::vector<const LoaderState*>& all = others.loaders.in_order();
  const size_t stride = (all.size() + kMostLooks - 1) / kMostLooks;
  const int64_t fresh_ns = 3'000'000 * static_cast<int64_t>(std::max<size_t>(1, stride));
  Supply& supply = supplies_[{stream.id(), first.group, slow_too}];
  if (supply.at_ns >= 0 && now_ns - supply.at_ns < fresh_ns) return supply;
  supply = {now_ns, 0, INT64_MAX};
  const int32_t home = stream.opened.node;
  // What is the same for all of a class, or of a node, is worked out once.
  std::array<int64_t, kClasses> work_of_class{};
  int32_t node = home;
  int64_t link = 0;
  const auto look = [&](const LoaderState& loader, size_t stands_for) {
    if ((loader.slow && !slow_too) || !loader.usable() || !others.may_make(loader.id)) return;
    int64_t& work = work_of_class[index_of(loader.executor_class)];
    if (work == 0) work = work_ns(loader, stream, first);
    if (loader.node != home && std::exchange(node, loader.node) != loader.node) link = link_ns(loader, stream, now_ns);
    if (loader.node != home && !is_short(link, work, loader)) return;
    const int64_t own_ns = std::max<int64_t>(1, loader.at_its_speed_ns(work));
    supply.chunks_per_ns +=
        static_cast<double>(stands_for) *
        (static_cast<double>(std::min(loader.executors(), others.loaders.quota(loader))) / static_cast<double>(own_ns));
    supply.least_ns = std::min(supply.least_ns, loader.ready_ns() + own_ns);
  };
  if (stride > 1) {
    for (const LoaderState* loader : others.loaders.of_node(home)) look(*loader, 1);
  }
  for (size_t first_of = 0; first_of < all.size(); first_of += stride) {
    // One of each `stride`, by chance: machines are alike at regular distances.
    const size_t i = stride == 1 ? first_of : first_of + mixed(stream.id(), first_of) % stride;
    if (i < all.size() && (stride == 1 || all[i]->node != home)) look(*all[i], stride);
  }
  // They serve the node's lease streams by turns.
  supply.chunks_per_ns /= static_cast<double>(std::max(1, others.streams.waiting_on_node(home)));
  return supply;
}

bool FinishTimes::pulls(const LoaderState& loader, const LeaseStreamState& stream, const ChunkState& first,
                        const LoaderRegistry& loaders, int64_t now_ns) const {
  return !loader.slow && is_near(loader, stream, first, loaders, now_ns);
}

int64_t FinishTimes::left_to_others(const LoaderState& loader, const LeaseStreamState& stream, const ChunkState& first,
                                    const Others& others, int64_t now_ns) {
  const bool far = !is_near(loader, stream, first, others.loaders, now_ns);
  const Supply& supply = near_supply(stream, first, others, far, now_ns);  // of which the loader is none
  if (supply.chunks_per_ns == 0) return 0;
  const int64_t late_ns = far ? link_ns(loader, stream, now_ns) : 0;
  const int64_t finish = finish_ns(loader, stream, first, now_ns) + late_ns;
  if (finish <= 2 * supply.least_ns) return 0;
  const bool elsewhere = loader.node != stream.opened.node;
  if (elsewhere && !loader.leased.empty() && others.streams.any_on_node(loader.node)) return INT64_MAX;
  const Link link{loader.node, stream.opened.node};
  if (!links.is_known(link) && !links.is_idle(link)) return INT64_MAX;
  return static_cast<int64_t>(std::ceil(static_cast<double>(finish - supply.least_ns) * supply.chunks_per_ns));
}

bool FinishTimes::update_slow(LoaderRegistry& loaders) const {
  std::array<std::vector<double>, kClasses> speeds;
  for (const auto& [id, loader] : loaders.all()) {
    if (loader.speed.samples() >= kFewestSamples) {
      speeds[index_of(loader.executor_class)].push_back(loader.speed.value());
    }
  }
  std::array<double, kClasses> medians{};
  for (size_t c = 0; c < speeds.size(); ++c) {
    if (speeds[c].size() < 2) continue;
    const auto middle = speeds[c].begin() + std::ssize(speeds[c]) / 2;
    std::nth_element(speeds[c].begin(), middle, speeds[c].end());
    medians[c] = *middle;
  }
  bool changed = false;
  for (const auto& [id, known] : loaders.all()) {
    LoaderState& loader = *loaders.find(id);
    const double median = medians[index_of(loader.executor_class)];
    const double factor = loader.slow ? kNotSlowFactor : kSlowFactor;
    const bool slow = loader.speed.samples() >= kFewestSamples && loader.speed.value() * factor < median;
    if (slow == loader.slow) continue;
    loader.slow = slow;
    loaders.refresh(loader);
    changed = true;
  }
  return changed;
}

}  // namespace penstock
