/* A parcel: type 4, then a mark, its number and its time where WireGuard has receiver
 * index, counter and ciphertext, then words that follow from their places. */
#include "bench/engines_math.h"
#include "base/bytes.h"
#include "wire/wgmsg.h"

enum {
	AT_MARK = 4,
	AT_NUMBER = 8,
	AT_SENT = 16,
	AT_WORDS = 24,
	WORD_STEP = 0x9e3779b1, /* odd: no two words of a parcel are alike */
};
#define MARK 0x7061726bU

static uint32_t word(size_t at)
{
	return (uint32_t)(at + 1) * (uint32_t)WORD_STEP;
}

void parcel_init(uint8_t *out, size_t len)
{
	assert(len >= PARCEL_LEN_MIN);
	assert(len % 4 == 0);
	put_le32(out, WGMSG_DATA);
	put_le32(out + AT_MARK, MARK);
	parcel_stamp(out, 0, 0);
	for (size_t at = AT_WORDS; at < len; at += 4)
		put_le32(out + at, word(at));
}

void parcel_stamp(uint8_t *parcel, uint64_t number, uint64_t sent_ns)
{
	put_le64(parcel + AT_NUMBER, number);
	put_le64(parcel + AT_SENT, sent_ns);
}

/* The first and the last words stand for all: looking at each would be most of the work. */
bool parcel_is_good(const uint8_t *parcel, size_t len, size_t len_wanted)
{
	return len == len_wanted && get_le32(parcel) == WGMSG_DATA &&
		get_le32(parcel + AT_MARK) == MARK &&
		get_le32(parcel + AT_WORDS) == word(AT_WORDS) &&
		get_le32(parcel + len - 4) == word(len - 4);
}

uint64_t parcel_number(const uint8_t *parcel)
{
	return get_le64(parcel + AT_NUMBER);
}

uint64_t parcel_sent_ns(const uint8_t *parcel)
{
	return get_le64(parcel + AT_SENT);
}

void rate_search_init(struct rate_search *s, double first, double max)
{
	assert(first > 0);
	assert(first <= max);
	*s = (struct rate_search){ .next = first, .max = max };
}

bool rate_search_step(struct rate_search *s, bool is_good)
{
	if (is_good)
		s->good = s->next > s->good ? s->next : s->good;
	else if (s->bad == 0 || s->next < s->bad)
		s->bad = s->next;
	s->n_steps++;
	if (s->n_steps == RATE_STEPS_MAX || s->good >= s->max)
		return false;
	if (s->bad == 0) {
		s->next = s->good * 2 < s->max ? s->good * 2 : s->max;
		return true;
	}
	s->next = (s->good + s->bad) / 2;
	return s->bad > s->good * 1.1;
}
