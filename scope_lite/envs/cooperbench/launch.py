"""Process 1 of a sandbox: sets the command's limits, gives up root, runs it, and ends when it has ended.

``sandbox`` runs this text with a Python of its own, inside bubblewrap; nothing of the package is imported. The kernel
ends with process 1 all that the command left behind. One argument, as JSON: a descriptor to report on, the user id to
become (null: stay), limits by the names of ``resource``, where to start, the command. It reports "started", or why not.
"""

from __future__ import annotations

import json
import os
import resource
import sys


def become(report: int, user: int | None, limits: dict[str, int], folder: str, command: list[str]) -> None:
    for name, value in limits.items():
        most = resource.getrlimit(number := getattr(resource, f"RLIMIT_{name}"))[1]
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(number, (value, value))
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    os.chdir(folder)
    os.set_inheritable(report, False)
    os.write(report, b"started")
    os.execvp(command[0], command)


if __name__ == "__main__":
    report, *how = json.loads(sys.argv[1])
    child = os.fork()
    if child == 0:
        try:
            become(report, *how)
        except OSError as error:
            os.write(report, f" {error.strerror}".encode())
            os._exit(126)
    os.close(report)
    while (ended := os.wait())[0] != child:  # orphans come here, too
        pass
    code = os.waitstatus_to_exitcode(ended[1])
    os._exit(code if code >= 0 else 128 - code)
