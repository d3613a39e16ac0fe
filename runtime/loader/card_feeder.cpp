// What a pool's threads leave to cards. A chunk's images are gathered in a lane; it is closed when it is full or the
// chunk's last sample has been read, and submitted when no thread is filling a place of it any more.
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

class CardFeeder final : public PoolOffload {
 public:
  CardFeeder(int threads, std::vector<std::unique_ptr<Card>> cards, const CardLanesOptions& options,
             const CpuFraction& cpu_fraction, std::function<void(const std::string&)> on_notice)
      : on_notice_(std::move(on_notice)), cpu_fraction_(cpu_fraction), card_entropy_(options.entropy) {
    if (cpu_fraction.by_speed) speeds_.emplace(threads, cards.size());
    lanes_ = std::make_unique<CardLanes>(std::move(cards), options,
                                         [this](CardLane& lane, const CardError* error) { collect(lane, error); });
    see_who_is_left_out();
  }

  std::unique_ptr<ThreadOffload> for_thread() override { return std::make_unique<FeedingThread>(*this); }
  std::unique_ptr<OffloadNotes> begin(const ChunkWork& work) override {
    auto notes = std::make_unique<Notes>();
    MutexLock lock(mutex_);
    if (speeds_) notes->for_cards = speeds_->for_cards(std::ssize(work.lease.samples));
    return notes;
  }
  void flush(PooledWork& item) override {
    MutexLock lock(mutex_);
    if (Notes& notes = notes_of(item); notes.open != nullptr) close(notes);
  }
  // Of what it shares.
  void end(PooledWork& item) override {
    const Notes& notes = notes_of(item);
    if (!notes.shared) return;
    if (item.work->failure.empty() && notes.any_shared) {
      item.work->shared = notes.shared;
    } else {
      lanes_->pieces(notes.shared->card)->drop(notes.shared->piece.id);
    }
  }
  void stop() override { lanes_->stop(); }

  CardPieces* pieces(size_t card) const noexcept { return lanes_->pieces(card); }
  void add_to(ExecutorFigures& figures) const {
    for (size_t kind = 0; kind < missed_.size(); ++kind) figures.library_missed[kind] = missed_[kind];
    if (MutexLock lock(mutex_); speeds_) {
      figures.by_speed = {speeds_->card_share(), speeds_->make_ns(), speeds_->feed_ns()};
    }
    figures.cards = lanes_->figures();
  }

 private:
  struct Notes final : OffloadNotes {
    std::atomic<int64_t> for_cards{0};        // images, by learnt speeds
    CardLane* open = nullptr;                 // where its images go
    std::optional<ChunkWork::Shared> shared;  // where its images shall lie as well
    bool share_asked = false;
    bool any_shared = false;                  // images that do
  };
  static Notes& notes_of(PooledWork& item) { return static_cast<Notes&>(*item.notes); }

  // Where a lane takes one image.
  struct Held {
    CardLane* lane = nullptr;
    size_t place = 0;
  };

  class FeedingThread final : public ThreadOffload {
   public:
    explicit FeedingThread(CardFeeder& feeder) : feeder_(feeder), sample_(feeder.card_entropy_) {}

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
      if (pipeline.arithmetic() == Arithmetic::fast) library = feeder_.lanes_->library();
      either_ = sample_.plan(pipeline, scratch, input, header, draws, library ? &*library : nullptr);
      missed_ = sample_.miss();
      if (!either_) return false;
      held_ = feeder_.reserve(*item_, number_, sample_, reinterpret_cast<std::byte*>(image.data()), image.size());
      if (held_.lane == nullptr) {
        sample_.forget();
        return false;
      }
      if (held_.lane->batch.fill(held_.place, sample_)) {
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
      return held_.lane != nullptr ? std::optional(feed_ns_) : std::nullopt;
    }
    void keep(Nanoseconds begun) override {
      const bool fed = held_.lane != nullptr;
      end(true);
      feeder_.count_miss(missed_);
      if (feeder_.cpu_fraction_.by_speed) feeder_.learn(fed, either_, clock_.now() - begun);
    }

   private:
    void end(bool wanted) {
      if (held_.lane != nullptr) feeder_.settle(*item_, number_, std::exchange(held_, {}), wanted);
    }

    CardFeeder& feeder_;
    PooledWork* item_ = nullptr;
    size_t number_ = 0;
    CardSample sample_;
    Held held_;
    MonotonicClock clock_;
    bool either_ = false;  // a card could make the image
    Nanoseconds feed_ns_ = 0;
    LibraryMiss missed_ = LibraryMiss::none;
  };

