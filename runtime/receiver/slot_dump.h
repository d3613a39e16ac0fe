// A slot on disk: what `penstock run --dump` writes of every batch, at the moment it is delivered.
//
//   if (dumps(options)) dump_slot(options, epoch, split, pool, index);     // files as report/batch_dump.h names them
//
// The images are those of the slot, finished; or, with options.dump_raw, the uint8 pixels as they arrived, which
//   begin_slot() has then kept beside it (keeps_raw). Soft labels are a further field, class numbers are always there.
// Of the ports of one replica only the one that is counted writes: all get the same batches.
// Thread-safety: the port's event loop alone. Ownership: nothing is kept. Failure: Error(runtime) naming the file; the
//   batch must then not be delivered, or a job would be taken for whole whose dump is not.
#pragma once

#include <cstdint>

#include "runtime/receiver/port_options.h"
#include "runtime/receiver/port_split.h"
#include "runtime/receiver/slot_pool.h"

namespace penstock {

inline bool dumps(const PortOptions& options) { return !options.dump_folder.empty() && options.counted; }
inline bool keeps_raw(const PortOptions& options) { return dumps(options) && options.dump_raw; }

void dump_slot(const PortOptions& options, int64_t epoch, const PortSplit& split, SlotPool& pool, int32_t index);

}  // namespace penstock
