// penstock's batches for ::torch::data's own loaders: a stateful dataset.
//
//   penstock::torch::Dataset dataset("job.yaml", "train");
//   auto loader = ::torch::data::make_data_loader(dataset, ::torch::data::DataLoaderOptions(dataset.batch_size()));
//   for (auto& example : *loader) step(example.data, example.target);    // begin() is the next epoch
//
//   ::torch::serialize::OutputArchive archive;                            // in mid-epoch, between two batches
//   dataset.save(archive);
//   archive.save_to("data.pt");
//   dataset.load(archive_read);                                           // the next begin() goes on behind that batch
//
// Purpose: for programs that have such a loader and keep it. Others take penstock::torch::DataLoader, which has less in
//   between: penstock loads, decodes and deals out by itself, so this dataset has nothing left to be shuffled or
//   collated.
// Requests: get_batch(size) refuses every size but the job's, Error(usage); a shorter batch at an epoch's end is the
//   job's, by its `tail`.
// Ownership: copies are the same dataset, with one iteration and one place in it. So a program keeps one, and gives a
//   loader the other. Tensors as in data_loader.h. A loader of ::torch::data holds a batch while it asks for the next,
//   and with workers `max_jobs` batches ahead (2 a worker unless set): trainer.hold has to be as many, or more.
// Workers: none (the default) or one: penstock reads ahead in threads or ranks of its own. Of several, one may be given
//   a batch before, and deliver it after, another.
// State: what save() keeps counts the batches that get_batch() gave: with workers, also those that wait in the loader.
//   load() takes untrusted text as DataLoader::resume() does, and refuses what differs, Error(config). A set_epoch()
//   with another epoch than the loaded one, called between load() and begin(), wins: that epoch begins at its start.
// Thread-safety: any thread, one at a time inside.
// Failure: as penstock::DataLoader's; out of a worker, libtorch throws it on as WorkerException.
#pragma once

#include <torch/data/datasets/stateful.h>
#include <torch/serialize.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "bindings/torch/data_loader.h"

namespace penstock::torch {

class Dataset : public ::torch::data::datasets::StatefulDataset<Dataset, ::torch::data::Example<>, size_t> {
  using Base = ::torch::data::datasets::StatefulDataset<Dataset, ::torch::data::Example<>, size_t>;
  // libtorch's optional: c10's before 2.2, the standard library's since.
  using OptionalSize = decltype(std::declval<const Base&>().size());

 public:
  Dataset(const std::string& job_file, const std::string& split, const DataLoaderOptions& options = {},
          Fields fields = {})
      : Dataset(DataLoader(job_file, split, options, std::move(fields)), split) {}
  // `split` stands in messages.
  explicit Dataset(DataLoader loader, std::string split = {})
      : shared_(std::make_shared<Shared>(std::move(loader), std::move(split))) {}

  BatchType get_batch(size_t size) override {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    const auto own = static_cast<size_t>(shared_->loader.batch_size());
    if (size != own) {
      throw Error(ErrorKind::usage,
                  "batches of " + std::to_string(size) + " samples were asked for, and split '" + shared_->split +
                      "' of the job makes batches of " + std::to_string(own),
                  "say DataLoaderOptions(" + std::to_string(own) + ") or DataLoaderOptions(dataset.batch_size()), or " +
                      "splits." + shared_->split + ".batch_size=" + std::to_string(size) + " in the job's overrides");
    }
    if (!shared_->stream) shared_->begin();
    std::optional<Example> example = shared_->stream->next();
    if (!example) return {};
    ++shared_->next.step;
    return BatchType(::torch::data::Example<>(std::move(*example)));
  }

  // Begins the next iteration; the first after load() goes on where that says. ::torch::data's loaders call it at
  // begin().
  void reset() override {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->begin();
  }

  // Samples of an epoch, of this replica.
  OptionalSize size() const override { return static_cast<size_t>(shared_->loader.num_samples()); }
  size_t batch_size() const { return static_cast<size_t>(shared_->loader.batch_size()); }

  void save(::torch::serialize::OutputArchive& archive) const override {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    const Cursor next = shared_->where_next();
    archive.write(kKey, c10::IValue(shared_->loader.state(next.epoch, next.step)));
  }

  void load(::torch::serialize::InputArchive& archive) override {
    c10::IValue value;
    if (!archive.try_read(kKey, value) || !value.isString()) {
      throw Error(ErrorKind::config, "the archive has no state of a penstock::torch::Dataset",
                  std::string("load what Dataset::save() wrote: a string by the name of '") + kKey + "'");
    }
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    const Cursor next = shared_->loader.resume(value.toStringRef());
    shared_->stream.reset();
    shared_->next = next;
    shared_->resumed = true;
    shared_->loader.set_epoch(next.epoch);  // a later set_epoch() is seen by it
  }

  // The loader behind it, for what else it says (warnings(), class_names(), set_epoch()). Not while another thread is
  // in a function of this dataset.
  DataLoader& loader() { return shared_->loader; }

 private:
  static constexpr const char* kKey = "penstock_state";

  struct Shared {
    Shared(DataLoader of, std::string name) : loader(std::move(of)), split(std::move(name)) {}

    // Where load() said, unless set_epoch() has named another epoch since.
    bool goes_on() const { return resumed && next.epoch == loader.epoch(); }

    void begin() {
      stream.reset();  // the one before is left first, and its batches with it
      if (!goes_on()) next = {loader.epoch(), 0};
      stream = loader.start_at(next.epoch, next.step);
      resumed = false;
    }

    // Behind an epoch's last batch comes the next epoch, as the loader counts them: an `eval` split has epoch 0 only.
    Cursor where_next() const {
      if (goes_on()) return next;
      if (resumed || !stream) return {loader.epoch(), 0};
      return next.step < loader.size() || next.step == 0 ? next : Cursor{loader.epoch(), 0};
    }

    DataLoader loader;
    std::string split;
    std::mutex mutex;
    std::optional<ExampleStream> stream;
    Cursor next;           // the place of the batch that get_batch() gives next
    bool resumed = false;  // `next` came from load(), and no iteration has begun there yet
  };
  std::shared_ptr<Shared> shared_;
};

}  // namespace penstock::torch
