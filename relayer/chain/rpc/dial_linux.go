package rpc

import "syscall"

// tcpUserTimeout is TCP_USER_TIMEOUT of tcp(7), in milliseconds; package syscall lacks it.
const tcpUserTimeout = 0x12

func limitUnacknowledged(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		// A kernel without it keeps its default, some 15 minutes; the deadlines of requests remain.
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(unacknowledged.Milliseconds()))
	})
}
