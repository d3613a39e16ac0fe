// What a pool's threads leave to GPUs. A chunk's images are gathered in an in-flight batch; it is closed when it is
// full or the chunk's last sample has been read, and submitted when no thread is filling a place of it any more.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "runtime/gpu/speed_split.h"
#include "runtime/loader/cpu_pool.h"

namespace penstock {
namespace {

class GpuFeeder final : public PoolOffload {
 public:
  GpuFeeder(int threads, std::vector<std::unique_ptr<Gpu>> gpus, const InFlightOptions& options,
            const CpuFraction& cpu_fraction, std::function<void(const std::string&)> on_notice)
      : on_notice_(std::move(on_notice)), cpu_fraction_(cpu_fraction), gpu_entropy_(options.entropy) {
    if (cpu_fraction.by_speed) speeds_.emplace(threads, gpus.size());
    in_flight_ = std::make_unique<InFlightBatches>(
        std::move(gpus), options,
        [this](InFlightBatch& in_flight, const GpuError* error) { collect(in_flight, error); });
    see_who_is_left_out();
  }

  std::unique_ptr<ThreadOffload> for_thread() override { return std::make_unique<FeedingThread>(*this); }
  std::unique_ptr<OffloadNotes> begin(const ChunkWork& work) override {
    auto notes = std::make_unique<Notes>();
    MutexLock lock(mutex_);
    if (speeds_) notes->for_gpus = speeds_->for_gpus(std::ssize(work.lease.samples));
    return notes;
  }
  void flush(PooledWork& item) override {
    MutexLock lock(mutex_);
    if (Notes& notes = notes_of(item); notes.open != nullptr) close(notes);
  }
  // Ends what the work exports.
  void end(PooledWork& item) override {
    const Notes& notes = notes_of(item);
    if (!notes.exported) return;
    if (item.work->failure.empty() && notes.any_exported) {
      item.work->exported = notes.exported;
    } else {
      in_flight_->buffer_ranges(notes.exported->gpu)->drop(notes.exported->buffer_range.id);
    }
  }
  void stop() override { in_flight_->stop(); }

  BufferRanges* buffer_ranges(size_t gpu) const noexcept { return in_flight_->buffer_ranges(gpu); }
  void add_to(ExecutorFigures& figures) const {
    for (size_t kind = 0; kind < missed_.size(); ++kind) figures.library_missed[kind] = missed_[kind];
    if (MutexLock lock(mutex_); speeds_) {
      figures.by_speed = {speeds_->gpu_share(), speeds_->make_ns(), speeds_->feed_ns()};
    }
    figures.gpus = in_flight_->figures();
  }

 private:
  struct Notes final : OffloadNotes {
    std::atomic<int64_t> for_gpus{0};             // images, by learned speeds
    InFlightBatch* open = nullptr;                // where its images go
    std::optional<ChunkWork::Exported> exported;  // where its images shall lie as well
    bool range_asked = false;
    bool any_exported = false;  // images that do
  };
  static Notes& notes_of(PooledWork& item) { return static_cast<Notes&>(*item.notes); }

  // Where an in-flight batch takes one image.
  struct Held {
    InFlightBatch* in_flight = nullptr;
    size_t place = 0;
  };

  class FeedingThread final : public ThreadOffload {
   public:
    explicit FeedingThread(GpuFeeder& feeder) : feeder_(feeder), sample_(feeder.gpu_entropy_) {}

    void begin(PooledWork& item, size_t sample, SampleMaker& maker) override {
      maker.leave_images_to(this, feeder_.cpu_fraction_.share);
      item_ = &item;
      number_ = sample;
      either_ = false;
      feed_ns_ = 0;
      missed_ = LibraryMiss::none;
    }
    bool take(const Pipeline& pipeline, const ImageInput& input, const ImageHeader& header, const Draws& draws,
              std::span<uint8_t> image, Scratch& scratch) override {
      const Nanoseconds begun = clock_.now();
      either_ = header.format == ImageFormat::jpeg && input.pixels.data == nullptr;
      if (!either_ || !feeder_.wants(*item_)) return false;
      std::optional<LibraryOffer> library;
      if (pipeline.arithmetic() == Arithmetic::fast) library = feeder_.in_flight_->library();
      either_ = sample_.plan(pipeline, scratch, input, header, draws, library ? &*library : nullptr);
      missed_ = sample_.miss();
      if (!either_) return false;
      held_ = feeder_.reserve(*item_, number_, sample_, reinterpret_cast<std::byte*>(image.data()), image.size());
      if (held_.in_flight == nullptr) {
        sample_.forget();
        return false;
      }
      if (held_.in_flight->batch.fill(held_.place, sample_)) {
        feed_ns_ = clock_.now() - begun;
        return true;
      }
      either_ = false;
      forget();
      return false;
    }
    void forget() override { end(false); }
    // Reading its coefficients, or copying its bytes.
    std::optional<Nanoseconds> taken() const noexcept override {
      return held_.in_flight != nullptr ? std::optional(feed_ns_) : std::nullopt;
    }
    void keep(Nanoseconds begun) override {
      const bool fed = held_.in_flight != nullptr;
      end(true);
      feeder_.count_miss(missed_);
      if (feeder_.cpu_fraction_.by_speed) feeder_.learn(fed, either_, clock_.now() - begun);
    }

