#include "runtime/gpu/gpu_finisher.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "runtime/gpu/gpu_alignment.h"

namespace penstock {
const uint8_t* images_in(const ExportedMemory& exported, uint64_t at, uint64_t bytes) {
  if (!lies_within({at, bytes}, exported.bytes())) {
    throw Error(ErrorKind::peer_lost, "a loader announced images outside the memory that its GPU exports",
                "all ranks must run the same version of penstock");
  }
  return reinterpret_cast<const uint8_t*>(exported.data() + at);
}

GpuFinisher::Layout GpuFinisher::layout_for(const Finisher& finisher, size_t memory_bytes) {
  if (finisher.channels() != 3) throw Error(ErrorKind::usage, "a GPU finishes images of three channels");
  Layout layout;
  layout.image_bytes = 3 * finisher.pixels_per_image();
  layout.spans_each = (finisher.pixels_per_image() + kSpanThreads - 1) / kSpanThreads;
  layout.parts_at = gpu_aligned(finisher.table().size() * sizeof(uint32_t));
  const size_t each = layout.image_bytes + sizeof(FinishPart) + layout.spans_each * sizeof(PartSpan);
  const size_t fixed = layout.parts_at + 3 * 256;
  layout.images = std::max<size_t>(1, memory_bytes > fixed ? (memory_bytes - fixed) / each : 0);
  layout.spans_at = layout.parts_at + gpu_aligned(layout.images * sizeof(FinishPart));
  layout.images_at = layout.spans_at + gpu_aligned(layout.images * layout.spans_each * sizeof(PartSpan));
  layout.total = layout.images_at + layout.images * layout.image_bytes;
  return layout;
}

GpuFinisher::GpuFinisher(std::shared_ptr<Gpu> gpu, const Finisher& finisher, void* stream,
                         const GpuFinisherOptions& options)
    : gpu_(std::move(gpu)),
      layout_(layout_for(finisher, options.memory_bytes)),
      images_per_sample_(static_cast<size_t>(finisher.images_per_sample())),
      element_bytes_(size_of(finisher.spec().dtype)),
      timeout_ns_(options.timeout_ns),
      memory_(*gpu_, layout_.total, GpuMemory::device),
      stream_(stream != nullptr ? gpu_->stream_on(stream) : gpu_->stream()) {
  describe(finisher);
}

// Its GPU stream's end waits for what that was told.
GpuFinisher::~GpuFinisher() {
  try {
    if (!links_.empty()) wait_for_links();
  } catch (const Error&) {
  }
}

// What no batch changes is uploaded once: the table, and where in a piece each image begins and its tensor goes.
void GpuFinisher::describe(const Finisher& finisher) {
  front_.resize(layout_.images_at);
  std::memcpy(front_.data(), finisher.table().data(), finisher.table().size() * sizeof(uint32_t));
  for (size_t i = 0; i < layout_.images; ++i) {
    FinishPart part;
    part.units = static_cast<uint32_t>(finisher.pixels_per_image());
    part.element_bytes = static_cast<uint32_t>(element_bytes_);
    part.interleaved = finisher.spec().memory_format == MemoryFormat::channels_last ? 1 : 0;
    part.from_at = layout_.images_at + i * layout_.image_bytes;
    part.to_at = i * layout_.image_bytes * element_bytes_;
    std::memcpy(front_.data() + layout_.parts_at + i * sizeof part, &part, sizeof part);
    for (size_t s = 0; s < layout_.spans_each; ++s) {
      const PartSpan span{static_cast<uint32_t>(i), static_cast<uint32_t>(s * kSpanThreads)};
      std::memcpy(front_.data() + layout_.spans_at + (i * layout_.spans_each + s) * sizeof span, &span, sizeof span);
    }
  }
  stream_->upload(memory_.data(), front_.data(), front_.size());
  stream_->wait(timeout_ns_);
  (void)stream_->take_times();  // of no batch
  front_ = {};
}

// A batch in what is fetched, and launched, at a time.
template <class Fetch, class Launch>
void GpuFinisher::cut(std::span<const RawImages> batch, const Fetch& fetch, const Launch& launch) const {
  size_t fetched = 0;
  for (const RawImages& part : batch) {
    const size_t count = static_cast<size_t>(part.samples) * images_per_sample_;
    for (size_t done = 0; done < count;) {
      const size_t now = std::min(layout_.images - fetched, count - done);
      fetch(part, done, now, fetched);
      done += now;
      fetched += now;
      if (fetched == layout_.images) launch(std::exchange(fetched, 0));
    }
  }
  if (fetched > 0) launch(fetched);
}

std::vector<LinkRun> GpuFinisher::runs(std::span<const RawImages> batch) const {
  std::vector<LinkRun> runs;
  cut(
      batch,
      [&](const RawImages& part, size_t first, size_t images, size_t) {
        if (part.link == nullptr) return;
        runs.push_back({part.link, {part.at + first * layout_.image_bytes, images * layout_.image_bytes}});
      },
      [](size_t) {});
  return runs;
}

void GpuFinisher::finish(std::span<const RawImages> batch, void* tensor) {
  if (reinterpret_cast<uintptr_t>(tensor) % element_bytes_ != 0) {
    throw Error(ErrorKind::usage, "a tensor on a GPU is not aligned to its elements");
  }
  auto* to = static_cast<uint8_t*>(tensor);
  cut(
      batch, [&](const RawImages& part, size_t first, size_t images, size_t at) { fetch(part, first, images, at); },
      [&](size_t images) {
        launch(images, to);
        to += images * layout_.image_bytes * element_bytes_;
      });
  for (const RawImages& part : batch) figures_.samples += part.samples;
}

// To place `at` of what is launched together.
void GpuFinisher::fetch(const RawImages& part, size_t first, size_t images, size_t at) {
  const size_t bytes = images * layout_.image_bytes;
  std::byte* const to = memory_.data() + layout_.images_at + at * layout_.image_bytes;
  if (part.link != nullptr) {
    part.link->receive(to, bytes, *stream_);
    links_.insert(part.link);
    figures_.linked_bytes += static_cast<int64_t>(bytes);
    return;
  }
  const auto* const from = reinterpret_cast<const std::byte*>(part.images) + first * layout_.image_bytes;
  if (part.on_gpu) {
    stream_->copy(to, from, bytes);
  } else {
    stream_->upload(to, from, bytes);
  }
  (part.on_gpu ? figures_.copied_bytes : figures_.uploaded_bytes) += static_cast<int64_t>(bytes);
}

void GpuFinisher::launch(size_t images, uint8_t* to) {
  StageLaunch launch;
  launch.stage = GpuStage::finish;
  launch.spans = static_cast<uint32_t>(images * layout_.spans_each);
  launch.spans_at = layout_.spans_at;
  launch.parts_at = layout_.parts_at;
  launch.outputs = to;
  stream_->launch(memory_.data(), launch);
}

void GpuFinisher::wait() {
  if (!links_.empty()) wait_for_links();
  stream_->wait(timeout_ns_);
  figures_.times += stream_->take_times();
  for (GpuLink* const link : std::exchange(links_, {})) {
    if (link->state() == LinkState::failed) throw GpuError(GpuFault::failed, link->failure());
  }
}

// A GPU stream that receives from somebody who is dead ends only when its links are aborted.
void GpuFinisher::wait_for_links() {
  const MonotonicClock clock;
  const Nanoseconds begun = clock.now();
  const auto failed = [](const GpuLink* link) { return link->state() == LinkState::failed; };
  std::string why;
  while (!stream_->done() && why.empty()) {
    const Nanoseconds waited = clock.now() - begun;
    if (const auto one = std::find_if(links_.begin(), links_.end(), failed); one != links_.end()) {
      why = (*one)->failure();
    } else if (waited > timeout_ns_) {
      why = "nothing has come by a link between GPUs for " + std::to_string(timeout_ns_ / kSecond) + " s";
    } else {
      std::this_thread::sleep_for(std::chrono::nanoseconds(std::clamp<Nanoseconds>(waited / 8, 10'000, 500'000)));
    }
  }
  if (why.empty()) return;
  for (GpuLink* const link : links_) link->end(why);
}

}  // namespace penstock
