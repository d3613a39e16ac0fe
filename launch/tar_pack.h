// A data set as plain tar shards: `tar x` unpacks them, WebDataset and `dataset: {tar: …}` read them.
//
//   PackInput input(dataset, limits, spool_bytes, /*packs=*/true);
//   const PackResult result = write_tar_shards(input, options);    // options.folder/shard-00000.tar, …
//
// Members. A sample's members stand one after the other and are called by its row, 000000017.jpg: unique, in the data
//   set's order, and without a dot where WebDataset does not look for one. First its picture, with an extension by its
//   first bytes, or pixels as .ppm and .pgm; then .cls, its label as a number; then its fields: arrays and numbers as
//   NAME.npy, texts as NAME.txt, bytes as NAME, pictures and masks of pairs as NAME.jpg, .png and so on. The key that
//   the sample had stands before the picture as a PAX `comment`. Names of classes, where there are any, are the lines
//   of classes.txt beside the shards.
// Determinism: the same samples and options give the same bytes for any number of threads; owner, mode and time of
//   every member are fixed.
// Breaking off: shards are called shard-00000.tar.unfinished until all are whole and on the disk, so that nobody reads a
//   part for the whole. A run that finds shards there compares them with what it would write, and writes the others; so
//   the same command goes on, and does nothing where all is there. What it has compared counts as PackResult::found.
// Memory, threads, reports: as write_pack(). Samples are looked at and rewritten as in a pack.
// Failure: Error(usage) for a folder that holds something else, or shards of other samples or options, and for fields
//   whose members would have one name; otherwise as write_pack(). Thread-safety: one caller per folder.
#pragma once

#include "launch/pack_writer.h"

namespace penstock {

PackResult write_tar_shards(const PackInput& input, const PackOptions& options);

}  // namespace penstock
