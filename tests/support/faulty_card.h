// A card in front of another one, that fails when told to.
//
//   auto faults = std::make_shared<CardFaults>();
//   FaultyCard card(open_host_card(0, bytes), faults);
//   faults->after(20, CardFault::failed);        // the 21st call from now on, and all behind it
//   faults->once(3, CardFault::out_of_memory);   // only the 4th
//   faults->most_bytes = 4 << 20;                // larger allocations fail
//   faults->most_shared_bytes = 0;               // larger shares fail, as where a driver knows none
//   faults->slow_ms = 50;                        // longer, every batch
//   faults->busy = [] { return true; };          // its streams are never done
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "runtime/base/thread_annotations.h"
#include "runtime/gpu/card.h"

namespace penstock {

class CardFaults {
 public:
  void after(int calls, CardFault fault) { set(calls, fault, false); }
  void once(int calls, CardFault fault) { set(calls, fault, true); }
  std::atomic<size_t> most_bytes = SIZE_MAX;
  std::atomic<size_t> most_shared_bytes = SIZE_MAX;
  std::atomic<int> slow_ms = 0;
  std::function<bool()> busy;  // set before there are streams

  // Of a stream's calls, waits too.
  void call(const CardInfo& info) {
    MutexLock lock(mutex_);
    if (!armed_ || left_-- > 0) return;
    if (once_) armed_ = false;
    throw CardError(fault_, "card " + std::to_string(info.number) + " (" + info.name + "): a fault of the test");
  }

 private:
  void set(int calls, CardFault fault, bool once) {
    MutexLock lock(mutex_);
    armed_ = true;
    left_ = calls;
    fault_ = fault;
    once_ = once;
  }

  Mutex mutex_;
  bool armed_ PENSTOCK_GUARDED_BY(mutex_) = false;
  bool once_ PENSTOCK_GUARDED_BY(mutex_) = false;
  int left_ PENSTOCK_GUARDED_BY(mutex_) = 0;
  CardFault fault_ PENSTOCK_GUARDED_BY(mutex_) = CardFault::failed;
};

class FaultyCard final : public Card {
 public:
  FaultyCard(std::unique_ptr<Card> card, std::shared_ptr<CardFaults> faults)
      : card_(std::move(card)), faults_(std::move(faults)) {}

  const CardInfo& info() const noexcept override { return card_->info(); }
  std::byte* allocate(size_t bytes, CardMemory where) override {
    if (bytes > faults_->most_bytes) throw CardError(CardFault::out_of_memory, "a card of the test is short of memory");
    return card_->allocate(bytes, where);
  }
  void release(std::byte* memory, CardMemory where) noexcept override { card_->release(memory, where); }
  std::unique_ptr<CardStream> stream() override {
    return std::make_unique<Stream>(card_->stream(), card_->info(), faults_);
  }
  std::unique_ptr<CardShare> share(size_t bytes) override {
    if (bytes > faults_->most_shared_bytes) throw Error(ErrorKind::runtime, "a card of the test shares no memory");
    return card_->share(bytes);
  }
  std::unique_ptr<CardShare> open_share(UniqueFd fd, size_t bytes) override {
    return card_->open_share(std::move(fd), bytes);
  }

 private:
  class Stream final : public CardStream {
   public:
    Stream(std::unique_ptr<CardStream> stream, const CardInfo& info, std::shared_ptr<CardFaults> faults)
        : stream_(std::move(stream)), info_(info), faults_(std::move(faults)) {}
    void upload(std::byte* to, const std::byte* from, size_t bytes) override {
      faults_->call(info_);
      stream_->upload(to, from, bytes);
    }
    void launch(std::byte* memory, const StageLaunch& launch) override {
      faults_->call(info_);
      stream_->launch(memory, launch);
    }
    void download(std::byte* to, const std::byte* from, size_t bytes) override {
      faults_->call(info_);
      stream_->download(to, from, bytes);
    }
    void copy(std::byte* to, const std::byte* from, size_t bytes) override {
      faults_->call(info_);
      stream_->copy(to, from, bytes);
    }
    void wait(Nanoseconds timeout_ns) override {
      faults_->call(info_);
      std::this_thread::sleep_for(std::chrono::milliseconds(faults_->slow_ms));
      stream_->wait(timeout_ns);
    }
    bool done() override { return !(faults_->busy && faults_->busy()) && stream_->done(); }
    CardTimes take_times() override { return stream_->take_times(); }
    std::unique_ptr<PictureDecoder> picture_decoder(const PictureDecoderOptions& options) override {
      return stream_->picture_decoder(options);
    }

   private:
    std::unique_ptr<CardStream> stream_;
    CardInfo info_;
    std::shared_ptr<CardFaults> faults_;
  };

  std::unique_ptr<Card> card_;
  std::shared_ptr<CardFaults> faults_;
};

}  // namespace penstock
