// A pool of CPU threads, and cards that make what the threads leave to them. Threads take single samples, oldest work
// first, so a chunk's latency is its share of the pool and no thread idles while any sample of any leased chunk is
// waiting.
//
// Of cards: a chunk's images are gathered in a lane; it is closed when it is full or the chunk's last sample has been
// read, and submitted when no thread is filling a place of it any more. A chunk is done when all its samples are read
// and finished and all its lanes are back.
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <list>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/cpu_set.h"
#include "runtime/base/error.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/gpu/speed_split.h"
#include "runtime/loader/executor.h"
#include "transport/wakeup.h"

namespace penstock {
namespace {

// One thread's makers, by split. They keep no split alive: one that the loader has closed may have processes and a list
// of millions of files.
class Makers {
 public:
  // Good while the caller has `split`.
  SampleMaker* of(const std::shared_ptr<const SplitContext>& split) {
    for (const Entry& entry : entries_) {
      if (entry.split.lock() == split) return entry.maker.get();
    }
    std::erase_if(entries_, [](const Entry& entry) { return entry.split.expired(); });
    const std::shared_ptr<const SplitContext> borrowed(std::shared_ptr<void>(), split.get());
    entries_.push_back({split, std::make_unique<SampleMaker>(borrowed)});
    return entries_.back().maker.get();
  }

 private:
  struct Entry {
    std::weak_ptr<const SplitContext> split;
    std::unique_ptr<SampleMaker> maker;
  };
  std::vector<Entry> entries_;
};

class PoolExecutor final : public Executor {
 public:
  PoolExecutor(int threads, const std::vector<int>& cpus) {
    figures_.threads = threads;
    start(threads, cpus);
  }
  PoolExecutor(int threads, const std::vector<int>& cpus, std::vector<std::unique_ptr<Card>> cards,
               const CardLanesOptions& options, const CpuFraction& cpu_fraction,
               std::function<void(const std::string&)> on_notice)
      : on_notice_(std::move(on_notice)), cpu_fraction_(cpu_fraction), card_entropy_(options.entropy) {
    figures_.threads = threads;
    if (cpu_fraction.by_speed) speeds_.emplace(threads, cards.size());
    lanes_ = std::make_unique<CardLanes>(std::move(cards), options,
                                         [this](CardLane& lane, const CardError* error) { collect(lane, error); });
    see_who_is_left_out();
    start(threads, cpus);
  }
  ~PoolExecutor() override {
    end_threads();
    // What cards have is written to cells until this returns.
    if (lanes_) lanes_->stop();
  }

  void submit(std::unique_ptr<ChunkWork> work) override {
    const size_t samples = work->lease.samples.size();
    work->records.resize(samples);
    MutexLock lock(mutex_);
    queue_.emplace_back();
    queue_.back().work = std::move(work);
    queue_.back().unfinished = samples;
    changed_.notify_all();
  }
  std::unique_ptr<ChunkWork> next_done() override {
    MutexLock lock(mutex_);
    if (done_.empty()) {
      wakeup_.clear();
      return nullptr;
    }
    auto work = std::move(done_.front());
    done_.pop_front();
    return work;
  }
  int done_fd() const override { return wakeup_.fd(); }

  std::unique_ptr<ChunkWork> withdraw(const LeaseKey& lease) override {
    MutexLock lock(mutex_);
    for (auto it = queue_.begin(); it != queue_.end(); ++it) {
      if (it->next != 0 || it->work->lease.lease != lease) continue;
      auto work = std::move(it->work);
      queue_.erase(it);
      return work;
    }
    return nullptr;
  }
  CardPieces* pieces(size_t card) const noexcept override { return lanes_ ? lanes_->pieces(card) : nullptr; }
  ExecutorFigures figures() const override {
    ExecutorFigures figures;
    {
      MutexLock lock(mutex_);
      figures = figures_;
      if (speeds_) figures.by_speed = {speeds_->card_share(), speeds_->make_ns(), speeds_->feed_ns()};
    }
    if (lanes_) figures.cards = lanes_->figures();
    return figures;
  }

