/* NCCL's functions, found at run time. Part of the module. */
#ifndef RING_COLLECTIVES_NCCL_NCCL_LIBRARY_H
#define RING_COLLECTIVES_NCCL_NCCL_LIBRARY_H

#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>

/* member, symbol */
#define NCCL_FUNCTIONS(X)                                                                                              \
    X(version, ncclGetVersion)                                                                                         \
    X(unique_id, ncclGetUniqueId)                                                                                      \
    X(init, ncclCommInitRankConfig)                                                                                    \
    X(split, ncclCommSplit)                                                                                            \
    X(async_error, ncclCommGetAsyncError)                                                                              \
    X(abort, ncclCommAbort)                                                                                            \
    X(destroy, ncclCommDestroy)                                                                                        \
    X(error_text, ncclGetErrorString)                                                                                  \
    X(last_error, ncclGetLastError)                                                                                    \
    X(group_start, ncclGroupStart)                                                                                     \
    X(group_end, ncclGroupEnd)                                                                                         \
    X(all_reduce, ncclAllReduce)                                                                                       \
    X(reduce, ncclReduce)                                                                                              \
    X(broadcast, ncclBroadcast)                                                                                        \
    X(send, ncclSend)                                                                                                  \
    X(receive, ncclRecv)

#define NCCL_MEMBER(member, symbol) __typeof__(symbol) *member;
typedef struct nccl_library {
    NCCL_FUNCTIONS(NCCL_MEMBER)
} nccl_library;

/* Fills the table; false, and the reason, where NCCL is missing or older than 2.19. */
bool nccl_library_open(nccl_library *out, char *why, size_t size);

#endif
