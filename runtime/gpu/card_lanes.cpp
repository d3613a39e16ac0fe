#include "runtime/gpu/card_lanes.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

namespace penstock {
namespace {

void add_library_figures(CardLane& lane, CardFigures& figures) {
  CardLibraryFigures& library = *figures.library;
  library.images += lane.library_images();
  for (size_t r = 0; r < refusals; ++r) library.refused[r] += lane.refused[r];
  if (lane.refused[static_cast<size_t>(Refusal::library)] > 0 && library.failure.empty()) {
    library.failure = lane.decoder->reason(Refusal::library);
  }
  for (const LibraryPicture& picture : lane.batch.pictures()) {
    figures.uploaded_bytes += static_cast<int64_t>(picture.bytes);
  }
}

// Where it was had for a moment before, and cannot be had now, the card goes on without.
void add_decoder(CardLane& lane, const PictureDecoderOptions& options, CardLibraryFigures& library) {
  try {
    lane.decoder = lane.stream->picture_decoder(options);
  } catch (const CardError&) {
    throw;
  } catch (const Error& error) {
    library.failure = error.message();
  }
}

}  // namespace

CardLane::CardLane(Card& on, size_t number_of_card, size_t bytes)
    : card(number_of_card),
      memory_bytes(bytes),
      memory(on, bytes, CardMemory::device),
      upload(on, bytes / 2, CardMemory::pinned),
      outputs(on, bytes / 4, CardMemory::pinned),
      stream(on.stream()),
      batch(upload.data(), {bytes, bytes / 2, SIZE_MAX}) {}

int64_t CardLane::wanted() const noexcept {
  return std::count_if(images.begin(), images.end(), [](const LaneImage& one) { return one.image != nullptr; });
}

int64_t CardLane::library_images() const noexcept {
  int64_t count = 0;
  for (size_t place = 0; place < images.size(); ++place) count += images[place].made && batch.by_library(place) ? 1 : 0;
  return count;
}

CardLanes::CardLanes(std::vector<std::unique_ptr<Card>> cards, const CardLanesOptions& options, Done done)
    : cards_(std::move(cards)), options_(options), done_(std::move(done)) {
  size_t lanes = 0;
  bool usable = false;
  std::string why_none;
  {
    MutexLock lock(mutex_);
    for (size_t card = 0; card < cards_.size(); ++card) {
      const CardInfo& info = cards_[card]->info();
      figures_.push_back({.name = info.name, .number = info.number});
      add_lanes(card, options);
      add_pieces(card);
      why_none = figures_[card].failure;
      usable = usable || why_none.empty();
    }
    lanes = places_.size();
    activity_.resize(cards_.size());
    duty_.assign(cards_.size(), DutyCycle(options.duty));
  }
  if (!usable) {
    throw Error(ErrorKind::runtime, "no card has memory for a batch: " + why_none,
                "lower loader.card_memory_mb, free memory on the card, or say loader.executor: cpu");
  }
  try {
    for (size_t i = 0; i < lanes; ++i) threads_.emplace_back([this, i] { run(i); });
  } catch (const std::system_error& problem) {
    stop();  // no destructor will
    throw Error(ErrorKind::runtime, "cannot start " + std::to_string(lanes) + " threads for cards: " + problem.what(),
                "lower loader.cards, raise the limits on processes and memory, or say loader.executor: cpu");
  }
}

CardLanes::~CardLanes() {
  stop();
}

void CardLanes::stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

// What each lane's decoder may take, where the card has a library.
std::optional<PictureDecoderOptions> CardLanes::find_library(size_t card, const CardLanesOptions& options) {
  if (!options.library) return std::nullopt;
  const PictureDecoderOptions decoder{
      .chroma = *options.library,
      .memory_bytes = static_cast<size_t>(options.memory_bytes) / static_cast<size_t>(options.lanes) / 4};
  CardLibraryFigures& library = figures_[card].library.emplace();
  try {
    const std::unique_ptr<CardStream> stream = cards_[card]->stream();
    library.facts = stream->picture_decoder(decoder)->facts();
    return decoder;
  } catch (const Error& error) {
    library.failure = error.message();
    return std::nullopt;
  }
}

void CardLanes::add_lanes(size_t card, const CardLanesOptions& options) {
  auto bytes = static_cast<size_t>(options.memory_bytes) / static_cast<size_t>(options.lanes);
  const std::optional<PictureDecoderOptions> library = find_library(card, options);
  if (library) bytes -= library->memory_bytes;
  CardFigures& figures = figures_[card];
  std::string why = "it was to have less than " + std::to_string(smallest_lane_bytes) + " bytes for a batch";
  while (figures.lanes < options.lanes && bytes >= smallest_lane_bytes) {
    try {
      Place place;
      place.lane = std::make_unique<CardLane>(*cards_[card], card, bytes);
      if (library) add_decoder(*place.lane, *library, *figures.library);
      places_.push_back(std::move(place));
      figures.memory_bytes += static_cast<int64_t>(bytes);
      ++figures.lanes;
    } catch (const CardError& error) {
      why = error.message();
      if (error.fault() != CardFault::out_of_memory) {
        figures.failure = why;
        return;
      }
      bytes /= 2;
    }
  }
  if (figures.lanes == 0) figures.failure = why;
}

// Behind the lanes: they are what a card is for.
void CardLanes::add_pieces(size_t card) {
  pieces_.emplace_back();
  if (options_.shared_bytes == 0 || !figures_[card].failure.empty()) return;
  CardSharedFigures& shared = figures_[card].shared.emplace();
  try {
    pieces_.back() = std::make_unique<CardPieces>(*cards_[card], static_cast<size_t>(options_.shared_bytes));
    shared.bytes = static_cast<int64_t>(pieces_.back()->bytes());
  } catch (const Error& error) {
    shared.failure = error.message() + (error.remedy().empty() ? "; lower loader.card_share_mb" : "; " + error.remedy());
  }
}

CardLane* CardLanes::take(const std::function<double(size_t card)>& wait) {
  MutexLock lock(mutex_);
  Place* found = nullptr;
  size_t after = 0;
  double least = 0;
  for (size_t i = 0; i < places_.size() && (found == nullptr || wait); ++i) {
    Place& place = places_[(next_ + i) % places_.size()];
    if (!place.free || !figures_[place.lane->card].failure.empty()) continue;
    const double waits = wait ? wait(place.lane->card) : 0;
    if (found != nullptr && waits >= least) continue;
    found = &place;
    least = waits;
    after = (next_ + i + 1) % places_.size();
  }
  if (found == nullptr) return nullptr;
  found->free = false;
  next_ = after;
  return found->lane.get();
}

void CardLanes::submit(CardLane& lane) {
  MutexLock lock(mutex_);
  for (Place& place : places_) {
    if (place.lane.get() == &lane) place.submitted = true;
  }
  changed_.notify_all();
}

void CardLanes::give_back(CardLane& lane) {
  lane.images.clear();
  lane.owner = nullptr;
  lane.pending = 0;
  lane.closed = false;
  MutexLock lock(mutex_);
  for (Place& place : places_) {
    if (place.lane.get() == &lane) place.free = true;
  }
}

std::vector<CardFigures> CardLanes::figures() const {
  MutexLock lock(mutex_);
  std::vector<CardFigures> figures = figures_;
  for (size_t card = 0; card < pieces_.size(); ++card) {
    if (pieces_[card]) figures[card].shared->pieces = pieces_[card]->figures();
  }
  return figures;
}

bool CardLanes::library_of(size_t card) const {
  const std::optional<CardLibraryFigures>& library = figures_[card].library;
  return library && library->failure.empty() && figures_[card].failure.empty();
}

bool CardLanes::has_library(const CardLane& lane) const {
  MutexLock lock(mutex_);
  return lane.decoder != nullptr && library_of(lane.card);
}

std::optional<LibraryOffer> CardLanes::library() const {
  std::optional<LibraryOffer> offer;
  MutexLock lock(mutex_);
  for (size_t card = 0; card < figures_.size(); ++card) {
    if (!library_of(card)) continue;
    if (!offer) offer.emplace();
    offer->cuts_regions = offer->cuts_regions && figures_[card].library->facts.cuts_regions;
  }
  return offer;
}

void CardLanes::begin_batch(size_t card) {
  Activity& activity = activity_[card];
  if (activity.batches++ == 0) activity.since = MonotonicClock().now();
}

// Bounded by the batch under way, which a card has until timeout_ns, and by the rest behind it.
void CardLanes::await_turn(size_t card) {
  const MonotonicClock clock;
  for (Nanoseconds now = clock.now(); !duty_[card].may_begin(now); now = clock.now()) {
    const Nanoseconds wait = duty_[card].running() ? kSecond : duty_[card].free_at() - now;
    changed_.wait_for(mutex_, std::chrono::microseconds(wait / 1000 + 1));
  }
  duty_[card].begin(clock.now());
}

// With rests between batches the card's time is that of its one batch, from `begun` on.
void CardLanes::end_batch(CardLane& lane, Nanoseconds begun) {
  Activity& activity = activity_[lane.card];
  DutyCycle& duty = duty_[lane.card];
  const Nanoseconds now = MonotonicClock().now();
  lane.card_ns = now - std::exchange(activity.since, now);
  figures_[lane.card].active_ns += duty.limits() ? now - begun : lane.card_ns;
  --activity.batches;
  duty.end(now);
  if (duty.limits()) changed_.notify_all();
}

void CardLanes::run(size_t number) {
  ::pthread_setname_np(::pthread_self(), "penstock-card");
  const MonotonicClock clock;
  for (;;) {
    CardLane* lane = nullptr;
    {
      MutexLock lock(mutex_);
      while (!places_[number].submitted && !stopping_) changed_.wait(mutex_);
      if (!places_[number].submitted) return;
      places_[number].submitted = false;
      lane = places_[number].lane.get();
    }
    {
      MutexLock lock(mutex_);
      begin_batch(lane->card);
      await_turn(lane->card);
    }
    const Nanoseconds begun = clock.now();
    if (const std::optional<CardError> error = attempt(*lane)) {
      {
        MutexLock lock(mutex_);
        std::string& failure = figures_[lane->card].failure;
        if (error->fault() != CardFault::out_of_memory && failure.empty()) failure = error->message();
        end_batch(*lane, begun);
      }
      done_(*lane, &*error);
      continue;
    }
    {
      MutexLock lock(mutex_);
      end_batch(*lane, begun);
      CardFigures& figures = figures_[lane->card];
      figures.times += lane->times;
      figures.deliver_ns += lane->deliver_ns;
      figures.busy_ns += clock.now() - begun;
      figures.uploaded_bytes += static_cast<int64_t>(lane->batch.upload_bytes());
      ++figures.batches;
      figures.images +=
          std::count_if(lane->images.begin(), lane->images.end(), [](const LaneImage& one) { return one.made; });
      if (!lane->batch.pictures().empty()) add_library_figures(*lane, figures);
    }
    done_(*lane, nullptr);
  }
}

std::optional<CardError> CardLanes::attempt(CardLane& lane) const {
  std::optional<CardError> found;
  lane.refused = {};
  try {
    make(lane);
    return found;
  } catch (const CardError& error) {
    found = error;
  } catch (const std::exception& error) {  // memory of our own
    found = CardError(CardFault::out_of_memory, error.what());
  }
  // Some of it is under way all the same, and reads what the lane's next batch will write over.
  if (found->fault() == CardFault::out_of_memory) {
    try {
      lane.stream->wait(options_.timeout_ns);
      (void)lane.stream->take_times();  // of no batch
    } catch (const CardError& error) {
      found = error.fault() == CardFault::out_of_memory ? CardError(CardFault::failed, error.message()) : error;
    }
  }
  return found;
}

// A refused picture's launches run all the same, over whatever is in its place.
void CardLanes::decode_pictures(CardLane& lane) {
  const std::span<LibraryPicture> pictures = lane.batch.pictures();
  if (pictures.empty()) return;
  lane.decoder->decode(lane.memory.data(), pictures);
  for (const LibraryPicture& picture : pictures) {
    if (picture.refusal == Refusal::none) continue;
    lane.batch.refuse(picture.place);
    ++lane.refused[static_cast<size_t>(picture.refusal)];
  }
}

// Images that have to come here, in runs, and what is said of all.
void CardLanes::download(CardLane& lane) {
  const BatchBuilder& batch = lane.batch;
  const size_t bytes = batch.output_bytes();
  for (size_t place = 0; place < batch.places();) {
    size_t run = 1;
    const bool stays = lane.images[place].stays;
    while (place + run < batch.places() && lane.images[place + run].stays == stays) ++run;
    if (!stays) {
      lane.stream->download(lane.outputs.data() + place * bytes, lane.memory.data() + batch.outputs_at() + place * bytes,
                            run * bytes);
    }
    place += run;
  }
  const auto fetch = [&](uint64_t at, size_t size) {
    if (size > 0) lane.stream->download(lane.upload.data() + at, lane.memory.data() + at, size);
  };
  fetch(batch.verdicts_at(), batch.verdict_bytes());
  fetch(batch.digests_at(), batch.digest_bytes());
}

// Also of images that turn out not to be good: who reads them is told by `made`.
void CardLanes::copy_shared(CardLane& lane) {
  const BatchBuilder& batch = lane.batch;
  const size_t bytes = batch.output_bytes();
  for (size_t place = 0; place < batch.places();) {
    std::byte* const to = lane.images[place].shared;
    size_t run = 1;
    while (to != nullptr && place + run < batch.places() && lane.images[place + run].shared == to + run * bytes) ++run;
    if (to != nullptr) {
      lane.stream->copy(to, lane.memory.data() + batch.outputs_at() + place * bytes, run * bytes);
    }
    place += run;
  }
}

void CardLanes::make(CardLane& lane) const {
  BatchBuilder& batch = lane.batch;
  batch.seal();
  CardStream& stream = *lane.stream;
  stream.upload(lane.memory.data(), lane.upload.data(), batch.upload_bytes());
  decode_pictures(lane);
  for (const StageLaunch& launch : batch.launches()) stream.launch(lane.memory.data(), launch);
  download(lane);
  copy_shared(lane);
  stream.wait(options_.timeout_ns);
  lane.times = stream.take_times();
  const MonotonicClock clock;
  const Nanoseconds fetched = clock.now();
  for (size_t place = 0; place < batch.places(); ++place) {
    LaneImage& one = lane.images[place];
    if (one.image == nullptr) continue;
    one.made = batch.good(place);
    if (one.made && one.stays) one.digest = batch.digest(place);
    if (one.made && !one.stays) std::memcpy(one.image, lane.outputs.data() + place * batch.output_bytes(), batch.output_bytes());
  }
  lane.deliver_ns = clock.now() - fetched;
}

}  // namespace penstock
