/* What this program adds to a safetensors file: texts in its metadata, under "psring.". */
#ifndef COMMON_CHECKPOINT_METADATA_H
#define COMMON_CHECKPOINT_METADATA_H

#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/safetensors.h"

#define METADATA_PREFIX "psring."
#define METADATA_DATA_HASH METADATA_PREFIX "data_xxh3"
#define METADATA_HEADER_HASH METADATA_PREFIX "header_xxh3"
enum { METADATA_HASH_DIGITS = 16 };

/* The metadata as a JSON object, with zeros for the two hashes; NULL without memory. */
struct json_t *metadata_encode(const checkpoint_subject *subject, const checkpoint_progress *progress);

/* Where in a header's text the digits of a hash stand; NULL if they do not, as this program writes them. */
char *metadata_hash_digits(char *text, int64_t bytes, const char *key);

/* XXH3 of the header's text with zeros for the digits of the header's own hash. */
status metadata_hash_header(const char *text, int64_t bytes, uint64_t *out);

/* Reads the metadata of a file, and checks the header's hash. `data_hash` is set where the file is not
 * foreign. */
status metadata_decode(const safetensors_header *h, checkpoint_info *info, uint64_t *data_hash);

/* STATUS_DATA if the file is of another model or another kind of optimizer than `subject`. */
status metadata_compare(const safetensors_header *h, const checkpoint_info *info,
                        const checkpoint_subject *subject);

/* Appends "name was A, is B" for every option that may differ and does. */
void metadata_differences(const safetensors_header *h, const checkpoint_subject *subject, text_buffer *out);

#endif