 private:
  struct Item {
    std::unique_ptr<ChunkWork> work;
    size_t next = 0;  // sample that the next thread takes
    size_t unfinished = 0;
    FieldLayout layout;
    std::vector<size_t> again;   // samples that a card had and did not make: for the CPU
    std::vector<size_t> finish;  // samples whose card is done
    int64_t for_cards = 0;       // images, by learnt speeds
    CardLane* open = nullptr;    // where its images go
    size_t lanes = 0;            // that have images of it
    std::optional<ChunkWork::Shared> shared;  // where its images shall lie as well
    bool share_asked = false;
    bool any_shared = false;     // images that do
  };

  // What a thread does with a sample.
  enum class Step : uint8_t { make, again, finish };
  struct Done {
    MakeTimes times;
    Nanoseconds busy_ns = 0;
    Nanoseconds feed_ns = 0;  // of it, for a card
    bool either = false;      // a card could make the image
    bool fed = false;         // a card makes it
    LibraryMiss missed = LibraryMiss::none;
    std::string failure;
  };

  // Where a lane takes one image.
  struct Held {
    CardLane* lane = nullptr;
    size_t place = 0;
  };

  // One thread's, for the sample at hand.
  class Taker final : public ImageTaker {
   public:
    explicit Taker(PoolExecutor& executor) : executor_(executor), sample_(executor.card_entropy_) {}

