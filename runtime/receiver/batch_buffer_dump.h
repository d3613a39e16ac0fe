// A batch buffer on disk: what `penstock run --dump` writes of every batch, at the moment it is delivered.
//
//   // files as report/batch_dump.h names them
//   if (dumps(options)) dump_batch_buffer(options, epoch, split, pool, index);
//
// The images are those of the batch buffer, finished; or, with options.dump_raw, the uint8 pixels as they arrived,
//   which begin_batch_buffer() has then kept beside it (keeps_raw). Soft labels are a further field, class numbers are
//   always there.
// Among the receivers of one replica only the one that is counted writes, since all get the same batches.
// Thread-safety: the receiver's event loop alone. Ownership: nothing is kept. Failure: Error(runtime) naming the file;
//   the batch must then not be delivered, or a job would be taken for whole whose dump is not.
#pragma once

#include <cstdint>

#include "runtime/receiver/batch_buffer_pool.h"
#include "runtime/receiver/receiver_options.h"
#include "runtime/receiver/receiver_split.h"

namespace penstock {

inline bool dumps(const ReceiverOptions& options) {
  return !options.dump_folder.empty() && options.counted;
}
inline bool keeps_raw(const ReceiverOptions& options) {
  return dumps(options) && options.dump_raw;
}

void dump_batch_buffer(const ReceiverOptions& options, int64_t epoch, const ReceiverSplit& split, BatchBufferPool& pool,
                       int32_t index);

}  // namespace penstock
