/* Libraries that are opened at run time: the driver, cuDNN and cuBLASLt. Each library has a table of function
 * pointers, with the types that the toolkit's headers declare. */
#ifndef COMMON_DEVICE_CUDA_MODULE_LIBRARIES_H
#define COMMON_DEVICE_CUDA_MODULE_LIBRARIES_H

#include "common/device/cuda/module/cuda_impl.h"

#include <cuda.h>
#if PSRING_HAVE_CUBLASLT
#include <cublasLt.h>
#endif
#if PSRING_HAVE_CUDNN
#include <cudnn.h>
#endif
#include <stddef.h>

/* Columns: member of the table of functions, symbol in the library. */
#define DRIVER_FUNCTIONS(X) X(wait_value, cuStreamWaitValue64_v2) X(write_value, cuStreamWriteValue64_v2)

#define CUBLASLT_FUNCTIONS(X)                                                                                \
    X(create, cublasLtCreate)                                                                                \
    X(destroy, cublasLtDestroy)                                                                              \
    X(version, cublasLtGetVersion)                                                                           \
    X(status_text, cublasLtGetStatusString)                                                                  \
    X(matmul, cublasLtMatmul)                                                                                \
    X(layout_create, cublasLtMatrixLayoutCreate)                                                             \
    X(layout_destroy, cublasLtMatrixLayoutDestroy)                                                           \
    X(desc_create, cublasLtMatmulDescCreate)                                                                 \
    X(desc_destroy, cublasLtMatmulDescDestroy)                                                               \
    X(desc_set, cublasLtMatmulDescSetAttribute)                                                              \
    X(preference_create, cublasLtMatmulPreferenceCreate)                                                     \
    X(preference_destroy, cublasLtMatmulPreferenceDestroy)                                                   \
    X(preference_set, cublasLtMatmulPreferenceSetAttribute)                                                  \
    X(heuristic, cublasLtMatmulAlgoGetHeuristic)

#define CUDNN_FUNCTIONS(X)                                                                                   \
    X(create, cudnnCreate)                                                                                   \
    X(destroy, cudnnDestroy)                                                                                 \
    X(version, cudnnGetVersion)                                                                              \
    X(status_text, cudnnGetErrorString)                                                                      \
    X(set_stream, cudnnSetStream)                                                                            \
    X(tensor_create, cudnnCreateTensorDescriptor)                                                            \
    X(tensor_destroy, cudnnDestroyTensorDescriptor)                                                          \
    X(tensor_set, cudnnSetTensor4dDescriptor)                                                                \
    X(filter_create, cudnnCreateFilterDescriptor)                                                            \
    X(filter_destroy, cudnnDestroyFilterDescriptor)                                                          \
    X(filter_set, cudnnSetFilter4dDescriptor)                                                                \
    X(conv_create, cudnnCreateConvolutionDescriptor)                                                         \
    X(conv_destroy, cudnnDestroyConvolutionDescriptor)                                                       \
    X(conv_set, cudnnSetConvolution2dDescriptor)                                                             \
    X(conv_set_math, cudnnSetConvolutionMathType)                                                            \
    X(forward_find, cudnnGetConvolutionForwardAlgorithm_v7)                                                  \
    X(data_find, cudnnGetConvolutionBackwardDataAlgorithm_v7)                                                \
    X(filter_find, cudnnGetConvolutionBackwardFilterAlgorithm_v7)                                            \
    X(forward, cudnnConvolutionForward)                                                                      \
    X(backward_data, cudnnConvolutionBackwardData)                                                           \
    X(backward_filter, cudnnConvolutionBackwardFilter)                                                       \
    X(backend_create, cudnnBackendCreateDescriptor)                                                          \
    X(backend_destroy, cudnnBackendDestroyDescriptor)                                                        \
    X(backend_set, cudnnBackendSetAttribute)                                                                 \
    X(backend_get, cudnnBackendGetAttribute)                                                                 \
    X(backend_finalize, cudnnBackendFinalize)                                                                \
    X(backend_execute, cudnnBackendExecute)

#define LIBRARY_MEMBER(member, symbol) __typeof__(symbol) *member;
typedef struct driver_table {
    DRIVER_FUNCTIONS(LIBRARY_MEMBER)
} driver_table;
#if PSRING_HAVE_CUBLASLT
typedef struct cublaslt_table {
    CUBLASLT_FUNCTIONS(LIBRARY_MEMBER)
} cublaslt_table;
#endif
#if PSRING_HAVE_CUDNN
typedef struct cudnn_table {
    CUDNN_FUNCTIONS(LIBRARY_MEMBER)
} cudnn_table;
#endif

struct cuda_libraries {
    driver_table driver;
#if PSRING_HAVE_CUBLASLT
    cublaslt_table cublaslt;
#endif
#if PSRING_HAVE_CUDNN
    cudnn_table cudnn;
#endif
    cuda_found driver_found, cublaslt_found, cudnn_found; /* the versions are not set */
};

/* Opens the libraries that are installed. A library stays loaded until the process ends. */
void cuda_libraries_open(cuda_libraries *out);

/* Opens the first installed library of the list `names`, and fills `table` with pointers to the functions in
 * `symbols`, in the order of the list. Both lists end with NULL. Returns false and the reason if no library
 * is installed or a symbol is missing. */
bool cuda_library_open(const char *const *names, const char *const *symbols, void *table, char *why,
                       size_t size);
#define LIBRARY_SYMBOL(member, symbol) #symbol,

#endif
