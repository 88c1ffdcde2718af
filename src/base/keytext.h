/* Keys as text: 64 hex digits (configuration socket) and 44 characters of
 * base64 (wg(8) files), in constant time with respect to the key's value. */
#ifndef BASE_KEYTEXT_H
#define BASE_KEYTEXT_H

#include "base/compiler.h"
#include <stddef.h>
#include <stdint.h>

enum { KEY_HEX_LEN = 64, KEY_BASE64_LEN = 44, KEY_BYTES = 32 };

/* text has len characters, no terminator needed. 0, or -EINVAL when it is not
 * exactly a 32-byte key in that form. */
MUST_CHECK int key_from_hex(uint8_t key[KEY_BYTES], const char *text, size_t len);
MUST_CHECK int key_from_base64(uint8_t key[KEY_BYTES], const char *text, size_t len);

/* Write the text and a terminating NUL. */
void key_to_hex(char text[KEY_HEX_LEN + 1], const uint8_t key[KEY_BYTES]);
void key_to_base64(char text[KEY_BASE64_LEN + 1], const uint8_t key[KEY_BYTES]);

#endif
