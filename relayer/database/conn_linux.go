package database

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// limitUnacknowledged sets TCP_USER_TIMEOUT (tcp(7)).
func limitUnacknowledged(network, _ string, conn syscall.RawConn) (err error) {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}

	if e := conn.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacknowledged.Milliseconds()))
	}); e != nil {
		return e
	}

	return err
}
