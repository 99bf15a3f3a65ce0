/* Functions that read and write the metadata of a file, and functions that match the tensors of a file to the
 * tensors of the model. Only this folder includes this header. */
#ifndef COMMON_CHECKPOINT_CHECKPOINT_IMPL_H
#define COMMON_CHECKPOINT_CHECKPOINT_IMPL_H

#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/safetensors.h"

/* ---- metadata ------------------------------------------------------------------------------------ */

/* Prefix of the keys that this program adds to the metadata of a safetensors file. */
#define METADATA_PREFIX "psring."
#define METADATA_DATA_HASH METADATA_PREFIX "data_xxh3"
#define METADATA_HEADER_HASH METADATA_PREFIX "header_xxh3"
enum { METADATA_HASH_DIGITS = 16 };

/* Returns the metadata as a JSON object, in which the two hashes are zeros. Returns NULL if memory has run
 * out. */
struct json_t *metadata_encode(const checkpoint_subject *subject, const checkpoint_progress *progress);

/* Returns the position of the digits of the hash `key` in the text of the header. Returns NULL if the digits
 * are not at the place where this program writes them. */
char *metadata_hash_digits(char *text, int64_t bytes, const char *key);

/* Computes XXH3 of the header's text, after replacing the digits of the header's hash by zeros. */
status metadata_hash_header(const char *text, int64_t bytes, uint64_t *out);

/* Reads the metadata of a file and checks the hash of the header. Sets *data_hash if this program wrote the
 * file. */
status metadata_decode(const safetensors_header *h, checkpoint_info *info, uint64_t *data_hash);

/* Fails with STATUS_DATA if the model or the kind of optimizer in the file differs from `subject`. */
status metadata_compare(const safetensors_header *h, const checkpoint_info *info,
                        const checkpoint_subject *subject);

/* Appends "name was A, is B" for every option whose value differs from the value in the file. Skips options
 * for which a difference is an error. */
void metadata_differences(const safetensors_header *h, const checkpoint_subject *subject, text_buffer *out);

/* Returns true if `path` is the index of a checkpoint in several files. Versions before commit 64fafa80 wrote
 * these checkpoints with "--save NAME.index.json". */
bool checkpoint_is_index(const char *path);

/* ---- tensors ------------------------------------------------------------------------------------- */

/* A tensor that the file contains under two names, such as a tied weight in a file that state_dict()
 * produced. */
typedef struct match_tied {
    const safetensors_tensor *one, *other;
} match_tied;

typedef struct match {
    /* [contents->count] The file's tensor for each tensor of the contents. The element is NULL for a
     * num_batches_tracked that the file does not contain. */
    const safetensors_tensor **found;
    /* true if the file stores as [in, out] the matrices for which match_is_conv1d() returns true */
    bool transposed;
    match_tied *tied;
    int tied_count;
} match;

typedef struct match_request {
    const nn_model *model;
    const checkpoint_contents *contents;
    bool foreign;     /* true to accept the variations of other programs (match.c) */
    bool skips_state; /* true to ignore optimizer state in the file */
} match_request;

/* Finds every tensor of the contents in the file, and checks its type and shape. Fails with STATUS_DATA if a
 * tensor is missing, unexpected or different. The error message names the tensor. */
status match_make(const safetensors_header *h, const match_request *request, match *out);
void match_free(match *m);

/* Returns true if `type` is a floating-point type from which parameters and buffers can be loaded. */
bool match_is_floating(dtype type);

/* Returns true if the tensor `name` is a matrix of a Conv1D layer in Hugging Face's GPT-2. */
bool match_is_conv1d(const char *name);

#endif
