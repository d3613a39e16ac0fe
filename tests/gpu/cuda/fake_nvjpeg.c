/* A library with nvJPEG's functions, as far as penstock calls them, that decodes nothing: it checks what it is given,
   and writes numbers that tell where a pixel is and which way it came (fake_pixel in nvjpeg_decoder_test.cpp). Compiled
   against the real header, so a function with other parameters does not compile. */
#include "tests/gpu/cuda/fake_nvjpeg.h"

#include <nvjpeg.h>
#include <stdlib.h>
#include <string.h>

enum { kHandle = 0x1a01, kState, kStream, kParams, kDecoder, kPinned, kDevice };

struct nvjpegHandle {
  int kind;
  nvjpegBackend_t backend;
  nvjpegDevAllocatorV2_t gpu;
};
struct nvjpegJpegState {
  int kind;
  nvjpegHandle_t handle;
  int batch;
  int pinned;
  int device;
};
struct nvjpegJpegStream {
  int kind;
  unsigned width;
  unsigned height;
  unsigned components;
  const unsigned char* data; /* of a whole parse */
  size_t length;
};
struct nvjpegDecodeParams {
  int kind;
  int format;
  int x, y, width, height;
};
struct nvjpegJpegDecoder {
  int kind;
};
struct nvjpegBufferPinned {
  int kind;
};
struct nvjpegBufferDevice {
  int kind;
};

static FakeNvjpeg fake;

FakeNvjpeg* fake_nvjpeg(void) {
  return &fake;
}

static int is(const void* object, int kind) {
  if (object != NULL && *(const int*)object == kind) return 1;
  ++fake.wrong;
  return 0;
}

static void* make(size_t bytes, int kind) {
  int* const object = calloc(1, bytes);
  *object = kind;
  ++fake.live;
  return object;
}

static nvjpegStatus_t end(void* object, int kind) {
  if (!is(object, kind)) return NVJPEG_STATUS_INVALID_PARAMETER;
  *(int*)object = 0;
  free(object);
  --fake.live;
  return NVJPEG_STATUS_SUCCESS;
}

nvjpegStatus_t nvjpegGetProperty(libraryPropertyType type, int* value) {
  *value = type == MAJOR_VERSION ? 13 : type == MINOR_VERSION ? 98 : 7;
  return NVJPEG_STATUS_SUCCESS;
}

nvjpegStatus_t nvjpegCreateExV2(nvjpegBackend_t backend, nvjpegDevAllocatorV2_t* gpu, nvjpegPinnedAllocatorV2_t* pinned,
                                unsigned int flags, nvjpegHandle_t* handle) {
  if (gpu == NULL || pinned == NULL) ++fake.wrong;
  if (fake.fail_create != 0) return (nvjpegStatus_t)fake.fail_create;
  if ((flags & (NVJPEG_FLAGS_UPSAMPLING_WITH_INTERPOLATION)) != 0 && fake.fail_interpolation != 0) {
    return (nvjpegStatus_t)fake.fail_interpolation;
  }
  if (backend == NVJPEG_BACKEND_HARDWARE && fake.engines == 0) return NVJPEG_STATUS_ARCH_MISMATCH;
  fake.flags = flags;
  *handle = make(sizeof **handle, kHandle);
  (*handle)->backend = backend;
  (*handle)->gpu = *gpu;
  return NVJPEG_STATUS_SUCCESS;
}
nvjpegStatus_t nvjpegDestroy(nvjpegHandle_t handle) {
  return end(handle, kHandle);
}

nvjpegStatus_t nvjpegGetHardwareDecoderInfo(nvjpegHandle_t handle, unsigned int* engines, unsigned int* cores) {
  if (!is(handle, kHandle)) return NVJPEG_STATUS_INVALID_PARAMETER;
  *engines = fake.engines;
  *cores = 1;
  return NVJPEG_STATUS_SUCCESS;
}

nvjpegStatus_t nvjpegJpegStateCreate(nvjpegHandle_t handle, nvjpegJpegState_t* state) {
  if (!is(handle, kHandle)) return NVJPEG_STATUS_INVALID_PARAMETER;
  *state = make(sizeof **state, kState);
  (*state)->handle = handle;
  return NVJPEG_STATUS_SUCCESS;
}
nvjpegStatus_t nvjpegDecoderStateCreate(nvjpegHandle_t handle, nvjpegJpegDecoder_t decoder, nvjpegJpegState_t* state) {
  if (!is(decoder, kDecoder)) return NVJPEG_STATUS_INVALID_PARAMETER;
  return nvjpegJpegStateCreate(handle, state);
}
nvjpegStatus_t nvjpegJpegStateDestroy(nvjpegJpegState_t state) {
  return end(state, kState);
}

