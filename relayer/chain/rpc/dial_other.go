//go:build !linux

package rpc

import "syscall"

// limitUnacknowledged does nothing where the system has no such bound; the deadlines of requests remain.
func limitUnacknowledged(_, _ string, _ syscall.RawConn) error { return nil }
