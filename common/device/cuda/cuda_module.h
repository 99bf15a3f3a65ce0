/* Between the program and libpsring_cuda.so, which holds all that needs the CUDA Toolkit. The program opens
 * it at run time, so one installation starts with and without driver, cuDNN, cuBLASLt and NCCL: the module
 * itself needs none of them to be opened, and looks for each at run time.
 *
 * The module has no copy of the program's error record and log: the program exports their functions to it
 * (CMakeLists.txt). */
#ifndef COMMON_DEVICE_CUDA_CUDA_MODULE_H
#define COMMON_DEVICE_CUDA_CUDA_MODULE_H

#include "common/device/device_impl.h"

#define CUDA_MODULE_LAYOUT                                                                                   \
    (sizeof(device_backend) * 4096 + sizeof(op_desc) + sizeof(device_config) + sizeof(op_scalars) +          \
     sizeof(device_layout))
enum { CUDA_MODULE_VERSION = 1, CUDA_MOST_GPUS = 16 };
#define CUDA_MODULE_SYMBOL "psring_cuda_module"

typedef struct cuda_gpu {
    char name[128];
    int major, minor; /* compute capability */
    int64_t memory_bytes;
    bool runs; /* the module holds code for it */
} cuda_gpu;

/* A library that is looked for at run time. */
typedef struct cuda_found {
    char version[64]; /* "" where it is missing */
    char why[192];    /* why it cannot be used; "" where it can */
} cuda_found;

typedef struct cuda_probe {
    char toolkit[32];       /* "13.0": built with */
    char architectures[96]; /* "75 80 90 and PTX" */
    cuda_found driver, cudnn, cublaslt;
    bool emulated; /* no GPU at all: kernels run on the host, for tests */
    int gpu_count;
    cuda_gpu gpus[CUDA_MOST_GPUS]; /* the first of them */
} cuda_probe;

typedef struct cuda_module {
    int version;
    size_t layout;           /* CUDA_MODULE_LAYOUT: program and module were built from the same headers */
    int (*count_gpus)(void); /* 0 where none can be used */
    void (*probe)(cuda_probe *out); /* opens every library: slow */
    const device_backend *backend;
} cuda_module;

/* Opens the module from the program's folder, the installed folder relative to it, or the build folder;
 * PSRING_CUDA_MODULE in the environment names another file. The message of STATUS_UNAVAILABLE has the reason.
 * It stays open for the life of the process. */
status cuda_module_open(const cuda_module **out);

/* Another table of the module, by its symbol; NULL where the module was built without it. */
status cuda_module_find(const char *symbol, const void **out);

/* The number of usable GPUs; never fails. */
int cuda_count_gpus(void);

#endif
