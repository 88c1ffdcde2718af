/* Starts a program to which the kernel refuses some system calls, as a container's filter does.
 *
 *   refuse_calls ERROR CALL[,CALL...] PROGRAM [ARGUMENT...]
 *
 * ERROR is EPERM or ENOSYS. */
#include <errno.h>
#include <seccomp.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int die(const char *what, int err)
{
	fprintf(stderr, "refuse_calls: %s: %s\n", what, strerror(err));
	return 1;
}

int main(int argc, char **argv)
{
	bool is_eperm = argc > 1 && strcmp(argv[1], "EPERM") == 0;
	scmp_filter_ctx filter;
	int ret;

	if (argc < 4 || (!is_eperm && strcmp(argv[1], "ENOSYS") != 0)) {
		fprintf(stderr, "usage: refuse_calls EPERM|ENOSYS CALL[,CALL...] PROGRAM...\n");
		return 2;
	}
	filter = seccomp_init(SCMP_ACT_ALLOW);
	if (!filter)
		return die("seccomp_init", ENOMEM);
	/* Programs that get privileges when they are started keep them. */
	seccomp_attr_set(filter, SCMP_FLTATR_CTL_NNP, 0);
	for (char *call = strtok(argv[2], ","); call; call = strtok(NULL, ",")) {
		ret = seccomp_rule_add(filter, SCMP_ACT_ERRNO(is_eperm ? EPERM : ENOSYS),
			seccomp_syscall_resolve_name(call), 0);
		if (ret < 0)
			return die(call, -ret);
	}
	ret = seccomp_load(filter);
	if (ret < 0)
		return die("seccomp_load", -ret);
	seccomp_release(filter);
	execvp(argv[3], argv + 3);
	return die(argv[3], errno);
}
