/* The C interface: a split's pipeline, without its data set. Encoded pictures in, the tensor that a DataLoader of the split
 * gives out, byte for byte, in memory of yours, on the host or on a GPU. For servers in C, Go, Rust, Java, or whatever
 * calls C.
 *
 *   penstock_pipeline* pipeline = NULL;
 *   if (penstock_open("job.yaml", "val", NULL, &pipeline) != PENSTOCK_OK) die(penstock_last_error());
 *   penstock_output output = PENSTOCK_OUTPUT;
 *   penstock_describe(pipeline, &output);                            // float32 [3, 224, 224]: output.bytes_per_image
 *   penstock_image images[2] = {{jpeg, jpeg_size, -1, 0, 0}, {png, png_size, -1, 0, 0}};
 *   penstock_status statuses[2];
 *   int code = penstock_run(pipeline, images, 2, memory, 2 * output.bytes_per_image, statuses);
 *   penstock_close(pipeline);
 *
 * Results: PENSTOCK_OK, or the kind of error; its text with a remedy is penstock_last_error().
 * Ownership: everything that goes in stays yours, and is read or written during the call only. A pipeline is open until
 *   penstock_close(), which must be the last call with it.
 * Threads: any number of threads may use one pipeline at once; with output on a GPU they take turns. The pictures of a call are
 *   shared among the pipeline's own threads. After fork() open pipelines anew in the child.
 * Versions: a program that was linked with this library runs with any later one of the same PENSTOCK_ABI: functions are
 *   never taken away or changed, penstock_options and penstock_output carry their size and grow at their end, the other
 *   structs stay as they are. exports.map lists the functions by version.
 */
#ifndef PENSTOCK_BINDINGS_C_PENSTOCK_H
#define PENSTOCK_BINDINGS_C_PENSTOCK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PENSTOCK_ABI 0

typedef enum penstock_result {
  PENSTOCK_OK = 0,
  PENSTOCK_RUNTIME = 1, /* the environment: memory, files, a GPU, images that are not ready in time */
  PENSTOCK_USAGE = 2,   /* the call: a null pointer, memory that is too small, a pipeline that draws without an index */
  PENSTOCK_CONFIG = 3,  /* the job file, an override, or a checkpoint of another pipeline */
  PENSTOCK_DATASET = 4  /* a picture that cannot be used, where no statuses were asked for */
} penstock_result;

typedef enum penstock_dtype {
  PENSTOCK_UINT8 = 0,
  PENSTOCK_FLOAT32 = 2,
  PENSTOCK_FLOAT16 = 3,
  PENSTOCK_BFLOAT16 = 4
} penstock_dtype;

typedef struct penstock_pipeline penstock_pipeline;

/* Begin with PENSTOCK_OPTIONS, so that what is not said is as usual. */
typedef struct penstock_options {
  size_t size;
  const char* const* overrides; /* "splits.val.pipeline.0.Resize.size=256"; override_count of them */
  size_t override_count;
  int threads; /* that decode; 0: the job's loader.threads */
  int gpu;     /* -1: output is host memory; else the number of the GPU that it is on, as CUDA counts */
} penstock_options;
#define PENSTOCK_OPTIONS \
  { sizeof(penstock_options), NULL, 0, 0, -1 }

/* Begin with PENSTOCK_OUTPUT. One image of the output: [views,] channels, height, width, or with channels last; views is 1
 * but for FiveCrop and TenCrop. */
typedef struct penstock_output {
  size_t size;
  int32_t views;
  int32_t channels;
  int32_t height;
  int32_t width;
  int32_t dtype; /* penstock_dtype */
  int32_t channels_last;
  size_t bytes_per_image;
} penstock_output;
#define PENSTOCK_OUTPUT \
  { sizeof(penstock_output), 0, 0, 0, 0, 0, 0, 0 }

/* An encoded file. Pipelines that draw need the sample's index and epoch, and give what a loader gives for it; index -1:
 * none. */
typedef struct penstock_image {
  const void* bytes;
  size_t size;
  int64_t index;
  int64_t epoch;
  int64_t occurrence; /* how often the index stood earlier in the epoch */
} penstock_image;

/* Of one picture. One that is not usable is black in the output, finished like any other. */
typedef struct penstock_status {
  int32_t usable;
  char reason[252]; /* why not; empty where it is */
} penstock_status;

/* Opens the pipeline of a job's split. Its data set is not looked at, but the job has to name one: any folder does.
 * `options` may be NULL. */
penstock_result penstock_open(const char* job_file, const char* split, const penstock_options* options,
                              penstock_pipeline** pipeline);
/* The same of a job file's text. `name` stands in messages. */
penstock_result penstock_open_text(const char* job_text, const char* name, const char* split,
                                   const penstock_options* options, penstock_pipeline** pipeline);
/* NULL is nothing to close. */
void penstock_close(penstock_pipeline* pipeline);

penstock_result penstock_describe(const penstock_pipeline* pipeline, penstock_output* output);

/* Makes `count` images, one behind the other in `out`, which has `out_bytes` bytes: count * bytes_per_image at least, and is
 * aligned to the elements. `out` is host memory, or memory of the GPU that the options named; the call returns when all is
 * there. `statuses`: NULL, or `count` of them; without them the first picture that cannot be used is an error, and `out` is
 * as good as empty. */
penstock_result penstock_run(penstock_pipeline* pipeline, const penstock_image* images, size_t count, void* out,
                             size_t out_bytes, penstock_status* statuses);

/* 32 hexadecimal digits and a 0: equal exactly where transforms with all parameters, arithmetic and decoders are. */
penstock_result penstock_fingerprint(const penstock_pipeline* pipeline, char digits[33]);

/* PENSTOCK_CONFIG, and a text that names what differs, where `state` is of another pipeline. `state`: the text that a
 * DataLoader's or a Preprocessor's state_dict() keeps in a checkpoint. It is not trusted. */
penstock_result penstock_check(const penstock_pipeline* pipeline, const char* state);

/* Why this thread's last call failed, with a remedy; empty before any did. Good until the next call of this thread. */
const char* penstock_last_error(void);

/* "0.1.0", the library that is loaded. */
const char* penstock_version(void);

#ifdef __cplusplus
}
#endif

#endif