nvjpegStatus_t nvjpegDecoderCreate(nvjpegHandle_t handle, nvjpegBackend_t backend, nvjpegJpegDecoder_t* decoder) {
  if (!is(handle, kHandle) || backend != handle->backend) return NVJPEG_STATUS_INVALID_PARAMETER;
  *decoder = make(sizeof **decoder, kDecoder);
  return NVJPEG_STATUS_SUCCESS;
}
nvjpegStatus_t nvjpegDecoderDestroy(nvjpegJpegDecoder_t decoder) {
  return end(decoder, kDecoder);
}

nvjpegStatus_t nvjpegBufferPinnedCreateV2(nvjpegHandle_t handle, nvjpegPinnedAllocatorV2_t* allocator,
                                          nvjpegBufferPinned_t* buffer) {
  if (!is(handle, kHandle) || allocator == NULL) return NVJPEG_STATUS_INVALID_PARAMETER;
  *buffer = make(sizeof **buffer, kPinned);
  return NVJPEG_STATUS_SUCCESS;
}
nvjpegStatus_t nvjpegBufferPinnedDestroy(nvjpegBufferPinned_t buffer) {
  return end(buffer, kPinned);
}
nvjpegStatus_t nvjpegBufferDeviceCreateV2(nvjpegHandle_t handle, nvjpegDevAllocatorV2_t* allocator,
                                          nvjpegBufferDevice_t* buffer) {
  if (!is(handle, kHandle) || allocator == NULL) return NVJPEG_STATUS_INVALID_PARAMETER;
  *buffer = make(sizeof **buffer, kDevice);
  return NVJPEG_STATUS_SUCCESS;
}
nvjpegStatus_t nvjpegBufferDeviceDestroy(nvjpegBufferDevice_t buffer) {
  return end(buffer, kDevice);
}
nvjpegStatus_t nvjpegStateAttachPinnedBuffer(nvjpegJpegState_t state, nvjpegBufferPinned_t buffer) {
  if (!is(state, kState) || !is(buffer, kPinned)) return NVJPEG_STATUS_INVALID_PARAMETER;
  state->pinned = 1;
  return NVJPEG_STATUS_SUCCESS;
}
nvjpegStatus_t nvjpegStateAttachDeviceBuffer(nvjpegJpegState_t state, nvjpegBufferDevice_t buffer) {
  if (!is(state, kState) || !is(buffer, kDevice)) return NVJPEG_STATUS_INVALID_PARAMETER;
  state->device = 1;
  return NVJPEG_STATUS_SUCCESS;
}

nvjpegStatus_t nvjpegJpegStreamCreate(nvjpegHandle_t handle, nvjpegJpegStream_t* stream) {
  if (!is(handle, kHandle)) return NVJPEG_STATUS_INVALID_PARAMETER;
  *stream = make(sizeof **stream, kStream);
  return NVJPEG_STATUS_SUCCESS;
}
nvjpegStatus_t nvjpegJpegStreamDestroy(nvjpegJpegStream_t stream) {
  return end(stream, kStream);
}

/* The first frame header. */
static nvjpegStatus_t read_frame(const unsigned char* data, size_t length, nvjpegJpegStream_t stream) {
  size_t at = 2;
  if (length < 4 || data[0] != 0xFF || data[1] != 0xD8) return NVJPEG_STATUS_BAD_JPEG;
  while (at + 10 <= length && data[at] == 0xFF) {
    if (data[at + 1] == 0xC0 || data[at + 1] == 0xC2) {
      stream->height = (unsigned)data[at + 5] << 8 | data[at + 6];
      stream->width = (unsigned)data[at + 7] << 8 | data[at + 8];
      stream->components = data[at + 9];
      return NVJPEG_STATUS_SUCCESS;
    }
    at += 2 + ((size_t)data[at + 2] << 8 | data[at + 3]);
  }
  return NVJPEG_STATUS_BAD_JPEG;
}

