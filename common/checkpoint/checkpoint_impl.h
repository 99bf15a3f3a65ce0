/* Metadata of a file, and the match of its tensors to the model's. Only this folder includes this header. */
#ifndef COMMON_CHECKPOINT_CHECKPOINT_IMPL_H
#define COMMON_CHECKPOINT_CHECKPOINT_IMPL_H

#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/safetensors.h"

/* ---- metadata ------------------------------------------------------------------------------------ */

/* Texts that this program adds to the metadata of a safetensors file, under "psring.". */
#define METADATA_PREFIX "psring."
#define METADATA_DATA_HASH METADATA_PREFIX "data_xxh3"
#define METADATA_HEADER_HASH METADATA_PREFIX "header_xxh3"
enum { METADATA_HASH_DIGITS = 16 };

/* Returns the metadata as a JSON object, with zeros for the two hashes, or NULL if memory has run out. */
struct json_t *metadata_encode(const checkpoint_subject *subject, const checkpoint_progress *progress);

/* Returns the position of a hash's digits in the header's text, or NULL if they are not where this program
 * writes them. */
char *metadata_hash_digits(char *text, int64_t bytes, const char *key);

/* Returns XXH3 of the header's text, with zeros for the digits of the header's hash. */
status metadata_hash_header(const char *text, int64_t bytes, uint64_t *out);

/* Reads the metadata of a file and checks the header's hash. `data_hash` is set unless the file is
 * foreign. */
status metadata_decode(const safetensors_header *h, checkpoint_info *info, uint64_t *data_hash);

/* Fails with STATUS_DATA if the file has another model or another kind of optimizer than `subject`. */
status metadata_compare(const safetensors_header *h, const checkpoint_info *info,
                        const checkpoint_subject *subject);

/* Appends "name was A, is B" for every option whose value differs from the file's without being an error. */
void metadata_differences(const safetensors_header *h, const checkpoint_subject *subject, text_buffer *out);

/* Returns true if `path` names a checkpoint in several files, which --save NAME.index.json wrote until commit
 * 64fafa80. */
bool checkpoint_is_index(const char *path);

/* ---- tensors ------------------------------------------------------------------------------------- */

/* A tensor under two names: a tied weight in a file of state_dict(). */
typedef struct match_tied {
    const safetensors_tensor *one, *other;
} match_tied;

typedef struct match {
    const safetensors_tensor **found; /* [contents->count]; NULL for a num_batches_tracked that is missing */
    bool transposed;                  /* the matrices of match_is_conv1d() are [in, out] */
    match_tied *tied;
    int tied_count;
} match;

typedef struct match_request {
    const nn_model *model;
    const checkpoint_contents *contents;
    bool foreign;     /* accepts PyTorch's variations (match.c) */
    bool skips_state; /* ignores optimizer state in the file */
} match_request;

/* Finds every tensor of the contents and checks its type and shape. Fails with STATUS_DATA, naming missing,
 * unexpected or different tensors. */
status match_make(const safetensors_header *h, const match_request *request, match *out);
void match_free(match *m);

/* Returns true if parameters and buffers can be read from values of `type`. */
bool match_is_floating(dtype type);

/* Returns true if `name` is a matrix that Hugging Face's GPT-2 keeps in a Conv1D. */
bool match_is_conv1d(const char *name);

#endif
