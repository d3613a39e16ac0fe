#include "tests/simulate/faults/sim_executor.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "runtime/base/fields.h"
#include "runtime/sample/split_fields.h"
#include "runtime/simulate/seeded_random.h"

namespace penstock {
namespace {

class SimExecutor final : public Executor {
 public:
  SimExecutor(EventLoop& loop, SimExecutorSpec spec) : loop_(loop), spec_(std::move(spec)) {}

  void submit(std::unique_ptr<ChunkWork> work) override {
    waiting_.push_back(std::move(work));
    begin();
  }
  std::unique_ptr<ChunkWork> next_done() override {
    if (done_.empty()) return nullptr;
    auto work = std::move(done_.front());
    done_.pop_front();
    return work;
  }
  int done_fd() const override { return -1; }
  std::unique_ptr<ChunkWork> withdraw(const LeaseKey& lease) override {
    const auto it =
        std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& work) { return work->lease.lease == lease; });
    if (it == waiting_.end()) return nullptr;
    auto work = std::move(*it);
    waiting_.erase(it);
    return work;
  }
  ExecutorFigures figures() const override {
    ExecutorFigures figures;
    figures.samples = samples_;
    figures.threads = spec_.threads;
    return figures;
  }

 private:
  void begin() {
    while (busy_ < spec_.threads && !waiting_.empty()) {
      ++busy_;
      const auto work = std::make_shared<std::unique_ptr<ChunkWork>>(std::move(waiting_.front()));
      waiting_.pop_front();
      const Nanoseconds takes = spec_.takes(**work);
      // A thread writes while it works, and not at its end alone.
      make(**work);
      loop_.after(takes, [this, work, takes, still = std::weak_ptr<int>(alive_)] {
        if (still.expired()) return;
        --busy_;
        (*work)->busy_ns = takes;
        done_.push_back(std::move(*work));
        begin();
        spec_.done();
      });
    }
  }

  void make(ChunkWork& work) {
    work.failure = spec_.fails(work);
    if (!work.failure.empty()) return;
    const FieldTable& fields = work.split->fields();
    const FieldLayout layout = chunk_layout(fields, std::ssize(work.lease.samples));
    const size_t image_bytes = fields[0].bytes_per_sample();
    work.records.clear();
    for (size_t i = 0; i < work.lease.samples.size(); ++i) {
      SampleRecord record;
      record.planned = work.lease.samples[i];
      record.index = record.planned.index;
      record.key = work.split->source().key(record.index);
      fill_sim_image(record.index, record.planned.occurrence, work.lease.epoch,
                     {work.memory + layout.offsets[0] + i * image_bytes, image_bytes});
      const int64_t label = sim_label(record.index);
      std::memcpy(work.memory + layout.offsets[1] + i * sizeof label, &label, sizeof label);
      work.records.push_back(std::move(record));
      work.bytes += 1000;
      work.pixels += 1000;
    }
    if (spec_.spoil && spec_.spoil(work)) work.memory[layout.offsets[0]] ^= std::byte{1};
    samples_ += std::ssize(work.lease.samples);
  }

  EventLoop& loop_;
  SimExecutorSpec spec_;
  std::deque<std::unique_ptr<ChunkWork>> waiting_;
  std::deque<std::unique_ptr<ChunkWork>> done_;
  int busy_ = 0;
  int64_t samples_ = 0;
  const std::shared_ptr<int> alive_ = std::make_shared<int>(0);  // events that are left know that we are gone
};

}  // namespace

std::unique_ptr<Executor> make_sim_executor(EventLoop& loop, SimExecutorSpec spec) {
  return std::make_unique<SimExecutor>(loop, std::move(spec));
}

void fill_sim_image(int64_t index, uint16_t occurrence, int64_t epoch, std::span<std::byte> image) {
  SeededRandom random(static_cast<uint64_t>(index) << 24 ^ static_cast<uint64_t>(epoch) << 8 ^ occurrence);
  for (std::byte& one : image) one = static_cast<std::byte>(random.bits());
}
int64_t sim_label(int64_t index) {
  return index % 10;
}

}  // namespace penstock
