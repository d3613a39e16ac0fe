/* What a test tells the library of fake_nvjpeg.c, and what that has seen: plain data, found by name. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  /* Told. */
  unsigned engines;            /* 0: NVJPEG_BACKEND_HARDWARE is not there */
  unsigned most_engine_width;  /* pictures of more width are none for the engines */
  int fail_create;             /* status of the next creations of a handle; 0: success */
  int fail_interpolation;      /* handles with that flag are refused with this status */
  int fail_batch;              /* status of the next batch */
  int fail_one;                /* status of each picture that goes alone */
  unsigned char bad_end;       /* files that end in this byte are NVJPEG_STATUS_BAD_JPEG when decoded; 0: none */
  unsigned long picture_bytes; /* allocated on the GPU while a picture is decoded; 0: nothing */

  /* Seen. */
  int live;  /* objects that nobody has ended */
  int wrong; /* calls with an object that is none, or another's; sizes that do not agree */
  int engine_batches;
  int kernel_batches;
  int alone;
  int engine_pictures;
  int kernel_pictures;
  int in_flight;  /* a picture that went alone is in the buffers: whoever waits for the stream sets 0 */
  unsigned flags; /* of the last handle */
} FakeNvjpeg;

FakeNvjpeg* fake_nvjpeg(void);

#ifdef __cplusplus
}
#endif
