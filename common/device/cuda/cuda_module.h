/* The interface between the program and libpsring_cuda.so, the only file that needs the CUDA Toolkit.
 *
 * The program opens the module at run time. The module opens the driver, cuDNN, cuBLASLt and NCCL at run
 * time, too. One installation therefore runs on machines with and without these libraries.
 *
 * The module uses the program's error record and log: the program exports the functions of both
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
    bool runs; /* true if the module has code for this GPU */
} cuda_gpu;

typedef struct cuda_found {
    char version[64]; /* "" if the library is missing */
    char why[192];    /* reason why the library cannot be used, or "" if it can be used */
} cuda_found;

typedef struct cuda_probe {
    char toolkit[32];       /* version of the toolkit that built the module, for example "13.0" */
    char architectures[96]; /* GPU architectures for which the module has code, such as "75 80 90 and PTX" */
    cuda_found driver, cudnn, cublaslt;
    bool emulated; /* true if kernels run on the host instead of a GPU, for tests */
    int gpu_count;
    cuda_gpu gpus[CUDA_MOST_GPUS];
} cuda_probe;

typedef struct cuda_module {
    int version;
    /* CUDA_MODULE_LAYOUT. The value in the module differs from the value in the program if the module and the
     * program were built from different headers. */
    size_t layout;
    int (*count_gpus)(void);        /* returns 0 if no GPU can be used */
    void (*probe)(cuda_probe *out); /* this call is slow, because it opens every library */
    const device_backend *backend;
} cuda_module;

/* Opens the module from the program's folder, from ../lib/psring relative to that folder, or from the build
 * folder. The environment variable PSRING_CUDA_MODULE names a different file. Fails with STATUS_UNAVAILABLE
 * and the reason if the module cannot be used. The module stays open until the process ends. */
status cuda_module_open(const cuda_module **out);

/* Finds another table of functions in the module by the table's symbol. *out is NULL if the module was built
 * without this table. */
status cuda_module_find(const char *symbol, const void **out);

/* Returns the number of usable GPUs, or 0 if the module cannot be opened. */
int cuda_count_gpus(void);

#endif
