//go:build !linux

package election

func systemClock() Clock { return monotonic() }
