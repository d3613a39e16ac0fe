#include "runtime/balancer/lease_stream_registry.h"

#include <algorithm>

namespace penstock {

bool may_read(const LeaseStreamState& stream, int64_t group, LoaderId loader) {
  if (group < 0) return true;
  if (group >= std::ssize(stream.holders)) return false;
  const std::vector<LoaderId>& loaders = stream.holders[static_cast<size_t>(group)].loaders;
  return std::find(loaders.begin(), loaders.end(), loader) != loaders.end();
}

void set_held(LeaseStreamState& stream, LoaderId loader, const std::vector<int64_t>& groups) {
  for (LeaseStreamState::Holders& holders : stream.holders) std::erase(holders.loaders, loader);
  stream.said.insert(loader);
  for (const int64_t group : groups) {
    if (group >= std::ssize(stream.holders)) stream.holders.resize(static_cast<size_t>(group) + 1);
    stream.holders[static_cast<size_t>(group)].loaders.push_back(loader);
  }
}

void forget_held(LeaseStreamState& stream, LoaderId loader, const std::string& why) {
  stream.said.erase(loader);
  for (LeaseStreamState::Holders& holders : stream.holders) {
    if (std::erase(holders.loaders, loader) > 0 && holders.loaders.empty()) holders.last_lost = why;
  }
}

LeaseStreamState& LeaseStreamRegistry::open(const LeaseStreamOpened& opened) {
  LeaseStreamState& stream = streams_[opened.lease_stream];
  stream.opened = opened;
  stream.cursor = opened.first_step;
  stream.finished_below = opened.first_step;
  ++lease_streams_of_receiver_[opened.receiver];
  ++on_node_[opened.node].open;
  return stream;
}

void LeaseStreamRegistry::close(LeaseStreamId id) {
  const auto at = streams_.find(id);
  if (at == streams_.end()) return;
  set_ready(at->second, false);
  const auto receiver = lease_streams_of_receiver_.find(at->second.opened.receiver);
  if (--receiver->second == 0) lease_streams_of_receiver_.erase(receiver);
  const auto node = on_node_.find(at->second.opened.node);
  if (--node->second.open == 0) on_node_.erase(node);
  streams_.erase(at);
}

LeaseStreamState* LeaseStreamRegistry::find(LeaseStreamId id) {
  const auto at = streams_.find(id);
  return at == streams_.end() ? nullptr : &at->second;
}

bool LeaseStreamRegistry::reserve(LeaseStreamState& stream, int64_t step, const std::vector<int64_t>& bytes,
                                  const std::vector<int64_t>& groups) {
  if (step < stream.finished_below || stream.finished.count(step) != 0 || stream.steps.count(step) != 0) return false;
  LeaseStreamState::Step& added = stream.steps[step];
  added.left = groups.empty() ? stream.chunks_of(step) : static_cast<int32_t>(groups.size());
  added.chunks.resize(static_cast<size_t>(added.left));
  for (int32_t i = 0; i < added.left; ++i) {
    ChunkState& state = added.chunks[static_cast<size_t>(i)];
    if (!bytes.empty()) state.bytes = bytes[static_cast<size_t>(i)];
    if (!groups.empty()) state.group = groups[static_cast<size_t>(i)];
    state.queued = true;
    stream.waiting.emplace(step, -state.bytes, i);
  }
  rekey(stream);
  return true;
}

ChunkState* LeaseStreamRegistry::chunk(LeaseStreamState& stream, int64_t step, int32_t chunk) {
  const auto at = stream.steps.find(step);
  if (at == stream.steps.end() || chunk < 0 || static_cast<size_t>(chunk) >= at->second.chunks.size()) return nullptr;
  return &at->second.chunks[static_cast<size_t>(chunk)];
}

void LeaseStreamRegistry::enqueue(LeaseStreamState& stream, int64_t step, int32_t chunk, ChunkState& state) {
  if (state.queued) return;
  state.queued = true;
  stream.waiting.emplace(step, -state.bytes, chunk);
  rekey(stream);
}

void LeaseStreamRegistry::dequeue(LeaseStreamState& stream, int64_t step, int32_t chunk, ChunkState& state) {
  if (!state.queued) return;
  state.queued = false;
  stream.waiting.erase({step, -state.bytes, chunk});
  rekey(stream);
}

void LeaseStreamRegistry::done(LeaseStreamState& stream, int64_t step, ChunkState& state) {
  state.state = ChunkState::State::done;
  const auto at = stream.steps.find(step);
  if (--at->second.left > 0) return;
  stream.steps.erase(at);
  stream.finished.insert(step);
  while (!stream.finished.empty() && *stream.finished.begin() == stream.finished_below) {
    stream.finished.erase(stream.finished.begin());
    ++stream.finished_below;
  }
}

void LeaseStreamRegistry::rekey(LeaseStreamState& stream) {
  if (stream.waiting.empty()) return set_ready(stream, false);
  const int64_t deadline = std::get<0>(*stream.waiting.begin()) - stream.cursor;
  const LeaseStreamState::ReadyKey key{!(stream.client_waits && deadline <= 0), deadline, !stream.client_waits,
                                       stream.last_grant, stream.id()};
  if (stream.is_ready && key == stream.ready_key) return;
  if (stream.is_ready) ready_.erase(stream.ready_key);
  ready_.insert(key);
  stream.ready_key = key;
  set_ready(stream, true);
}

void LeaseStreamRegistry::set_ready(LeaseStreamState& stream, bool ready) {
  if (stream.is_ready == ready) return;
  if (!ready) ready_.erase(stream.ready_key);
  stream.is_ready = ready;
  on_node_[stream.opened.node].waiting += ready ? 1 : -1;
}

}  // namespace penstock
