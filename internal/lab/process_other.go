//go:build !linux

package lab

import "syscall"

func orphanEnds(*syscall.SysProcAttr) {}
