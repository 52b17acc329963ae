/* The C ABI between rota's text room and its Rust library: tokenizer.json and chat templates.
 *
 * Contract: no call unwinds into the caller: a panic is an error. Every fallible call returns a
 * RotaTextCode and, unless it is kRotaTextOk, an owned message in *error. Owned buffers go back through
 * rota_text_free_*. Handles are immutable: any thread may use them at the same time. Keep in step with
 * src/abi.rs. */
#ifndef ROTA_TEXT_RUST_ROTA_TEXT_H_
#define ROTA_TEXT_RUST_ROTA_TEXT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct RotaTokenizer RotaTokenizer;
typedef struct RotaTemplate RotaTemplate;

typedef enum RotaTextCode {
  kRotaTextOk = 0,
  kRotaTextInvalid = 1,     /* the caller's text or value */
  kRotaTextDamaged = 2,     /* the file */
  kRotaTextUnsupported = 3, /* well-formed, but not served */
  kRotaTextInternal = 4     /* a panic on the Rust side */
} RotaTextCode;

typedef struct RotaView {
  const char* data;
  size_t size;
} RotaView;

typedef struct RotaBuffer {
  char* data;
  size_t size;
  size_t capacity;
} RotaBuffer;

typedef struct RotaIds {
  int32_t* data;
  size_t size;
  size_t capacity;
} RotaIds;

/* What one token adds to a text: bytes[begin, begin + size). */
typedef struct RotaToken {
  uint32_t begin;
  uint32_t size;
  uint8_t present; /* 0: no token has this id */
  uint8_t special;
  uint8_t byte; /* a byte of the byte fallback */
  uint8_t reserved;
} RotaToken;

/* Borrowed from the handle. */
typedef struct RotaTokenTable {
  const char* bytes;
  const RotaToken* tokens; /* by id */
  size_t count;
  uint8_t byte_fallback;
  uint8_t strip_only_first_token;
  uint8_t space_between_tokens;
  uint32_t strip_leading_spaces;
  size_t max_text_bytes; /* of a text, those with a token, that one token stands for; 0: no bound */
} RotaTokenTable;

enum { kRotaSpecialParse = 0, kRotaSpecialAsText = 1, kRotaSpecialChat = 2 };

/* Code point first + k stands for originals[k]. */
typedef struct RotaMarkers {
  uint32_t first;
  const uint32_t* originals;
  size_t count;
} RotaMarkers;

typedef struct RotaEncodeOptions {
  int32_t special; /* kRotaSpecial... */
  uint8_t add_special_tokens;
  RotaMarkers markers;
} RotaEncodeOptions;

typedef struct RotaRenderOptions {
  uint64_t fuel;        /* instructions; a byte of data made costs 1/64 */
  size_t max_output;    /* bytes */
  int64_t unix_seconds; /* what strftime_now says, in local time */
  RotaMarkers markers;  /* left alone by tojson(ensure_ascii=true) */
} RotaRenderOptions;

RotaTextCode rota_tokenizer_load(RotaView json, RotaTokenizer** out, RotaBuffer* error);
void rota_tokenizer_free(RotaTokenizer* tokenizer);
RotaTokenTable rota_tokenizer_table(const RotaTokenizer* tokenizer);
int32_t rota_tokenizer_id_of(const RotaTokenizer* tokenizer, RotaView token); /* -1: none */
RotaTextCode rota_tokenizer_encode(const RotaTokenizer* tokenizer, RotaView text,
                                   const RotaEncodeOptions* options, RotaIds* out,
                                   RotaBuffer* error);

RotaTextCode rota_template_compile(RotaView source, RotaTemplate** out, RotaBuffer* error);
void rota_template_free(RotaTemplate* compiled);
/* context_json: an object; its members are the template's variables. */
RotaTextCode rota_template_render(const RotaTemplate* compiled, RotaView context_json,
                                  const RotaRenderOptions* options, RotaBuffer* out,
                                  RotaBuffer* error);

void rota_text_free_buffer(RotaBuffer buffer);
void rota_text_free_ids(RotaIds ids);

#ifdef __cplusplus
}
#endif
#endif
