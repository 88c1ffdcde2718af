#include "gateway/handshake_item.h"
#include <string.h>

bool handshake_item_push(
	struct queue *q, const uint8_t *msg, uint32_t len, const struct wg_endpoint *from)
{
	struct handshake_item item = { .from = *from, .len = (uint8_t)len };

	assert(len <= sizeof(item.msg));
	memcpy(item.msg, msg, len);
	return queue_push(q, &item);
}
