//go:build !linux

package database

import "syscall"

// limitUnacknowledged does nothing: the other limits stand.
func limitUnacknowledged(string, string, syscall.RawConn) error { return nil }
