//go:build !linux

package child

import "syscall"

func orphanEnds(*syscall.SysProcAttr) {}
