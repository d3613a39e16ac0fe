#include "runtime/gpu/in_flight_batches.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

namespace penstock {
namespace {

void add_library_figures(InFlightBatch& in_flight, GpuFigures& figures) {
  GpuLibraryFigures& library = *figures.library;
  library.images += in_flight.library_images();
  for (size_t r = 0; r < kRefusals; ++r) library.refused[r] += in_flight.refused[r];
  if (in_flight.refused[static_cast<size_t>(Refusal::library)] > 0 && library.failure.empty()) {
    library.failure = in_flight.decoder->reason(Refusal::library);
  }
  for (const LibraryPicture& picture : in_flight.batch.pictures()) {
    figures.uploaded_bytes += static_cast<int64_t>(picture.bytes);
  }
}

// Where it was had for a moment before, and cannot be had now, the GPU goes on without.
void add_decoder(InFlightBatch& in_flight, const PictureDecoderOptions& options, GpuLibraryFigures& library) {
  try {
    in_flight.decoder = in_flight.stream->picture_decoder(options);
  } catch (const GpuError&) {
    throw;
  } catch (const Error& error) {
    library.failure = error.message();
  }
}

}  // namespace

InFlightBatch::InFlightBatch(Gpu& on, size_t number_of_gpu, size_t bytes)
    : gpu(number_of_gpu),
      memory_bytes(bytes),
      memory(on, bytes, GpuMemory::device),
      upload(on, bytes / 2, GpuMemory::pinned),
      outputs(on, bytes / 4, GpuMemory::pinned),
      stream(on.stream()),
      batch(upload.data(), {bytes, bytes / 2, SIZE_MAX}) {}

int64_t InFlightBatch::wanted() const noexcept {
  return std::count_if(images.begin(), images.end(), [](const InFlightImage& one) { return one.image != nullptr; });
}

int64_t InFlightBatch::library_images() const noexcept {
  int64_t count = 0;
  for (size_t place = 0; place < images.size(); ++place) count += images[place].made && batch.by_library(place) ? 1 : 0;
  return count;
}

InFlightBatches::InFlightBatches(std::vector<std::unique_ptr<Gpu>> gpus, const InFlightOptions& options, Done done)
    : gpus_(std::move(gpus)), options_(options), done_(std::move(done)) {
  size_t in_flight_batches = 0;
  bool usable = false;
  std::string why_none;
  {
    MutexLock lock(mutex_);
    for (size_t gpu = 0; gpu < gpus_.size(); ++gpu) {
      const GpuInfo& info = gpus_[gpu]->info();
      figures_.push_back({.name = info.name, .number = info.number});
      add_batches(gpu, options);
      add_buffer_ranges(gpu);
      why_none = figures_[gpu].failure;
      usable = usable || why_none.empty();
    }
    in_flight_batches = places_.size();
    activity_.resize(gpus_.size());
    duty_.assign(gpus_.size(), DutyCycle(options.duty));
  }
  if (!usable) {
    throw Error(ErrorKind::runtime, "no GPU has memory for a batch: " + why_none,
                "lower loader.gpu_memory_mb, free memory on the GPU, or say loader.executor: cpu");
  }
  try {
    for (size_t i = 0; i < in_flight_batches; ++i) threads_.emplace_back([this, i] { run(i); });
  } catch (const std::system_error& problem) {
    stop();  // no destructor will
    throw Error(ErrorKind::runtime,
                "cannot start " + std::to_string(in_flight_batches) + " threads for GPUs: " + problem.what(),
                "lower loader.gpus, raise the limits on processes and memory, or say loader.executor: cpu");
  }
}

InFlightBatches::~InFlightBatches() {
  stop();
}

void InFlightBatches::stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

// What each in-flight batch's decoder may take, where the GPU has a library.
std::optional<PictureDecoderOptions> InFlightBatches::find_library(size_t gpu, const InFlightOptions& options) {
  if (!options.library) return std::nullopt;
  const PictureDecoderOptions decoder{
      .chroma = *options.library,
      .memory_bytes = static_cast<size_t>(options.memory_bytes) / static_cast<size_t>(options.in_flight_batches) / 4};
  GpuLibraryFigures& library = figures_[gpu].library.emplace();
  try {
    const std::unique_ptr<GpuStream> stream = gpus_[gpu]->stream();
    library.facts = stream->picture_decoder(decoder)->facts();
    return decoder;
  } catch (const Error& error) {
    library.failure = error.message();
    return std::nullopt;
  }
}

void InFlightBatches::add_batches(size_t gpu, const InFlightOptions& options) {
  auto bytes = static_cast<size_t>(options.memory_bytes) / static_cast<size_t>(options.in_flight_batches);
  const std::optional<PictureDecoderOptions> library = find_library(gpu, options);
  if (library) bytes -= library->memory_bytes;
  GpuFigures& figures = figures_[gpu];
  std::string why = "it was to have less than " + std::to_string(kSmallestBatchBytes) + " bytes for a batch";
  while (figures.in_flight_batches < options.in_flight_batches && bytes >= kSmallestBatchBytes) {
    try {
      Place place;
      place.in_flight = std::make_unique<InFlightBatch>(*gpus_[gpu], gpu, bytes);
      if (library) add_decoder(*place.in_flight, *library, *figures.library);
      places_.push_back(std::move(place));
      figures.memory_bytes += static_cast<int64_t>(bytes);
      ++figures.in_flight_batches;
    } catch (const GpuError& error) {
      why = error.message();
      if (error.fault() != GpuFault::out_of_memory) {
        figures.failure = why;
        return;
      }
      bytes /= 2;
    }
  }
  if (figures.in_flight_batches == 0) figures.failure = why;
}

// Behind the in-flight batches: they are what a GPU is for.
void InFlightBatches::add_buffer_ranges(size_t gpu) {
  buffer_ranges_.emplace_back();
  if (options_.exported_bytes == 0 || !figures_[gpu].failure.empty()) return;
  GpuExportFigures& exported = figures_[gpu].exported.emplace();
  try {
    buffer_ranges_.back() = std::make_unique<BufferRanges>(*gpus_[gpu], static_cast<size_t>(options_.exported_bytes));
    exported.bytes = static_cast<int64_t>(buffer_ranges_.back()->bytes());
  } catch (const Error& error) {
    exported.failure =
        error.message() + (error.remedy().empty() ? "; lower loader.gpu_export_mb" : "; " + error.remedy());
  }
}

InFlightBatch* InFlightBatches::take(const std::function<double(size_t gpu)>& wait) {
  MutexLock lock(mutex_);
  Place* found = nullptr;
  size_t after = 0;
  double least = 0;
  for (size_t i = 0; i < places_.size() && (found == nullptr || wait); ++i) {
    Place& place = places_[(next_ + i) % places_.size()];
    if (!place.free || !figures_[place.in_flight->gpu].failure.empty()) continue;
    const double waits = wait ? wait(place.in_flight->gpu) : 0;
    if (found != nullptr && waits >= least) continue;
    found = &place;
    least = waits;
    after = (next_ + i + 1) % places_.size();
  }
  if (found == nullptr) return nullptr;
  found->free = false;
  next_ = after;
  return found->in_flight.get();
}

void InFlightBatches::submit(InFlightBatch& in_flight) {
  MutexLock lock(mutex_);
  for (Place& place : places_) {
    if (place.in_flight.get() == &in_flight) place.submitted = true;
  }
  changed_.notify_all();
}

void InFlightBatches::give_back(InFlightBatch& in_flight) {
  in_flight.images.clear();
  in_flight.owner = nullptr;
  in_flight.pending = 0;
  in_flight.closed = false;
  MutexLock lock(mutex_);
  for (Place& place : places_) {
    if (place.in_flight.get() == &in_flight) place.free = true;
  }
}

std::vector<GpuFigures> InFlightBatches::figures() const {
  MutexLock lock(mutex_);
  std::vector<GpuFigures> figures = figures_;
  for (size_t gpu = 0; gpu < buffer_ranges_.size(); ++gpu) {
    if (buffer_ranges_[gpu]) figures[gpu].exported->buffer_ranges = buffer_ranges_[gpu]->figures();
  }
  return figures;
}

bool InFlightBatches::library_of(size_t gpu) const {
  const std::optional<GpuLibraryFigures>& library = figures_[gpu].library;
  return library && library->failure.empty() && figures_[gpu].failure.empty();
}

bool InFlightBatches::has_library(const InFlightBatch& in_flight) const {
  MutexLock lock(mutex_);
  return in_flight.decoder != nullptr && library_of(in_flight.gpu);
}

std::optional<LibraryOffer> InFlightBatches::library() const {
  std::optional<LibraryOffer> offer;
  MutexLock lock(mutex_);
  for (size_t gpu = 0; gpu < figures_.size(); ++gpu) {
    if (!library_of(gpu)) continue;
    if (!offer) offer.emplace();
    offer->cuts_regions = offer->cuts_regions && figures_[gpu].library->facts.cuts_regions;
  }
  return offer;
}

void InFlightBatches::begin_batch(size_t gpu) {
  Activity& activity = activity_[gpu];
  if (activity.batches++ == 0) activity.since = MonotonicClock().now();
}

// Bounded by the batch under way, which a GPU has until timeout_ns, and by the rest behind it.
void InFlightBatches::await_turn(size_t gpu) {
  const MonotonicClock clock;
  for (Nanoseconds now = clock.now(); !duty_[gpu].may_begin(now); now = clock.now()) {
    const Nanoseconds wait = duty_[gpu].running() ? kSecond : duty_[gpu].free_at() - now;
    changed_.wait_for(mutex_, std::chrono::microseconds(wait / 1000 + 1));
  }
  duty_[gpu].begin(clock.now());
}

// With rests between batches the GPU's time is that of its one batch, from `begun` on.
void InFlightBatches::end_batch(InFlightBatch& in_flight, Nanoseconds begun) {
  Activity& activity = activity_[in_flight.gpu];
  DutyCycle& duty = duty_[in_flight.gpu];
  const Nanoseconds now = MonotonicClock().now();
  in_flight.gpu_ns = now - std::exchange(activity.since, now);
  figures_[in_flight.gpu].active_ns += duty.limits() ? now - begun : in_flight.gpu_ns;
  --activity.batches;
  duty.end(now);
  if (duty.limits()) changed_.notify_all();
}

void InFlightBatches::run(size_t number) {
  ::pthread_setname_np(::pthread_self(), "penstock-gpu");
  const MonotonicClock clock;
  for (;;) {
    InFlightBatch* in_flight = nullptr;
    {
      MutexLock lock(mutex_);
      while (!places_[number].submitted && !stopping_) changed_.wait(mutex_);
      if (!places_[number].submitted) return;
      places_[number].submitted = false;
      in_flight = places_[number].in_flight.get();
    }
    // Before the GPU's own time begins, which is no more than this batch's, however often this thread loses its core.
    Nanoseconds begun = clock.now();
    {
      MutexLock lock(mutex_);
      begin_batch(in_flight->gpu);
      await_turn(in_flight->gpu);
      if (duty_[in_flight->gpu].limits()) begun = clock.now();  // behind the rest
    }
    if (const std::optional<GpuError> error = attempt(*in_flight)) {
      {
        MutexLock lock(mutex_);
        std::string& failure = figures_[in_flight->gpu].failure;
        if (error->fault() != GpuFault::out_of_memory && failure.empty()) failure = error->message();
        end_batch(*in_flight, begun);
      }
      done_(*in_flight, &*error);
      continue;
    }
    {
      MutexLock lock(mutex_);
      end_batch(*in_flight, begun);
      GpuFigures& figures = figures_[in_flight->gpu];
      figures.times += in_flight->times;
      figures.deliver_ns += in_flight->deliver_ns;
      figures.busy_ns += clock.now() - begun;
      figures.uploaded_bytes += static_cast<int64_t>(in_flight->batch.upload_bytes());
      ++figures.batches;
      figures.images += std::count_if(in_flight->images.begin(), in_flight->images.end(),
                                      [](const InFlightImage& one) { return one.made; });
      if (!in_flight->batch.pictures().empty()) add_library_figures(*in_flight, figures);
    }
    done_(*in_flight, nullptr);
  }
}

std::optional<GpuError> InFlightBatches::attempt(InFlightBatch& in_flight) const {
  std::optional<GpuError> found;
  in_flight.refused = {};
  try {
    make(in_flight);
    return found;
  } catch (const GpuError& error) {
    found = error;
  } catch (const std::exception& error) {  // memory of our own
    found = GpuError(GpuFault::out_of_memory, error.what());
  }
  // Some of it is under way all the same, and reads what the in-flight batch's next batch will write over.
  if (found->fault() == GpuFault::out_of_memory) {
    try {
      in_flight.stream->wait(options_.timeout_ns);
      (void)in_flight.stream->take_times();  // of no batch
    } catch (const GpuError& error) {
      found = error.fault() == GpuFault::out_of_memory ? GpuError(GpuFault::failed, error.message()) : error;
    }
  }
  return found;
}

// A refused picture's launches run all the same, over whatever is in its place.
void InFlightBatches::decode_pictures(InFlightBatch& in_flight) {
  const std::span<LibraryPicture> pictures = in_flight.batch.pictures();
  if (pictures.empty()) return;
  in_flight.decoder->decode(in_flight.memory.data(), pictures);
  for (const LibraryPicture& picture : pictures) {
    if (picture.refusal == Refusal::none) continue;
    in_flight.batch.refuse(picture.place);
    ++in_flight.refused[static_cast<size_t>(picture.refusal)];
  }
}

// Images that have to come here, in runs, and what is said of all.
void InFlightBatches::download(InFlightBatch& in_flight) {
  const BatchBuilder& batch = in_flight.batch;
  const size_t bytes = batch.output_bytes();
  for (size_t place = 0; place < batch.places();) {
    size_t run = 1;
    const bool stays = in_flight.images[place].stays;
    while (place + run < batch.places() && in_flight.images[place + run].stays == stays) ++run;
    if (!stays) {
      in_flight.stream->download(in_flight.outputs.data() + place * bytes,
                                 in_flight.memory.data() + batch.outputs_at() + place * bytes, run * bytes);
    }
    place += run;
  }
  const auto fetch = [&](uint64_t at, size_t size) {
    if (size > 0) in_flight.stream->download(in_flight.upload.data() + at, in_flight.memory.data() + at, size);
  };
  fetch(batch.statuses_at(), batch.status_bytes());
  fetch(batch.digests_at(), batch.digest_bytes());
}

// Also of images that turn out not to be good: who reads them is told by `made`.
void InFlightBatches::copy_exported(InFlightBatch& in_flight) {
  const BatchBuilder& batch = in_flight.batch;
  const size_t bytes = batch.output_bytes();
  for (size_t place = 0; place < batch.places();) {
    std::byte* const to = in_flight.images[place].exported;
    size_t run = 1;
    while (to != nullptr && place + run < batch.places() && in_flight.images[place + run].exported == to + run * bytes)
      ++run;
    if (to != nullptr) {
      in_flight.stream->copy(to, in_flight.memory.data() + batch.outputs_at() + place * bytes, run * bytes);
    }
    place += run;
  }
}

void InFlightBatches::make(InFlightBatch& in_flight) const {
  BatchBuilder& batch = in_flight.batch;
  batch.seal();
  GpuStream& stream = *in_flight.stream;
  stream.upload(in_flight.memory.data(), in_flight.upload.data(), batch.upload_bytes());
  decode_pictures(in_flight);
  for (const StageLaunch& launch : batch.launches()) stream.launch(in_flight.memory.data(), launch);
  download(in_flight);
  copy_exported(in_flight);
  stream.wait(options_.timeout_ns);
  in_flight.times = stream.take_times();
  const MonotonicClock clock;
  const Nanoseconds fetched = clock.now();
  for (size_t place = 0; place < batch.places(); ++place) {
    InFlightImage& one = in_flight.images[place];
    if (one.image == nullptr) continue;
    one.made = batch.good(place);
    if (one.made && one.stays) one.digest = batch.digest(place);
    if (one.made && !one.stays)
      std::memcpy(one.image, in_flight.outputs.data() + place * batch.output_bytes(), batch.output_bytes());
  }
  in_flight.deliver_ns = clock.now() - fetched;
}

}  // namespace penstock
