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


def main(report: int, user: int | None, limits: dict[str, int], folder: str, command: list[str]) -> int:
    child = os.fork()
    if child == 0:
        try:
            become(report, user, limits, folder, command)
        except OSError as error:
            os.write(report, f" {error.strerror}".encode())
            os._exit(126)
    os.close(report)
    while True:  # orphans come here, too
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def become(report: int, user: int | None, limits: dict[str, int], folder: str, command: list[str]) -> None:
    for name, value in limits.items():
        number = getattr(resource, "RLIMIT_" + name)
        most = resource.getrlimit(number)[1]
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
    os._exit(main(*json.loads(sys.argv[1])))