   private:
    void end(bool wanted) {
      if (held_.in_flight != nullptr) feeder_.settle(*item_, number_, std::exchange(held_, {}), wanted);
    }

    GpuFeeder& feeder_;
    PooledWork* item_ = nullptr;
    size_t number_ = 0;
    GpuSample sample_;
    Held held_;
    MonotonicClock clock_;
    bool either_ = false;  // a GPU could make the image
    Nanoseconds feed_ns_ = 0;
    LibraryMiss missed_ = LibraryMiss::none;
  };

  void see_who_is_left_out() {
    const std::vector<GpuFigures> gpus = in_flight_->figures();
    for (size_t number = 0; number < gpus.size(); ++number) {
      const GpuFigures& gpu = gpus[number];
      if (gpu.failure.empty()) {
        if (on_notice_ && gpu.library && !gpu.library->failure.empty()) {
          on_notice_("GPU " + std::to_string(gpu.number) + " (" + gpu.name +
                     ") decodes without nvJPEG: " + gpu.library->failure);
        }
        if (on_notice_ && gpu.exported && !gpu.exported->failure.empty()) {
          on_notice_("GPU " + std::to_string(gpu.number) + " (" + gpu.name +
                     ") delivers by the host: " + gpu.exported->failure);
        }
        continue;
      }
      if (MutexLock lock(mutex_); speeds_) speeds_->lost(number);
      if (!on_notice_) continue;
      on_notice_("GPU " + std::to_string(gpu.number) + " (" + gpu.name + ") is left out: " + gpu.failure +
                 "; lower loader.gpu_memory_mb, or free memory on it");
    }
  }

  // The first of each kind is told.
  void count_miss(LibraryMiss missed) {
    if (missed == LibraryMiss::none || missed_[static_cast<size_t>(missed)]++ > 0 || !on_notice_) return;
    on_notice_(
        missed == LibraryMiss::no_index
            ? "JPEG files without an index are not left to nvJPEG, which may take damage for pixels: `penstock index` "
              "(or a pack) shows once which are sound; progressive ones never have any"
            : "JPEG files that are grey, have restart markers or are unusual are not left to nvJPEG");
  }

  // What a sample took of a thread's time.
  void learn(bool fed, bool either, Nanoseconds busy_ns) {
    MutexLock lock(mutex_);
    if (fed) {
      speeds_->fed(busy_ns);
    } else if (either) {
      speeds_->made(busy_ns);
    } else {
      speeds_->other(busy_ns);
    }
  }

  // By learned speeds: whether GPUs are to have more images of the chunk.
  bool wants(PooledWork& item) const { return !cpu_fraction_.by_speed || notes_of(item).for_gpus > 0; }

  // A place for an image in the chunk's in-flight batch; no in-flight batch: the CPU has to make it.
  Held reserve(PooledWork& item, size_t number, const GpuSample& sample, std::byte* image, size_t bytes) {
    Notes& notes = notes_of(item);
    MutexLock lock(mutex_);
    for (int attempt = 0; attempt < 2; ++attempt) {
      if (notes.open == nullptr && !open_batch(item, notes, bytes)) return {};
      InFlightBatch& in_flight = *notes.open;
      // Another GPU has one, or its own has failed since this was planned.
      if (sample.by_library() && !in_flight_->has_library(in_flight)) return {};
      if (const std::optional<size_t> place = in_flight.batch.reserve(sample)) {
        in_flight.images.push_back({number, image, exported_place(notes, in_flight, number, bytes)});
        ++in_flight.pending;
        if (speeds_) {
          speeds_->begun(in_flight.gpu, 1);
          if (--notes.for_gpus <= 0) close(notes);
        }
        return {&in_flight, *place};
      }
      // Full; or the sample is larger than an in-flight batch, and another chunk may have use for it.
      if (in_flight.batch.places() == 0) {
        --item.away;
        in_flight_->give_back(*std::exchange(notes.open, nullptr));
        return {};
      }
      close(notes);
    }
    return {};
  }

