/* Serving from C: what a split's pipeline makes of pictures, into memory of the program's own.
 *
 *   cc -std=c99 preprocess.c -I PREFIX/include/penstock -L PREFIX/lib -lpenstock_c -Wl,-rpath,PREFIX/lib -o preprocess
 *   ./preprocess job.yaml val PICTURE [PICTURE...]
 *
 * Prints each picture's shape and mean, or why it cannot be used. */
#include <stdio.h>
#include <stdlib.h>

#include "bindings/c/penstock.h"

static void* read_file(const char* path, size_t* size) {
  FILE* file = fopen(path, "rb");
  char* bytes = NULL;
  long end = -1;
  *size = 0;
  if (file != NULL && fseek(file, 0, SEEK_END) == 0) end = ftell(file);
  if (end >= 0 && fseek(file, 0, SEEK_SET) == 0) bytes = malloc((size_t)end + 1);
  if (bytes != NULL) *size = fread(bytes, 1, (size_t)end, file);
  if (file != NULL) fclose(file);
  return bytes;
}

static int fail(void) {
  fprintf(stderr, "preprocess: %s\n", penstock_last_error());
  return 1;
}

int main(int argc, char** argv) {
  penstock_pipeline* pipeline = NULL;
  penstock_output output = PENSTOCK_OUTPUT;
  size_t count = argc > 3 ? (size_t)argc - 3 : 0;
  size_t i, j;
  penstock_image* images = calloc(count + 1, sizeof *images);
  penstock_status* statuses = calloc(count + 1, sizeof *statuses);
  float* memory;
  char fingerprint[33];

  if (count == 0 || images == NULL || statuses == NULL) {
    fprintf(stderr, "usage: preprocess JOB SPLIT PICTURE...\n");
    return 2;
  }
  if (penstock_open(argv[1], argv[2], NULL, &pipeline) != PENSTOCK_OK) return fail();
  if (penstock_describe(pipeline, &output) != PENSTOCK_OK || penstock_fingerprint(pipeline, fingerprint) != PENSTOCK_OK)
    return fail();
  if (output.dtype != PENSTOCK_FLOAT32) {
    fprintf(stderr, "preprocess: this program takes float32; the job's ToDtype says another type\n");
    return 1;
  }
  for (i = 0; i < count; ++i) {
    images[i].bytes = read_file(argv[i + 3], &images[i].size);
    images[i].index = -1; /* nothing is drawn in a split for evaluation */
    if (images[i].bytes == NULL) {
      fprintf(stderr, "preprocess: cannot read '%s'\n", argv[i + 3]);
      return 1;
    }
  }
  memory = malloc(count * output.bytes_per_image);
  if (memory == NULL ||
      penstock_run(pipeline, images, count, memory, count * output.bytes_per_image, statuses) != PENSTOCK_OK) {
    return fail();
  }
  printf("pipeline %s, penstock %s\n", fingerprint, penstock_version());
  for (i = 0; i < count; ++i) {
    const size_t values = output.bytes_per_image / sizeof(float);
    double sum = 0;
    for (j = 0; j < values; ++j) sum += memory[i * values + j];
    if (statuses[i].usable) {
      printf("%s: [%d, %d, %d], mean %.4f\n", argv[i + 3], (int)output.channels, (int)output.height, (int)output.width,
             sum / (double)values);
    } else {
      printf("%s: %s\n", argv[i + 3], statuses[i].reason);
    }
    free((void*)images[i].bytes);
  }
  free(memory);
  free(images);
  free(statuses);
  penstock_close(pipeline);
  return 0;
}
