/* The driver's functions that the module uses, emulated. */
#ifndef TESTS_GPU_EMULATOR_CUDA_H
#define TESTS_GPU_EMULATOR_CUDA_H

#include <stdint.h>

typedef struct emulated_stream *CUstream;
typedef unsigned long long CUdeviceptr;
typedef enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_NOT_SUPPORTED = 801 } CUresult;
enum { CU_STREAM_WRITE_VALUE_DEFAULT = 0, CU_STREAM_WAIT_VALUE_GEQ = 0 };

CUresult cuStreamWaitValue64_v2(CUstream s, CUdeviceptr address, uint64_t value, unsigned flags);
CUresult cuStreamWriteValue64_v2(CUstream s, CUdeviceptr address, uint64_t value, unsigned flags);

#endif