nvjpegStatus_t nvjpegJpegStreamParseHeader(nvjpegHandle_t handle, const unsigned char* data, size_t length,
                                           nvjpegJpegStream_t stream) {
  if (!is(handle, kHandle) || !is(stream, kStream)) return NVJPEG_STATUS_INVALID_PARAMETER;
  stream->data = NULL;
  return read_frame(data, length, stream);
}
nvjpegStatus_t nvjpegJpegStreamParse(nvjpegHandle_t handle, const unsigned char* data, size_t length, int save_metadata,
                                     int save_stream, nvjpegJpegStream_t stream) {
  const nvjpegStatus_t status = nvjpegJpegStreamParseHeader(handle, data, length, stream);
  if (save_metadata != 0 || save_stream != 0) ++fake.wrong; /* the file stays where it is */
  if (status != NVJPEG_STATUS_SUCCESS) return status;
  stream->data = data;
  stream->length = length;
  return NVJPEG_STATUS_SUCCESS;
}
nvjpegStatus_t nvjpegJpegStreamGetFrameDimensions(nvjpegJpegStream_t stream, unsigned int* width,
                                                  unsigned int* height) {
  if (!is(stream, kStream)) return NVJPEG_STATUS_INVALID_PARAMETER;
  *width = stream->width;
  *height = stream->height;
  return NVJPEG_STATUS_SUCCESS;
}
nvjpegStatus_t nvjpegJpegStreamGetComponentsNum(nvjpegJpegStream_t stream, unsigned int* components) {
  if (!is(stream, kStream)) return NVJPEG_STATUS_INVALID_PARAMETER;
  *components = stream->components;
  return NVJPEG_STATUS_SUCCESS;
}

nvjpegStatus_t nvjpegDecodeParamsCreate(nvjpegHandle_t handle, nvjpegDecodeParams_t* params) {
  if (!is(handle, kHandle)) return NVJPEG_STATUS_INVALID_PARAMETER;
  *params = make(sizeof **params, kParams);
  return NVJPEG_STATUS_SUCCESS;
}
nvjpegStatus_t nvjpegDecodeParamsDestroy(nvjpegDecodeParams_t params) {
  return end(params, kParams);
}
nvjpegStatus_t nvjpegDecodeParamsSetOutputFormat(nvjpegDecodeParams_t params, nvjpegOutputFormat_t format) {
  if (!is(params, kParams)) return NVJPEG_STATUS_INVALID_PARAMETER;
  params->format = (int)format;
  return NVJPEG_STATUS_SUCCESS;
}
nvjpegStatus_t nvjpegDecodeParamsSetROI(nvjpegDecodeParams_t params, int x, int y, int width, int height) {
  if (!is(params, kParams)) return NVJPEG_STATUS_INVALID_PARAMETER;
  params->x = x;
  params->y = y;
  params->width = width;
  params->height = height;
  return NVJPEG_STATUS_SUCCESS;
}

nvjpegStatus_t nvjpegDecodeBatchedSupportedEx(nvjpegHandle_t handle, nvjpegJpegStream_t stream,
                                              nvjpegDecodeParams_t params, int* not_supported) {
  if (!is(handle, kHandle) || !is(stream, kStream) || !is(params, kParams)) return NVJPEG_STATUS_INVALID_PARAMETER;
  if (handle->backend != NVJPEG_BACKEND_HARDWARE) ++fake.wrong;
  *not_supported = stream->width > fake.most_engine_width ? 1 : 0;
  return NVJPEG_STATUS_SUCCESS;
}

nvjpegStatus_t nvjpegDecodeBatchedInitialize(nvjpegHandle_t handle, nvjpegJpegState_t state, int batch, int threads,
                                             nvjpegOutputFormat_t format) {
  if (!is(handle, kHandle) || !is(state, kState) || state->handle != handle) return NVJPEG_STATUS_INVALID_PARAMETER;
  if (batch < 1 || threads < 1 || format != NVJPEG_OUTPUT_RGB) ++fake.wrong;
  state->batch = batch;
  return NVJPEG_STATUS_SUCCESS;
}

