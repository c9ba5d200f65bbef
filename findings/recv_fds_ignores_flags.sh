#!/bin/sh
# Guess: socket.recv_fds(sock, bufsize, maxfds, socket.MSG_CMSG_CLOEXEC) returns descriptors that no child inherits, as
#   recvmsg does with this flag. The documentation gives recv_fds a parameter `flags`.
# What happens: recv_fds does not pass `flags` on to recvmsg. The descriptors are inheritable, so a process that is
#   started afterwards without close_fds keeps them. MSG_PEEK is ignored too: the message is consumed. send_fds ignores
#   its `flags` in the same way.
# Instead: call sock.recvmsg(bufsize, socket.CMSG_LEN(...), socket.MSG_CMSG_CLOEXEC).
# Version: CPython 3.9 to 3.13 (seen with 3.9.18, 3.10.13, 3.11.7, 3.12.1, 3.13.0), Linux.
# Source: Lib/socket.py, recv_fds: `msg, ancdata, flags, addr = sock.recvmsg(bufsize, _socket.CMSG_LEN(...))`.
# Needs no package. Fails if the behaviour changes.
set -eu
"${PYTHON:-python3}" - <<'PYTHON'
import array, os, socket, sys

print("python", sys.version.split()[0])
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
reader, _ = os.pipe()

socket.send_fds(theirs, [b"x"], [reader])
_, (received,), _, _ = socket.recv_fds(ours, 16, 1, socket.MSG_CMSG_CLOEXEC)
by_helper = os.get_inheritable(received)

socket.send_fds(theirs, [b"x"], [reader])
_, ((_, _, data),), _, _ = ours.recvmsg(16, socket.CMSG_LEN(4), socket.MSG_CMSG_CLOEXEC)
by_recvmsg = os.get_inheritable(array.array("i", data)[0])

socket.send_fds(theirs, [b"y"], [reader])
socket.recv_fds(ours, 16, 1, socket.MSG_PEEK)
ours.setblocking(False)
try:
    peeked = ours.recv(16)
except BlockingIOError:
    peeked = None

print("recv_fds with MSG_CMSG_CLOEXEC: inheritable =", by_helper)
print("recvmsg with MSG_CMSG_CLOEXEC: inheritable =", by_recvmsg)
print("after recv_fds with MSG_PEEK there is still:", peeked)
sys.exit(0 if (by_helper, by_recvmsg, peeked) == (True, False, None) else "the behaviour has changed")
PYTHON