  bool open_batch(PooledWork& item, Notes& notes, size_t bytes) PENSTOCK_REQUIRES(mutex_) {
    InFlightBatch* const in_flight = speeds_ ? take_soonest(notes.for_gpus) : in_flight_->take();
    if (in_flight == nullptr) return false;
    const Pipeline& pipeline = item.work->split->pipeline();
    const size_t most = std::min(item.work->lease.samples.size(), in_flight->most_outputs(bytes));
    const bool may_export = in_flight->gpu < 64 && (item.work->exported_gpus >> in_flight->gpu & 1) != 0;
    if (may_export && !std::exchange(notes.range_asked, true))
      take_buffer_range(*item.work, notes, in_flight->gpu, bytes);
    // A hash covers all fields of a sample, so a GPU hashes only where image and label are all there are.
    const bool digests =
        notes.exported && notes.exported->gpu == in_flight->gpu && item.work->split->fields().size() == 2;
    if (!in_flight->batch.begin(most, pipeline.out_width(), pipeline.out_height(), nullptr, digests)) {
      in_flight_->give_back(*in_flight);
      return false;
    }
    in_flight->images.reserve(most);
    in_flight->owner = &item;
    notes.open = in_flight;
    ++item.away;
    return true;
  }

  // Where the GPU's memory for that is full, the chunk goes by the host.
  void take_buffer_range(const ChunkWork& work, Notes& notes, size_t gpu, size_t bytes_each) PENSTOCK_REQUIRES(mutex_) {
    BufferRanges* const buffer_ranges = in_flight_->buffer_ranges(gpu);
    if (buffer_ranges == nullptr) return;
    const auto buffer_range = buffer_ranges->take(work.lease.samples.size() * bytes_each, work.lease.receiver);
    if (buffer_range) notes.exported = {gpu, *buffer_range};
  }

  static std::byte* exported_place(const Notes& notes, const InFlightBatch& in_flight, size_t number,
                                   size_t bytes_each) {
    return notes.exported && notes.exported->gpu == in_flight.gpu
               ? notes.exported->buffer_range.data + number * bytes_each
               : nullptr;
  }

  // What is hashed besides the image: the same record that the receiver makes of a chunk that arrives.
  static std::vector<std::byte> hashed_record(const PooledWork& item, size_t sample) {
    const ChunkWork& work = *item.work;
    int64_t label = 0;
    std::memcpy(&label, work.memory + item.layout.offsets[1] + sample * sizeof label, sizeof label);
    return hashed_record_of(work.split->split().name, work.lease.epoch, work.records[sample], label);
  }

  InFlightBatch* take_soonest(int64_t images) PENSTOCK_REQUIRES(mutex_) {
    const SpeedSplit& speeds = *speeds_;
    return in_flight_->take([&](size_t gpu) { return speeds.wait_s(gpu, images); });
  }

  // Nothing more is put into the chunk's in-flight batch.
  void close(Notes& notes) PENSTOCK_REQUIRES(mutex_) {
    InFlightBatch& in_flight = *std::exchange(notes.open, nullptr);
    in_flight.closed = true;
    if (in_flight.pending == 0) in_flight_->submit(in_flight);
  }

  void settle(const PooledWork& item, size_t sample, const Held& held, bool wanted) {
    std::vector<std::byte> record;
    if (wanted && item.work->exported_gpus != 0) record = hashed_record(item, sample);
    MutexLock lock(mutex_);
    InFlightBatch& in_flight = *held.in_flight;
    InFlightImage& image = in_flight.images[held.place];
    image.stays = wanted && image.exported != nullptr && in_flight.batch.set_record(held.place, record);
    if (!wanted) {
      in_flight.batch.drop(held.place);
      image.image = nullptr;
      image.exported = nullptr;  // another image may take that place
    }
    if (--in_flight.pending == 0 && in_flight.closed) in_flight_->submit(in_flight);
  }

