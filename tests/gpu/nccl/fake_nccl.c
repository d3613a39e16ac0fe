/* NCCL's functions for two ranks, over a Unix-domain socket, for nccl_link_test: what is sent is moved while the caller asks
 * whether it is still in progress. A stream is any pointer. */
#define _GNU_SOURCE
#include "tests/gpu/nccl/fake_nccl.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef FAKE_NCCL_VERSION
#define FAKE_NCCL_VERSION 22809
#endif

struct ncclComm {
  int rank;
  int listening; /* or -1 */
  int socket;    /* or -1 */
  struct sockaddr_un address;
  socklen_t length;
  char* data; /* under way */
  size_t left;
  ncclResult_t state;
  atomic_int calls;
};

static FakeNccl fake;
static atomic_int number;

FakeNccl* fake_nccl(void) {
  return &fake;
}

static void enter(ncclComm_t comm) {
  if (atomic_fetch_add(&comm->calls, 1) != 0) (void)__atomic_add_fetch(&fake.wrong, 1, __ATOMIC_RELAXED);
}
static ncclResult_t leave(ncclComm_t comm, ncclResult_t result) {
  atomic_fetch_sub(&comm->calls, 1);
  return result;
}

ncclResult_t ncclGetVersion(int* version) {
  *version = FAKE_NCCL_VERSION;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  memset(id, 0, sizeof *id);
  snprintf(id->internal, sizeof id->internal, "fake-nccl-%d-%d", (int)getpid(), atomic_fetch_add(&number, 1));
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited or there was a network error" : "an error of the library";
}
const char* ncclGetLastError(ncclComm_t comm) {
  (void)comm;
  return fake.last_error;
}

static void step(ncclComm_t comm) {
  if (comm->state != ncclInProgress) return;
  if (comm->socket < 0) {
    if (comm->rank == 0) {
      comm->socket = accept4(comm->listening, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    } else {
      int socket_to = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      if (connect(socket_to, (struct sockaddr*)&comm->address, comm->length) == 0) {
        comm->socket = socket_to;
      } else {
        close(socket_to);
      }
    }
    if (comm->socket >= 0) comm->state = ncclSuccess;
    return;
  }
  while (comm->left > 0) {
    ssize_t moved = comm->rank == 0 ? send(comm->socket, comm->data, comm->left, MSG_NOSIGNAL)
                                    : recv(comm->socket, comm->data, comm->left, 0);
    if (moved < 0 && errno == EAGAIN) return;
    if (moved <= 0) {
      comm->state = ncclRemoteError;
      return;
    }
    comm->data += moved;
    comm->left -= (size_t)moved;
  }
  comm->state = ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (nranks != 2 || config->blocking != 0) (void)__atomic_add_fetch(&fake.wrong, 1, __ATOMIC_RELAXED);
  if (fake.init != ncclSuccess) return fake.init;
  ncclComm_t made = calloc(1, sizeof *made);
  made->rank = rank;
  made->listening = made->socket = -1;
  made->address.sun_family = AF_UNIX;
  memcpy(made->address.sun_path + 1, id.internal, strlen(id.internal));
  made->length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(id.internal));
  made->state = ncclInProgress;
  if (rank == 0) {
    made->listening = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (bind(made->listening, (struct sockaddr*)&made->address, made->length) != 0 || listen(made->listening, 1) != 0) {
      close(made->listening);
      free(made);
      return ncclSystemError;
    }
  }
  (void)__atomic_add_fetch(&fake.live, 1, __ATOMIC_RELAXED);
  *comm = made;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  enter(comm);
  step(comm);
  char byte;
  if (comm->state == ncclSuccess && comm->socket >= 0 && recv(comm->socket, &byte, 1, MSG_PEEK) == 0)
    comm->state = ncclRemoteError;
  *state = comm->state;
  return leave(comm, ncclSuccess);
}

static ncclResult_t move(ncclComm_t comm, void* data, size_t count, ncclDataType_t type, int peer, int rank,
                         void* stream) {
  enter(comm);
  if (comm->rank != rank || peer != 1 - rank || type != ncclUint8 || stream == NULL || comm->state != ncclSuccess)
    (void)__atomic_add_fetch(&fake.wrong, 1, __ATOMIC_RELAXED);
  if (fake.move != ncclSuccess) return leave(comm, fake.move);
  comm->data = data;
  comm->left = count;
  comm->state = ncclInProgress;
  return leave(comm, ncclInProgress);
}
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return move(comm, (void*)data, count, type, peer, 0, stream);
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return move(comm, data, count, type, peer, 1, stream);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  enter(comm);
  if (comm->socket >= 0) close(comm->socket);
  if (comm->listening >= 0) close(comm->listening);
  free(comm);
  (void)__atomic_sub_fetch(&fake.live, 1, __ATOMIC_RELAXED);
  return ncclSuccess;
}
