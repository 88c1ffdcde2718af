/* Lists of reasons that are counted, X(NAME, "key", "a sentence") for each, and what
 * all of them need: the key for machines and the sentence for people.
 *
 *     #define FISH_DROPS(X) X(WET, "wet", "it was wet") X(DRY, "dry", "it was dry")
 *     enum fish_drop { ... in the order of the list ... };
 *     REASONS_DEFINE(fish_drop, FISH_DROPS)
 *
 * defines fish_drop_key(enum fish_drop) and fish_drop_text(enum fish_drop). */
#ifndef BASE_REASONS_H
#define BASE_REASONS_H

#define REASONS_KEY(name, key, text) key,
#define REASONS_TEXT(name, key, text) text,

#define REASONS_DEFINE(what, LIST)                                         \
	const char *what##_key(enum what i)                                \
	{                                                                  \
		static const char *const keys[] = { LIST(REASONS_KEY) };   \
                                                                           \
		return keys[i];                                            \
	}                                                                  \
                                                                           \
	const char *what##_text(enum what i)                               \
	{                                                                  \
		static const char *const texts[] = { LIST(REASONS_TEXT) }; \
                                                                           \
		return texts[i];                                           \
	}

#endif
