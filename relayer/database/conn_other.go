//go:build !linux

package database

import "syscall"

// limitUnacknowledged is empty: this system lacks the limit, and the other limits hold.
func limitUnacknowledged(string, string, syscall.RawConn) error { return nil }