    void begin(Item& item, size_t sample) {
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
      if (!either_ || !executor_.wants(*item_)) return false;
      std::optional<LibraryOffer> library;
      if (pipeline.arithmetic() == Arithmetic::fast) library = executor_.lanes_->library();
      either_ = sample_.plan(pipeline, scratch, input, header, draws, library ? &*library : nullptr);
      missed_ = sample_.miss();
      if (!either_) return false;
      held_ = executor_.reserve(*item_, number_, sample_, reinterpret_cast<std::byte*>(image.data()), image.size());
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
    // Of the sample at hand: whether a card could make its image, has it, and what reading its coefficients took.
    bool either() const noexcept { return either_; }
    bool fed() const noexcept { return held_.lane != nullptr; }
    Nanoseconds feed_ns() const noexcept { return fed() ? feed_ns_ : 0; }
    LibraryMiss missed() const noexcept { return missed_; }
    void forget() override { end(false); }
    // The sample is whole, but for its image.
    void keep() { end(true); }

   private:
    void end(bool wanted) {
      if (held_.lane != nullptr) executor_.settle(*item_, number_, std::exchange(held_, {}), wanted);
    }

    PoolExecutor& executor_;
    Item* item_ = nullptr;
    size_t number_ = 0;
    CardSample sample_;
    Held held_;
    MonotonicClock clock_;
    bool either_ = false;
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

  void start(int threads, const std::vector<int>& cpus) {
    try {
      for (int i = 0; i < threads; ++i) threads_.emplace_back([this, cpus] { run(cpus); });
    } catch (const std::system_error& problem) {
      end_threads();  // no destructor will
      throw Error(ErrorKind::runtime, "cannot start " + std::to_string(threads) + " threads: " + problem.what(),
                  "lower loader.threads, or raise the limits on processes and memory");
    }
  }

  void end_threads() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  void run(const std::vector<int>& cpus) {
    ::pthread_setname_np(::pthread_self(), "penstock-cpu");
    if (!cpus.empty()) {
      const CpuSet set(cpus);
      (void)::pthread_setaffinity_np(::pthread_self(), set.bytes(), set.get());  // a wish; the kernel may know better
    }
    const MonotonicClock clock;
    Makers makers;
    std::optional<Taker> taker;
    if (lanes_) taker.emplace(*this);
    for (;;) {
      Item* item = nullptr;
      size_t sample = 0;
      Step step = Step::make;
      {
        MutexLock lock(mutex_);
        while ((item = next_item()) == nullptr) {
          if (stopping_) return;
          changed_.wait(mutex_);
        }
        if (stopping_) return;
        step = begin_step(*item, sample);
        // Once an error of the environment has spoilt the chunk, the rest of it would be work for nothing.
        if (!item->work->failure.empty()) {
          end_step(*item, step, {});
          continue;
        }
      }
      // A list's elements stay where they are while others come and go, and this item cannot go before we count off.
      const Nanoseconds begun = clock.now();
      Done done;
      try {
        if (step != Step::finish) done = make(*item, sample, step, makers, taker ? &*taker : nullptr);
        if (item->work->finish && !done.fed) item->work->finish(sample);
      } catch (const std::exception& error) {
        done.failure = error.what();
        if (taker) taker->forget();
      }
      done.busy_ns = clock.now() - begun;
      bool first_miss = false;
      {
        MutexLock lock(mutex_);
        if (!done.failure.empty() && item->work->failure.empty()) item->work->failure = done.failure;
        first_miss = step == Step::make && count_miss(done.missed);
        end_step(*item, step, done);
      }
      if (first_miss && on_notice_) on_notice_(text_of(done.missed));
    }
  }

  // Whether it is the first of its kind.
  bool count_miss(LibraryMiss missed) PENSTOCK_REQUIRES(mutex_) {
    return missed != LibraryMiss::none && ++figures_.library_missed[static_cast<size_t>(missed)] == 1;
  }

  static std::string text_of(LibraryMiss missed) {
    return missed == LibraryMiss::no_index
               ? "JPEG files without an index are not left to nvJPEG, which may take damage for pixels: `penstock index` "
                 "(or a pack) shows once which are sound; progressive ones never have any"
               : "JPEG files that are grey, have restart markers or are unusual are not left to nvJPEG";
  }

  Item* next_item() PENSTOCK_REQUIRES(mutex_) {
    for (Item& item : queue_) {
      if (!item.finish.empty() || !item.again.empty() || item.next < item.work->lease.samples.size()) return &item;
    }
    return nullptr;
  }

  Step begin_step(Item& item, size_t& sample) PENSTOCK_REQUIRES(mutex_) {
    for (const Step step : {Step::finish, Step::again}) {
      std::vector<size_t>& samples = step == Step::finish ? item.finish : item.again;
      if (samples.empty()) continue;
      sample = samples.back();
      samples.pop_back();
      return step;
    }
    sample = item.next++;
    if (sample == 0) {
      const auto samples = std::ssize(item.work->lease.samples);
      item.layout = chunk_layout(item.work->split->fields(), samples);
      if (speeds_) item.for_cards = speeds_->for_cards(samples);
    }
    return Step::make;
  }

  Done make(Item& item, size_t sample, Step step, Makers& makers, Taker* taker) const {
    ChunkWork& work = *item.work;
    const FieldTable& table = work.split->fields();
    if (taker != nullptr) taker->begin(item, sample);
    SampleMaker* const maker = makers.of(work.split);
    maker->leave_images_to(step == Step::make ? taker : nullptr, cpu_fraction_.share);
    const MakeTimes before = maker->times();
    std::vector<std::byte*> fields;
    for (size_t f = 0; f < table.size(); ++f) {
      fields.push_back(work.memory + item.layout.offsets[f] + sample * table[f].bytes_per_sample());
    }
    work.records[sample] = work.make ? work.make(*maker, sample, fields)
                                     : maker->make(work.lease.samples[sample], work.lease.epoch, fields);
    const MakeTimes after = maker->times();
    Done done;
    done.times = {after.read_ns - before.read_ns, after.decode_ns - before.decode_ns,
                  after.augment_ns - before.augment_ns, after.encoded_bytes - before.encoded_bytes,
                  after.source_pixels - before.source_pixels};
    if (taker == nullptr) return done;
    done.either = taker->either();
    done.fed = taker->fed();
    done.feed_ns = taker->feed_ns();
    done.missed = taker->missed();
    taker->keep();
    return done;
  }

  // By learnt speeds: whether cards are to have more images of the chunk.
  bool wants(const Item& item) {
    if (!cpu_fraction_.by_speed) return true;
    MutexLock lock(mutex_);
    return item.for_cards > 0;
  }

  // A place for an image in the chunk's lane; no lane: the CPU has to make it.
  Held reserve(Item& item, size_t number, const CardSample& sample, std::byte* image, size_t bytes) {
    MutexLock lock(mutex_);
    for (int attempt = 0; attempt < 2; ++attempt) {
      if (item.open == nullptr && !open_lane(item, bytes)) return {};
      CardLane& lane = *item.open;
      // Another card has one, or its own has failed since this was planned.
      if (sample.by_library() && !lanes_->has_library(lane)) return {};
      if (const std::optional<size_t> place = lane.batch.reserve(sample)) {
        lane.images.push_back({number, image, shared_place(item, lane, number, bytes)});
        ++lane.pending;
        if (speeds_) {
          speeds_->begun(lane.card, 1);
          if (--item.for_cards <= 0) close(item);
        }
        return {&lane, *place};
      }
      // Full; or the sample is larger than a lane, and another chunk may have use for it.
      if (lane.batch.places() == 0) {
        give_back_unused(item);
        return {};
      }
      close(item);
    }
    return {};
  }

  bool open_lane(Item& item, size_t bytes) PENSTOCK_REQUIRES(mutex_) {
    CardLane* const lane = speeds_ ? take_soonest(item.for_cards) : lanes_->take();
    if (lane == nullptr) return false;
    const Pipeline& pipeline = item.work->split->pipeline();
    const size_t most = std::min(item.work->lease.samples.size(), lane->most_outputs(bytes));
    const bool may_share = lane->card < 64 && (item.work->share >> lane->card & 1) != 0;
    if (may_share && !std::exchange(item.share_asked, true)) take_piece(item, lane->card, bytes);
    // Hashes are of all of a sample's fields.
    const bool digests = item.shared && item.shared->card == lane->card && item.work->split->fields().size() == 2;
    if (!lane->batch.begin(most, pipeline.out_width(), pipeline.out_height(), nullptr, digests)) {
      lanes_->give_back(*lane);
      return false;
    }
    lane->images.reserve(most);
    lane->owner = &item;
    item.open = lane;
    ++item.lanes;
    return true;
  }

  // Where the card's memory for that is full, the chunk goes by the host.
  void take_piece(Item& item, size_t card, size_t bytes_each) PENSTOCK_REQUIRES(mutex_) {
    CardPieces* const pieces = lanes_->pieces(card);
    if (pieces == nullptr) return;
    const auto piece = pieces->take(item.work->lease.samples.size() * bytes_each, item.work->lease.port);
    if (piece) item.shared = {card, *piece};
  }

  static std::byte* shared_place(const Item& item, const CardLane& lane, size_t number, size_t bytes_each) {
    return item.shared && item.shared->card == lane.card ? item.shared->piece.data + number * bytes_each : nullptr;
  }

  void end_sharing(Item& item) PENSTOCK_REQUIRES(mutex_) {
    if (!item.shared) return;
    if (item.work->failure.empty() && item.any_shared) {
      item.work->shared = item.shared;
    } else {
      lanes_->pieces(item.shared->card)->drop(item.shared->piece.id);
    }
  }

  // As the port makes it of what arrives.
  static std::vector<std::byte> hashed_record(const Item& item, size_t sample) {
    const ChunkWork& work = *item.work;
    int64_t label = 0;
    std::memcpy(&label, work.memory + item.layout.offsets[1] + sample * sizeof label, sizeof label);
    return hashed_record_of(work.split->split().name, work.lease.epoch, work.records[sample], label);
  }

  CardLane* take_soonest(int64_t images) PENSTOCK_REQUIRES(mutex_) {
    const SpeedSplit& speeds = *speeds_;
    return lanes_->take([&](size_t card) { return speeds.wait_s(card, images); });
  }

  void give_back_unused(Item& item) PENSTOCK_REQUIRES(mutex_) {
    --item.lanes;
    lanes_->give_back(*std::exchange(item.open, nullptr));
  }

  // Nothing more is put into the chunk's lane.
  void close(Item& item) PENSTOCK_REQUIRES(mutex_) {
    CardLane& lane = *item.open;
    item.open = nullptr;
    lane.closed = true;
    if (lane.pending == 0) lanes_->submit(lane);
  }

  void settle(const Item& item, size_t sample, const Held& held, bool wanted) {
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
    std::string notice;
    std::string refusal;
    {
      MutexLock lock(mutex_);
      Item& item = *static_cast<Item*>(lane.owner);
      refusal = first_refusal(lane);
      if (speeds_) learn(lane, error);
      const size_t unfinished = item.unfinished;
      for (const LaneImage& one : lane.images) {
        if (one.made && one.shared != nullptr) {
          SampleRecord& record = item.work->records[one.sample];
          record.on_card = item.any_shared = true;
          if (one.stays) record.pixel_hash = one.digest;
        }
        if (one.image == nullptr || (one.made && !item.work->finish)) continue;
        (one.made ? item.finish : item.again).push_back(one.sample);
        ++item.unfinished;
        if (!one.made) ++figures_.remade;
      }
      if (item.unfinished > unfinished) changed_.notify_all();
      if (error != nullptr) notice = error->message();
      lanes_->give_back(lane);
      --item.lanes;
      finish_item(item);
    }
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

  void learn(const CardLane& lane, const CardError* error) PENSTOCK_REQUIRES(mutex_) {
    speeds_->done(lane.card, std::ssize(lane.images), error != nullptr ? 0 : lane.wanted(), lane.card_ns);
    if (error != nullptr && error->fault() != CardFault::out_of_memory) speeds_->lost(lane.card);
  }

  void end_step(Item& item, Step step, const Done& done) PENSTOCK_REQUIRES(mutex_) {
    const MakeTimes& times = done.times;
    item.work->busy_ns += done.busy_ns;
    item.work->bytes += times.encoded_bytes;
    item.work->pixels += times.source_pixels;
    figures_.busy_ns += done.busy_ns;
    figures_.read_ns += times.read_ns;
    figures_.decode_ns += times.decode_ns;
    figures_.augment_ns += times.augment_ns;
    figures_.encoded_bytes += times.encoded_bytes;
    if (step == Step::make) {
      ++figures_.samples;
      figures_.fed += done.fed ? 1 : 0;
      figures_.feed_ns += done.feed_ns;
      if (speeds_ && item.work->failure.empty()) {
        if (done.fed) {
          speeds_->fed(done.busy_ns);
        } else if (done.either) {
          speeds_->made(done.busy_ns);
        } else {
          speeds_->other(done.busy_ns);
        }
      }
    }
    if (--item.unfinished == 0 && item.open != nullptr) close(item);
    finish_item(item);
  }

  void finish_item(Item& item) PENSTOCK_REQUIRES(mutex_) {
    if (item.unfinished > 0 || item.lanes > 0) return;
    end_sharing(item);
    done_.push_back(std::move(item.work));
    for (auto it = queue_.begin(); it != queue_.end(); ++it) {
      if (&*it == &item) {
        queue_.erase(it);
        break;
      }
    }
    wakeup_.set();
  }

  std::function<void(const std::string&)> on_notice_;
  const CpuFraction cpu_fraction_;
  const CardEntropy card_entropy_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::list<Item> queue_ PENSTOCK_GUARDED_BY(mutex_);
  std::deque<std::unique_ptr<ChunkWork>> done_ PENSTOCK_GUARDED_BY(mutex_);
  ExecutorFigures figures_ PENSTOCK_GUARDED_BY(mutex_);
  std::array<bool, refusals> refusal_said_ PENSTOCK_GUARDED_BY(mutex_){};
  std::optional<SpeedSplit> speeds_ PENSTOCK_GUARDED_BY(mutex_);
  bool stopping_ PENSTOCK_GUARDED_BY(mutex_) = false;
  Wakeup wakeup_;
  std::unique_ptr<CardLanes> lanes_;  // nullptr: no cards
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Executor> make_cpu_executor(int threads, const std::vector<int>& cpus) {
  return std::make_unique<PoolExecutor>(threads, cpus);
}

std::unique_ptr<Executor> make_card_executor(int threads, const std::vector<int>& cpus,
                                             std::vector<std::unique_ptr<Card>> cards, const CardLanesOptions& options,
                                             std::function<void(const std::string&)> on_notice,
                                             const CpuFraction& cpu_fraction) {
  return std::make_unique<PoolExecutor>(threads, cpus, std::move(cards), options, cpu_fraction, std::move(on_notice));
}

}  // namespace penstock