/* `way`: 0 engines, 1 a batch of kernels, 2 alone. */
static nvjpegStatus_t decode(nvjpegHandle_t handle, const unsigned char* data, size_t length,
                             const nvjpegImage_t* image, int x, int y, int width, int height, int way,
                             cudaStream_t stream) {
  struct nvjpegJpegStream headers = {kStream, 0, 0, 0, NULL, 0};
  void* memory = NULL;
  const nvjpegStatus_t status = read_frame(data, length, &headers);
  if (status != NVJPEG_STATUS_SUCCESS) return status;
  if (fake.bad_end != 0 && data[length - 1] == fake.bad_end) return NVJPEG_STATUS_BAD_JPEG;
  if (fake.picture_bytes > 0) {
    if (handle->gpu.dev_malloc(handle->gpu.dev_ctx, &memory, fake.picture_bytes, stream) != 0) {
      return NVJPEG_STATUS_ALLOCATOR_FAILURE;
    }
    memset(memory, 0x77, fake.picture_bytes);
    (void)handle->gpu.dev_free(handle->gpu.dev_ctx, memory, fake.picture_bytes, stream);
  }
  if (width < 0) {
    x = y = 0;
    width = (int)headers.width;
    height = (int)headers.height;
  }
  if (x + width > (int)headers.width || y + height > (int)headers.height) {
    ++fake.wrong;
    return NVJPEG_STATUS_INVALID_PARAMETER;
  }
  for (int c = 0; c < 3; ++c) {
    for (int row = 0; row < height; ++row) {
      for (int column = 0; column < width; ++column) {
        image->channel[c][(size_t)row * image->pitch[c] + (size_t)column] =
            (unsigned char)(4 * (x + column) + 8 * (y + row) + 64 * c + way);
      }
    }
  }
  return NVJPEG_STATUS_SUCCESS;
}

static nvjpegStatus_t decode_batch(nvjpegHandle_t handle, nvjpegJpegState_t state, const unsigned char* const* data,
                                   const size_t* lengths, nvjpegImage_t* images, nvjpegDecodeParams_t* params,
                                   cudaStream_t stream) {
  if (!is(handle, kHandle) || !is(state, kState) || state->batch < 1) return NVJPEG_STATUS_INVALID_PARAMETER;
  if (fake.fail_batch != 0) {
    const nvjpegStatus_t status = (nvjpegStatus_t)fake.fail_batch;
    fake.fail_batch = 0;
    return status;
  }
  for (int i = 0; i < state->batch; ++i) {
    const nvjpegDecodeParams_t p = params != NULL ? params[i] : NULL;
    if (p != NULL && (!is(p, kParams) || p->format != NVJPEG_OUTPUT_RGB)) return NVJPEG_STATUS_INVALID_PARAMETER;
    const nvjpegStatus_t status =
        p != NULL ? decode(handle, data[i], lengths[i], &images[i], p->x, p->y, p->width, p->height, 0, stream)
                  : decode(handle, data[i], lengths[i], &images[i], 0, 0, -1, -1, 1, stream);
    if (status != NVJPEG_STATUS_SUCCESS) return status;
  }
  *(params != NULL ? &fake.engine_batches : &fake.kernel_batches) += 1;
  *(params != NULL ? &fake.engine_pictures : &fake.kernel_pictures) += state->batch;
  return NVJPEG_STATUS_SUCCESS;
}

nvjpegStatus_t nvjpegDecodeBatched(nvjpegHandle_t handle, nvjpegJpegState_t state, const unsigned char* const* data,
                                   const size_t* lengths, nvjpegImage_t* images, cudaStream_t stream) {
  return decode_batch(handle, state, data, lengths, images, NULL, stream);
}
nvjpegStatus_t nvjpegDecodeBatchedEx(nvjpegHandle_t handle, nvjpegJpegState_t state, const unsigned char* const* data,
                                     const size_t* lengths, nvjpegImage_t* images, nvjpegDecodeParams_t* params,
                                     cudaStream_t stream) {
  if (!is(handle, kHandle) || handle->backend != NVJPEG_BACKEND_HARDWARE) {
    return NVJPEG_STATUS_IMPLEMENTATION_NOT_SUPPORTED;
  }
  return decode_batch(handle, state, data, lengths, images, params, stream);
}

nvjpegStatus_t nvjpegDecodeJpeg(nvjpegHandle_t handle, nvjpegJpegDecoder_t decoder, nvjpegJpegState_t state,
                                nvjpegJpegStream_t stream, nvjpegImage_t* image, nvjpegDecodeParams_t params,
                                cudaStream_t cuda) {
  if (!is(handle, kHandle) || !is(decoder, kDecoder) || !is(state, kState) || !is(stream, kStream) ||
      !is(params, kParams) || stream->data == NULL || !state->pinned || !state->device) {
    return NVJPEG_STATUS_INVALID_PARAMETER;
  }
  if (fake.in_flight != 0) ++fake.wrong; /* the buffers are somebody else's */
  if (fake.fail_one != 0) return (nvjpegStatus_t)fake.fail_one;
  const nvjpegStatus_t status =
      decode(handle, stream->data, stream->length, image, params->x, params->y, params->width, params->height, 2, cuda);
  fake.in_flight = 1;
  if (status == NVJPEG_STATUS_SUCCESS) ++fake.alone;
  return status;
}
