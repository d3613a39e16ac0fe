// What nccl_link_test tells the library of its own (fake_nccl.c), and hears of it.
#pragma once

#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  ncclResult_t init;       // of ncclCommInitRankConfig, where it is no success
  ncclResult_t move;       // of ncclSend and ncclRecv, the same
  int live;                // communicators; this and the next from any thread, atomically
  int wrong;               // calls that NCCL's manual forbids: two at once, none of a call's rank, a blocking one
  const char* last_error;  // ncclGetLastError's text
} FakeNccl;

FakeNccl* fake_nccl(void);

#ifdef __cplusplus
}
#endif
