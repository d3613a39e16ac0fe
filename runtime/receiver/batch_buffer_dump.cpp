#include "runtime/receiver/batch_buffer_dump.h"

#include <string>
#include <vector>

#include "runtime/pixels/finish.h"
#include "runtime/report/batch_dump.h"
#include "runtime/transforms/pipeline.h"

namespace penstock {
namespace {

// A dump shows what the program trains on, also where it finishes images itself.
std::vector<std::byte> finished(const ReceiverSplit& split, const std::byte* images, int64_t samples) {
  const Finisher finisher = finisher_of(split.pipeline(), split.finish);
  const size_t bytes = split.finisher->bytes_per_sample();
  std::vector<std::byte> out(static_cast<size_t>(samples) * finisher.bytes_per_sample());
  for (size_t i = 0; i < static_cast<size_t>(samples); ++i) {
    finisher.run(reinterpret_cast<const uint8_t*>(images + i * bytes), out.data() + i * finisher.bytes_per_sample());
  }
  return out;
}

// `memory`: of what is not in the batch buffer.
void add_fields(const ReceiverSplit& split, BatchBufferPool& pool, int32_t index, bool raw, DumpedBatch& batch,
                std::vector<std::vector<std::byte>>& memory) {
  BatchBuffer& batch_buffer = pool.batch_buffers[static_cast<size_t>(index)];
  for (size_t f = 0; f < split.fields.size(); ++f) {
    if (f == 1 && (raw || split.pipeline().soft_classes() == 0)) continue;
    std::byte* data = pool.batch_buffer_data(static_cast<size_t>(index)) + pool.layout.fields[f];
    FieldSpec field = split.fields[f];
    const bool image = field.kind == FieldKind::image;
    if (image && raw) {
      data = reinterpret_cast<std::byte*>(batch_buffer.raw[f].data());
      field = split.raw_fields[f];
    } else if (image && split.raw_images) {
      data = memory.emplace_back(finished(split, data, batch_buffer.samples)).data();
      field.dtype = split.finish.dtype;
    }
    const bool channels_last = image && !raw && split.finish.memory_format == MemoryFormat::channels_last;
    if (f == 0) {
      batch.images = image_batch_view(data, field, batch_buffer.samples, channels_last);
    } else {
      batch.others.push_back({field, data, channels_last});
    }
  }
}

}  // namespace

void dump_batch_buffer(const ReceiverOptions& options, int64_t epoch, const ReceiverSplit& split, BatchBufferPool& pool,
                       int32_t index) {
  const BatchBuffer& batch_buffer = pool.batch_buffers[static_cast<size_t>(index)];
  DumpedBatch batch;
  batch.trainer = options.trainer;
  batch.step = batch_buffer.step;
  batch.epoch = epoch;
  batch.split = split.resolved.name;
  batch.records = &batch_buffer.records;
  batch.labels = &batch_buffer.labels;
  batch.variants = &*split.variants;
  batch.draws = batch_buffer.draws;
  batch.replica = options.replica;
  batch.dataset_folder = split.resolved.split.dataset.title();
  std::vector<std::vector<std::byte>> memory;
  add_fields(split, pool, index, options.dump_raw, batch, memory);
  write_batch(options.dump_folder + "/" + split.resolved.name + "_e" + std::to_string(epoch), batch);
}

}  // namespace penstock
