//go:build !linux

package database

import "syscall"

// limitUnacknowledged does nothing: there is no such limit here, and the other limits hold.
func limitUnacknowledged(string, string, syscall.RawConn) error { return nil }