  // From an in-flight batch's thread: the images are in the chunk buffer, or the GPU has failed.
  void collect(InFlightBatch& in_flight, const GpuError* error) {
    PooledWork& item = *static_cast<PooledWork*>(in_flight.owner);
    const std::string notice = error != nullptr ? error->message() : "";
    std::string refusal;
    std::vector<size_t> made;
    std::vector<size_t> unmade;
    {
      MutexLock lock(mutex_);
      refusal = first_refusal(in_flight);
      if (speeds_) {
        speeds_->done(in_flight.gpu, std::ssize(in_flight.images), error != nullptr ? 0 : in_flight.wanted(),
                      in_flight.gpu_ns);
        if (error != nullptr && error->fault() != GpuFault::out_of_memory) speeds_->lost(in_flight.gpu);
      }
      for (const InFlightImage& one : in_flight.images) {
        if (one.made && one.exported != nullptr) {
          SampleRecord& record = item.work->records[one.sample];
          record.on_gpu = notes_of(item).any_exported = true;
          if (one.stays) record.pixel_hash = one.digest;
        }
        if (one.image == nullptr || (one.made && !item.work->finish)) continue;
        (one.made ? made : unmade).push_back(one.sample);
      }
      in_flight_->give_back(in_flight);
    }
    item.pool.come_back(item, made, unmade);
    if (on_notice_ && !notice.empty()) on_notice_(notice + "; the CPU makes what it had");
    if (on_notice_ && !refusal.empty()) on_notice_(refusal);
  }

  // Once of each kind.
  std::string first_refusal(const InFlightBatch& in_flight) PENSTOCK_REQUIRES(mutex_) {
    for (const Refusal refusal : {Refusal::library, Refusal::memory, Refusal::file}) {
      const auto kind = static_cast<size_t>(refusal);
      if (in_flight.refused[kind] == 0 || std::exchange(refusal_logged_[kind], true)) continue;
      const std::string why = in_flight.decoder->facts().name + ": " + in_flight.decoder->reason(refusal);
      if (refusal == Refusal::library) return why + "; it is not asked any more, and the CPU makes what it had";
      return why + "; the CPU makes such images" +
             (refusal == Refusal::memory ? ": raise loader.gpu_memory_mb, of which it has a quarter" : "");
    }
    return {};
  }

  std::function<void(const std::string&)> on_notice_;
  const CpuFraction cpu_fraction_;
  const GpuEntropy gpu_entropy_;
  std::array<std::atomic<int64_t>, kLibraryMisses> missed_{};
  mutable Mutex mutex_;  // of all notes, too
  std::array<bool, kRefusals> refusal_logged_ PENSTOCK_GUARDED_BY(mutex_){};
  std::optional<SpeedSplit> speeds_ PENSTOCK_GUARDED_BY(mutex_);
  std::unique_ptr<InFlightBatches> in_flight_;
};

// A pool, and what feeds GPUs for it.
class GpuExecutor final : public Executor {
 public:
  GpuExecutor(int threads, const std::vector<int>& cpus, std::vector<std::unique_ptr<Gpu>> gpus,
              const InFlightOptions& options, const CpuFraction& cpu_fraction,
              std::function<void(const std::string&)> on_notice)
      : feeder_(threads, std::move(gpus), options, cpu_fraction, std::move(on_notice)),
        pool_(threads, cpus, &feeder_) {}

  void submit(std::unique_ptr<ChunkWork> work) override { pool_.submit(std::move(work)); }
  std::unique_ptr<ChunkWork> next_done() override { return pool_.next_done(); }
  int done_fd() const override { return pool_.done_fd(); }
  std::unique_ptr<ChunkWork> withdraw(const LeaseKey& lease) override { return pool_.withdraw(lease); }
  BufferRanges* buffer_ranges(size_t gpu) const noexcept override { return feeder_.buffer_ranges(gpu); }
  ExecutorFigures figures() const override {
    ExecutorFigures figures = pool_.figures();
    feeder_.add_to(figures);
    return figures;
  }

 private:
  GpuFeeder feeder_;
  CpuPool pool_;
};

}  // namespace

std::unique_ptr<Executor> make_gpu_executor(int threads, const std::vector<int>& cpus,
                                            std::vector<std::unique_ptr<Gpu>> gpus, const InFlightOptions& options,
                                            std::function<void(const std::string&)> on_notice,
                                            const CpuFraction& cpu_fraction) {
  return std::make_unique<GpuExecutor>(threads, cpus, std::move(gpus), options, cpu_fraction, std::move(on_notice));
}

}  // namespace penstock