  void see_who_is_left_out() {
    const std::vector<CardFigures> cards = lanes_->figures();
    for (size_t number = 0; number < cards.size(); ++number) {
      const CardFigures& card = cards[number];
      if (card.failure.empty()) {
        if (on_notice_ && card.library && !card.library->failure.empty()) {
          on_notice_("card " + std::to_string(card.number) + " (" + card.name +
                     ") decodes without nvJPEG: " + card.library->failure);
        }
        if (on_notice_ && card.shared && !card.shared->failure.empty()) {
          on_notice_("card " + std::to_string(card.number) + " (" + card.name +
                     ") delivers by the host: " + card.shared->failure);
        }
        continue;
      }
      if (MutexLock lock(mutex_); speeds_) speeds_->lost(number);
      if (!on_notice_) continue;
      on_notice_("card " + std::to_string(card.number) + " (" + card.name + ") is left out: " + card.failure +
                 "; lower loader.card_memory_mb, or free memory on it");
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

  // By learnt speeds: whether cards are to have more images of the chunk.
  bool wants(PooledWork& item) const { return !cpu_fraction_.by_speed || notes_of(item).for_cards > 0; }

  // A place for an image in the chunk's lane; no lane: the CPU has to make it.
  Held reserve(PooledWork& item, size_t number, const CardSample& sample, std::byte* image, size_t bytes) {
    Notes& notes = notes_of(item);
    MutexLock lock(mutex_);
    for (int attempt = 0; attempt < 2; ++attempt) {
      if (notes.open == nullptr && !open_lane(item, notes, bytes)) return {};
      CardLane& lane = *notes.open;
      // Another card has one, or its own has failed since this was planned.
      if (sample.by_library() && !lanes_->has_library(lane)) return {};
      if (const std::optional<size_t> place = lane.batch.reserve(sample)) {
        lane.images.push_back({number, image, shared_place(notes, lane, number, bytes)});
        ++lane.pending;
        if (speeds_) {
          speeds_->begun(lane.card, 1);
          if (--notes.for_cards <= 0) close(notes);
        }
        return {&lane, *place};
      }
      // Full; or the sample is larger than a lane, and another chunk may have use for it.
      if (lane.batch.places() == 0) {
        --item.away;
        lanes_->give_back(*std::exchange(notes.open, nullptr));
        return {};
      }
      close(notes);
    }
    return {};
  }

  bool open_lane(PooledWork& item, Notes& notes, size_t bytes) PENSTOCK_REQUIRES(mutex_) {
    CardLane* const lane = speeds_ ? take_soonest(notes.for_cards) : lanes_->take();
    if (lane == nullptr) return false;
    const Pipeline& pipeline = item.work->split->pipeline();
    const size_t most = std::min(item.work->lease.samples.size(), lane->most_outputs(bytes));
    const bool may_share = lane->card < 64 && (item.work->share >> lane->card & 1) != 0;
    if (may_share && !std::exchange(notes.share_asked, true)) take_piece(*item.work, notes, lane->card, bytes);
    // Hashes are of all of a sample's fields.
    const bool digests = notes.shared && notes.shared->card == lane->card && item.work->split->fields().size() == 2;
    if (!lane->batch.begin(most, pipeline.out_width(), pipeline.out_height(), nullptr, digests)) {
      lanes_->give_back(*lane);
      return false;
    }
    lane->images.reserve(most);
    lane->owner = &item;
    notes.open = lane;
    ++item.away;
    return true;
  }

  // Where the card's memory for that is full, the chunk goes by the host.
  void take_piece(const ChunkWork& work, Notes& notes, size_t card, size_t bytes_each) PENSTOCK_REQUIRES(mutex_) {
    CardPieces* const pieces = lanes_->pieces(card);
    if (pieces == nullptr) return;
    const auto piece = pieces->take(work.lease.samples.size() * bytes_each, work.lease.port);
    if (piece) notes.shared = {card, *piece};
  }

  static std::byte* shared_place(const Notes& notes, const CardLane& lane, size_t number, size_t bytes_each) {
    return notes.shared && notes.shared->card == lane.card ? notes.shared->piece.data + number * bytes_each : nullptr;
  }

  // As the port makes it of what arrives.
  static std::vector<std::byte> hashed_record(const PooledWork& item, size_t sample) {
    const ChunkWork& work = *item.work;
    int64_t label = 0;
    std::memcpy(&label, work.memory + item.layout.offsets[1] + sample * sizeof label, sizeof label);
    return hashed_record_of(work.split->split().name, work.lease.epoch, work.records[sample], label);
  }

  CardLane* take_soonest(int64_t images) PENSTOCK_REQUIRES(mutex_) {
    const SpeedSplit& speeds = *speeds_;
    return lanes_->take([&](size_t card) { return speeds.wait_s(card, images); });
  }

  // Nothing more is put into the chunk's lane.
  void close(Notes& notes) PENSTOCK_REQUIRES(mutex_) {
    CardLane& lane = *std::exchange(notes.open, nullptr);
    lane.closed = true;
    if (lane.pending == 0) lanes_->submit(lane);
  }

  void settle(const PooledWork& item, size_t sample, const Held& held, bool wanted) {
    std::vector<std::byte> record;
    if (wanted && item.work->share != 0) record = hashed_record(item, sample);
    MutexLock lock(mutex_);
    CardLane& lane = *held.lane;
    LaneImage& image = lane.images[held.place];
    image.stays = wanted && image.shared != nullptr && lane.batch.set_record(held.place, record);
    if (!wanted) {
      lane.batch.drop(held.place);
      image.image = nullptr;
      image.shared = nullptr;  // another image may take that place
    }
    if (--lane.pending == 0 && lane.closed) lanes_->submit(lane);
  }

  // From a lane's thread: the images are in the cell, or the card has failed.
  void collect(CardLane& lane, const CardError* error) {
    PooledWork& item = *static_cast<PooledWork*>(lane.owner);
    const std::string notice = error != nullptr ? error->message() : "";
    std::string refusal;
    std::vector<size_t> made;
    std::vector<size_t> unmade;
    {
      MutexLock lock(mutex_);
      refusal = first_refusal(lane);
      if (speeds_) {
        speeds_->done(lane.card, std::ssize(lane.images), error != nullptr ? 0 : lane.wanted(), lane.card_ns);
        if (error != nullptr && error->fault() != CardFault::out_of_memory) speeds_->lost(lane.card);
      }
      for (const LaneImage& one : lane.images) {
        if (one.made && one.shared != nullptr) {
          SampleRecord& record = item.work->records[one.sample];
          record.on_card = notes_of(item).any_shared = true;
          if (one.stays) record.pixel_hash = one.digest;
        }
        if (one.image == nullptr || (one.made && !item.work->finish)) continue;
        (one.made ? made : unmade).push_back(one.sample);
      }
      lanes_->give_back(lane);
    }
    item.pool.come_back(item, made, unmade);
    if (on_notice_ && !notice.empty()) on_notice_(notice + "; the CPU makes what it had");
    if (on_notice_ && !refusal.empty()) on_notice_(refusal);
  }

  // Once of each kind.
  std::string first_refusal(const CardLane& lane) PENSTOCK_REQUIRES(mutex_) {
    for (const Refusal refusal : {Refusal::library, Refusal::memory, Refusal::file}) {
      const auto kind = static_cast<size_t>(refusal);
      if (lane.refused[kind] == 0 || std::exchange(refusal_said_[kind], true)) continue;
      const std::string why = lane.decoder->facts().name + ": " + lane.decoder->reason(refusal);
      if (refusal == Refusal::library) return why + "; it is not asked any more, and the CPU makes what it had";
      return why + "; the CPU makes such images" +
             (refusal == Refusal::memory ? ": raise loader.card_memory_mb, of which it has a quarter" : "");
    }
    return {};
  }

  std::function<void(const std::string&)> on_notice_;
  const CpuFraction cpu_fraction_;
  const CardEntropy card_entropy_;
  std::array<std::atomic<int64_t>, library_misses> missed_{};
  mutable Mutex mutex_;  // of all notes, too
  std::array<bool, refusals> refusal_said_ PENSTOCK_GUARDED_BY(mutex_){};
  std::optional<SpeedSplit> speeds_ PENSTOCK_GUARDED_BY(mutex_);
  std::unique_ptr<CardLanes> lanes_;
};

// A pool, and what feeds cards for it.
class CardExecutor final : public Executor {
 public:
  CardExecutor(int threads, const std::vector<int>& cpus, std::vector<std::unique_ptr<Card>> cards,
               const CardLanesOptions& options, const CpuFraction& cpu_fraction,
               std::function<void(const std::string&)> on_notice)
      : feeder_(threads, std::move(cards), options, cpu_fraction, std::move(on_notice)),
        pool_(threads, cpus, &feeder_) {}

  void submit(std::unique_ptr<ChunkWork> work) override { pool_.submit(std::move(work)); }
  std::unique_ptr<ChunkWork> next_done() override { return pool_.next_done(); }
  int done_fd() const override { return pool_.done_fd(); }
  std::unique_ptr<ChunkWork> withdraw(const LeaseKey& lease) override { return pool_.withdraw(lease); }
  CardPieces* pieces(size_t card) const noexcept override { return feeder_.pieces(card); }
  ExecutorFigures figures() const override {
    ExecutorFigures figures = pool_.figures();
    feeder_.add_to(figures);
    return figures;
  }

 private:
  CardFeeder feeder_;
  CpuPool pool_;
};

}  // namespace

std::unique_ptr<Executor> make_card_executor(int threads, const std::vector<int>& cpus,
                                             std::vector<std::unique_ptr<Card>> cards, const CardLanesOptions& options,
                                             std::function<void(const std::string&)> on_notice,
                                             const CpuFraction& cpu_fraction) {
  return std::make_unique<CardExecutor>(threads, cpus, std::move(cards), options, cpu_fraction, std::move(on_notice));
}

}  // namespace penstock
